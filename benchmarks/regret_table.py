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

from benchmarks import candidates, command_line, contenders, sweep_draws, sweep_table, tuned_rows
from benchmarks.contenders import BASELINE
from benchmarks.fresh_bench import PREFIX, SCREEN
from benchmarks.fresh_draws import TRAINING_SEEDS
from benchmarks.results import Row
from cutegemm.arch.device import Device
from cutegemm.arch.records import find
from cutegemm.config import KernelConfig
from cutegemm.planning.planner import plan

FIELDS = ("suite", "dtype", "majors", "m", "n", "k", "batch")


def cases(rows: list[Row], said: Row, device: Device) -> Iterator[Row]:
    """The problems of a run as `sweep_table.case` gives them; those whose configs are all left out are, too.

    Args:
        said: the run's header (`fresh.header`).
    """
    problems: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["us"]:
            problems.setdefault(tuple(row[x] for x in FIELDS), []).append(row)
    for key, timed in problems.items():
        each = {x["contender"]: x for x in timed}
        made = {name: _config(x, device) for name, x in each.items() if name != BASELINE}
        configs = {name: x for name, x in made.items() if x is not None}
        if configs:
            of = dict(zip(FIELDS, key, strict=True))
            of |= {"suite": of["suite"].removeprefix(PREFIX), "held_back": False}
            of |= {"seed": said["seed"]} | {x: said[x] for x in sweep_draws.VERSIONS if x in said}
            yield sweep_table.case(of | {"configs": list(configs.values())}, _line(timed, list(configs)))


def _line(timed: list[Row], names: list[str]) -> Row:
    """Samples of the baseline and of configs with these names, as in a line of `sweep_jobs`."""
    places = {BASELINE: BASELINE} | {name: str(i) for i, name in enumerate(names)}
    line: Row = {"first": {}, "last": {}}
    for row in timed:
        if row["contender"] in places:
            part = "first" if row["regime"] == SCREEN.name else "last"
            line[part][places[row["contender"]]] = [row["us"]]
    return line


def _config(row: Row, device: Device) -> Row | None:
    """The config of a contender as in a job of `sweep_draws`; None if it is left out."""
    fields = row["spec"] or {}
    if fields.get("schedule") == "simt":
        return None
    made = plan(candidates.spec(fields), tuned_rows.problem_of(row), device)
    if not isinstance(made.config, KernelConfig) or contenders.plan_label(made) != row["plan"]:
        return None
    return {"config": sweep_draws.row_of(made), "fields": fields, "loads": sweep_draws.loads_of(made)}


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
    found = list(cases(document["rows"], seen["fresh"], find(seen["gpu"], sms=seen["sms"])))
    what = f"the tuner's candidates for problems of training seed {seed} (benchmarks/regret_table.py)"
    args.out.write_text(sweep_table.text(sweep_table.whole(found, [document], what)))
    print(f"{len(found)} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
