# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a call may share memory, by what `running.arguments.check` knows of their layouts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.gemm import Gemm, representative
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.check import alignment, apart, extent_bytes, overlaps, same_layout
from tests.support.described import BF16, A, B, bare, t


def test_out_may_not_share_memory_with_a_or_b():
    """An `out` over part of A or B is refused; nothing in the shared memory changes."""
    memory = torch.ones(300, dtype=BF16)
    inside = {"a": memory[:30].view(6, 5), "b": memory[:35].view(5, 7)}
    for name, tensor in inside.items():
        inputs = {"a": A, "b": B} | {name: tensor}
        with pytest.raises(InputError) as e:
            bare().run(inputs["a"], inputs["b"], out=memory[25:67].view(6, 7))
        assert str(e.value) == f"out: overlaps {name} in memory"
    assert bool((memory == 1).all())


def test_out_may_be_c_and_nothing_less():
    """`out` is C itself, or is refused: shifted, transposed or of another type over the same memory."""
    memory = torch.ones(300, dtype=BF16)
    c = memory[:49].view(7, 7)
    a, b = t(7, 5), t(5, 7)
    assert bare().run(a, b, c, out=c) is c
    message = "out: overlaps c in memory; it may only be c itself (same pointer, shape, strides and dtype)"
    for out in (memory[1:50].view(7, 7), c.t(), memory[:98].view(torch.float32).view(7, 7)):
        with pytest.raises(InputError) as e:
            bare().run(a, b, c, out=out)
        assert str(e.value) == message


def test_overlap_is_seen_on_every_call_of_a_known_kind():
    """A call like an accepted one before it, but whose `out` lies elsewhere, is checked again."""
    gemm = bare()
    memory = torch.ones(300, dtype=BF16)
    a, b = memory[:30].view(6, 5), t(5, 7)
    gemm.run(a, b, out=memory[64:106].view(6, 7))
    with pytest.raises(InputError, match="^out: overlaps a in memory$"):
        gemm.run(a, b, out=memory[16:58].view(6, 7))


def test_disjoint_views_of_one_allocation_are_fine():
    """Neighbouring pieces of one allocation do not overlap."""
    memory = torch.ones(30 + 35 + 42, dtype=BF16)
    out = memory[65:].view(6, 7)
    assert bare().run(memory[:30].view(6, 5), memory[30:65].view(5, 7), out=out) is out


@given(st.integers(1, 1 << 40))
def test_alignment_is_a_power_of_two_that_divides(address):
    """The largest power of two up to 16 that divides an address."""
    found = alignment(address)
    assert found in (1, 2, 4, 8, 16) and address % found == 0
    assert found == 16 or address % (2 * found)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_extent_covers_every_element(rows, cols, row, col):
    """The extent ends right after the last element."""
    x = torch.empty(200, dtype=torch.float32).as_strided((rows, cols), (row, col))
    ends = [4 * (i * row + j * col + 1) for i in range(rows) for j in range(cols)]
    assert extent_bytes(x) == max(ends, default=0)


def test_same_layout_needs_all_three():
    """Shape, strides and dtype must agree; where the matrices lie does not matter."""
    x = torch.zeros(64, dtype=BF16)
    base = x[:36].view(6, 6)
    assert same_layout(base, x[:36].view(6, 6)) and same_layout(base, x[1:37].view(6, 6))
    for other in (x[:30].view(6, 5), base.t(), base.view(torch.float16)):
        assert not same_layout(base, other)


MEMORY = torch.zeros(256, dtype=BF16)


KINDS = {"c": "matrix", "r": "matrix", "bias": "row", "scale": "col"}


INPUTS = {
    "c": MEMORY[:36].view(6, 6),
    "r": MEMORY[40:76].view(6, 6),
    "bias": MEMORY[80:86],
    "scale": MEMORY[90:96],
}


APART = torch.zeros(2, 2, dtype=BF16)


ELSEWHERE = MEMORY[100:136].view(6, 6)


ITSELF = "; it may only be {} itself (same pointer, shape, strides and dtype)"


