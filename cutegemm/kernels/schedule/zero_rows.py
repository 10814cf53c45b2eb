# SPDX-License-Identifier: Apache-2.0
"""Zeroing rows of an output that no tile covers: those of no group.

Where rows are contiguous a warp takes a row: words of 16 bytes, single elements before the first and after the last.
Others are zeroed element by element, neighbouring threads neighbouring rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.memory_views import BITS, WORD, put_element, word_at, zero_word


@dataclass(frozen=True)
class Zeroed:
    """One output, whose rows lie along the kernel's M or N.

    Attributes:
        mD: (m, n, l) in global memory.
        axis: of the rows, 0 or 1; size: bytes of an element.
        unit: whether a row's elements are adjacent.
        length: elements of a row.
        thread, threads: which of how many that zero together.
    """

    mD: Any
    axis: int
    size: int
    unit: bool
    length: Any
    thread: Any
    threads: Any

    @staticmethod
    def of(output: Any, axis: str, shape: dict[str, Any], thread: Any, threads: Any) -> Zeroed:
        """The zeros of an output (`epilogue.output_store`) that threads store."""
        across = "n" if axis == "m" else "m"
        matrix = output.matrix
        return Zeroed(
            output.mD if output.memory is None else output.memory,
            "mn".index(axis),
            matrix.dtype.bytes,
            matrix.major == across,
            shape[across],
            thread,
            threads,
        )

    def _address(self, row: Any, element: Any, batch: Any) -> Any:
        coord = (row, element, batch) if self.axis == 0 else (element, row, batch)
        return self.mD.iterator.toint() + cutlass.Int64(cute.crd2idx(coord, self.mD.layout)) * self.size

    @cute.jit
    def zero(self, batch: Any, first: Any, end: Any) -> None:
        """Zero the rows from `first` to before `end` of a batch."""
        lane, warp, warps = self.thread % hw.WARP, self.thread // hw.WARP, self.threads // hw.WARP
        if cutlass.const_expr(self.unit):
            for row in cutlass.range(first + warp, end, warps, unroll=1):
                self._row(self._address(row, cutlass.Int32(0), batch), lane)
        else:
            for element in cutlass.range(warp, self.length, warps, unroll=1):
                for row in cutlass.range(first + lane, end, hw.WARP, unroll=1):
                    self._put(self._address(row, element, batch))

    @cute.jit
    def _row(self, start: Any, lane: Any) -> None:
        """Zero the row that begins at an address."""
        finish = start + cutlass.Int64(self.length) * self.size
        body = (start + (WORD - 1)) & -WORD
        stop = finish & -WORD
        zeros = zero_word()
        words = cutlass.Int32(cutlass.max(stop - body, cutlass.Int64(0)) // WORD)
        for word in cutlass.range(lane, words, hw.WARP, unroll=1):
            cute.autovec_copy(zeros, word_at(body + cutlass.Int64(word) * WORD))
        before = start + lane * self.size
        if before < cutlass.min(body, finish):
            self._put(before)
        after = cutlass.max(stop, body) + lane * self.size
        if after < finish:
            self._put(after)

    def _put(self, address: Any) -> None:
        put_element(BITS[self.size], address, BITS[self.size](0))
