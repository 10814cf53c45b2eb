# SPDX-License-Identifier: Apache-2.0
"""`cutegemm layout`: tables, owners, conflicts, pictures; and that what `str` prints is read."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.cli.facts.drawing import ACCESSES, drawn, instruction
from cutegemm.layouts import ComposedLayout, Layout, Swizzle, hardware, parse
from tests.support.command import document, refused, run


def test_a_table_has_every_offset():
    """Row i, column j of the text is the offset of (i, j)."""
    lines = run("layout", "(4,8):(8,1)", "--swizzle", "2,0,3").splitlines()
    layout = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    assert lines[0] == str(layout)
    for i, line in enumerate(lines[3:7]):
        assert [int(x) for x in line.split(":")[1].split()] == [layout(i, j) for j in range(8)]


def test_a_wide_table_is_in_blocks():
    """Columns that do not fit beside each other come below, and all of them come."""
    text = run("layout", "(8,64):(64,1)")
    heads = [line.split() for line in text.splitlines()[2:] if ":" not in line]
    assert [int(x) for head in heads for x in head] == list(range(64))


def test_a_large_layout_says_what_is_left_out():
    """More than 64 rows or columns are left to the picture."""
    assert "shown: 64 of 128 rows, 64 of 65 columns; --svg has all" in run("layout", "(128,65)")


@pytest.mark.parametrize(
    "text, rows, columns", [("8:2", 1, 8), ("(4,(2,3)):(1,(4,8))", 4, 6), ("(2,3,4)", 2, 12)]
)
def test_any_rank_is_a_table(text, rows, columns):
    """The first mode is down, the others are across; one mode is a row."""
    found = document("layout", text)
    assert (found["rows"], found["columns"]) == (rows, columns)
    layout = parse(text)
    if layout.rank > 1:
        assert [x["offset"] for x in found["cells"] if x["row"] == 0][0] == layout(0)
    assert all(x["bank"] == x["offset"] // 2 % 32 for x in found["cells"])
    assert sorted(x["offset"] for x in found["cells"]) == sorted(layout(i) for i in range(layout.size))


def test_conflicts_are_those_of_the_bank_model():
    """Rows of 128 bytes one below the other conflict eight ways; the swizzle removes all of it."""
    plain = document("layout", "(8,64):(64,1)", "--banks", "ldmatrix.x1")["banks"]
    assert (plain["wavefronts"], plain["conflicts"]) == (8, 7)
    swizzled = document("layout", "(8,64):(64,1)", "--swizzle", "3,3,3", "--banks", "ldmatrix.x1")["banks"]
    assert (swizzled["wavefronts"], swizzled["conflicts"]) == (1, 0)
    text = run("layout", "(8,64):(64,1)", "--banks", "ldmatrix.x1")
    assert text.splitlines()[-1] == "total    8 wavefronts, 7 conflicts"


@pytest.mark.parametrize("access", ACCESSES)
def test_every_access_is_counted(access):
    """Each kind of access counts phases and wavefronts of a 16 x 64 tile."""
    found = drawn("(16,64):(64,1)", "", access).banks
    assert found.wavefronts - found.conflicts == len(found.phases) >= 1


@pytest.mark.parametrize(
    "text, matrices", [("(8,8):(8,1)", 1), ("(16,8):(8,1)", 2), ("(8,64):(64,1)", 1), ("(16,16):(16,1)", 4)]
)
@pytest.mark.parametrize("access", ["ldmatrix", "stmatrix"])
def test_as_many_matrices_are_moved_as_there_are(access, text, matrices):
    """Four 8 x 8 matrices of 16-bit elements, two or one: a phase each."""
    assert len(drawn(text, "", access).banks.phases) == matrices


def test_lanes_down_a_column_conflict():
    """32 lanes of 4 bytes down a column of 32 words meet in one bank; along a row they do not."""
    assert drawn("(32,32):(32,1)", "", "column", 32).banks.conflicts == 31
    assert drawn("(32,32):(32,1)", "", "row", 32).banks.conflicts == 0


def test_owners_are_those_of_the_instruction():
    """Every element of the accumulator has the thread and value that its layout says."""
    found = document("layout", "--mma", "m64n16k16")
    layout = hardware.wgmma_c_layout(16)
    assert len(found["cells"]) == 64 * 16
    for cell in found["cells"]:
        assert layout(cell["thread"], cell["value"]) == cell["row"] + 64 * cell["column"]
    assert " 0:0 " in run("layout", "--mma", "m64n16k16").splitlines()[3]


@pytest.mark.parametrize("name, columns", [("m64n8k8", 8), ("m64n8k16", 16), ("m64n8k32", 32)])
def test_a_in_registers(name, columns):
    """The fragment of A has K columns: 256 bits of elements."""
    found = instruction(name, "a")
    assert (found.rows, found.columns) == (64, columns)
    assert {(x.thread, x.value) for x in found.cells} == {
        (t, v) for t in range(128) for v in range(columns // 2)
    }


def test_the_picture_has_every_cell(tmp_path):
    """The SVG is XML, and has a titled rectangle for each cell."""
    for words, cells in ((("(8,8):(8,1)",), 64), (("--mma", "m64n8k16"), 512)):
        run("layout", *words, "--svg", tmp_path / "x.svg")
        tree = ElementTree.parse(tmp_path / "x.svg").getroot()
        titles = [x.find("{*}title") for x in tree.iter("{http://www.w3.org/2000/svg}rect")]
        assert sum(x is not None for x in titles) == cells


@pytest.mark.parametrize(
    "words, says",
    [
        (("(1000000000,256):(256,1)",), "has 256,000,000,000 elements, and at most 65,536 are drawn"),
        (("(8,8",), "cutegemm layout: LAYOUT='(8,8'"),
        (("(0,8):(8,1)",), "LAYOUT='(0,8):(8,1)': shape=0: must be at least 1"),
        ((), "give a layout, or --mma"),
        (("(8,8)", "--mma", "m64n8k16"), "LAYOUT='(8,8)': --mma draws the layout of its instruction"),
        (("--banks", "row", "--mma", "m64n8k16"), "--banks='row': --mma draws the layout of its instruction"),
        (("(8,8)", "--banks", "row", "--lane", "3"), "--lane=3: must be 1, 2, 4, 8 or 16"),
        (("(8,8)", "--swizzle", "3,3"), "must be bits,base,shift; nearest legal value: '3,3,3'"),
        (("S<3,3,3> o 0 o (8,8)", "--swizzle", "3,3,3"), "the layout has a swizzle already"),
        (("S<3,3> o (8,8)",), "must be shape:stride, or S<bits,base,shift> o offset o shape:stride"),
        (("(8,8)", "--banks", "nothing"), "must be one of ldmatrix"),
        (("(4,8)", "--banks", "ldmatrix"), "ldmatrix.x1 reads 8 rows of 8 elements"),
        (("(8,8)", "--banks", "ldmatrix.x2"), "ldmatrix.x2 reads 16 rows of 8 elements"),
        (
            ("(8,8):(1,8)", "--banks", "ldmatrix"),
            "--banks='ldmatrix': addresses[1]=2: must be at least 0 and a multiple",
        ),
        (
            ("(8,8)", "--swizzle", "3,3,2"),
            "--swizzle='3,3,2': shift=2: its magnitude must be at least bits=3",
        ),
        (("(8,8)", "--bits", "12"), "must be 8, 16 or 32; nearest legal value: 16"),
        (("--mma", "m16n8k16"), "must be m64nNk8, m64nNk16 or m64nNk32"),
        (("--mma", "m64n12k16"), "n=12: must be a multiple of 8"),
        (("--mma", "m64n8k16", "--operand", "b"), "must be c (accumulators) or a (A in registers)"),
    ],
)
def test_what_has_no_meaning_is_refused(words, says):
    """An error names the option, the value and the rule, and ends with status 2."""
    assert says in refused("layout", *words)


@given(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(4, 6)), st.integers(0, 64))
def test_what_str_prints_parse_reads(swizzle, offset):
    """`parse(str(layout))` is the layout, with a swizzle and without."""
    plain = Layout((8, (2, 3)), (6, (1, 2)))
    composed = ComposedLayout(Swizzle(*swizzle), offset, plain)
    assert parse(str(plain)) == plain
    assert parse(str(composed)) == composed
    assert parse(f" S<{swizzle[0]}, {swizzle[1]}, {swizzle[2]}> o {plain}") == ComposedLayout(
        Swizzle(*swizzle), 0, plain
    )
