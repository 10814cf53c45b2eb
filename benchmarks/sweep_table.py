# SPDX-License-Identifier: Apache-2.0
"""Turns the lines of a sweep of random problems into the table that `benchmarks.fit_cost` reads.

    python -m benchmarks.sweep_table --jobs jobs.json --lines sweep.jsonl --out benchmarks/results/sweeps/NAME.json

A config's time is the median of its long samples. Without long samples it is the least short sample, times the slowdown
from short to long samples of the same problem. `counter` says that CTAs took tiles from a counter where the planner
does so by default (`kernel_fields.takes_numbers`). Older tables lack it: all their CTAs had lists of tiles. `stages` is
the default maximum of the pipeline's stages, which was eight for tables that lack it. `gpcs` says that clusters of
splits had places by their GPCs where a GPU's record has these. `plain` says that CTAs without a cluster were launched
without clusters, which places them on one GPC after another; in older tables only those without a producer were.
`copies` and `async` are the versions of copies into aligned memory and of loads by cp.async (`sweep_draws.COPIES`,
`sweep_draws.ASYNC`) that the job was made for, the first in tables that lack them.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from benchmarks import command_line, sweep_jobs
from benchmarks.contenders import BASELINE
from benchmarks.results import Row
from benchmarks.sweep_draws import COLUMNS, VERSIONS
from cutegemm.spec import MAX_STAGES

PROBLEM = ("suite", "seed", "held_back", "majors", "batch", "m", "n", "k")
# spec fields that the columns of a config lack; loads chosen by the planner are recorded too
BESIDE = ("a_load", "b_load", "raster", "trigger", "scheduler", "ctas_per_sm")
TIMED = ("us", "settled", "beside")


def case(job: Row, line: Row, baseline: str = BASELINE) -> Row:
    """A problem's row: its configs with microseconds, whether these are of long samples, and further spec fields."""
    last = {name: statistics.median(us) for name, us in line["last"].items()}
    slower = statistics.median(us / min(line["first"][name]) for name, us in last.items())
    rows = []
    for name, us in line["first"].items():
        if name == baseline:
            continue
        config = job["configs"][int(name)]
        given = config.get("loads", {}) | config["fields"]
        extra = {x: given[x] for x in BESIDE if x in given}
        extra |= {} if config["fields"] else {"chosen": True}
        took = last.get(name, min(us) * slower)
        rows.append([*config["config"], round(took, 3), int(name in last), extra])
    # torch does not support every problem
    us = last.get(baseline)
    head = {name: job[name] for name in PROBLEM}
    head |= {
        "counter": True,
        "stages": MAX_STAGES,
        "gpcs": True,
        "plain": True,
        **{x: job.get(x, 1) for x in VERSIONS},
    }
    return head | {"cublas": us and round(us, 4), "rows": rows}


def table(jobs: list[Row], lines: list[Row]) -> Row:
    """All measured problems."""
    cases = [case(jobs[x["i"]], x) for x in lines if "first" in x]
    seeds = ", ".join(str(x) for x in sorted({x["seed"] for x in cases}))
    what = f"problems of training seeds {seeds} (benchmarks/sweep_draws.py); configs beside the others of their problem"
    return whole(cases, lines, what)


def whole(cases: list[Row], lines: list[Row], what: str) -> Row:
    """The table of problems' rows with the environment of the lines."""
    environment = next(x["environment"] for x in lines if "environment" in x)
    columns = [*COLUMNS, *TIMED]
    return {
        "gpu": environment["gpu"],
        "environment": environment,
        "what": what,
        "columns": columns,
        "cases": cases,
    }


def text(of: Row) -> str:
    """The table as JSON, one problem per line."""
    head = json.dumps({name: x for name, x in of.items() if name != "cases"}, separators=(",", ":"))
    cases = ",\n".join(json.dumps(x, separators=(",", ":")) for x in of["cases"])
    return f'{head[:-1]},"cases":[\n{cases}\n]}}\n'


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("sweep_table", __doc__)
    for name in ("jobs", "lines", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args(arguments)
    found = table(json.loads(args.jobs.read_text())["jobs"], sweep_jobs.lines(args.lines))
    args.out.write_text(text(found))
    print(f"{len(found['cases'])} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
