# SPDX-License-Identifier: Apache-2.0
"""The ladder has every stage once, in order, and finds each by its names."""

import pytest

import handwritten
from cutegemm.errors import GemmError

STAGES = handwritten.stages()


def test_numbers_have_no_gap() -> None:
    """The ladder counts from 1 without a gap, and every .cu file is a stage."""
    numbers = [stage.number for stage in STAGES]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    assert {path.name for path in STAGES[0].path.parent.glob("*.cu")} == {stage.file for stage in STAGES}


@pytest.mark.parametrize("key", ["02_coalesced", "coalesced", 2, "2", "02"])
def test_a_stage_is_found_by_key_name_or_number(key: str | int) -> None:
    """A stage answers to its key, its bare name and its number."""
    assert handwritten.stage(key).file == "02_coalesced.cu"


def test_unknown_stage() -> None:
    """A wrong name is refused with the names that exist."""
    with pytest.raises(GemmError, match=r"stage='fast': must be one of 01_naive, 02_coalesced"):
        handwritten.stage("fast")
