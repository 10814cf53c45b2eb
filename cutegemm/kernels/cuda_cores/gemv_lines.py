# SPDX-License-Identifier: Apache-2.0
"""One row times a matrix that is contiguous along K: each warp reads whole lines of B, and A from L1.

A CTA has WARPS warps. A warp multiplies A by the lines of `own` columns of D: its lanes load neighbouring aligned words
of 16 bytes, and shuffles add their sums. `slices` warps share K of the same columns; their sums are added in shared
memory in a fixed order. The last step of a column is the epilogue of one element.

Lines of B may begin at any element. The elements before the first aligned word of a line (its head), and those behind
the last word that is read (its tail), are loaded one by one. The eight elements of A that a word meets begin within a
word of A: they are shifted together from two. So nothing outside the matrices is read.

    head    0 .. 7 elements
    words   K / 8 of them, one less behind a head, since the word of A behind the last one must be inside A
    tail    0 .. 14 elements
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import GemvConfig
from cutegemm.config.gemv import ELEMENT_BYTES, WARPS, WORD, WORDS
from cutegemm.kernels.epilogue.element_functions import converted
from cutegemm.kernels.epilogue.fusion import Fusion, Inputs, bind
from cutegemm.kernels.epilogue.partial_reductions import across_lanes
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load.unaligned_words import align, registers
from cutegemm.kernels.memory_views import REGISTER, elements_at
from cutegemm.kernels.schedule.tile_scheduler import cluster_tiles

# registers of a word
REGISTERS = WORD * ELEMENT_BYTES // REGISTER
# lanes that a warp's sum is added over, by the bits of their numbers
LANES = (16, 8, 4, 2, 1)


class Gemv:
    """The driver of one `GemvConfig`."""

    def __init__(self, config: GemvConfig) -> None:
        self.config = config
        self.numeric = NUMERIC[config.a.dtype]

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, schedule, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        config, extents = self.config, launch.named(self.config, "shape", shape)
        starts, steps = launch.Addresses.of(config, addresses), launch.Strides.of(config, strides)
        inputs = launch.input_tensors(config, starts, steps, shape)
        outputs = launch.output_tensors(config, starts, steps, shape)
        tensors = (starts.operands, inputs, outputs, launch.scalar_tensors(starts))
        self.kernel(tensors, shape, strides, numbers).launch(
            grid=(cluster_tiles(extents["n"], config.columns, 1) * extents["l"], 1, 1),
            block=(config.threads, 1, 1),
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(self, tensors, shape, strides, numbers):
        """The CTA: each warp's sums, those of slices, the epilogue."""
        config = self.config
        operands, inputs, outputs, scalars = tensors
        extents, steps = launch.named(config, "shape", shape), launch.Strides.of(config, strides).operands
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane, warp = thread % hw.WARP, cute.arch.make_warp_uniform(thread // hw.WARP)
        tiles = cluster_tiles(extents["n"], config.columns, 1)
        batch = block // tiles
        first = ((block - batch * tiles) * (WARPS // config.slices) + warp // config.slices) * config.own
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        a, b = (
            _at(start, cutlass.Int64(cutlass.min(batch, extents[f"{role}.l"] - 1)) * steps[role][2])
            for start, role in zip(operands, "ab", strict=True)
        )
        columns = [cutlass.min(first + i, extents["n"] - 1) for i in range(config.own)]
        lines = tuple(_at(b, cutlass.Int64(x) * steps["b"][0]) for x in columns)
        sums = cute.make_rmem_tensor(config.own, cutlass.Float32)  # (COLUMN)
        Mainloop(config, self.numeric, a, lines, extents["k"]).multiply(sums, lane, warp % config.slices)
        for i in cutlass.range_constexpr(config.own):
            sums[i] = across_lanes("sum", (sums[i],), LANES)[0]
        value = self._of_lane(sums, lane)
        if cutlass.const_expr(config.slices > 1):
            value = self._of_slices(value, warp, lane)
        bound = bind(config, inputs, numbers, scalars, (extents["m"], extents["n"])).read()
        column = first + lane
        if lane < config.own and warp % config.slices == 0 and column < extents["n"]:
            self._store(outputs, bound, value, (cutlass.Int32(0), column, batch))

    def _of_lane(self, sums: cute.Tensor, lane: Any) -> Any:
        """The sum of a lane's column; of any column in lanes that have none."""
        value = sums[0]
        for i in range(1, self.config.own):
            value = cutlass.select_(lane == i, sums[i], value)
        return value

    @cute.jit
    def _of_slices(self, value: cutlass.Float32, warp: cutlass.Int32, lane: cutlass.Int32) -> cutlass.Float32:
        """A column's sum over the slices, in their order, in the first slice's lanes."""
        own, slices = self.config.own, self.config.slices
        layout = cute.make_layout((own, WARPS))  # (COLUMN, WARP)
        sX = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, layout, REGISTER)
        if lane < own:
            sX[lane, warp] = value
        cute.arch.sync_threads()
        total = value
        if lane < own and warp % slices == 0:
            for i in cutlass.range_constexpr(1, slices):
                total = total + sX[lane, warp + i]
        return total

    @cute.jit
    def _store(
        self,
        outputs: cutlass.Constexpr,
        inputs: cutlass.Constexpr,
        value: cutlass.Float32,
        at: cutlass.Constexpr,
    ) -> None:
        """Take one element through the epilogue to every output."""
        results = self._fusion(inputs, value, at)(0, 0)
        for mD, result, x in zip(outputs, results, self.config.outputs, strict=True):
            mD[at] = converted([result], x.dtype)[0]

    def _fusion(self, inputs: Inputs, value: Any, at: tuple[Any, Any, Any]) -> Fusion:
        """The graph at one element."""

        def leaf(node: Any, row: Any, column: Any) -> Any:
            if node.op == "acc":
                return value
            if node.op == "matrix":
                return inputs.matrix_element(node.value, at, (0, 0), inputs.shape)
            return inputs.element(node.value, at)

        return Fusion(self.config, leaf, lambda row, column: at, inputs.numbers)


@dataclass(frozen=True)
class Mainloop:
    """A warp's products of A and some lines of B, addresses in global memory."""

    config: GemvConfig
    numeric: Any
    a: Any
    b: tuple
    k: Any

    @cute.jit
    def multiply(self, sums: cute.Tensor, lane: cutlass.Int32, slice_: cutlass.Int32) -> None:
        """Set `sums` (COLUMN) to those of this lane."""
        heads = [self._head(line) for line in self.b]
        counts = [self.k // WORD - (0 if self.config.aligned else cutlass.Int32(head > 0)) for head in heads]
        sums.fill(0.0)
        if cutlass.const_expr(not self.config.aligned):
            self._ends(sums, lane, slice_, heads, counts)
        # words of a line that all slices load before they multiply; all lines have those of `blocks`
        each, first = WORDS * self._together, lane + slice_ * hw.WARP
        blocks = (self.k // WORD - (not self.config.aligned)) // each
        for block in cutlass.range(blocks, unroll=1):
            self._block(sums, first + block * each, heads)
        if blocks * each < self.k // WORD:
            self._last(sums, first + blocks * each, heads, counts)

    @property
    def _together(self) -> int:
        """Neighbouring words that the lanes of all slices load at once."""
        return hw.WARP * self.config.slices

    def _head(self, line: Any) -> Any:
        """Elements of a line before its first aligned word."""
        return 0 if self.config.aligned else cutlass.Int32(-(line // ELEMENT_BYTES) & (WORD - 1))

    def _block(self, sums: cute.Tensor, first: Any, heads: list) -> None:
        """Add the products of a lane's words of a block: `first`, and every `_together`-th after it."""
        steps = [i * self._together * WORD for i in range(WORDS)]
        starts = [_at(line, first * WORD + head) for line, head in zip(self.b, heads, strict=True)]
        words = [[registers(_at(start, x)) for start in starts] for x in steps]
        a = _at(self.a, first * WORD)
        for word, x in zip(words, steps, strict=True):
            self._add(sums, word, self._factors(_at(a, x), _at(a, x + WORD)), heads)

    def _last(self, sums: cute.Tensor, first: Any, heads: list, counts: list) -> None:
        """The same for the last block. Words behind a line's last one count as zeros."""
        places = [first + i * self._together for i in range(WORDS)]
        words = [
            [
                registers(_at(line, cutlass.min(place, count - 1) * WORD + head))
                for line, head, count in zip(self.b, heads, counts, strict=True)
            ]
            for place in places
        ]
        end = self.k // WORD - 1
        for word, place in zip(words, places, strict=True):
            a = [_at(self.a, cutlass.min(place + x, end) * WORD) for x in (0, 1)]
            self._add(sums, word, self._factors(*a), heads, [place < count for count in counts])

    def _factors(self, first: Any, second: Any) -> list:
        """The registers of the words of A that a word of B may meet."""
        return [*registers(first), *([] if self.config.aligned else registers(second))]

    def _add(
        self, sums: cute.Tensor, words: list, factors: list, heads: list, inside: list | None = None
    ) -> None:
        """Add the products of a word of each line; of one that is not `inside`, none."""
        for j, (word, head) in enumerate(zip(words, heads, strict=True)):
            rA = _registers(factors[:REGISTERS])
            if not self.config.aligned:
                align(factors, head * ELEMENT_BYTES, ELEMENT_BYTES, rA)
            total, a, b = sums[j], self._numbers(rA), self._numbers(_registers(word))
            for i in range(WORD):
                total = total + a[i] * b[i]
            sums[j] = total if inside is None else cutlass.select_(inside[j], total, sums[j])

    def _numbers(self, rX: cute.Tensor) -> Any:
        """A word's elements as fp32."""
        return cute.recast_tensor(rX, self.numeric).load().to(cutlass.Float32)

    def _ends(self, sums: cute.Tensor, lane: Any, slice_: Any, heads: list, counts: list) -> None:
        """Add the products of heads and tails, one to a lane of the first slice."""
        for j, (line, head, count) in enumerate(zip(self.b, heads, counts, strict=True)):
            for place, end in ((lane, head), (head + count * WORD + lane, self.k)):
                at = cutlass.min(place, self.k - 1)
                product = self._element(line, at) * self._element(self.a, at)
                mine = (place < end) & (slice_ == 0)
                sums[j] = cutlass.select_(mine, sums[j] + product, sums[j])

    def _element(self, line: Any, place: Any) -> Any:
        """One element of a line as fp32."""
        return elements_at(self.numeric, _at(line, place))[0].to(cutlass.Float32)


def _registers(word: list) -> cute.Tensor:
    """A word in a tensor of registers."""
    rX = cute.make_rmem_tensor(REGISTERS, cutlass.Uint32)
    for i, x in enumerate(word):
        rX[i] = x
    return rX


def _at(address: Any, elements: Any) -> Any:
    """The address so many elements further."""
    return address + cutlass.Int64(elements) * ELEMENT_BYTES
