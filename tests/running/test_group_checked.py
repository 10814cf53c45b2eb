# SPDX-License-Identifier: Apache-2.0
"""Check mode of groups: every output of every group, and rows of no group, are compared."""

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Groups
from cutegemm import epilogue as epi
from cutegemm.errors import CheckError
from cutegemm.running.numerics.checked import finished
from cutegemm.running.numerics.group_checked import GroupChecked
from cutegemm.running.numerics.group_reference import GroupReference
from tests.support.groups import SMALL, drawn

ENDS = torch.tensor([3, 3, 9])
FORMS = {
    "rows": (drawn(12, 16), drawn(3, 16, 24), {"offs": ENDS}, (10, 2)),
    "columns": (drawn(3, 24, 16), drawn(16, 12), {"offs": ENDS}, (2, 10)),
    "masked": (drawn(3, 12, 16), drawn(3, 16, 24), {"counts": ENDS}, (0, 7, 2)),
    "along K": (drawn(24, 12), drawn(12, 40), {"cu_seqlens": torch.tensor([1, 3, 3, 9])}, None),
}


@epi.define
def several(acc, *, seed: epi.Integer, offset: epi.Integer):
    """What depends on the place in D, and a second output in another type."""
    h = epi.dropout(acc, 0.5, seed, offset)
    return epi.Output(d=h, wide=epi.Store(acc, "fp32"))


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Calls are checked."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")


@pytest.fixture
def spoil(monkeypatch):
    """Have the reference change an element of an output after it has computed a call."""

    def change(name, place, value=64.0):
        own = GroupReference.__call__

        def wrong(*args):
            result = own(*args)
            finished(result)[name][place] += value
            return result

        monkeypatch.setattr(GroupReference, "__call__", wrong)

    return change


def run(form, gemm=None, **named):
    """A run of a form."""
    a, b, told, _ = FORMS[form]
    tail = named.pop("tail", "zero")
    return (gemm or Gemm(GemmSpec())).run(a, b, groups=Groups(**told, tail=tail), **named)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_right_passes(form):
    """Every form passes, with C over D, dropout and a reduction, and so do calls that multiply nothing."""
    d = run(form)
    c = torch.ones_like(d)
    assert run(form, c=c, beta=0.5, out=c) is c
    run(form, Gemm(GemmSpec(epilogue=several)), seed=3, offset=1)
    run(form, Gemm(GemmSpec(epilogue=epi.row_max() if form != "columns" else several)), **(
        {} if form != "columns" else {"seed": 1, "offset": 0}
    ))  # fmt: skip
    cutegemm.grouped_mm(drawn(0, 8), drawn(2, 8, 16), torch.zeros(2).int(), fallback="reference")


def test_gathered_rows_and_kernels_are_compared():
    """On the emulator; an index outside reads zeros, and a call is checked each time."""
    a, b, told, _ = FORMS["rows"]
    gemm = Gemm(GemmSpec(**SMALL))
    groups = Groups(**told, rows=torch.tensor([5, 5, 0, 1, 2, 3, 4, 11, 10, 7]))
    for _ in range(2):
        gemm.run(a, b, groups=groups, backend="emulator")
    (kinds,) = gemm._grouped.values()
    assert [type(x) for x in kinds._kinds.values()] == [GroupChecked]


@pytest.mark.parametrize(("form", "place", "group"), [
    ("rows", (2, 5), 0), ("rows", (8, 23), 2), ("columns", (5, 2), 0), ("columns", (23, 8), 2),
    ("masked", (1, 2, 5), 1), ("masked", (2, 8, 5), 2), ("along K", (1, 3, 5), 1), ("along K", (2, 3, 5), 2),
])  # fmt: skip
@pytest.mark.parametrize("name", ["d", "wide"])
def test_a_wrong_element_is_named(form, place, group, name, spoil):
    """With its output and its group, also of an empty group along K."""
    spoil(name, place)
    with pytest.raises(CheckError, match=f"{name}: group {group}: 1 of .* elements are off"):
        run(form, Gemm(GemmSpec(epilogue=several)), seed=3, offset=1)


@pytest.mark.parametrize("form", ["rows", "columns", "masked"])
def test_rows_of_no_group_are_compared(form, spoil):
    """With zero, or with what a given output held."""
    *_, place = FORMS[form]
    given = torch.full_like(run(form), float("nan"))
    run(form, out=given, tail="undefined")
    spoil("d", place)
    with pytest.raises(CheckError, match="d: 1 elements of rows outside all groups are not 0"):
        run(form)
    given.fill_(7.0)
    with pytest.raises(CheckError, match="d: 1 elements of rows outside all groups are changed"):
        run(form, out=given, tail="undefined")
    # nobody says what a new one holds
    run(form, tail="undefined")


def test_a_wrong_reduction_is_named(spoil):
    """The error names the output, and the group of the row that is off."""
    gemm = Gemm(GemmSpec(epilogue=epi.row_max()))
    spoil("row_max", 8)
    with pytest.raises(CheckError, match="row_max: group 2: 1 of 6 elements are off"):
        run("rows", gemm)


def test_rows_of_no_group_have_no_reduction(spoil):
    """They are 0, also where D is left alone."""
    spoil("row_max", 10)
    with pytest.raises(CheckError, match="row_max: 1 elements of rows outside all groups are not 0"):
        run("rows", Gemm(GemmSpec(epilogue=epi.row_max())), tail="undefined")
