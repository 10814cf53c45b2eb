# SPDX-License-Identifier: Apache-2.0
"""Pairs of values of a spec's and a problem's fields, on the emulator with its race detector, against fp64.

A run takes the first cases of a covering array whose seed is HEAD's hash, so that commits run different ones;
`CUTEGEMM_COMBINATIONS_SEED` repeats a run's. `--profile long` runs an array whole, and a sample of triples.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.combinations.cover import Array, legal
from benchmarks.combinations.factors import shortened
from benchmarks.combinations.fields import Case
from benchmarks.combinations.runs import Wrong, emulated
from benchmarks.combinations.shrink import shrunk
from cutegemm.errors import GemmError
from tests.support.combinations import LONG_CASES, TRIPLES, light
from tests.support.heads import seed
from tests.support.profile import cases

COUNT = cases(10, LONG_CASES + TRIPLES)


@functools.cache
def made() -> list[Case]:
    """The run's cases."""
    if COUNT < LONG_CASES:
        # one worker asks the planner for all
        kept = Path(os.environ["CUTEGEMM_CACHE_DIR"], f"combinations-{seed()}.json")
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                kept.write_text(json.dumps(list(Array(seed(), lambda x: light(x) and legal(x)).make(COUNT))))
            return json.loads(kept.read_text())
    array = Array(seed())
    return [*array.make(LONG_CASES), *array.triples(TRIPLES)]


def fails(case: Case) -> str | None:
    """The error of a case's run; None if it is right."""
    try:
        emulated(case)
    except (Wrong, GemmError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("number", range(COUNT))
def test_a_legal_case_is_right(number):
    """Whatever the planner accepts gives the result of fp64, without a race or a write beside its outputs."""
    case = next(itertools.islice(made(), number, None), None)
    if case is None:
        pytest.skip("the array has no more cases")
    wrong = fails(case)
    if wrong is not None:
        small = shrunk(case, lambda x: fails(x) is not None, most=cases(12, 60))
        pytest.fail(
            f"{fails(small)}\nfewest fields: {json.dumps(small)}\nwhole case: {json.dumps(shortened(case))}\n"
            f"repeat with CUTEGEMM_COMBINATIONS_SEED={seed()}, or: python -m benchmarks.combinations "
            f"--backend emulator --case '{json.dumps(small)}'",
            pytrace=False,
        )
