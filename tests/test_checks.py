# SPDX-License-Identifier: Apache-2.0
"""Checks of single values: what they accept becomes plain Python, what they refuse is named."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm import checks
from cutegemm.errors import InputError, SpecError


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7)], ids=repr)
def test_any_integer_becomes_an_int(value):
    """Whatever Python can index with counts, and is an `int` afterwards."""
    assert type(checks.integer(SpecError, "x", value, 0, 9)) is int
    assert checks.integers([value, value]) == (7, 7) and checks.integers((value,)) == (7,)


@pytest.mark.parametrize("value", [7.0, "7", None, True, np.float32(7), np.array([1, 2]), [7]], ids=repr)
def test_other_things_are_no_integers(value):
    """Floats, text, truth values and arrays are refused, never rounded."""
    with pytest.raises(InputError, match=r"^x=.*: must be an integer from 0 to 9$"):
        checks.integer(InputError, "x", value, 0, 9)
    assert checks.integers((1, value)) is None


def test_bounds_name_the_nearest():
    """An integer out of bounds is told the bound it passed."""
    with pytest.raises(SpecError, match=r"^x=-3: must be from 0 to 9; nearest legal value: 0$"):
        checks.integer(SpecError, "x", np.int16(-3), 0, 9)
    with pytest.raises(SpecError, match=r"^x=10: must be from 0 to 9; nearest legal value: 9$"):
        checks.integer(SpecError, "x", 10, 0, 9)


@pytest.mark.parametrize("value", ["c", "", None, 1, ["a"], np.array(["a", "b"])], ids=repr)
def test_a_choice_is_one_of_its_names(value):
    """Anything but one of the names is refused with all of them."""
    assert checks.choice(SpecError, "x", "a", ("a", "b")) == "a"
    with pytest.raises(SpecError, match=r"must be one of a, b$"):
        checks.choice(SpecError, "x", value, ("a", "b"))


@pytest.mark.parametrize("default", [False, True])
def test_a_switch_says_yes_or_no(default, monkeypatch):
    """Usual words for both; unset or empty it is the default, and anything else is refused by name."""
    for given, wanted in (
        ("1", True),
        ("Yes", True),
        (" on", True),
        ("0", False),
        ("OFF", False),
        ("", default),
    ):
        monkeypatch.setenv("CUTEGEMM_CHECK", given)
        assert checks.switch("CUTEGEMM_CHECK", default) is wanted
    monkeypatch.setenv("CUTEGEMM_CHECK", "2")
    with pytest.raises(
        InputError, match="CUTEGEMM_CHECK='2': must be one of 1, true, yes, on, 0, false, no, off"
    ):
        checks.switch("CUTEGEMM_CHECK", default)
    monkeypatch.delenv("CUTEGEMM_CHECK")
    assert checks.switch("CUTEGEMM_CHECK", default) is default


@pytest.mark.parametrize("value", [7, "77", None, {7}, range(3)], ids=repr)
def test_only_tuples_and_lists_hold_integers(value):
    """What is no tuple or list holds none."""
    assert checks.integers(value) is None
