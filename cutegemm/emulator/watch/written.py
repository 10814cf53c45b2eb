# SPDX-License-Identifier: Apache-2.0
"""Records which elements of the outputs the launches of a run stored to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer, Reach, Touch, row_starts
from cutegemm.emulator.state.memory import MemoryRegion, View
from cutegemm.emulator.state.tensors import Tensor
from cutegemm.emulator.watch.findings import Finding

NEVER_WRITTEN = "elements never written"
ALIGN = 16  # bytes; the greatest alignment of an access


@dataclass(frozen=True)
class WatchedOutput:
    """An output that a run must write completely; reports use `name`, and `tile`: rows and columns of a CTA."""

    view: View
    name: str
    tile: tuple[int, int] | None = None


class _Marks:
    """A byte for each byte of an output's memory; 1 after a store to it."""

    def __init__(self, output: WatchedOutput) -> None:
        self.output = output
        buffer = output.view.buffer(output.name)
        self.begin = buffer.address // ALIGN * ALIGN
        self.end = buffer.address + buffer.size
        # a tensor store's last chunk may end after the last element
        self.bytes = np.zeros(-(-(self.end - self.begin) // ALIGN) * ALIGN + ALIGN, np.uint8)

    def put(self, first: Any) -> None:
        """Mark bytes at offsets from `begin`, and ignore those outside the output."""
        self.bytes[first[(first >= 0) & (first < len(self.bytes))]] = 1

    def finding(self) -> Finding | None:
        """A finding if some elements were never written."""
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
    """Records the stores to the `outputs`."""

    def __init__(self, outputs: Sequence[WatchedOutput]) -> None:
        self._marks = [_Marks(x) for x in outputs if 0 not in x.view.shape]

    def _put(self, region: MemoryRegion, starts: np.ndarray, size: int) -> None:
        """Mark `size` bytes at each of some offsets in a region."""
        end = region.base + region.size
        for marks in self._marks:
            if marks.begin < end and region.base < marks.end:
                marks.put((starts[:, None] + np.arange(size)).ravel() + (region.base - marks.begin))

    def access(self, group: WarpSet, touch: Touch) -> None:
        if touch.write and touch.space == "global":
            self._put(touch.region, np.atleast_1d(np.asarray(touch.offset, np.int64)), touch.size)

    def atomics(self, group: WarpSet, touch: Touch, returns: bool) -> None:
        self.access(group, touch)

    def tensor_store(self, group: WarpSet, tensor: Tensor, reach: Reach | None) -> None:
        if reach is not None:
            self._put(tensor.region, row_starts(*reach), reach[1][-1])

    def bulk(self, region: MemoryRegion, start: int, size: int, write: bool, copies: int) -> None:
        if write:
            self._put(region, np.array([start]), size)

    def findings(self) -> list[Finding]:
        """One finding for every output that was not written completely."""
        return [finding for marks in self._marks if (finding := marks.finding()) is not None]
