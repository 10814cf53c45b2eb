# SPDX-License-Identifier: Apache-2.0
"""Plain-text pictures of layouts and of bank usage."""

from __future__ import annotations

from collections.abc import Sequence

from cutegemm.arch.sm90 import BANKS
from cutegemm.errors import SpecError, check
from cutegemm.layouts.banks import BankUsage
from cutegemm.layouts.swizzle import AnyLayout, ComposedLayout


def draw_layout(layout: AnyLayout) -> str:
    """Draw a rank-2 layout as a table of offsets: one line for each coordinate of the first mode.

    Raises:
        SpecError: the rank is not 2.

    >>> from cutegemm.layouts.layout import Layout
    >>> print(draw_layout(Layout((2, 4), (1, 3))))
    (2,4):(1,3)
         0   1   2   3
    0:   0   3   6   9
    1:   1   4   7  10
    """
    check(
        layout.rank == 2, SpecError, f"a table has 2 modes, got {layout.rank}", field="layout", value=layout
    )
    plain = layout.layout if isinstance(layout, ComposedLayout) else layout
    rows, columns = (mode.size for mode in plain)
    cell = max(len(str(layout.cosize - 1)), len(str(columns - 1))) + 2
    margin = len(str(rows - 1))
    head = " " * (margin + 1) + "".join(f"{j:{cell}}" for j in range(columns))
    body = [f"{i:{margin}}:" + "".join(f"{layout(i, j):{cell}}" for j in range(columns)) for i in range(rows)]
    return "\n".join([str(layout), head, *body])


def draw_banks(usage: BankUsage) -> str:
    """Draw how many words each of the 32 banks serves: a line for each phase, `.` for none, `+` above 9.

    >>> from cutegemm.layouts.banks import access
    >>> print(draw_banks(access([8 * t for t in range(32)], 4)))
    bank     0       8       16      24
    phase 0  2.2.2.2.2.2.2.2.2.2.2.2.2.2.2.2.  2 wavefronts
    total    2 wavefronts, 1 conflict
    """
    return draw_phases([[len(words) for words in phase] for phase in usage.phases])


def draw_phases(phases: Sequence[Sequence[int]]) -> str:
    """The same of the numbers of words that each bank serves in each phase."""
    lines = ["bank     " + "".join(f"{bank:<8}" for bank in range(0, BANKS, 8)).rstrip()]
    for i, phase in enumerate(phases):
        row = "".join("." if not count else "+" if count > 9 else str(count) for count in phase)
        lines.append(f"phase {i}  {row}  {_plural(max(phase), 'wavefront')}")
    total = sum(map(max, phases))
    lines.append(f"total    {_plural(total, 'wavefront')}, {_plural(total - len(phases), 'conflict')}")
    return "\n".join(lines)


def _plural(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
