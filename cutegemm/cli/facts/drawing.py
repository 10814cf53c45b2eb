# SPDX-License-Identifier: Apache-2.0
"""A layout as a table of cells, the owners of an instruction's elements, and the bank conflicts of an access."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cutegemm.checks import choice
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.layouts import ComposedLayout, Layout, Swizzle, banks, hardware, make_layout, parse
from cutegemm.layouts.swizzle import AnyLayout

BANKS, WARP = 32, 32
WIDTHS = (1, 2, 4, 8, 16)  # bytes of a lane
# most elements that are drawn
MOST_CELLS = 1 << 16
_MMA = re.compile(r"m64n(\d+)k(8|16|32)")
_BITS_OF_K = {"8": 32, "16": 16, "32": 8}


@dataclass(frozen=True)
class Cell:
    """One element of a table."""

    row: int
    column: int
    offset: int = -1  # in elements; -1 for an instruction
    bank: int = -1  # shared-memory bank of its first byte; -1 for an instruction
    thread: int = -1  # thread that holds it; -1 for a layout
    value: int = -1  # register of that thread; -1 for a layout

    @property
    def words(self) -> str:
        """The cell's text in a table."""
        return str(self.offset) if self.thread < 0 else f"{self.thread}:{self.value}"


@dataclass(frozen=True)
class Conflicts:
    """One warp's access: words per phase and bank, and the resulting wavefronts."""

    access: str
    phases: list[list[int]]
    wavefronts: int
    conflicts: int


@dataclass(frozen=True)
class Drawn:
    """A picture of a layout or an instruction."""

    layout: str  # in CuTe's notation
    what: str  # contents of the cells: "offset", or "thread:value"
    rows: int
    columns: int
    size: int  # elements
    cosize: int  # elements that an array for the layout needs
    cells: list[Cell]  # row by row
    banks: Conflicts | None = None  # of the requested access


