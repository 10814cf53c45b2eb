# SPDX-License-Identifier: Apache-2.0
"""Errors about the loads of groups name a field, and what they offer is legal for groups."""

import dataclasses

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.cli.facts.chosen import chosen
from cutegemm.cli.inputs import case
from cutegemm.errors import GemmError, PlanError
from cutegemm.planning import group_kernels, grouped, ranking
from cutegemm.planning.planner import plan
from cutegemm.request.group_forms import FORMS, all_groups


def refusal(spec, extents=(250, 126, 190), majors="kn", dtype="bf16", along="m"):
    """The error of groups that no kernel supports."""
    with pytest.raises(GemmError) as e:
        chosen(case(extents, spec, dtype=dtype, majors=majors, groups=3, along=along, gpu="h200"))
    return e.value


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_copy_before_the_launch_is_named(name, swap, monkeypatch):
    """An operand that is copied first is a field with a value, and another load is the nearest."""
    of = all_groups(problem(250, 126, 190, batch=3), "rows", {})
    other = {"a": "b", "b": "a"}[name]
    spec = GemmSpec(**{f"{name}_load": "relayout", f"{other}_load": "gather"}, swap=swap)
    made = plan(spec, problem(250, 126, 190), DEFAULT)
    average = group_kernels.Average(GemmSpec(), of, FORMS["rows"], DEFAULT, False)
    monkeypatch.setattr(group_kernels, "plan_adjacent", lambda *_: made)
    with pytest.raises(PlanError) as e:
        group_kernels._planned(average)
    assert str(e.value) == (
        f"{name}_load='relayout': groups are not copied before their launch; nearest legal value: 'auto'"
    )


def test_a_kernel_without_tensor_cores_is_named(monkeypatch):
    """A kernel on the CUDA cores is a schedule."""
    made = plan(GemmSpec(), problem(64, 64, 64, dtype="fp32"), DEFAULT)
    average = group_kernels.Average(GemmSpec(), made.problem, FORMS["masked"], DEFAULT, False)
    monkeypatch.setattr(group_kernels, "plan_adjacent", lambda *_: made)
    with pytest.raises(PlanError) as e:
        group_kernels._planned(average)
    said = "schedule='simt': groups are multiplied by tensor cores; nearest legal value: 'auto'"
    assert str(e.value) == said
    assert str(refusal("schedule='simt'")) == said


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"spec": "a_load='tma'"}, "a_load"),
        ({"spec": "b_load='tma'"}, "b_load"),
        ({"spec": "a_load='tma'", "along": "n"}, "a_load"),
        ({"spec": "b_load='tma', swap=True", "dtype": "int8"}, "b_load"),
        ({"spec": "b_load='shift'", "dtype": "fp8_e4m3"}, "b_load"),
        ({"spec": "b_load='cp_async', math='tf32'", "dtype": "fp32"}, "b_load"),
        ({"spec": "a_load='relayout'"}, "a_load"),
    ],
)
def test_the_load_that_is_offered_is_legal(words, field):
    """Groups have no copies, so the nearest load is another one, with which the spec plans."""
    error = refusal(**words)
    assert (error.field, error.nearest) == (field, "auto")
    old = words["spec"].split(",")[0]
    new = {**words, "spec": words["spec"].replace(old, f"{field}='{error.nearest}'")}
    spec, kind, along = new["spec"], new.get("dtype", "bf16"), new.get("along", "m")
    assert chosen(case((250, 126, 190), spec, dtype=kind, groups=3, along=along, gpu="h200")).plan.config


@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "int8"},
        {"dtype": "fp32", "math": "tf32"},
        # rows of 191 elements begin at any multiple of 2 bytes
        {"dtype": "bf16", "k": 191},
    ],
)
def test_rows_that_a_kernel_cannot_gather_are_named(kind):
    """The error is about the indices, which the caller gave, not about a load that nobody gave."""
    kind = dict(kind)
    k, spec = kind.pop("k", 192), GemmSpec(math=kind.pop("math", "auto"))
    of = all_groups(problem(64, 128, k, batch=3, majors="kk", **kind), "rows", {})
    ends = dataclasses.replace(grouped.Ends(), indices=1, rows=100)
    with pytest.raises(PlanError) as e:
        grouped.plan_groups(spec, of, "rows", ends, DEFAULT)
    assert e.value.field == "rows" and "a[rows]" in e.value.rule
    with pytest.raises(PlanError) as e:
        grouped.plan_groups(dataclasses.replace(spec, a_load="cp_async"), of, "rows", ends, DEFAULT)
    assert (e.value.field, e.value.nearest) == ("a_load", "auto")


def gathering(rows=8192, device=DEFAULT, **fields):
    """The plan of eight groups whose rows indices name."""
    of = all_groups(problem(rows, 28672, 4096, batch=8, majors="kk"), "rows", {})
    ends = dataclasses.replace(grouped.Ends(), indices=1, rows=4096)
    return grouped.plan_groups(GemmSpec(**fields), of, "rows", ends, device)


def test_a_copy_of_rows_pays_where_the_gather_costs_more():
    """The difference of two predictions is compared with the time of the copy's launch and bytes."""
    slow = dataclasses.replace(DEFAULT, loads=dataclasses.replace(DEFAULT.loads, relayout=1e9))
    assert grouped.copy_pays(gathering(), 10**8)
    assert not grouped.copy_pays(gathering(), 10**10)
    assert not grouped.copy_pays(gathering(device=slow), 10**8)


@pytest.mark.parametrize(
    "fields", [{}, {"tile": Tile(128, 128, 64), "swap": False}], ids=["any tile", "a large tile"]
)
def test_few_rows_of_a_group_are_not_copied(fields, monkeypatch):
    """Predictions are not even asked."""
    monkeypatch.delattr(grouped, "_predicted")
    assert not grouped.copy_pays(gathering(512, **fields), 0)


def test_a_copy_does_not_pay_where_nothing_is_predicted(monkeypatch):
    """The cost model may rank none of the configs that a spec leaves."""
    made = gathering()
    monkeypatch.setattr(ranking, "options", lambda _: iter(()))
    assert not grouped.copy_pays(made, 0)


def test_a_schedule_that_cannot_gather_rows_is_named():
    """The load of rows that indices name is not the caller's; the schedule is."""
    of = all_groups(problem(64, 128, 192, batch=3, majors="kk"), "rows", {})
    ends = dataclasses.replace(grouped.Ends(), indices=1, rows=100)
    with pytest.raises(PlanError) as e:
        grouped.plan_groups(GemmSpec(schedule="multistage"), of, "rows", ends, DEFAULT)
    assert (e.value.field, e.value.nearest) == ("schedule", "cooperative")
