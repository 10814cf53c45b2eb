# SPDX-License-Identifier: Apache-2.0
"""Turns the tuner's candidates that `benchmarks.fresh` measured for training problems into a table of a sweep.

    python -m benchmarks.fresh --training 175 --regret --families deep_k,decode --count 4 --folder . --commit HASH
    python -m benchmarks.regret_table --results fresh-training-175-regret.json --seed 175 --out .../fresh_19_h200.json

Configs drawn near the predicted best (`benchmarks.sweep_draws`) show which of them the model confuses. The tuner's are
also diverse, and show what the model thinks slow. Configs on the CUDA cores are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import command_line, contenders, sweep_draws, sweep_table
from benchmarks.contenders import BASELINE
from benchmarks.fresh_draws import TRAINING_SEEDS
from benchmarks.results import Case, Row
from cutegemm import GemmSpec
from cutegemm.arch.device import Device
from cutegemm.arch.records import find
from cutegemm.config import KernelConfig
from cutegemm.database.entry import refined
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of
from cutegemm.spec import MAX_STAGES

PREFIX = "fresh_"
LOADS = ("a_load", "b_load")
FIELDS = ("suite", "dtype", "majors", "m", "n", "k", "batch")


def cases(rows: list[Row], seed: int, device: Device) -> Iterator[Row]:
    """The problems of a run, each with its configs on the tensor cores as `sweep_table.case` gives them."""
    problems: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        problems.setdefault(tuple(row[x] for x in FIELDS), []).append(row)
    for key, timed in problems.items():
        case = Case(**dict(zip(FIELDS, key, strict=True)))
        configs: dict[str, list[Any]] = {}
        for row in timed:
            if row["contender"] != BASELINE and row["us"]:
                found = _config(row, case, device)
                configs |= {} if found is None else {json.dumps(found): [*found, row["us"]]}
        us = next((x["us"] for x in timed if x["contender"] == BASELINE), None)
        named = {x: getattr(case, x) for x in ("majors", "batch", "m", "n", "k")}
        head = {"suite": case.suite.removeprefix(PREFIX), "seed": seed, "held_back": False} | named
        head |= {"counter": True, "stages": MAX_STAGES, "gpcs": True}
        listed = [[*config, round(took, 3), 1, extra] for config, extra, took in configs.values()]
        yield head | {"cublas": us and round(us, 4), "rows": listed}


def _config(row: Row, case: Case, device: Device) -> tuple[list[Any], Row] | None:
    """A contender's config as a row of `sweep_draws.COLUMNS`, and its further fields; None on the CUDA cores."""
    given = row["spec"] or {}
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    if fields.get("schedule") == "simt":
        return None
    made = plan(refined(GemmSpec(), fields), contenders.problem(case), device)
    if not isinstance(made.config, KernelConfig):
        return None
    known = fields_of(made) | given
    beside = {x: known[x] for x in sweep_table.BESIDE if x in given or (x in LOADS and x in known)}
    return sweep_draws.row_of(made), beside if given else beside | {"chosen": True}


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("regret_table", __doc__)
    for name in ("results", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True, help="training seed of the run")
    args = parser.parse_args(arguments)
    if not 0 <= args.seed < TRAINING_SEEDS:
        parser.error(f"--seed must be below {TRAINING_SEEDS}: other problems are not fitted to")
    document = json.loads(args.results.read_text())
    seen = document["environment"]
    found = list(cases(document["rows"], args.seed, find(seen["gpu"], sms=seen["sms"])))
    what = f"the tuner's candidates for problems of training seed {args.seed} (benchmarks/regret_table.py)"
    args.out.write_text(sweep_table.text(sweep_table.whole(found, [document], what)))
    print(f"{len(found)} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
