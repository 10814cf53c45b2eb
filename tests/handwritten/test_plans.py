# SPDX-License-Identifier: Apache-2.0
"""Launch plans cover every tile of D, hand over what the kernel's signature takes, and refuse what they cannot."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

import handwritten
from cutegemm.errors import GemmError
from handwritten.plans import TensorMap, Workspace
from handwritten.problem import contiguous

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
