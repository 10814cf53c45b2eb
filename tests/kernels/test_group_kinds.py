# SPDX-License-Identifier: Apache-2.0
"""Groups by every kind of kernel, and of operands that lie anyhow: on the emulator, races on."""

import dataclasses
import itertools

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.compiling.compiler import compile_config
from cutegemm.errors import PlanError
from cutegemm.ops.groups.grouped import planned
from tests.support.groups import ENDS, SMALL, SWAPPED, Groups, check_depth, check_groups, drawn
from tests.support.numerics import assert_close
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced


@epi.define
def raised(acc):
    """D of an empty group is 1 instead of 0."""
    return acc + 1.0


KERNELS = {
    "TMA stores whole subtiles": {**SMALL, "tile": Tile(128, 64, 64), "store": "tma", "epilogue_stages": 2},
    "TMA stores, in turns": {**SMALL, "store": "tma", "schedule": "pingpong"},
    "TMA stores tokens along columns": {**SWAPPED, "store": "tma", "epilogue_stages": 1},
    "pairs share B": {**SMALL, "sms": 4, "cluster": (2, 1)},
    "pairs share A": {**SMALL, "tile": Tile(128, 64, 64), "sms": 4, "cluster": (1, 2), "consumers": 2},
    "pingpong": {**SMALL, "schedule": "pingpong"},
    "multistage": {**SMALL, "schedule": "multistage"},
    "gathered": {**SMALL, "a_load": "gather", "b_load": "gather"},
    "elements": {**SMALL, "a_load": "cp_async", "b_load": "tma"},
    "tokens along columns in turns": {**SWAPPED, "schedule": "pingpong"},
    "tokens along columns, pairs": {**SWAPPED, "sms": 4, "cluster": (1, 2)},
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_kernel_follows_the_groups(name):
    """Empty groups, groups of one row and of several tiles, whatever loads them and however CTAs share tiles."""
    check_groups(GemmSpec(**KERNELS[name]), ENDS["uneven"], alpha=2.0)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_groups_end_inside_what_tma_stores(dtype, swapped):
    """Threads store a subtile in which a group ends, in chunks; what lies behind D's last column stays."""
    a, b = drawn(200, 96), drawn(4, 96, 136)
    whole = torch.full((200, 144), 7.0, dtype=dtype)
    spec = GemmSpec(**{**(SWAPPED if swapped else SMALL), "store": "tma"})
    ends = torch.tensor(ENDS["uneven"])
    assert not emulator.run(Groups(spec), a, b, ends, whole[:, :136], options=RACES).findings
    for group, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if end > first:
            assert_close(whole[first:end, :136], a[first:end], b[group])
    assert torch.all(whole[:, 136:] == 7.0)


def test_storing_the_end_of_a_group_spills_nothing():
    """In the largest pingpong tile, whose accumulators leave a thread few registers."""
    a, b = drawn(512, 64), drawn(2, 64, 384)
    spec = GemmSpec(tile=Tile(128, 192, 64), schedule="pingpong", store="tma", swap=False, cluster=(1, 1))
    config = planned(a, b.mT.contiguous().mT, torch.tensor([100, 300]), spec).config
    assert not compile_config(config).resources.spills


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_of_groups_begin_anywhere_in_a_column_major_d(swapped):
    """TMA cannot store from any row on: threads do, and a spec that wants TMA is refused."""
    a, b, ends = drawn(90, 96), drawn(3, 96, 72), torch.tensor([1, 70, 90])
    d = torch.empty(72, 96).bfloat16()[:, :90].T
    spec = GemmSpec(sms=3, swap=swapped)
    assert not emulator.run(Groups(spec), a, b, ends, d, options=RACES).findings
    for group, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        assert_close(d[first:end], a[first:end], b[group])
    rule = "^store='tma': .*begin at any element .*TMA stores at multiples of 16 bytes; nearest legal value: 'staged'"
    with pytest.raises(PlanError, match=rule):
        cutegemm.grouped_mm(
            a, b, ends, out=d, spec=dataclasses.replace(spec, store="tma"), fallback="emulator"
        )


@pytest.mark.parametrize("promote", ["auto", 128])
def test_groups_of_fp8(promote):
    """e4m3 in both operands, whose sums are promoted if the spec says so; D is bf16."""
    a, b = (x.to(torch.float8_e4m3fn) for x in (drawn(90, 256), drawn(3, 72, 256)))
    d, ends = torch.empty(90, 72).bfloat16(), torch.tensor([40, 41, 90])
    fields = {"sms": 3, "tile": Tile(64, 72, 128), "cluster": (1, 1), "schedule": "cooperative"}
    spec = GemmSpec(promote=promote, swap=False, **fields)
    assert not emulator.run(Groups(spec), a, b.mT, ends, d, options=RACES).findings
    told = cutegemm.grouped_mm(a, b.mT, ends, fallback="reference")
    torch.testing.assert_close(d, told, rtol=2e-2, atol=0.1)


LAYOUTS = {
    "B column-major": lambda a, b: (a, b.mT.contiguous().mT),
    "A column-major": lambda a, b: (a.T.contiguous().T, b),
    "odd leading dimensions": lambda a, b: (drawn(90, 99)[:, :96], drawn(4, 96, 73)[:, :, :72]),
    "an odd begin": lambda a, b: (drawn(91 * 96)[1 : 1 + 90 * 96].view(90, 96), b),
    "one B for all": lambda a, b: (a, b[:1].expand(4, -1, -1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_operands_lie_anyhow(name):
    """Any majors, leading dimensions and addresses."""
    a, b = LAYOUTS[name](drawn(90, 96), drawn(4, 96, 72))
    d, ends = torch.empty(90, 72).bfloat16(), [1, 70, 70, 90]
    spec = GemmSpec(sms=3, tile=Tile(64, 64, 64))
    assert not emulator.run(Groups(spec), a, b, torch.tensor(ends), d, options=RACES).findings
    for group, (first, end) in enumerate(itertools.pairwise([0, *ends])):
        if end > first:
            assert_close(d[first:end], a[first:end], b[group])


@pytest.mark.parametrize("ends", [[7, 7, 130, 200], [90, -7, 40, 1000, 3]])
def test_consumers_take_turns_at_groups_along_k(ends):
    """Each passes over as many stages as the other's group has."""
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, cluster=(1, 1), schedule="pingpong")
    check_depth(spec, drawn(200, 72).T, drawn(200, 136), ends)


DEPTH = {
    "contiguous along K": lambda k: (drawn(72, k), drawn(136, k).T),
    "unaligned": lambda k: (drawn(k, 71).T, drawn(k, 135)),
}


@pytest.mark.parametrize("name", DEPTH)
def test_groups_along_k_begin_anywhere(name):
    """Where TMA cannot begin, threads load; what lies behind a group's end is zeroed in shared memory all the same."""
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3)
    check_depth(spec, *DEPTH[name](100), [50, -7, 23, 1000, 3])


@pytest.mark.parametrize("deep", (16, 32))
def test_groups_along_k_end_within_shallow_stages(deep):
    """Rows behind a group's end are zeroed in a stage of one WGMMA, too, and in the second of two."""
    spec = GemmSpec(tile=Tile(64, 128, deep), schedule="pingpong", sms=3)
    check_depth(spec, drawn(100, 72).T, drawn(100, 136), [1, 17, 17, 50, 66, 98])


def test_few_rows_along_k_take_shallow_stages():
    """What lies behind a group's end is loaded for nothing; rows that are contiguous along K keep 128 bytes.

    Up to 128 rows, no cluster shares loads.
    """
    a, b = drawn(2048, 256), drawn(2048, 512)
    found = [depth_config(a.T, b, x) for x in (128, 64, 16, 8, 2)]
    assert [x.tile[2] for x in found] == [16, 16, 32, 32, 128]
    assert all(x.cluster_size == 1 for x in found[:3]) and found[4].cluster_size > 1
    assert depth_config(a.T, b, 64, cluster=(2, 1)).cluster == (2, 1)
    assert depth_config(drawn(256, 2048), drawn(512, 2048).T, 16).tile[2] == 64
    # with operands swapped the stage is halved, too, and the tile stays as it was chosen
    swapped, given = (
        depth_config(a.T, b, 8, swap=True),
        depth_config(a.T, b, 8, swap=True, tile=Tile(64, 256, 32)),
    )
    assert swapped.tile[2] == 32 and given.tile[:2] == (256, 64)
    assert depth_config(drawn(512, 56).T, drawn(512, 264), 8, swap=True).tile[2] == 32


def test_groups_that_store_more_than_they_load_take_long_rows():
    """Rows of 256 columns from a counter; not with few tiles, padding, or threads that load."""
    a, b = drawn(2048, 256), drawn(2048, 512)
    stores = lambda x: x.dynamic and tuple(x.tile) == (128, 256, 16)  # noqa: E731
    assert stores(depth_config(a.T, b, 128)) and stores(depth_config(a.T, b, 128, schedule="cooperative"))
    assert not stores(depth_config(a[:16].T, b[:16], 1))  # 8 tiles
    assert not stores(depth_config(a.T, b[:, :264], 128))
    assert not stores(depth_config(drawn(2048, 255).T, drawn(2048, 511), 128))
    assert not stores(depth_config(a.to(torch.int8).T, b.to(torch.int8), 128))
    assert not stores(depth_config(a.T, b, 128, swap=True))


def depth_config(a, b, groups, **fields):
    """The kernel of groups along K."""
    return planned(a, b, torch.zeros(groups).int(), spec=GemmSpec(**fields)).config


def test_masked_pairs_of_columns_that_alternate_lie_anyhow():
    """Threads load gates and linear parts as two matrices, of an unaligned B of each batch too."""
    graph, (a, b, counts) = (
        epi.swiglu("interleaved"),
        (drawn(2, 70, 64), drawn(2, 96, 65), torch.tensor([70, 33])),
    )
    b, d = b[..., :64].mT, torch.empty(2, 70, 48).bfloat16()
    spec = GemmSpec(sms=2, swap=False)
    assert not emulator.run(Groups(spec, "counts", epilogue=graph), a, b, counts, d, options=RACES).findings
    told = cutegemm.matmul(a, b, epilogue=graph, fallback="reference")
    for group, count in enumerate(counts.tolist()):
        torch.testing.assert_close(d[group, :count], told[group, :count], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("schedule", ["pingpong", "cooperative"])
def test_stages_half_as_deep_end_with_their_groups(schedule):
    """Groups that end in a stage's first half, in its second, and with it."""
    spec = GemmSpec(tile=Tile(64, 64, 32), sms=3, cluster=(1, 1), schedule=schedule)
    check_depth(spec, drawn(200, 72).T, drawn(200, 136), [7, 7, 64, 93, 96, 190])


EMPTY = {
    "cooperative": {"tile": Tile(128, 64, 64), "consumers": 2, "cluster": (1, 1), "epilogue_stages": 2},
    "pairs": {"tile": Tile(64, 64, 64), "cluster": (2, 1), "sms": 4},
    "pingpong": {"tile": Tile(64, 128, 64), "schedule": "pingpong", "cluster": (1, 1), "epilogue_stages": 1},
    "threads load": {"tile": Tile(64, 64, 64), "a_load": "cp_async", "stages": 4, "cluster": (1, 1)},
    "threads store": {"tile": Tile(64, 64, 64), "store": "staged", "cluster": (1, 1)},
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_groups_along_k_take_no_stage(name):
    """They are what the epilogue makes of 0, which TMA stores again from the buffers of the tile before."""
    a, b = drawn(90, 136).T, drawn(90, 264)
    ends = torch.tensor([0, 0, 0, 40, 40, 40, 40, 90, 90])
    spec = GemmSpec(**{"sms": 3, "store": "tma", **EMPTY[name]})
    assert planned(a, b, ends, spec).config.repeats == (spec.store == "tma")
    d = torch.full((9, 136, 264), 7.0).bfloat16()
    assert not emulator.run(Groups(spec, epilogue=raised), a, b, ends, d, options=RACES).findings
    for group, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        told = a[:, first:end].float() @ b[first:end].float() + 1.0
        torch.testing.assert_close(d[group].float(), told, rtol=1e-2, atol=1e-2)
