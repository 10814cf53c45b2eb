# SPDX-License-Identifier: Apache-2.0
"""Launch plans cover every tile of D, hand over what the kernel's signature takes, and refuse what they cannot."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

import handwritten
from cutegemm.errors import GemmError
from handwritten.ladder.plans import TensorMap, Workspace
from handwritten.ladder.problem import contiguous

STAGES = handwritten.stages()
extents = st.integers(1, 700)


def parameter_bytes(ptx, kernel):
    """Sizes of a kernel's parameters, read from its PTX."""
    head = ptx[ptx.index(f".entry {kernel}(") :]
    head = head[: head.index("\n)")]
    sizes = []
    for line in head.splitlines()[1:]:
        array = re.search(r"\[(\d+)\]", line)
        sizes.append(int(array[1]) if array else int(re.search(r"\.[usbf](\d+) ", line)[1]) // 8)
    return sizes


@pytest.mark.sliced
@pytest.mark.parametrize("stage", STAGES, ids=[stage.key for stage in STAGES])
def test_arguments_match_the_signature(stage):
    """Every launch passes as many arguments, of the same sizes, as the compiled kernel declares."""
    tile = stage.constants
    plan = stage.plan(contiguous(stage.dtypes[0], 2 * tile["BM"], 2 * tile["BN"], 256, beta=0.5))
    for launch in plan.launches:
        sizes = []
        for argument in launch.arguments:
            described = 128 if isinstance(argument, TensorMap) else 8
            sizes.append(described if isinstance(argument, TensorMap | Workspace) else len(bytes(argument)))
        assert sizes == parameter_bytes(stage.ptx, launch.kernel)


@given(m=extents, n=extents)
def test_grid_covers_d_without_waste(m, n):
    """One CTA a tile: the grid reaches the last row and column, and no tile lies outside D."""
    stage = handwritten.stage("register_tile_2d")
    x, y, z = stage.plan(contiguous("fp32", m, n, 8)).launches[0].grid
    assert (x - 1) * 128 < n <= x * 128
    assert (y - 1) * 128 < m <= y * 128
    assert z == 1


def test_too_many_rows_for_the_grid():
    """More rows of tiles than CUDA has CTAs along y are refused before the launch."""
    with pytest.raises(
        GemmError, match=r"M=2097152: stage 01_naive has one row of CTAs per tile; at most 2097120"
    ):
        handwritten.stage(1).plan(contiguous("fp32", 65_536 * 32, 1, 1))


def test_c_is_not_passed_when_beta_is_zero():
    """With beta = 0 the kernel gets a null C, so it cannot read it."""
    arguments = handwritten.stage(1).plan(contiguous("fp32", 8, 8, 8)).launches[0].arguments
    assert arguments[9].value is None


@given(m=st.integers(1, 600), n=st.integers(1, 75), k=st.integers(1, 5000), sms=st.integers(1, 132))
def test_split_k_leaves_no_part_empty_and_fills_the_gpu_at_most_once(m, n, k, sms):
    """The parts cover K's tiles, none is empty, and CTAs do not outnumber multiprocessors unless tiles do."""
    stage = handwritten.stage("split_k_workspace")
    problem = contiguous("bf16", m, 8 * n, 8 * k)
    gemm, reduce = stage.plan(problem, sms).launches
    x, y, splits = gemm.grid
    tiles = -(-8 * k // stage.constants["BK"])
    per_split = -(-tiles // splits)  # as the kernel works it out
    assert (splits - 1) * per_split < tiles <= splits * per_split
    assert splits == 1 or (x * y * splits <= sms and per_split >= 8)
    assert [argument.value for argument in reduce.arguments[:3]] == [m, 8 * n, splits]


def test_split_k_at_its_own_shape():
    """128 x 128 x 16384 has one tile and 256 tiles of k: 32 parts of 8, and a slab of fp32 sums for each."""
    plan = handwritten.stage("split_k_workspace").plan(contiguous("bf16", 128, 128, 16_384))
    assert plan.launches[0].grid == (1, 1, 32)
    assert (plan.workspace_bytes, plan.zeroed_bytes) == (32 * 128 * 128 * 4, 0)


def test_atomic_split_k_zeroes_one_tile_and_its_counter():
    """Sums of one tile and its counter are zeroed before the launch, however many parts there are."""
    plan = handwritten.stage("split_k_atomic").plan(contiguous("bf16", 128, 128, 16_384))
    assert plan.workspace_bytes == plan.zeroed_bytes == 128 * 128 * 4 + 4


@given(m=st.integers(1, 5000), n=st.integers(1, 600), sms=st.integers(2, 132))
def test_a_persistent_grid_is_whole_clusters_and_never_too_many(m, n, sms):
    """CTAs come in pairs, at most as many as multiprocessors and as pairs of tiles, and at least one pair."""
    stage = handwritten.stage("persistent_cluster")
    x, y, z = stage.plan(contiguous("bf16", m, 8 * n, 64), sms).launches[0].grid
    pairs = -(-m // 256) * -(-8 * n // 256)
    assert (y, z) == (1, 1) and x % 2 == 0
    assert 2 <= x <= min(2 * pairs, sms)
