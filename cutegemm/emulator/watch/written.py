# SPDX-License-Identifier: Apache-2.0
"""Which elements of a run's outputs its launches stored to, by any way into global memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Vector
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer, Reach, Touch
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.state.tensors import Tensor
from cutegemm.emulator.state.views import View
from cutegemm.emulator.watch.findings import Finding

NEVER_WRITTEN = "elements never written"
# bytes: accesses are aligned to their own size, at most that
ALIGN = 16


@dataclass(frozen=True)
class WatchedOutput:
    """Memory of which a run has to write every element.

    Attributes:
        view: its elements.
        name: in reports.
        tile: rows and columns of it that a CTA writes, for reports; None leaves them out.
    """

    view: View
    name: str
    tile: tuple[int, int] | None = None


class _Marks:
    """A byte for each byte that an output spans: not zero once it was stored to."""

    def __init__(self, output: WatchedOutput) -> None:
        self.output = output
        buffer = output.view.buffer(output.name)
        self.begin = buffer.address // ALIGN * ALIGN
        self.end = buffer.address + buffer.size
        # a tensor store's last chunk may end after the last element
        self.bytes = np.zeros(-(-(self.end - self.begin) // ALIGN) * ALIGN + ALIGN, np.uint8)

    def put(self, first: Any) -> None:
        """Mark bytes by their places behind `begin`; those outside are another's."""
        self.bytes[first[(first >= 0) & (first < len(self.bytes))]] = 1

    def finding(self) -> Finding | None:
        """What was never written, if anything."""
        view = self.output.view
        shape, strides = (*view.shape, view.item), (*view.strides, 1)
        memory = self.bytes[view.address - self.begin :]
        missing = ~np.lib.stride_tricks.as_strided(memory, shape, strides).all(-1)
        count = int(missing.sum())
        if not count:
            return None
        first = tuple(int(x) for x in np.argwhere(missing)[0])
        text = f"{count:,} of {missing.size:,} elements of {self.output.name}, the first at {first}"
        if self.output.tile is not None and len(first) > 1:
            rows, columns = self.output.tile
            at = (first[-2] // rows, first[-1] // columns)
            text += f", in tile {at} of {rows} x {columns}"
        return Finding(NEVER_WRITTEN, text, (0, 0))


class Written(Observer):
    """An observer of the stores of a run's launches; `outputs` are what has to be written."""

    def __init__(self, outputs: Sequence[WatchedOutput]) -> None:
        self._marks = [_Marks(x) for x in outputs if 0 not in x.view.shape]

    def _near(self, region: MemoryRegion) -> list[_Marks]:
        end = region.base + region.size
        return [x for x in self._marks if x.begin < end and region.base < x.end]

    def access(self, group: WarpSet, touch: Touch) -> None:
        _, region, offset, size, write, space, _ = touch
        if not write or space != "global":
            return
        for marks in self._near(region):
            at = (offset.astype(np.int64) if offset.__class__ is ND else np.array([offset])) + (
                region.base - marks.begin
            )
            marks.put((at[:, None] + np.arange(size)).ravel())

    def atomics(
        self,
        group: WarpSet,
        m: Mask,
        region: MemoryRegion,
        offsets: Vector,
        size: int,
        order: str,
        returns: bool,
    ) -> None:
        self.access(group, Touch(m, region, offsets, size, True, "global"))

    def tensor_store(self, group: WarpSet, tensor: Tensor, reach: Reach | None) -> None:
        if reach is None:
            return
        start, shape, strides = reach
        for marks in self._near(tensor.region):
            starts = np.array([start + tensor.region.base - marks.begin])
            for extent, stride in zip(shape, strides, strict=False):
                starts = (starts[:, None] + np.arange(extent) * stride).ravel()
            marks.put((starts[:, None] + np.arange(shape[-1])).ravel())

    def bulk(self, region: MemoryRegion, start: int, size: int, write: bool, copies: int) -> None:
        for marks in self._near(region) if write else ():
            marks.put(np.arange(size) + (start + region.base - marks.begin))

    def findings(self) -> list[Finding]:
        """One for every output that was not written in full."""
        found = (x.finding() for x in self._marks)
        return [x for x in found if x is not None]
