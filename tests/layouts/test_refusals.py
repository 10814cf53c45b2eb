# SPDX-License-Identifier: Apache-2.0
"""Errors of the layouts: field, value, rule and nearest legal value, word for word."""

import re

import pytest

from cutegemm.errors import SpecError
from cutegemm.layouts import algebra, banks, hardware, int_tuple, tiling
from cutegemm.layouts.algebra import composition
from cutegemm.layouts.layout import Layout, ordered_layout, slice_
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle, parse

PLAIN = Layout((4, 8))
GAPS = Layout((4, 8), (1, 6))
NAMES = {x.__name__.rpartition(".")[2]: x for x in (algebra, banks, hardware, int_tuple, tiling)} | {
    "ComposedLayout": ComposedLayout, "GAPS": GAPS, "Layout": Layout, "PLAIN": PLAIN, "Swizzle": Swizzle,
    "composition": composition, "ordered_layout": ordered_layout, "parse": parse, "slice_": slice_,
}  # fmt: skip
# a call, and below it the text of its error
REFUSALS = """
Layout(())
    shape=(): must have at least one mode
Layout("x")
    shape='x': must be an int or a tuple of ints
Layout(0, 1)
    shape=0: must be at least 1; nearest legal value: 1
Layout((2, 2), (1, -1))
    stride=-1: must be at least 0; nearest legal value: 0
Layout((2, 2), 1)
    stride=1: must nest like the shape (2, 2)
Layout(4)(4)
    coordinate=4: must be in [0, 4) for the shape 4
PLAIN(40)
    coordinate=40: must be in [0, 32) for the shape (4, 8)
PLAIN[2]
    mode=2: must be a mode of (4,8):(1,4), 0 to 1; nearest legal value: 1
ordered_layout((4, 8), (0,))
    order=(0,): must have one entry per mode of (4, 8)
slice_(Layout(4), (None, 0))
    coordinate=(None, 0): must have one entry per mode of the shape 4
slice_(PLAIN, (0, 1, None))
    coordinate=(0, 1, None): must have one entry per mode of the shape (4, 8)
slice_(Layout((4, 2)), (None, 2))
    coordinate=2: must be in [0, 2) for the shape 2
int_tuple.parse("(1,2)3")
    text='(1,2)3': must be an int or a tuple of ints; nearest legal value: '(4,(2,3))'
parse("S<3>")
    layout='S<3>': must be shape:stride, or S<bits,base,shift> o offset o shape:stride; nearest legal value:
    'S<3,3,3> o 0 o (8,64):(64,1)'
composition(PLAIN, (2, 2, 2))
    len(tiler)=3: must be between 1 and 2, the modes of (4,8):(1,4); nearest legal value: 2
composition(PLAIN, ())
    len(tiler)=0: must be between 1 and 2, the modes of (4,8):(1,4); nearest legal value: 1
composition(PLAIN, 64)
    b=Layout(64, 1): its offsets must be below 32, the size of (4,8):(1,4)
composition(GAPS, Layout(3, 3))
    b=Layout(3, 3): its mode 3:3 reaches the end of a mode of the first after 2 steps, which must divide 3
composition(Layout((4, 4), (1, 5)), Layout(6))
    b=Layout(6, 1): its mode 6:1 reaches the end of a mode of the first after 4 steps, which must divide 6
composition(Layout((4, 3, 8), (8, 32, 1)), Layout((8, 4), (1, 8)))
    b=Layout((8, 4), (1, 8)): its modes must not carry past the mode of extent 12 of (4,3,8):(8,32,1)
composition(Layout((2, 2), (1, 10)), Layout((2, 2), (1, 1)))
    b=Layout((2, 2), (1, 1)): its modes must not carry past the mode of extent 2 of (2,2):(1,10)
algebra.complement(GAPS, 100)
    layout=Layout((4, 8), (1, 6)): its stride 6 must be a multiple of 4, which the smaller modes cover
algebra.left_inverse(Layout((4, 8), (2, 3)))
    layout=Layout((4, 8), (2, 3)): its stride 3 must be at least 8, which the smaller modes span, and a multiple of
    2
tiling.tile_to_shape(Layout((8, 8)), (64, 60))
    shape[1]=60: must be a multiple of the block's extent 8; nearest legal value: 64
tiling.tile_to_shape(Layout((8, 8)), (64,))
    shape=(64,): must have at least the 2 modes of the block (8,8):(1,8)
banks.access([0], 3)
    width=3: must be one of 1, 2, 4, 8, 16 bytes; nearest legal value: 2
banks.access([0] * 33, 4)
    len(addresses)=33: must be at most 32, one per thread; nearest legal value: 32
banks.access([0, 6], 4)
    addresses[1]=6: must be at least 0 and a multiple of the width of 4 bytes; nearest legal value: 4
banks.access([-4], 4)
    addresses[0]=-4: must be at least 0 and a multiple of the width of 4 bytes; nearest legal value: 0
banks.matrix_access([0] * 9)
    len(row_addresses)=9: must be 8, 16 or 32, 8 per matrix; nearest legal value: 8
banks.matrix_access([8] * 8)
    addresses[0]=8: must be at least 0 and a multiple of the width of 16 bytes; nearest legal value: 0
banks.layout_addresses(Layout(4), [0], bits=4)
    bits=4: must be a multiple of 8; nearest legal value: 8
banks.layout_addresses(ComposedLayout(Swizzle(3, 3, 3), 0, Layout(4)), [0], base=512)
    base=512: must be a multiple of the swizzle's period of 1024 bytes; nearest legal value: 0
Swizzle(-1, 4, 3)
    bits=-1: must be at least 0; nearest legal value: 0
Swizzle(3, 4, 2)
    shift=2: its magnitude must be at least bits=3; nearest legal value: 3
Swizzle(1, 4.0, 3)
    base=4.0: must be an int
Swizzle(1, 1, 1).recast(8, 12)
    new_bits=12: must be a power of two, in bits
Swizzle(3, 0, 3).recast(8, 16)
    new_bits=16: must be at most as wide as the chunks that Swizzle(bits=3, base=0, shift=3) moves; nearest legal
    value: 8
Swizzle(1, 1, 1).recast(8, 32)
    new_bits=32: must be at most as wide as the chunks that Swizzle(bits=1, base=1, shift=1) moves; nearest legal
    value: 16
ComposedLayout(Swizzle(3, 4, 3), -1, PLAIN)
    offset=-1: must be an int of at least 0; nearest legal value: 0
hardware.wgmma_c_layout(12)
    n=12: must be a multiple of 8 in [8, 256]; nearest legal value: 16
hardware.wgmma_c_layout(264)
    n=264: must be a multiple of 8 in [8, 256]; nearest legal value: 256
hardware.wgmma_c_layout(0)
    n=0: must be a multiple of 8 in [8, 256]; nearest legal value: 8
hardware.wgmma_a_layout(64)
    bits=64: must be one of 8, 16, 32
hardware.smem_atom("m", "128B")
    major='m': must be one of k, mn
hardware.smem_atom("k", "256B")
    swizzle='256B': must be one of none, 32B, 64B, 128B
hardware.byte_swizzle("auto")
    swizzle='auto': must be one of none, 32B, 64B, 128B
hardware.smem_layout((128, 48), "k", "128B")
    shape[1]=48: must be a multiple of the block's extent 64; nearest legal value: 64
hardware.tma_box(48, 64, "128B")
    contiguous=48: must be a positive multiple of the 128B swizzle's span of 64 elements; nearest legal value: 64
hardware.tma_box(64, 0, "128B")
    other=0: must be at least 1; nearest legal value: 1
hardware.widest_swizzle(12)
    contiguous=12: must be a positive multiple of 8 elements, 16 bytes; nearest legal value: 16
hardware.matrix_value_layout(3)
    count=3: must be one of 1, 2, 4
hardware.fragment_row_coordinates(0)
    count=0: must be one of 1, 2, 4
"""


@pytest.mark.parametrize("call, text", re.findall(r"^(\S.*)\n((?:    .*\n)+)", REFUSALS, re.MULTILINE))
def test_a_refusal_names_its_field(call, text):
    """Each error has the field, the value, the rule and, if there is one, the nearest legal value."""
    with pytest.raises(SpecError) as e:
        eval(call, NAMES)
    assert str(e.value) == " ".join(text.split())
    assert e.value.field and str(e.value).startswith(f"{e.value.field}={e.value.value!r}: {e.value.rule}")
