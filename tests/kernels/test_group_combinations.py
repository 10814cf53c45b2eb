# SPDX-License-Identifier: Apache-2.0
"""Pairs of values of the fields of launches that compute groups, on the emulator with races on, against fp64.

The array is kept, as it takes minutes to make. A run takes a case of it by HEAD's hash; `--profile long` takes all.
"""

import json
import random

import pytest

from benchmarks.combinations.__main__ import GROUPS_ARRAY
from benchmarks.combinations.group_factors import FACTORS, value_of
from benchmarks.combinations.group_runs import Wrong, emulated, legal, on_gpu, weight
from benchmarks.combinations.memory import Arena
from tests.support.heads import seed
from tests.support.profile import cases

CASES = json.loads(GROUPS_ARRAY.read_text())["cases"]
# those that the emulator runs in a second or two
LIGHT = sorted(CASES, key=weight)[: len(CASES) // 2]
TAKEN = cases([next(filter(legal, random.Random(seed()).sample(LIGHT, len(LIGHT))))], CASES)


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_a_legal_case_of_groups_is_right(number):
    """Every group, rows of no group, and nothing written beside."""
    if not legal(TAKEN[number]):
        pytest.skip("a rule that is younger than the array refuses it")
    emulated(TAKEN[number])


def test_the_array_holds_what_the_fields_have():
    """Every value of every field is in a case."""
    for name, values in FACTORS.items():
        assert {value_of(case, name) for case in CASES} == set(values), name


@pytest.mark.parametrize("kind", ["rows", "depth", "masked"])
def test_what_a_gpu_runs_is_compared(kind):
    """By torch's reference here: right, and wrong where one element of D is."""
    case = {"kind": kind, "sizes": "hostile", "index": "int64", "epilogue": "random", "out": "given"}
    on_gpu(case, Arena("cpu"))

    class Off(Arena):
        """Whose last tensor, D, moves between what is compared and what was written."""

        def place(self, x):
            found = super().place(x)
            self.last = found
            return found

    arena = Off("cpu")

    def told(stage):
        if stage == "comparing":
            arena.last.view[0, 0, 0] += 64.0

    with pytest.raises(Wrong, match=r"^d\b"):
        on_gpu(case, arena, told)