def drawn(text: str, swizzle: str = "", access: str = "", bits: int = 16, width: int = 4) -> Drawn:
    """The table of a layout, its first mode down and the others across.

    Args:
        text: notation of `str(layout)`.
        swizzle: "bits,base,shift" to apply; empty is none.
        access: of `ACCESSES`, whose bank conflicts are counted; empty is none.
        bits: of an element.
        width: bytes per lane of "row" or "column".

    Raises:
        GemmError: an argument is illegal.
    """
    try:
        layout = parse(text)
    except GemmError as error:
        if error.concerns("text") or error.concerns("layout"):
            raise field_error(InputError, "LAYOUT", text, error.rule, "(8,8):(8,1)") from error
        raise field_error(InputError, "LAYOUT", text, str(error)) from error
    if swizzle:
        layout = _swizzled(layout, swizzle)
    if bits not in (8, 16, 32):
        raise field_error(InputError, "--bits", bits, "must be 8, 16 or 32", 16)
    if width not in WIDTHS:
        raise field_error(InputError, "--lane", width, "must be 1, 2, 4, 8 or 16", 4)
    if layout.size > MOST_CELLS:
        rule = f"has {layout.size:,} elements, and at most {MOST_CELLS:,} are drawn"
        raise field_error(InputError, "LAYOUT", text, rule, "(64,64):(64,1)")
    table = _as_table(layout)
    rows, columns = (mode.size for mode in _plain(table))
    offsets = ((i, j, table(i, j)) for i in range(rows) for j in range(columns))
    cells = [Cell(i, j, offset, offset * bits // 32 % BANKS) for i, j, offset in offsets]
    conflicts = _conflicts(table, access, bits, width) if access else None
    return Drawn(str(layout), "offset", rows, columns, layout.size, layout.cosize, cells, conflicts)


def instruction(name: str, operand: str = "c") -> Drawn:
    """The owner of each element of a wgmma's accumulator ("c"), or of A in registers ("a").

    Raises:
        InputError: there is no such instruction or operand.
    """
    shape = _MMA.fullmatch(name)
    if shape is None:
        rule = "must be m64nNk8, m64nNk16 or m64nNk32 with N a multiple of 8 up to 256"
        raise field_error(InputError, "--mma", name, rule, "m64n16k16")
    if operand not in ("a", "c"):
        rule = "must be c (accumulators) or a (A in registers)"
        raise field_error(InputError, "--operand", operand, rule, "c")
    columns = int(shape[1]) if operand == "c" else int(shape[2])
    layout = hardware.wgmma_c_layout(int(shape[1]))
    if operand == "a":
        layout = hardware.wgmma_a_layout(_BITS_OF_K[shape[2]])
    threads, values = (range(x.size) for x in layout)
    owners = {layout(thread, value): (thread, value) for thread in threads for value in values}
    places = ((row, column) for row in range(64) for column in range(columns))
    cells = [Cell(i, j, -1, -1, *owners[i + 64 * j]) for i, j in places]
    return Drawn(str(layout), "thread:value", 64, columns, layout.size, layout.cosize, cells)


def _plain(layout: AnyLayout) -> Layout:
    return layout.layout if isinstance(layout, ComposedLayout) else layout


def _swizzled(layout: AnyLayout, text: str) -> ComposedLayout:
    try:
        bits, base, shift = map(int, text.replace("S<", "").replace(">", "").split(","))
    except ValueError as error:
        raise field_error(InputError, "--swizzle", text, "must be bits,base,shift", "3,3,3") from error
    if isinstance(layout, ComposedLayout):
        rule = f"the layout has a swizzle already, {layout.swizzle}"
        raise field_error(InputError, "--swizzle", text, rule)
    try:
        return ComposedLayout(Swizzle(bits, base, shift), 0, layout)
    except GemmError as error:
        raise field_error(InputError, "--swizzle", text, str(error)) from error


def _as_table(layout: AnyLayout) -> AnyLayout:
    """The same layout with two modes: the first down, all others across."""
    plain = _plain(layout)
    modes = list(plain)
    if len(modes) == 1:
        two = make_layout(Layout(1, 0), modes[0])
    else:
        two = plain if len(modes) == 2 else make_layout(modes[0], make_layout(*modes[1:]))
    return ComposedLayout(layout.swizzle, layout.offset, two) if isinstance(layout, ComposedLayout) else two


def _matrices(counts: tuple[int, ...], layout: AnyLayout, bits: int, _: int) -> banks.BankUsage:
    """ldmatrix of the largest of some counts of matrices that fits the layout.

    A matrix has eight rows of 16 bytes along the second mode. Matrices go down first, two per column.
    """
    rows, columns = (mode.size for mode in _plain(layout))
    step = 128 // bits
    need = {count: (8 * min(count, 2), step * max(1, count // 2)) for count in counts}
    fits = [count for count, (down, across) in need.items() if down <= rows and across <= columns]
    if not fits:
        least = counts[-1]
        rule = f"ldmatrix.x{least} reads {need[least][0]} rows of {need[least][1]} elements"
        raise field_error(InputError, "layout", str(layout), rule)
    places = [(8 * (i % 2) + row, step * (i // 2)) for i in range(fits[0]) for row in range(8)]
    return banks.matrix_access(banks.layout_addresses(layout, places, bits))


def _lanes(down: bool, layout: AnyLayout, bits: int, width: int) -> banks.BankUsage:
    """32 lanes that read `width` bytes each, along a row or down a column."""
    rows, columns = (mode.size for mode in _plain(layout))
    step = max(1, width * 8 // bits)
    count = min(WARP, rows if down else columns // step)
    places = [(i, 0) if down else (0, i * step) for i in range(max(1, count))]
    return banks.access(banks.layout_addresses(layout, places, bits), width)


# an access -> its bank usage by (layout, bits of an element, bytes of a lane)
ACCESSES: dict[str, Callable[[AnyLayout, int, int], banks.BankUsage]] = {
    "ldmatrix": partial(_matrices, (4, 2, 1)),
    "ldmatrix.x2": partial(_matrices, (2,)),
    "ldmatrix.x1": partial(_matrices, (1,)),
    "stmatrix": partial(_matrices, (4, 2, 1)),
    "row": partial(_lanes, False),
    "column": partial(_lanes, True),
}


def _conflicts(layout: AnyLayout, access: str, bits: int, width: int) -> Conflicts:
    count = ACCESSES[choice(InputError, "--banks", access, tuple(ACCESSES))]
    try:
        usage = count(layout, bits, width)
    except GemmError as error:
        rule = error.rule if error.concerns("layout") else str(error)
        raise field_error(InputError, "--banks", access, rule) from error
    phases = [[len(words) for words in phase] for phase in usage.phases]
    return Conflicts(access, phases, usage.wavefronts, usage.conflicts)
