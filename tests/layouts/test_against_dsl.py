# SPDX-License-Identifier: Apache-2.0
"""Our algebra and sm_90 layouts beside those of the CuTe DSL.

The DSL's layout operations need an MLIR context; inside one they fold to plain ints without a GPU. The DSL is
no oracle for composition (it accepts some pairs that have no answer), so there it is held to the definition too.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # read when cutlass is imported

import cutlass
from cutlass import cute
from cutlass._mlir import ir
from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup
from cutlass.utils.hopper_helpers import make_trivial_tiled_mma

from cutegemm.errors import SpecError
from cutegemm.layouts import hardware
from cutegemm.layouts.algebra import coalesce, complement, composition, left_inverse, right_inverse
from cutegemm.layouts.layout import Layout, parse
from cutegemm.layouts.tiling import blocked_product, raked_product, zipped_divide

KINDS = {"none": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128"}
DTYPES = {8: cutlass.Float8E4M3FN, 16: cutlass.Float16, 32: cutlass.Float32}


@pytest.fixture(autouse=True)
def mlir_context():
    """Hold an MLIR module open, and close it again: a leaked one crashes the interpreter at exit."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            yield


def to_dsl(layout: Layout) -> cute.Layout:
    """Make the DSL's layout of the same shape and stride."""
    return cute.make_layout(layout.shape, stride=layout.stride)


def from_dsl(layout: cute.Layout) -> Layout:
    """Read a DSL layout through its printed form."""
    return parse(str(layout))


def offsets(layout: Layout) -> list[int]:
    """Evaluate a layout at every linear index."""
    return [layout(i) for i in range(layout.size)]


def random_layouts(count: int, seed: int) -> list[Layout]:
    """Draw layouts of rank 1 to 3 whose extents and strides often divide one another."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        rank = draw.randint(1, 3)
        shape = tuple(draw.choice((1, 2, 3, 4, 8)) for _ in range(rank))
        stride = tuple(draw.choice((0, 1, 2, 4, 6, 8, 16, 32)) for _ in range(rank))
        found.append(Layout(shape, stride))
    return found


def test_coalesce_and_right_inverse_agree_on_injective_layouts():
    """Both give the same layouts, up to the notation of one mode; ours also goes past stride-0 modes."""
    compared = 0
    for layout in random_layouts(150, seed=1):
        assert offsets(from_dsl(cute.coalesce(to_dsl(layout)))) == offsets(coalesce(layout))
        if len(set(offsets(layout))) == layout.size:
            theirs = from_dsl(cute.right_inverse(to_dsl(layout)))
            assert offsets(theirs) == offsets(right_inverse(layout)), layout
            compared += 1
    assert compared > 20


def test_complement_agrees_where_ours_is_defined():
    """Where the strides divide, both fill the same gaps."""
    compared = 0
    for layout in random_layouts(200, seed=2):
        try:
            ours = complement(layout, 64)
        except SpecError:
            continue
        compared += 1
        assert offsets(from_dsl(cute.complement(to_dsl(layout), 64))) == offsets(ours), layout
    assert compared > 60


def test_left_inverse_agrees_on_the_image():
    """On the offsets that the layout takes, both name the same linear index."""
    compared = 0
    for layout in random_layouts(200, seed=3):
        try:
            ours = left_inverse(layout)
        except SpecError:
            continue
        compared += 1
        theirs = from_dsl(cute.left_inverse(to_dsl(layout)))
        assert [theirs(o) for o in offsets(layout)] == [ours(o) for o in offsets(layout)], layout
    assert compared > 20


def test_composition_takes_every_pair_that_the_dsl_gets_right():
    """Wherever the DSL's answer equals A(B(i)), ours is the same function; where ours refuses, the DSL's is wrong."""
    right = wrong = 0
    for a, b in zip(random_layouts(600, seed=4), random_layouts(600, seed=5)):
        if b.cosize > a.size:
            continue
        wanted = [a(offset) for offset in offsets(b)]
        try:
            theirs = offsets(from_dsl(cute.composition(to_dsl(a), to_dsl(b))))
        except ir.MLIRError:
            continue
        if theirs == wanted:
            right += 1
            assert offsets(composition(a, b)) == wanted, (a, b)
        else:
            wrong += 1
            with pytest.raises(SpecError):
                composition(a, b)
    assert right > 100 and wrong > 0  # so this DSL still cannot be the only oracle


def test_divides_and_products_agree():
    """A matrix cut into tiles, and a block repeated, give the DSL's shapes and strides."""
    for tile, tiles in itertools.product(
        itertools.product((1, 2, 4), repeat=2), itertools.product((2, 3), repeat=2)
    ):
        block = Layout(tile, (tile[1], 1))
        matrix = Layout((tile[0] * tiles[0], tile[1] * tiles[1]))
        theirs = from_dsl(cute.zipped_divide(to_dsl(matrix), tile))
        assert offsets(theirs) == offsets(zipped_divide(matrix, tile))
        for ours, theirs in ((blocked_product, cute.blocked_product), (raked_product, cute.raked_product)):
            made = from_dsl(theirs(to_dsl(block), to_dsl(Layout(tiles))))
            assert offsets(made) == offsets(ours(block, Layout(tiles))), (tile, tiles)


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("swizzle", KINDS)
@pytest.mark.parametrize("major", hardware.MAJORS)
def test_smem_atoms_and_layouts_agree(major, swizzle, bits):
    """Our atom is the DSL's: the same plain layout, and its byte swizzle in units of elements."""
    kind = getattr(warpgroup.SmemLayoutAtomKind, f"{major.upper()}_{KINDS[swizzle]}")
    theirs = warpgroup.make_smem_layout_atom(kind, DTYPES[bits])
    ours = hardware.smem_atom(major, swizzle, bits)
    assert from_dsl(theirs.outer) == ours.layout
    inner = theirs.inner
    assert (inner.num_bits, inner.num_base, inner.num_shift) == (
        hardware.byte_swizzle(swizzle).bits,
        hardware.byte_swizzle(swizzle).base,
        hardware.byte_swizzle(swizzle).shift,
    )
    tiled = cute.tile_to_shape(theirs, (128, 128, 2), (0, 1, 2) if major == "k" else (1, 0, 2))
    plain = hardware.smem_layout((128, 128, 2), major, swizzle, bits).layout
    assert coalesce(from_dsl(tiled.outer), (0, 0, 0)) == plain


@pytest.mark.parametrize("n", [8, 64, 128, 256])
def test_wgmma_fragments_agree(n):
    """The C fragment, and A's when it comes from registers, are the tiled MMA's thread-value layouts."""
    k_major = OperandMajorMode.K
    mma = make_trivial_tiled_mma(
        cutlass.Float16,
        cutlass.Float16,
        k_major,
        k_major,
        cutlass.Float32,
        (1, 1, 1),
        (64, n),
        a_source=warpgroup.OperandSource.RMEM,
    )
    assert offsets(from_dsl(mma.tv_layout_C_tiled)) == offsets(hardware.wgmma_c_layout(n))
    assert offsets(from_dsl(mma.tv_layout_A_tiled)) == offsets(hardware.wgmma_a_layout())


@pytest.mark.parametrize("count", hardware.MATRIX_COUNTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_copies_agree(transposed, count):
    """The registers that stmatrix reads and ldmatrix writes are those of the DSL's copy atoms."""
    registers = offsets(hardware.matrix_value_layout(count, transposed))
    store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transposed, count), cutlass.Float16)
    load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transposed, count), cutlass.Float16)
    assert offsets(from_dsl(store.layout_src_tv)) == offsets(from_dsl(load.layout_dst_tv)) == registers
