# SPDX-License-Identifier: Apache-2.0
"""Turns a training run of `benchmarks.fresh --regret` into a table that the fits read.

    python -m benchmarks.fresh --training 175 --regret --families deep_k,decode --count 4 --folder . --commit HASH
    python -m benchmarks.regret_table --results fresh-training-175-regret.json --out .../sweeps/fresh_19_h200.json

Configs of `benchmarks.sweep_draws` are near the predicted best and show which of them the model confuses. The tuner's
candidates of such a run are also diverse, and show which configs the model wrongly predicts to be slow. Configs on the
CUDA cores are left out, and those that the planner would make otherwise today.
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

PREFIX = "fresh_"
# of the short samples of every contender; others are the long ones of the best
SCREEN = "screen"
LOADS = ("a_load", "b_load")
FIELDS = ("suite", "dtype", "majors", "m", "n", "k", "batch")


def cases(rows: list[Row], seed: int, device: Device) -> Iterator[Row]:
    """The problems of a run as `sweep_table.case` gives them; those whose configs are all left out are, too."""
    problems: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["us"]:
            problems.setdefault(tuple(row[x] for x in FIELDS), []).append(row)
    for key, timed in problems.items():
        case = Case(**dict(zip(FIELDS, key, strict=True)))
        configs: list[Row] = []
        line: dict[str, dict[str, list[float]]] = {"first": {}, "last": {}}
        for name in dict.fromkeys(x["contender"] for x in timed):
            mine = [x for x in timed if x["contender"] == name]
            config = None if name == BASELINE else _config(mine[0], case, device)
            if config or name == BASELINE:
                for x in mine:
                    part = "first" if x["regime"] == SCREEN else "last"
                    line[part][name if config is None else str(len(configs))] = [x["us"]]
                configs += [config] if config else []
        if configs:
            of = {x: getattr(case, x) for x in FIELDS} | {"suite": case.suite.removeprefix(PREFIX)}
            yield sweep_table.case(of | {"seed": seed, "held_back": False, "configs": configs}, line)


def _config(row: Row, case: Case, device: Device) -> Row | None:
    """The config of a contender as in a job of `sweep_draws`; None if it is left out."""
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in (row["spec"] or {}).items()}
    if fields.get("schedule") == "simt":
        return None
    made = plan(refined(GemmSpec(), fields), contenders.problem(case), device)
    if not isinstance(made.config, KernelConfig) or contenders.plan_label(made) != row["plan"]:
        return None
    known = fields_of(made)
    loads = {name: known[name] for name in LOADS if name in known}
    return {"config": sweep_draws.row_of(made), "fields": row["spec"] or {}, "loads": loads}


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("regret_table", __doc__)
    for name in ("results", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args(arguments)
    document = json.loads(args.results.read_text())
    seen = document["environment"]
    seed = seen["fresh"]["seed"]
    if not isinstance(seed, int) or not 0 <= seed < TRAINING_SEEDS:
        parser.error(
            f"--results: its problems judge the model; those of seeds below {TRAINING_SEEDS} are fitted to"
        )
    found = list(cases(document["rows"], seed, find(seen["gpu"], sms=seen["sms"])))
    what = f"the tuner's candidates for problems of training seed {seed} (benchmarks/regret_table.py)"
    args.out.write_text(sweep_table.text(sweep_table.whole(found, [document], what)))
    print(f"{len(found)} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
