# SPDX-License-Identifier: Apache-2.0
"""Measured kernels of a few rows or columns of D, and how their model (`cutegemm.planning.gemv_tiles`) ranks them.

    python -m benchmarks.fit_few_rows draw --seeds 155,156 --counts odd_skinny=12,decode=8 --out jobs.json
    python -m benchmarks.sweep_jobs --jobs jobs.json --out sweep.jsonl          # measures them
    python -m benchmarks.fit_few_rows table --jobs jobs.json --lines sweep.jsonl --out .../sweeps/few_rows_h200.json
    python -m benchmarks.fit --few-rows --write                                 # fits the record

A sweep has every tile of problems with few rows or columns that training seeds draw, and the config of the tensor cores
that the model predicts fastest.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line, contenders, fresh_draws, runs, sweep_draws, sweep_jobs
from benchmarks.fit_loads import Timed, fared
from benchmarks.results import CASE_FIELDS, Case, Row
from cutegemm import GemmSpec, problem
from cutegemm.arch.device import Device, FewRowModel
from cutegemm.config import GemvTile
from cutegemm.config.gemv import MOST_ROWS, TILES
from cutegemm.database.entry import refined
from cutegemm.planning import gemv_tiles, ranking
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import fields_of
from cutegemm.planning.why import fields_of_option
from cutegemm.request.few_rows import aligned, allowed, as_rows
from cutegemm.request.requirements import requested

# the constants, the part of a device that holds them, and what is measured
NAMES = tuple(x.name for x in dataclasses.fields(FewRowModel))
PART, WHAT = "few_rows", "tiles"
FILES = "few_rows_*.json"
# problems of a family among which those of few rows or columns are looked for
LOOKED = 600
TENSOR = "tensor cores"
Tiles = Timed[GemvTile]


def read(paths: Sequence[Path]) -> list[Tiles]:
    """The problems of tables of this command; other files have none."""
    found = []
    for path in paths:
        data = json.loads(path.read_text())
        for x in data["few_rows"] if path.match(FILES) else ():
            of = problem(x["m"], x["n"], x["k"], batch=x["batch"], dtype=x["dtype"], majors=x["majors"])
            us = {tile: x["us"][_name(tile)] for tile in TILES if _name(tile) in x["us"]}
            found.append(Tiles(data["gpu"], x["suite"], of, us))
    return found


def predicted(of: Tiles, device: Device) -> dict[GemvTile, float]:
    """Predicted microseconds of each tile."""
    asked, _ = requested(GemmSpec(), of.problem, device)
    seen = as_rows(asked)
    assert seen is not None
    return {x: gemv_tiles.estimate(seen.problem, x, device, aligned(seen)) / 1e3 for x in of.us}


def score(of: Tiles, device: Device, blur: float) -> tuple[float, float, float]:
    """How well the device's model ranks the tiles of a problem (`fit_loads.fared`)."""
    return fared(predicted(of, device), of.us, blur)


def _name(x: GemvTile) -> str:
    return "x".join(map(str, x.tile))


def problems(seeds: Sequence[int], counts: dict[str, int]) -> Iterator[tuple[int, Case]]:
    """(Seed, problem) of each family's first problems with few rows or columns, over all seeds."""
    for family, count in counts.items():
        drawn = ((seed, case) for seed in seeds for case in fresh_draws.draw(family, seed, LOOKED))
        yield from itertools.islice((x for x in drawn if min(x[1].m, x[1].n) <= MOST_ROWS), count)


def jobs(seeds: Sequence[int], counts: dict[str, int], device: Device) -> dict[str, list[Row]]:
    """The jobs of a sweep, as `sweep_draws.drawn` gives them."""
    kernels: dict[Any, int] = {}
    found = []
    for seed, case in problems(seeds, counts):
        of, spec = contenders.problem(case), GemmSpec()
        asked, _ = requested(spec, of, device)
        seen = as_rows(asked)
        if seen is None:
            continue
        best = fields_of_option(next(iter(ranking.options(asked))))
        wanted = {TENSOR: dict(best)} | {
            _name(x): dict(fields_of(x, swapped=seen.factors != asked.factors)) for x in allowed(seen)
        }
        configs = []
        for name, fields in wanted.items():
            made = plan(refined(spec, fields), of, device)
            used = [kernels.setdefault(step.config, len(kernels)) for step in made.steps]
            configs.append({"fields": fields, "loads": {}, "config": name, "kernels": sorted(set(used))})
        found.append(dataclasses.asdict(case) | {"seed": seed, "held_back": False, "configs": configs})
    return {"jobs": found, "kernels": [x.to_data() for x in kernels]}


def table(of: dict[str, Any], measured: Sequence[Row], gpu: str, commit: str | None) -> dict[str, Any]:
    """The table of a sweep: the median of each config's long samples, else its least short one."""
    found = []
    for line in measured:
        if "case" in line:
            job = of["jobs"][line["i"]]
            us = {}
            for i, config in enumerate(job["configs"]):
                long, short = line["last"].get(str(i)), line["first"].get(str(i))
                if short is not None:
                    us[config["config"]] = round(statistics.median(long) if long else min(short), 3)
            us["cublas"] = round(statistics.median(line["last"][contenders.BASELINE]), 3)
            found.append({name: job[name] for name in (*CASE_FIELDS, "seed")} | {"us": us})
    return {"gpu": gpu, "commit": commit, "few_rows": found}


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("fit_few_rows", __doc__)
    parts = parser.add_subparsers(dest="what", required=True)
    draw, tabled = parts.add_parser("draw"), parts.add_parser("table")
    draw.add_argument("--seeds", type=lambda x: [int(y) for y in x.split(",")], required=True)
    draw.add_argument(
        "--counts", type=sweep_draws.counts, required=True, help="problems per family: NAME=COUNT,..."
    )
    tabled.add_argument("--jobs", type=Path, required=True)
    tabled.add_argument("--lines", type=Path, required=True, help="of `sweep_jobs`")
    tabled.add_argument("--commit", help="hash of the commit that was measured")
    for each in (draw, tabled):
        runs.add_gpu(each, "GPU that is planned for, or was measured")
        each.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    if args.what == "draw":
        made = jobs(args.seeds, args.counts, runs.record_of(args.gpu))
        print(f"{len(made['jobs'])} problems, {len(made['kernels'])} kernels")
    else:
        made = table(json.loads(args.jobs.read_text()), sweep_jobs.lines(args.lines), args.gpu, args.commit)
    args.out.write_text(json.dumps(made, indent=None if args.what == "draw" else 1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