OVERLAPS = {
    "apart": ({"d": ELSEWHERE, "pre": MEMORY[136:172].view(6, 6)}, None),
    "each on an input of its own": ({"d": INPUTS["c"], "pre": INPUTS["r"]}, None),
    "another output on the input": ({"pre": INPUTS["r"]}, None),
    "an empty one": ({"d": MEMORY[80:80].view(0, 6)}, None),
    "two outputs on one input": ({"d": INPUTS["c"], "pre": INPUTS["c"]}, "pre: overlaps out in memory"),
    "two outputs": ({"d": ELSEWHERE, "pre": MEMORY[135:171].view(6, 6)}, "pre: overlaps out in memory"),
    "two others": ({"pre": ELSEWHERE, "post": ELSEWHERE}, "post: overlaps pre in memory"),
    "d second": ({"pre": ELSEWHERE, "d": ELSEWHERE}, "out: overlaps pre in memory"),
    "shifted": ({"pre": MEMORY[34:70].view(6, 6)}, "pre: overlaps c in memory" + ITSELF.format("c")),
    "transposed": ({"pre": INPUTS["r"].t()}, "pre: overlaps r in memory" + ITSELF.format("r")),
    "another type": (
        {"pre": INPUTS["r"].view(torch.float16)},
        "pre: overlaps r in memory" + ITSELF.format("r"),
    ),
    "a row": ({"d": MEMORY[80:116].view(6, 6)}, "out: overlaps bias in memory"),
    "a row that is an output": ({"sums": INPUTS["bias"]}, "sums: overlaps bias in memory"),
    "a column": ({"pre": MEMORY[60:96].view(6, 6)[5:]}, "pre: overlaps scale in memory"),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_word_for_word(name):
    """An output may be a matrix input itself, one output each; anything else that shares memory is refused."""
    outs, message = OVERLAPS[name]
    if message is None:
        overlaps(Request(APART, APART, INPUTS, outs), KINDS)
        return
    with pytest.raises(InputError) as e:
        overlaps(Request(APART, APART, INPUTS, outs), KINDS)
    assert str(e.value) == message


def columns(memory, first, count):
    """Some columns of a buffer."""
    return memory[:, first : first + count]


WIDE = torch.zeros(6, 40, dtype=BF16)


SLICES = {
    "halves": (columns(WIDE, 0, 20), columns(WIDE, 20, 20), True),
    "halves of every batch": (WIDE.view(2, 3, 40)[..., :20], WIDE.view(2, 3, 40)[..., 20:], True),
    "with a gap": (columns(WIDE, 21, 19), columns(WIDE, 0, 20), True),
    "one column shared": (columns(WIDE, 0, 20), columns(WIDE, 19, 20), False),
    "rows of a transposed buffer": (columns(WIDE, 0, 20).t(), columns(WIDE, 20, 20).t(), True),
    "a row further": (
        WIDE.view(-1)[:200].view(5, 40)[:, :30],
        WIDE.view(-1)[30:230].view(5, 40)[:, :30],
        False,
    ),
    "other pitches": (columns(WIDE, 0, 20), WIDE.view(12, 20), False),
    # Apart, but by another rule than the pitch's.
    "even and odd columns": (
        WIDE[:, ::2],
        WIDE[:, 1::2],
        False,
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_one_buffer(name):
    """Columns, or rows, of one pitch that share no element are apart, in either order."""
    x, y, expected = SLICES[name]
    assert apart(x, y) is apart(y, x) is expected


def test_outputs_may_be_slices_of_one_buffer():
    """Both gradients of a gated pair side by side, as the next product wants them."""
    graph = epi.backward(epi.swiglu())
    gemm = Gemm(GemmSpec(epilogue=graph), representative(GemmSpec(epilogue=graph)))
    a, b, gate, up = torch.randn(6, 5), torch.randn(5, 20), torch.randn(6, 20), torch.randn(6, 20)
    both = torch.full((6, 40), torch.nan)
    apart_ = gemm.run(a, b, saved_gate=gate, saved_up=up)
    gemm.run(a, b, saved_gate=gate, saved_up=up, out={"dgate": both[:, :20], "dup": both[:, 20:]})
    assert torch.equal(both, torch.cat([apart_.dgate, apart_.dup], 1))
