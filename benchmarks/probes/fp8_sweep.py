# SPDX-License-Identifier: Apache-2.0
"""Measures configs of fp8 training problems for `benchmarks.fit_cost`.

    python -m benchmarks.probes.fp8_sweep --jobs jobs.json --draw --seed 16 --kernels 900     # without a GPU
    python -m benchmarks.probes.fp8_sweep --jobs jobs.json --lines sweep.jsonl --seconds 500   # with a GPU; continues
    python -m benchmarks.probes.fp8_sweep --jobs jobs.json --lines sweep.jsonl --out benchmarks/results/sweeps/NAME.json

Problems are drawn by `benchmarks.fresh_draws`, configs as in `benchmarks.sweep_draws`; every other problem of a family
is held back. With `--draw` kernels are compiled into CUTEGEMM_CACHE_DIR. Each result is compared with fp64 first. All
configs of a problem are timed briefly; the best, the planner's choice and torch are timed longer. The others' time is
their least short sample, times the slowdown from short to long samples.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    command_line,
    environment,
    fresh_draws,
    runs,
    sweep_draws,
    sweep_jobs,
    sweep_table,
    timing,
)
from benchmarks.probes import beside, fp8
from benchmarks.results import Row
from cutegemm import Gemm
from cutegemm.arch.records import RECORDS
from cutegemm.config import config_from_data
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.planning.seen import FEW_STAGES
from cutegemm.tuning.timing import Sampler


class Drawn(NamedTuple):
    """Which problems are drawn."""

    counts: Mapping[str, Mapping[str, int]]  # kind of scale -> problems of each family
    depths: Sequence[int] = ()  # values of K in turn, if they are not drawn
    least_rows: int = 1


COUNTS = {
    "tensor": {"square": 8, "prefill": 12, "decode": 6, "wide_decode": 8},
    "block": {"square": 4, "prefill": 10, "decode": 4, "wide_decode": 6},
    "blocks": {"square": 3, "prefill": 7, "decode": 4, "wide_decode": 4},
}
KINDS = (*COUNTS, "row")
# by option: many rows and few k tiles, as in experts' second layers; K whose sums are not promoted; few rows; so many
# that they nearly fill a WGMMA of 64; the same with so many k tiles that splits of K pay; scales of rows
DRAWN = {
    "": Drawn(COUNTS),
    "rows": Drawn({"row": {"square": 8, "prefill": 14, "wide_decode": 4}}),
    "shallow": Drawn(
        {"block": {"prefill": 14}, "blocks": {"prefill": 6}, "tensor": {"prefill": 8}},
        (384, 512, 640, 768, 1024, 1280),
    ),
    "whole": Drawn({"tensor": {"prefill": 16}}, (256, 384, 512)),
    "few": Drawn({kind: {"decode": 14, "wide_decode": 6} for kind in COUNTS}),
    "full": Drawn({kind: {"decode": 10} for kind in ("block", "blocks")}, least_rows=40),
    "deep": Drawn(
        {kind: {"decode": 10} for kind in ("block", "blocks")}, (16384, 20480, 24576, 30720), least_rows=40
    ),
}
# draws for each problem: some have an extent that TMA cannot load, most of the decode family few rows
CONFIGS, DRAWS = 12, 28
TORCH = "torch"
SCREEN, FINAL = (
    timing.Regime(name=name, preheat=0.0, rest=0.0, sample=sample, rounds=rounds)
    for name, sample, rounds in (("screen", 0.006, 2), ("final", 0.02, 4))
)
PREHEAT, FINALISTS = 0.05, 5


def cases(seed: int, which: str = "", kinds: Collection[str] = KINDS) -> list[beside.Case]:
    """The problems of some kinds whose operands TMA loads, families interleaved; `which` of `DRAWN`."""
    found = []
    every, depths, least_rows = DRAWN[which]
    for kind, counts in every.items():
        if kind not in kinds:
            continue
        for family, count in counts.items():
            many = [x for x in fresh_draws.draw(family, seed, DRAWS * count) if x.m >= least_rows]
            if depths:
                many = [dataclasses.replace(x, k=depths[i % len(depths)]) for i, x in enumerate(many)]
                many = [x for x in many if fresh_draws.for_training(x.n, x.k)]
            # about a fifth of the extents is not a multiple of 16, which TMA needs for 8-bit operands
            drawn = (x for x in many if x.k % 16 == x.n % 16 == 0)
            for place, x in zip(range(count), drawn):
                fields = dataclasses.asdict(x) | {"suite": family, "dtype": "fp8_e4m3"}
                found.append(((place + 0.5) / count, beside.Case(**fields, kind=kind, of=family)))
    return [case for _, case in sorted(found, key=lambda x: x[0])]


def drawn(seed: int, kernels: int, which: str = "", kinds: Collection[str] = KINDS) -> dict[str, Any]:
    """The configs of each problem that are measured, and their kernels."""
    device, every, pools, promoted = RECORDS[0], fp8.kinds(["auto"]), [], []
    problems = cases(seed, which, kinds)
    if not problems:
        raise ValueError(f"there are no such problems with scales of {', '.join(kinds)}")
    for case in problems:
        ours = every[case.kind].ours["ours auto"]
        of = ours.problem(every[case.kind].draw(case, 0, "meta"))
        pools.append(sweep_draws.options(ours.spec, of, device, random.Random(f"{seed} {case}")))
        promoted.append(plan(ours.spec, of, device).config.promote)
    jobs, configs, seen = [], {}, {}
    for case, few, promote in zip(
        problems, sweep_draws.taken(pools, kernels, CONFIGS), promoted, strict=True
    ):
        place = seen[case.what] = seen.get(case.what, -1) + 1
        configs |= {kernel: None for x in few for kernel in x.kernels}
        listed = [{"fields": x.fields, "loads": x.loads, "config": x.config} for x in few]
        beside_it = {"seed": seed, "held_back": place % 2 == 1, "promote": promote, "configs": listed}
        jobs.append(dataclasses.asdict(case) | beside_it)
    return {"jobs": jobs, "kernels": [x.to_data() for x in configs]}


def case_of(job: Row) -> beside.Case:
    """The problem of a job."""
    return beside.Case(**{x.name: job[x.name] for x in dataclasses.fields(beside.Case)})


def measure(place: int, job: Row, device: timing.Replayer, memory: str = "cuda") -> Row:
    """A line with the times of all correct configs and the errors of others; without times if all are wrong."""
    case, began = case_of(job), time.monotonic()
    kind = fp8.kinds(["auto"])[case.kind]
    sets = kind.sets(case, memory)
    wanted, ours, right, bad = kind.exact(sets[0]), kind.ours["ours auto"], [], {}
    of = ours.problem(sets[0])

    def call(gemm: Gemm, x: Any) -> Any:
        a, b, named = ours.given(x)
        return gemm.run(a, b, **named)

    contenders = {TORCH: kind.others["torch exact"]}
    for name, config in ((str(i), x) for i, x in enumerate(job["configs"])):
        gemm = Gemm(refined(ours.spec, config["fields"]), of)
        contenders[name] = lambda x, gemm=gemm: call(gemm, x)
    for name, run in contenders.items():
        try:
            beside.error_of(run, sets[0], wanted)
            right.append(timing.Contender(name, run))
        except (GemmError, RuntimeError, ValueError) as error:
            bad[name] = runs.reason(error)
    if all(x.name == TORCH for x in right):
        return {"i": place, "bad": bad}
    entries = {x.name: timing.sampler(x, sets, device, SCREEN.sample) for x in right}
    timing.preheat(list(entries.values()), device, PREHEAT)
    first = _sampled(list(entries.values()), SCREEN, place, device)
    best = sorted((x for x in first if x != TORCH), key=lambda x: min(first[x]))[:FINALISTS]
    longer = [x for name, x in entries.items() if name in (*best, TORCH, "0")]
    for x in longer:
        x.replays, x.us = math.ceil(x.replays * FINAL.sample / SCREEN.sample), []
    last = _sampled(longer, FINAL, place + 1, device)
    return {"i": place, "first": first, "last": last, "bad": bad, "s": round(time.monotonic() - began, 1)}


def _sampled(
    entries: list[Sampler], of: timing.Regime, seed: int, device: timing.Replayer
) -> dict[str, list[float]]:
    timing.take_samples(entries, of.rounds, device, seed=seed)
    return {x.name: [round(y, 4) for y in x.us] for x in entries}


def table(jobs: list[Row], lines: list[Row]) -> Row:
    """The table that `benchmarks.fit_cost` reads."""
    found = []
    for line in (x for x in lines if "first" in x):
        job = jobs[line["i"]]
        own = {name: job[name] for name in ("kind", "dtype", "promote")} | {"stages": FEW_STAGES}
        found.append(sweep_table.case(job, line, TORCH) | own)
    what = "fp8 products of training problems (benchmarks/probes/fp8_sweep.py)"
    return sweep_table.whole(found, lines, what)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_line.parser("probes.fp8_sweep", __doc__)
    add = parser.add_argument
    add("--jobs", type=Path, required=True, help="file of problems and configs")
    add("--draw", action="store_true", help="write it, and compile the kernels")
    add("--seed", type=int, default=16, help="a training seed")
    for name, what in (
        ("shallow", "many rows, few k tiles"),
        ("whole", "many rows, so few k tiles that sums are not promoted"),
        ("few", "few rows"),
        ("full", f"{DRAWN['full'].least_rows} to 64 rows"),
        ("deep", "the same, with many k tiles"),
        ("rows", "scales of rows"),
    ):
        options = {"dest": "which", "action": "store_const", "const": name, "default": ""}
        add(f"--{name}", help=f"of {what}", **options)
    add("--kinds", type=runs.names_among(KINDS), default=list(KINDS), help="kinds of scales")
    add("--kernels", type=int, default=900, help="maximum to compile")
    add("--lines", type=Path, help="file with a line per problem")
    add("--out", type=Path, help="write the table of the lines here")
    add("--commit", default="unknown", help="hash of the commit that is measured")
    add("--seconds", type=runs.positive_seconds, default=math.inf)
    args = parser.parse_args(arguments)
    until = time.monotonic() + args.seconds
    if args.draw:
        made = drawn(args.seed, args.kernels, args.which, args.kinds)
        args.jobs.write_text(json.dumps(made))
        configs = [config_from_data(x) for x in made["kernels"]]
        runs.compiled(configs, len(made["jobs"]), runs.console())
        return 0
    jobs = json.loads(args.jobs.read_text())["jobs"]
    if args.out is not None:
        args.out.write_text(sweep_table.text(table(jobs, sweep_jobs.lines(args.lines))))
        return 0
    if not sweep_jobs.lines(args.lines):
        head = {"environment": environment.record(args.commit, environment.sensors(0))}
        args.lines.write_text(json.dumps(head) + "\n")
    done = {x["i"] for x in sweep_jobs.lines(args.lines) if "i" in x}
    device = timing.Device()
    for place, job in enumerate(jobs):
        if place in done or time.monotonic() > until:
            continue
        line = measure(place, job, device)
        with args.lines.open("a") as file:
            file.write(json.dumps(line) + "\n")
        last = {x: statistics.median(us) for x, us in line.get("last", {}).items()}
        torch_us, own = (last.get(x, math.nan) for x in (TORCH, "0"))
        best = min((us for x, us in last.items() if x != TORCH), default=math.nan)
        told = f"torch {torch_us:.1f}, chosen {own:.1f}, best {best:.1f} us; {line['bad'] or ''}"
        print(f"{case_of(job)}: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
