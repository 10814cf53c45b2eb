# SPDX-License-Identifier: Apache-2.0
"""Parts of a plan: barriers and TMA boxes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Barrier:
    """A kind of barrier: how many there are, who arrives, how many arrivals complete a phase, who waits."""

    name: str
    count: int
    arrives: str
    arrivals: int
    waits: str


@dataclass(frozen=True)
class Box:
    """How TMA moves one tile of an operand: `count` instructions of (inner, outer) elements each."""

    operand: str
    extents: tuple[int, int]
    count: int
