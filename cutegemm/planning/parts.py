# SPDX-License-Identifier: Apache-2.0
"""Parts of a plan: TMA boxes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """How TMA moves one tile of an operand: `count` instructions of (inner, outer) elements each."""

    operand: str
    extents: tuple[int, int]
    count: int
