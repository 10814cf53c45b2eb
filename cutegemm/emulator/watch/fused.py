# SPDX-License-Identifier: Apache-2.0
"""Shared loads that ptxas fuses: four neighbouring words aligned to 16 bytes, or two aligned to 8.

Scalar loads relative to one address register, with no possible write between them, become an LDS.128 or LDS.64 in
machine code, and the meter counts them so. Seen in the machine code of CUDA 13.0;
what the compiler can prove of an alignment is taken from the addresses themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cutegemm.emulator.ptx.kernel import PtxInstruction

WORD = 4  # bytes
_ADDRESS = re.compile(r"\[\s*(%[\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_ORDERED = (
    "st",
    "bar",
    "barrier",
    "atom",
    "red",
    "cp",
    "mbarrier",
    "fence",
    "membar",
    "stmatrix",
    "call",
    "wgmma",
)


@dataclass(frozen=True)
class FusedWord:
    """A load's part in a fused one: its word within, and the bytes of the whole."""

    word: int
    size: int


def fused_loads(code: list[PtxInstruction]) -> dict[int, FusedWord]:
    """The part of each fused load of a basic block, by the instruction's id."""
    out: dict[int, FusedWord] = {}
    for run in _runs(code):
        for width in (4, 2):
            for start in sorted(run):
                words = [run.get(start + WORD * i) for i in range(width)]
                if start % (WORD * width) == 0 and None not in words and not any(id(x) in out for x in words):
                    out |= {id(x): FusedWord(i, WORD * width) for i, x in enumerate(words)}
    return out


def _runs(code: list[PtxInstruction]) -> Iterator[dict[int, PtxInstruction]]:
    """Scalar loads off one value of one register without a write or barrier between them, by their offset."""
    open_: dict[str, dict[int, PtxInstruction]] = {}
    for ins in code:
        parts = ins.parts
        if parts[0] == "ld" and parts[1:] in (["shared", x] for x in ("f32", "b32", "u32", "s32")):
            place = _ADDRESS.fullmatch(ins.operands[1])
            if place and ins.guard is None:
                open_.setdefault(place[1], {}).setdefault(int(place[2] or 0), ins)
        elif parts[0] in _ORDERED:
            yield from open_.values()
            open_ = {}
        if ins.operands and ins.operands[0] in open_:
            yield open_.pop(ins.operands[0])
    yield from open_.values()
