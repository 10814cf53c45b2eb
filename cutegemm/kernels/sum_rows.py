# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by index: D[t] = X[index[t, 0]] + X[index[t, 1]] + ..., in fp32 and in this order, rounded once.

An index outside [0, rows of X) adds zeros. With one index per sum the kernel copies rows, bit by bit.

Each thread has the same 16-byte word of `rows` rows of D. It loads their indices, then the words of all terms, and only
then adds, so that all its loads are in flight together. A warp reads neighbouring words of a row.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.config import RowSumConfig
from cutegemm.config.helpers import SUM_THREADS
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load.unaligned_words import quotient
from cutegemm.kernels.memory_views import WORD, elements_at, word_at


class SumRows:
    """The driver of one `RowSumConfig`."""

    def __init__(self, config: RowSumConfig) -> None:
        self.config = config
        self.numeric = NUMERIC[config.dtype]
        self.index = cutlass.Int64 if config.wide else cutlass.Int32
        self.elements = WORD // config.dtype.bytes  # of a word

    @cute.jit
    def __call__(self, addresses, shape, strides, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        extents = launch.named(self.config, "shape", shape)
        spread = extents["spread"]
        along = (extents["words"] + (1 << spread) - 1) >> spread
        high = (SUM_THREADS >> spread) * self.config.rows  # rows of D of a CTA
        down = (extents["sums"] + high - 1) // high
        self.kernel(addresses, shape, strides, along).launch(
            grid=(along * down, 1, 1), block=(SUM_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, addresses, shape, strides, along):
        """One CTA's words; `along` is the number of CTAs side by side along a row."""
        places = launch.named(self.config, "addresses", addresses)
        extents = launch.named(self.config, "shape", shape)
        pitch = launch.named(self.config, "strides", strides)["source"]
        words, sums, spread = extents["words"], extents["sums"], extents["spread"]
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        across = SUM_THREADS >> spread  # rows of D that a CTA has at a time
        down = quotient(block, along)
        word = (block - down * along << spread) + (thread & ((1 << spread) - 1))
        first = down * (across * self.config.rows) + (thread >> spread)
        if word < words:
            own = [first + across * i for i in range(self.config.rows)]
            index = [self._indices(places["index"], cutlass.min(row, sums - 1)) for row in own]
            rX = [
                self._terms(each, extents["rows"], places["source"] + cutlass.Int64(word) * WORD, pitch)
                for each in index
            ]  # (ELEMENT, TERM)
            for i in cutlass.range_constexpr(self.config.rows):
                if own[i] < sums:
                    place = cutlass.Int64(own[i]) * words + word
                    target = word_at(places["target"] + place * WORD, numeric=self.numeric)
                    cute.autovec_copy(self._sum(rX[i]), target)

    def _indices(self, address: Any, row: Any) -> list[Any]:
        """The indices of a row of D."""
        terms, size = self.config.terms, self.index.width // 8
        mI = elements_at(self.index, address + cutlass.Int64(row) * (terms * size), terms)  # (TERM)
        return [mI[j] for j in range(terms)]

    @cute.jit
    def _terms(self, index: Any, rows: Any, address: Any, pitch: Any) -> cute.Tensor:
        """A word of each row that an index names, zeros where there is no such row."""
        rX = cute.make_rmem_tensor((self.elements, self.config.terms), self.numeric)
        rX.fill(0)
        for j in cutlass.range_constexpr(self.config.terms):
            if index[j] >= 0 and index[j] < rows:
                place = address + cutlass.Int64(index[j]) * pitch * WORD
                cute.autovec_copy(word_at(place, numeric=self.numeric), rX[None, j])
        return rX

    def _sum(self, rX: cute.Tensor) -> cute.Tensor:
        """The sum of a word's terms."""
        if self.config.terms == 1:
            return rX[None, 0]
        # from +0, so that a sum of negative zeros is +0 as torch's is
        total = cute.full_like(rX[None, 0].load(), 0.0, cutlass.Float32)
        for j in range(self.config.terms):
            total = total + rX[None, j].load().to(cutlass.Float32)
        rD = cute.make_rmem_tensor(self.elements, self.numeric)
        rD.store(total.to(self.numeric))
        return rD
