# SPDX-License-Identifier: Apache-2.0
"""Tiles of groups from a counter: every one is computed once, whatever the sizes of groups and whoever comes when."""

from __future__ import annotations

import itertools

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Options, Step, run_steps, tensor_buffer
from cutegemm.launch_layout import COUNTERS, GROUP_ENDS
from cutegemm.ops.groups.grouped import planned
from cutegemm.plans.kernel_plan import launch_arguments
from tests.support.groups import ENDS, SMALL, SWAPPED, Groups, check_depth, check_groups, drawn
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

ORDERS = {
    "one cluster at a time": Options(policy="lazy", races=True, resident_ctas=1),
    "random": Options(policy="random", seed=2, races=True),
}
ROWS = {
    "cooperative": {**SMALL, "tile": Tile(128, 64, 64), "store": "tma", "consumers": 2},
    "pairs share B": {**SMALL, "sms": 4, "cluster": (2, 1)},
    "pingpong": {**SMALL, "schedule": "pingpong"},
    "tokens along columns in turns": {**SWAPPED, "schedule": "pingpong"},
    "tokens along columns, pairs": {**SWAPPED, "sms": 4, "cluster": (1, 2)},
}
DEPTH = {
    "cooperative": {"tile": Tile(128, 64, 64), "consumers": 2, "cluster": (1, 1)},
    "few rows": {"tile": Tile(256, 192, 16), "schedule": "cooperative", "cluster": (1, 1), "sms": 2},
    "pairs": {"tile": Tile(64, 64, 64), "cluster": (2, 1), "sms": 4},
    "pingpong": {"tile": Tile(64, 128, 16), "schedule": "pingpong", "cluster": (1, 1), "epilogue_stages": 1},
    "pingpong, pairs": {"tile": Tile(64, 64, 32), "schedule": "pingpong", "cluster": (1, 2), "sms": 4},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_groups_come_from_a_counter(name, order):
    """Only the device knows how many tiles there are. The last cluster leaves the counters zero for the next launch."""
    check_groups(GemmSpec(**ROWS[name], scheduler="dynamic"), ENDS["uneven"], options=ORDERS[order])


@pytest.mark.parametrize("name", ["decreasing and outside", "the last of many"])
def test_hostile_and_many_groups_come_from_a_counter(name):
    """The search for a tile goes on from the group of the CTA's last one."""
    check_groups(GemmSpec(**SMALL, scheduler="dynamic"), ENDS[name], tail="undefined")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ends", [[7, 7, 130, 200], [90, -7, 40, 1000, 3], [0, 0, 0, 40, 40, 40, 40, 90, 90]])
@pytest.mark.parametrize("name", DEPTH)
def test_groups_along_k_come_from_a_counter(name, ends, order):
    """A consumer passes over as many stages as the other's group has; an empty group's tile is taken without loads."""
    spec = GemmSpec(**{"sms": 3, "scheduler": "dynamic", **DEPTH[name]})
    check_depth(spec, drawn(200, 72).T, drawn(200, 136), ends, options=ORDERS[order])


def test_masked_groups_come_from_a_counter():
    """Their rows are the first of a batch each."""
    a, b, counts = drawn(3, 70, 96), drawn(3, 96, 72), torch.tensor([70, 0, 33])
    d = torch.full((3, 70, 72), 7.0).bfloat16()
    spec = GemmSpec(**SMALL, scheduler="dynamic")
    assert not emulator.run(Groups(spec, "counts"), a, b, counts, d, options=RACES).findings
    for group, count in enumerate(counts.tolist()):
        told = a[group, :count].float() @ b[group].float()
        torch.testing.assert_close(d[group, :count].float(), told, rtol=1e-2, atol=1e-1)
        assert not d[group, count:].any()


@pytest.mark.parametrize("fields", [{}, {"schedule": "pingpong"}, {"cluster": (2, 1), "sms": 4}], ids=str)
@pytest.mark.parametrize("form", ["rows", "depth"])
def test_a_run_leaves_its_counters_zero(form, fields):
    """The next launch finds them so, whatever the ends were."""
    fields = {**SMALL, "scheduler": "dynamic", **fields}
    a, b = (drawn(200, 96), drawn(4, 96, 136)) if form == "rows" else (drawn(200, 72).T, drawn(200, 136))
    ends = torch.tensor([1, 130, 130, 200], dtype=torch.int32)
    made = planned(a, b, ends, GemmSpec(**fields))
    d = torch.zeros((200, 136) if form == "rows" else (4, 72, 136)).bfloat16()
    counters = torch.zeros(made.counter_bytes, dtype=torch.uint8)
    named = {"a": a, "b": b, "d": d, GROUP_ENDS: ends, COUNTERS: counters}
    places = {name: x.data_ptr() for name, x in named.items()}
    for told in ([1, 130, 130, 200], [0, 0, 0, 0], [200, 200, 200, 200]):
        ends.copy_(torch.tensor(told))
        d.zero_()
        steps = [
            Step(kernel_cache.artifact(config).ptx, x.grid, x.block, x.cluster, x.smem, x.params)
            for config, args in launch_arguments(made, places, 0, {"alpha": 1.0}, 0)
            for x in kernel_cache.launches(config, args)
        ]
        run_steps(steps, [tensor_buffer(x, name) for name, x in named.items()])
        assert not counters.any()
        for group, (first, end) in enumerate(itertools.pairwise([0, *told])):
            one = d[first:end] if form == "rows" else d[group]
            pair = (a[first:end], b[group]) if form == "rows" else (a[:, first:end], b[first:end])
            torch.testing.assert_close(one.float(), pair[0].float() @ pair[1].float(), rtol=1e-2, atol=0.1)
