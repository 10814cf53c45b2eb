# SPDX-License-Identifier: Apache-2.0
"""Trials of a tuning database as a sweep, to fit a cost model.

    python -m benchmarks.tuned_rows tuned.sqlite benchmarks/results/sweeps/tuned_h200.json --gpu "NVIDIA H200"

A trial is the median of one candidate, timed with others of its problem. A row's baseline is the cost model's choice at
that time, or the first trial if that choice was not timed. Trials of a problem come from several runs, so they also
differ by changes of the clock between runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import candidates, command_line, results, runs, suites
from cutegemm import GemmSpec, Problem, problem
from cutegemm.database.entry import Key, gpu_text, kind_text, spec_text
from cutegemm.database.user_database import Database

SUFFIX = ".sqlite"
BASELINE = "model"
# the suite of problems that are in none
CUSTOM = "custom"
Row = dict[str, Any]


def document(path: Path, gpu: str) -> dict[str, Any]:
    """The trials on a GPU as a sweep's document; only problems tuned with the default spec."""
    found = Database(path)
    of = gpu_text(runs.record_of(gpu))
    dates = [x.date for x in found.entries(of).values()]
    what = "us a call of trials by benchmarks.tune: medians of a race, the model's choice beside"
    rows = [
        row
        for key, tried in found.all_trials().items()
        if key.gpu == of and key.spec == spec_text(GemmSpec())
        for row in _rows(key, {name: x.us for name, x in tried.items() if x.us}, tried)
    ]
    return {"environment": {"gpu": gpu, "date": max(dates, default="")[:10], "what": what}, "rows": rows}


def _rows(key: Key, times: dict[str, float], tried: dict[str, Any]) -> Iterator[Row]:
    named = _named_problem(key)
    if named is None or not times:
        return
    dtype, majors = named
    m, n, k, batch = key.extents
    base = times.get("{}", next(iter(times.values())))
    for name, us in times.items():
        fields = json.loads(name)
        # all fields of the model's choice but the raster, which depends on the planner of that time
        full = {x: v for x, v in (tried[name].made or {}).items() if x != "raster"}
        spec = fields or full
        yield {
            "suite": _suites().get(tuple(key.extents), CUSTOM), "dtype": dtype, "majors": majors,
            "m": m, "n": n, "k": k, "batch": batch, "contender": candidates.label(spec), "spec": spec,
            "us": float(f"{us:.5g}"), "ratio": float(f"{base / us:.5g}"), "baseline": BASELINE,
            "baseline_us": float(f"{base:.5g}"),
        }  # fmt: skip


def problem_of(row: Row) -> Problem:
    """The problem that a row is about."""
    return problem(row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"])


@functools.cache
def _suites() -> dict[tuple[int, ...], str]:
    """Suites by (M, N, K, batch)."""
    names = reversed(suites.PRODUCTS)
    return {(m, n, k, batch): suite for suite in names for batch, m, n, k in suites.extents(suite)}


def _named_problem(key: Key) -> tuple[str, str] | None:
    """(type, majors) of the plain GEMM with a key's extents and kind; None if there is none."""
    m, n, k, batch = key.extents
    for dtype, majors in itertools.product(("bf16", "fp16", "fp32"), ("kk", "kn", "mk", "mn")):
        of: Problem = problem(m, n, k, batch=batch, dtype=dtype, majors=majors)
        if kind_text(of) == key.kind:
            return dtype, majors
    return None


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("tuned_rows", __doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("out", type=Path)
    runs.add_gpu(parser, "GPU whose trials are read")
    args = parser.parse_args(arguments)
    data = document(args.database, args.gpu)
    results.save(args.out, {"schema": results.SCHEMA, **data})
    print(f"{len(data['rows'])} trials written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
