# SPDX-License-Identifier: Apache-2.0
"""Which cases of `benchmarks.combinations` a run takes."""

from __future__ import annotations

from benchmarks.combinations.factors import value_of
from benchmarks.combinations.fields import AUTO, NOMINAL, Case

# cases of a whole array, at most, and of drawn triples
LONG_CASES, TRIPLES = 600, 200
# elements of a CTA tile that the emulator runs in a few seconds
LIGHT_TILE = 64 * 128


def light(case: Case) -> bool:
    """Whether a case takes the emulator a few seconds: its tile is small, K is short, few sums are added atomically.

    For each atomic addition the race detector keeps a set of those before it, 10 GB for several waves of eight splits.
    """
    m, n, k = (
        x if y == AUTO else int(y)
        for x, y in zip(NOMINAL, (value_of(case, f"tile_{axis}") for axis in "mnk"))
    )
    if value_of(case, "split_reduction") == "atomic" and value_of(case, "shape") == "waves":
        return False
    return m * n <= LIGHT_TILE and (value_of(case, "depth") != "deep" or k <= 64)


__all__ = ["LONG_CASES", "TRIPLES", "light"]
