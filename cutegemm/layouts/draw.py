# SPDX-License-Identifier: Apache-2.0
"""Plain-text pictures of bank usage."""

from __future__ import annotations

from collections.abc import Sequence

from cutegemm.arch.sm90 import BANKS


def draw_phases(phases: Sequence[Sequence[int]]) -> str:
    """Draw the number of words of each of the 32 banks: a line per phase, `.` for none, `+` above 9.

    >>> from cutegemm.layouts.banks import access
    >>> usage = access([8 * t for t in range(32)], 4)
    >>> print(draw_phases([[len(words) for words in phase] for phase in usage.phases]))
    bank     0       8       16      24
    phase 0  2.2.2.2.2.2.2.2.2.2.2.2.2.2.2.2.  2 wavefronts
    total    2 wavefronts, 1 conflict
    """
    lines = ["bank     " + "".join(f"{bank:<8}" for bank in range(0, BANKS, 8)).rstrip()]
    for i, phase in enumerate(phases):
        row = "".join("." if not count else "+" if count > 9 else str(count) for count in phase)
        lines.append(f"phase {i}  {row}  {_plural(max(phase), 'wavefront')}")
    total = sum(map(max, phases))
    lines.append(f"total    {_plural(total, 'wavefront')}, {_plural(total - len(phases), 'conflict')}")
    return "\n".join(lines)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
