# SPDX-License-Identifier: Apache-2.0
"""Groups far larger than the average have a launch of their own: when, and that both launches compute every group."""

import math

import pytest
import torch

import cutegemm
from benchmarks.probes.grouped_kernels import forget
from cutegemm import GemmSpec, Groups, Tile
from cutegemm import epilogue as epi
from cutegemm.ops.groups.grouped import gemm_of, planned
from cutegemm.ops.products import program_of
from cutegemm.planning import grouped
from cutegemm.plans.group_sizes import by_size
from cutegemm.plans.steps import MOST_ROWS
from tests.support.groups import ENDS, check_groups, drawn

MOST = 128  # rows of a small group here
# of groups of at most `MOST` rows, and of more
SKEWED = {
    "all in one": [0, 0, 560, 560, 560, 560, 560, 560],
    "two large, small ones between, and a tail": [3, 140, 140, 143, 300, 310, 320, 320],
    "on both sides of the bound": [128, 257, 258, 386, 515, 515, 515, 560],
    "small ones alone": [70, 140, 210, 280, 350, 420, 490, 560],
    "decreasing and outside": [90, -7, 400, 5000, 3, 300, 7, 9],
}
EXPERTS = {"groups": 128, "n": 1536, "k": 2048}


def plan(rows, groups, n, k, **fields):
    """The plan of operands without data."""
    a = torch.empty(rows, k, dtype=torch.bfloat16, device="meta")
    b = torch.empty(groups, n, k, dtype=torch.bfloat16, device="meta").mT
    return planned(a, b, torch.empty(groups, dtype=torch.int32, device="meta"), **fields)


def sizes(plan):
    """Least and most rows of the groups of each launch."""
    return [step.groups.sizes for step in plan.steps]


@pytest.fixture
def always(monkeypatch):
    """No problem is too short for a launch without work, and no large group too small, so that small ones have both."""
    monkeypatch.setattr(grouped, "IDLE", math.inf)
    monkeypatch.setattr(grouped, "LARGE_ROWS", MOST)
    monkeypatch.setattr(grouped, "LEAST_ROWS", 4 * MOST)
    forget()
    yield
    forget()


@pytest.mark.parametrize("name", SKEWED)
def test_each_group_is_computed_by_one_of_the_launches(name, always):
    """Rows of no group are zeroed once, and no launch touches the groups of the other."""
    assert sizes(plan(560, 8, 264, 128)) == [(0, MOST), (MOST + 1, MOST_ROWS)]
    check_groups(GemmSpec(), SKEWED[name], (560, 264, 128))


def test_rows_of_no_group_may_stay(always):
    """Both launches leave them alone."""
    check_groups(
        GemmSpec(), SKEWED["two large, small ones between, and a tail"], (560, 264, 128), tail="undefined"
    )


def test_a_large_problem_of_small_groups_has_both():
    """In tiles of their own, with counters of their own."""
    made = plan(2048, **EXPERTS)
    small, large = made.steps
    assert sizes(made) == [(0, 256), (257, MOST_ROWS)]
    assert [x.name for x in made.steps] == ["gemm", "gemm of large groups"]
    assert math.prod(large.config.tile[:2]) > math.prod(small.config.tile[:2])
    assert (small.groups.tail, large.groups.tail) == (True, False)
    assert made.config is small.config and "groups of more than 256 rows" in str(made.reasons)


def test_a_plan_says_what_computes_large_groups():
    """Its launches, and the second one's kernel in D's coordinates."""
    text = str(plan(2048, **EXPERTS))
    assert (
        "launches   gemm -> gemm of large groups" in text
        and "of 257 rows and more: warp_specialized, tile" in text
    )


def test_a_kernel_for_large_groups_has_a_larger_tile_along_them():
    """Else it reads their weights as often."""
    found = [plan(rows, **EXPERTS).steps for rows in range(1024, 8192, 171)]
    both = [steps for steps in found if len(steps) == 2]
    assert both and all(small.config.group_rows < large.config.group_rows for small, large in both)


def test_a_second_launch_refuses_nothing():
    """A number of rows that its tile cannot count is left to the first."""
    most = 2**31 - 129
    assert sizes(plan(most, 2**26, 64, 64)) == [(0, MOST_ROWS)]


def test_counters_are_apart():
    """Two launches that take tiles from counters share none."""
    one = plan(2048, **EXPERTS, spec=GemmSpec(scheduler="dynamic"))
    joined = by_size(one, one, 128)
    assert joined.counter_bytes == 2 * one.counter_bytes > 0
    first, last = (set(step.counted.values()) for step in joined.steps)
    assert first and not first & last and max(last) < joined.counter_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": GemmSpec(tile=Tile(128, 128, 64))},
        {"spec": GemmSpec(cluster=(2, 1))},
        {"spec": GemmSpec(swap=True)},
        {"spec": GemmSpec(batch_invariant=True)},
    ],
)
def test_one_kernel_computes_all_groups(fields):
    """Where it is asked for, and where a row's bits must not depend on its group's size."""
    assert sizes(plan(2048, **EXPERTS, **fields)) == [(0, MOST_ROWS)]


def test_results_of_rows_are_reduced_by_one_launch(always):
    """Their parts lie in workspace, where every row has as many."""
    summed = epi.define(lambda acc: epi.Output(d=acc, total=epi.Sum(acc, axis=1)))
    ends = torch.tensor(SKEWED["all in one"])
    gemm = gemm_of(program_of(summed, None, "matrix", {}, None))
    made = gemm.plan(drawn(560, 64), drawn(8, 64, 264), Groups(offs=ends), {})
    assert [x.name for x in made.steps] == ["gemm", "finish total"]


@pytest.mark.parametrize(
    "rows, groups, n, k",
    [
        (16384, 128, 1536, 2048),  # the tiles of all groups are large
        (1023, 128, 1536, 2048),  # few rows
        (2048, 3, 1536, 2048),  # few groups
        (2048, 128, 512, 1024),  # a launch takes too large a share of the time
    ],
)
def test_alike_or_short_groups_have_one_launch(rows, groups, n, k):
    """A second launch would gain too little."""
    assert sizes(plan(rows, groups, n, k)) == [(0, MOST_ROWS)]


def test_the_least_rows_of_two_launches():
    """1,024 rows in all groups are enough."""
    assert len(plan(1024, **EXPERTS).steps) == 2


# of groups of at most 256 rows, and of more
LARGER = [*([3 * x for x in ends] for ends in SKEWED.values()), [256, 513, 769], ENDS["the last of many"]]


@pytest.mark.gpu
@pytest.mark.parametrize("ends", LARGER)
def test_on_a_gpu(ends):
    """Both launches, against fp32 products of each group."""
    rows, k, n = 2048, 2048, 1536
    groups = max(len(ends), 128)
    told = torch.tensor([*ends, *[rows] * (groups - len(ends))], dtype=torch.int32, device="cuda")
    a, b = (torch.randn(x, device="cuda").bfloat16() for x in ((rows, k), (groups, k, n)))
    assert len(planned(a, b, told).steps) == 2
    d, begin = cutegemm.grouped_mm(a, b, told), 0
    for group, end in enumerate(told.clamp(0, rows).cummax(0).values.tolist()):
        wanted = a[begin:end].float() @ b[group].float()
        torch.testing.assert_close(d[begin:end].float(), wanted, rtol=2e-2, atol=1.0)
        begin = end
    assert not d[begin:].any()
