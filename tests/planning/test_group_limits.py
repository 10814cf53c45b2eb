# SPDX-License-Identifier: Apache-2.0
"""Groups that no kernel has are refused by name: what a tile scheduler's 32-bit integers cannot count, and loads."""

import dataclasses

import pytest

import cutegemm
from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import PlanError
from cutegemm.planning.grouped import plan_groups
from cutegemm.plans.steps import Ends

torch = pytest.importorskip("torch")

MOST = (1 << 31) - 1
GROUPS, ROWS = 1 << 25, 40 << 25
ENDS = Ends()
# one shape of tiles, also where operands are swapped
GIVEN = {"tile": Tile(64, 64, 64), "cluster": (1, 1)}


def packed(form, m, n, k, groups):
    """A problem of groups in one matrix: each has a B, or of columns an A."""
    of = problem(m, n, k, batch=groups)
    name = "a" if form == "rows" else "b"
    one = {x: dataclasses.replace(y, batch=1) for x, y in ((name, getattr(of, name)), ("d", of.d))}
    return dataclasses.replace(of, **{name: one[name]}, outputs=(("d", one["d"]),))


def deep(m, n, k, groups):
    """A problem of groups along K."""
    of = problem(m, n, k, batch=groups)
    return dataclasses.replace(of, a=dataclasses.replace(of.a, batch=1), b=dataclasses.replace(of.b, batch=1))


def refusal(form, of, ends=ENDS, **fields):
    """The error of a problem that is refused."""
    with pytest.raises(PlanError) as e:
        plan_groups(GemmSpec(**fields), of, form, ends, DEFAULT)
    return e.value


WORKS = "needs a count of {} work tiles or more, and a tile scheduler counts to 2,147,483,647"


@pytest.mark.parametrize(
    ("form", "of", "count", "field"),
    [
        # an average group of 40 rows has one tile, but each may begin one that it does not fill
        ("rows", packed("rows", ROWS, 3072, 64, GROUPS), (ROWS // 64 + GROUPS) * 48, "m"),
        ("columns", packed("columns", 3072, ROWS, 64, GROUPS), (ROWS // 64 + GROUPS) * 48, "n"),
        ("masked", problem(128, 128, 64, batch=1 << 29), 1 << 31, "groups"),
        ("depth", deep(128, 128, 1 << 29, 1 << 29), 1 << 31, "groups"),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_more_work_tiles_than_are_counted_are_refused(form, of, count, field, swap):
    """Rows, columns, batches and K in groups; consumers stop a cluster's step beyond the last work tile."""
    error = refusal(form, of, **GIVEN, swap=swap)
    assert WORKS.format(f"{count + 131:,}") in error.rule
    assert error.rule.endswith(f"split the problem along {field}")
    assert (error.field, error.value) == (field, max(of.m, of.n, of.batch))


def test_a_quarter_of_the_groups_is_planned():
    """The limit is that of the whole launch, not of a group."""
    made = plan_groups(GemmSpec(**GIVEN), packed("rows", 1 << 24, 2048, 64, 1 << 24), "rows", ENDS, DEFAULT)
    assert made.clusters == 132


@pytest.mark.parametrize(
    ("form", "make", "field"),
    [
        ("rows", lambda x: packed("rows", x, 64, 64, 4), "m"),
        ("columns", lambda x: packed("columns", 64, x, 64, 4), "n"),
        ("masked", lambda x: problem(x, 64, 64, batch=2), "m"),
        ("depth", lambda x: deep(64, 64, x, 4), "k"),
    ],
)
def test_the_longest_groups_are_whole_tiles(form, make, field):
    """All rows may be one group's: their number is rounded up to tiles in 32 bits."""
    error = refusal(form, make(MOST), **GIVEN)
    assert (error.field, error.value) == (field, MOST) and "counts to 2,147,483,647" in error.rule
    plan_groups(GemmSpec(**GIVEN), make(error.nearest), form, ENDS, DEFAULT)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", ["rows", "depth"])
def test_few_groups_of_the_most_rows_are_planned(form, groups):
    """An average group's rows are rounded up further than a matrix may have rows."""
    of = packed("rows", MOST - 127, 64, 64, groups) if form == "rows" else deep(64, 64, MOST - 127, groups)
    assert plan_groups(GemmSpec(**GIVEN), of, form, ENDS, DEFAULT).multiply.groups.count == groups


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("lead", [0, 1])
def test_more_ends_than_are_addressed_are_refused(form, lead):
    """Ends of 64 bits are two words each, and words are counted."""
    ends, most = Ends(width=2, lead=lead), (1 << 30) - 1 - lead
    error = refusal(form, packed(form, 64, 64, 64, most + 1), ends, **GIVEN)
    assert (error.field, error.value, error.nearest) == ("groups", most + 1, most)
    plan_groups(GemmSpec(**GIVEN), packed(form, 64, 64, 64, most), form, ends, DEFAULT)


def test_more_indices_than_are_addressed_are_refused():
    """Indices of 64 bits are two words each."""
    of = packed("rows", 1 << 30, 64, 64, 4)
    error = refusal("rows", of, Ends(indices=2, rows=64), tile=Tile(64, 64, 64))
    assert (error.field, error.value, error.nearest) == ("m", 1 << 30, (1 << 30) - 1)


def test_a_call_is_refused_before_anything_is_written():
    """A grouped GEMM of tensors that share memory: nothing runs, and the error names the call."""
    a = torch.ones(1, 64, dtype=torch.bfloat16).expand(ROWS, 64)
    b = torch.ones(1, 64, 3072, dtype=torch.bfloat16).expand(GROUPS, 64, 3072)
    ends = torch.empty(GROUPS, dtype=torch.int32)
    with pytest.raises(PlanError) as e:
        cutegemm.grouped_mm(a, b, ends, spec=GemmSpec(**GIVEN), fallback="emulator")
    assert e.value.field == "m" and "work tiles" in e.value.rule and "spec" in e.value.context


@pytest.mark.parametrize(
    ("form", "of", "fields", "told"),
    [
        # A lies along K
        ("depth", deep(64, 64, 256, 2), {"a_load": "tma"}, "a_load='tma': .* nearest legal value: 'gather'"),
        ("depth", deep(64, 64, 256, 2), {"b_load": "relayout"}, "b_load='relayout': .* value: 'auto'"),
        (
            "rows",
            packed("rows", 64, 64, 64, 2),
            {"a_load": "relayout"},
            "a_load='relayout': groups are not copied",
        ),
        ("depth", deep(64, 64, 256, 2), {"evict_first": ("a", "b")}, "evict_first="),
        ("depth", deep(64, 64, 256, 2), {"schedule": "multistage"}, "schedule='multistage': .*'cooperative'"),
        ("depth", deep(64, 64, 256, 2), {"tile": Tile(16, 64, 64)}, "tile.m=16: .* nearest legal value: 64"),
    ],
)
def test_refusals_are_about_given_fields(form, of, fields, told):
    """Not about one that the planner tries, or a config's own field, which a spec does not have."""
    with pytest.raises(PlanError, match=f"^{told}"):
        plan_groups(GemmSpec(**GIVEN | fields), of, form, ENDS, DEFAULT)


def test_rows_that_indices_name_lie_along_k():
    """No load serves another A, so none is named."""
    of = packed("rows", 64, 64, 64, 2)
    of = dataclasses.replace(of, a=dataclasses.replace(of.a, strides=(1, 64, 0)))
    error = refusal("rows", of, Ends(indices=1, rows=64))
    assert (error.field, error.value, error.nearest) == ("a_major", "m", "k")
