# SPDX-License-Identifier: Apache-2.0
"""Loads of single elements that lie along k: a thread brings four neighbouring rows of one k, and stores them at once.

Where lines begin at any element nothing wider than an element can be loaded. A warp then reads as much of one row as a
tile is deep, so that a load asks for few lines of the cache, and the four rows that a thread has read lie side by side
in shared memory (`simt_staged`): one store of 16 bytes for four elements.

Bank conflicts: a quarter of a warp writes 16 bytes to each of eight neighbouring lines, which lie an odd multiple of
16 bytes apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass

from cutegemm.config.simt import run_pitch, run_rows
from cutegemm.kernels.cuda_cores.simt_staged import BYTES, StagedLoad, StagedShape, write
from cutegemm.kernels.cuda_cores.simt_tile import GROUP


@dataclass(frozen=True, kw_only=True)
class RunShape(StagedShape):
    """How the CTA's threads share the loading of an operand's tile in runs of four rows."""

    @property
    def _across(self) -> int:
        """Rows that all threads load at once."""
        return self.threads // self.depth * GROUP

    @property
    def _held(self) -> int:
        """Rows that are loaded."""
        return int(run_rows(self.rows, self.depth, self.threads))

    @property
    def lanes(self) -> int:
        """Threads side by side along k."""
        return self.depth

    @property
    def loads(self) -> int:
        """Elements that each thread loads per tile; some may lie beyond the tile's rows, and are not used."""
        return self._held // self._across * GROUP

    @property
    def pitch(self) -> int:
        """Elements from one line to the next: an odd multiple of four."""
        return int(run_pitch(self.rows, self.depth, self.threads))

    @property
    def elements(self) -> int:
        """fp32 elements of one stage."""
        return self.line(self.depth)

    def line(self, k: Any) -> Any:
        """Where line k starts in a stage."""
        return k * self.pitch

    def place(self, thread: Any) -> tuple[Any, Any]:
        """(row, k) within the tile of the first element of a thread's first run."""
        return thread // self.depth * GROUP, thread % self.depth

    def move(self, i: int) -> tuple[int, int]:
        """(rows, k) from a thread's first element to its i-th."""
        return i // GROUP * self._across + i % GROUP, 0


@dataclass(frozen=True)
class RunLoad(StagedLoad):
    """`StagedLoad` whose runs are stored at once."""

    def commit(self, stage: Any) -> None:
        """Write what was fetched to the stage that starts `stage` bytes after the first, as fp32."""
        shape = self.shape
        first = self.start + (shape.line(self.place[1]) + self.place[0]) * BYTES + stage
        for i in range(0, shape.loads, GROUP):
            values = [self.rX[0, i + x].to(cutlass.Float32) for x in range(GROUP)]
            write(first, shape.move(i)[0], tuple(values))
