# SPDX-License-Identifier: Apache-2.0
"""A few rows times a matrix that is contiguous along K: each warp reads whole columns of B, and A from L1.

A CTA has WARPS warps. A warp multiplies all `rows` of A by `own` columns of B: its lanes load neighbouring aligned
words of 16 bytes, and shuffles add their sums. `slices` warps share K of the same columns; their sums are added in
shared memory in a fixed order. The last step of an element is the epilogue.

Columns of B, and rows of A, may begin at any element. The elements before the first aligned word of a column (its
head), and those behind the last word that is read (its tail), are loaded one by one. A warp's columns are WARPS apart,
so that all have heads of the same length. The eight elements of A that such a word meets begin within a word of A: they
are shifted together from two, once for all columns. The first word of a row may begin in the row before, and A begins
at a word, so nothing outside the matrices is read.

Before griddepcontrol.wait each warp prefetches the first words of its columns of B into L2, and the CTAs share the
prefetch of A. They arrive while earlier launches end: short GEMMs take up to 10 % less time. CTAs of a longer
GEMM let the next launch begin after their products. If it began before, its CTAs would fill what SMs have free, many on
some and few on others. If B is constant (`early`), warps load the first words into registers instead, and the next
launch always begins at once, since its CTAs have something to do while they wait. These loads bypass L1: 32 bytes of it
may hold the end of B beside what an earlier launch has yet to write. If L2 evicts B first (`evict_first`), all loads
of its words bypass L1, which is faster than loads through it with the hint; prefetches have no hint.

    head    0 .. 7 elements
    words   K / 8 of them; of unaligned columns one less, since the second word of A must be inside A
    tail    0 .. 15 elements
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import L2_LINE, GemvConfig
from cutegemm.config.gemv import ELEMENT_BYTES, WARPS, WORD
from cutegemm.kernels.epilogue.element_functions import converted
from cutegemm.kernels.epilogue.fusion import Fusion, Inputs, bind
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load.cache_hints import evicted_first
from cutegemm.kernels.load.unaligned_words import align, registers, registers_past_l1
from cutegemm.kernels.memory_views import REGISTER, elements_at, prefetch_line
from cutegemm.kernels.schedule.dependent_launch import Dependence

# registers of a word
REGISTERS = WORD * ELEMENT_BYTES // REGISTER
# percent of an SM's memory that sums of slices need; L1 has the rest
SHARED = 10
# lanes that a warp's sums are added over, by the bits of their numbers
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
            grid=(config.ctas(extents["n"]) * extents["l"], 1, 1),
            block=(config.threads, 1, 1),
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=config.residents,
            preferred_smem_carveout=SHARED,
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
        tiles = config.ctas(extents["n"])
        batch = block // tiles
        place = block - batch * tiles
        # WARPS neighbouring columns begin at all places of a word; those of a warp are as far apart
        group = place // config.slices
        first = group * (WARPS * config.own) + (place - group * config.slices) * (WARPS // config.slices)
        first += warp // config.slices
        dependence = Dependence(config)
        dependence.start()
        a, b = (
            _at(start, cutlass.Int64(cutlass.min(batch, extents[f"{role}.l"] - 1)) * steps[role][2])
            for start, role in zip(operands, "ab", strict=True)
        )
        # columns and rows that do not exist are others again
        last = cutlass.min(first, extents["n"] - 1)
        places = [first + i * WARPS for i in range(config.own)]
        places = [cutlass.select_(x < extents["n"], x, last) for x in places]
        columns = tuple(_at(b, cutlass.Int64(x) * steps["b"][0]) for x in places)
        rows = [cutlass.min(cutlass.Int32(i), extents["m"] - 1) for i in range(config.rows)]
        rows = tuple(_at(a, cutlass.Int64(x) * steps["a"][0]) for x in rows)
        slice_ = warp % config.slices
        _prefetch(rows, extents["k"], cutlass.Int64(thread) * tiles + place, L2_LINE // ELEMENT_BYTES)
        policy = evicted_first() if config.evict_first else None
        mainloop, loaded = Mainloop(config, self.numeric, rows, columns, extents["k"], policy), None
        if cutlass.const_expr(config.early):
            loaded = mainloop.load_first(lane, slice_)
        else:
            _prefetch(columns, extents["k"], slice_ * hw.WARP + lane, WORD)
        dependence.wait()
        sums = mainloop.multiply(lane, slice_, loaded)
        dependence.done(("mainloop",))
        value, place = _of_lane(sums, _lanes(config), lane)
        if cutlass.const_expr(config.slices > 1):
            value = self._of_slices(value, place, warp)
        bound = bind(config, inputs, numbers, scalars, (extents["m"], extents["n"])).read()
        row, column = place // config.own, first + place % config.own * WARPS
        mine = (lane & (hw.WARP // _lanes(config) - 1)) == 0
        mine &= cutlass.Boolean(slice_ == 0)
        if mine and row < extents["m"] and row < config.rows and column < extents["n"]:
            self._store(outputs, bound, value, (row, column, batch))

    @cute.jit
    def _of_slices(
        self, value: cutlass.Float32, place: cutlass.Int32, warp: cutlass.Int32
    ) -> cutlass.Float32:
        """A sum over the slices, in their order, in the first slice's lanes."""
        slices = self.config.slices
        layout = cute.make_layout((_lanes(self.config), WARPS))  # (SUM, WARP)
        sX = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, layout, REGISTER)
        sX[place, warp] = value
        cute.arch.sync_threads()
        total = value
        if warp % slices == 0:
            for i in cutlass.range_constexpr(1, slices):
                total = total + sX[place, warp + i]
        return total

    @cute.jit
    def _store(
        self, outputs: cutlass.Constexpr, inputs: cutlass.Constexpr, value: cutlass.Float32, at: Any
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
    """A warp's products of rows of A and columns of B, addresses in global memory; all columns have the same head."""

    config: GemvConfig
    numeric: Any
    a: tuple
    b: tuple
    k: Any
    policy: Any

    def load_first(self, lane: cutlass.Int32, slice_: cutlass.Int32) -> list:
        """The registers of a lane's first words of every column, which are aligned, as they arrive."""
        words, _ = _inside(self.b, self._places(lane + slice_ * hw.WARP), self.k // WORD)
        return [[registers_past_l1(x, self.policy) for x in place] for place in words]

    @cute.jit
    def multiply(self, lane: cutlass.Int32, slice_: cutlass.Int32, loaded: cutlass.Constexpr):
        """This lane's part of each sum, (COLUMN, ROW); the first words of its columns may be loaded."""
        aligned = self.config.aligned
        head = 0 if aligned else _misaligned(-self.b[0])
        # of each row the word with the element that a column's first word meets, and where in it that is
        begins = [0 if aligned else _misaligned(row + head * ELEMENT_BYTES) for row in self.a]
        low = [_at(row, head - begin) for row, begin in zip(self.a, begins, strict=True)]
        bases = [*(_at(column, head) for column in self.b), *low]
        count = (self.k - head) // WORD - (not aligned)
        sums = cute.make_rmem_tensor((self.config.own, self.config.rows), cutlass.Float32)
        sums.fill(0.0)
        if cutlass.const_expr(not aligned):
            self._ends(sums, lane, slice_, head, head + count * WORD)
        # words of a column that all slices load before they multiply
        together = hw.WARP * self.config.slices
        first, block_words = lane + slice_ * hw.WARP, self.config.words * together
        blocks, done = count // block_words, int(loaded is not None)
        if cutlass.const_expr(loaded is not None):
            self._block(sums, *_inside(bases, self._places(first), count), begins, loaded)
        for block in cutlass.range(done, blocks, unroll=1):
            starts = [_at(x, (first + block * block_words) * WORD) for x in bases]
            words = [[_at(x, place * WORD) for x in starts] for place in self._places(0)]
            self._block(sums, words, [True] * self.config.words, begins)
        blocks = cutlass.max(blocks, done)
        if blocks * block_words < count:
            places = self._places(first + blocks * block_words)
            self._block(sums, *_inside(bases, places, count), begins)
        return sums

    def _places(self, first: Any) -> list:
        """The words of a column that a lane loads before it multiplies, from its first one on."""
        return [first + i * hw.WARP * self.config.slices for i in range(self.config.words)]

    def _block(
        self, sums: cute.Tensor, words: list, inside: list, begins: list, loaded: list | None = None
    ) -> None:
        """Add the products of a lane's words of every column.

        Args:
            sums: (COLUMN, ROW).
            words: addresses, of each place those of all columns and of the words of all rows that these meet.
            inside: whether each place is inside the columns; others add nothing.
            begins: where in its word each row begins.
            loaded: the registers of the columns' words if they are loaded.
        """
        own = self.config.own
        loaded = loaded or [[self._word(x) for x in place[:own]] for place in words]
        for place, columns, legal in zip(words, loaded, inside, strict=True):
            numbers = [self._numbers(_registers(x)) for x in columns]
            for row, (low, begin) in enumerate(zip(place[own:], begins, strict=True)):
                a = self._numbers(self._factors(low, begin))
                for column, b in enumerate(numbers):
                    total = sums[column, row]
                    for i in range(WORD):
                        total = total + a[i] * b[i]
                    # zeros instead of a word outside would not do: zero times infinity is no number
                    sums[column, row] = (
                        total if legal is True else cutlass.select_(legal, total, sums[column, row])
                    )

    def _word(self, address: Any) -> list:
        """The registers of a word of B."""
        return registers(address) if self.policy is None else registers_past_l1(address, self.policy)

    def _factors(self, low: Any, begin: Any) -> cute.Tensor:
        """The registers of eight elements of a row, which begin so many behind an aligned word."""
        if self.config.aligned:
            return _registers(registers(low))
        rA = cute.make_rmem_tensor(REGISTERS, cutlass.Uint32)
        align([*registers(low), *registers(_at(low, WORD))], begin * ELEMENT_BYTES, ELEMENT_BYTES, rA)
        return rA

    def _numbers(self, rX: cute.Tensor) -> Any:
        """A word's elements as fp32."""
        return cute.recast_tensor(rX, self.numeric).load().to(cutlass.Float32)

    def _ends(self, sums: cute.Tensor, lane: Any, slice_: Any, head: Any, tail: Any) -> None:
        """Add the products of heads, and of tails from an element on, one to a lane of the first slice."""
        for place, end in ((lane, head), (tail + lane, self.k)):
            at, mine = cutlass.min(place, self.k - 1), (place < end) & (slice_ == 0)
            columns = [self._element(column, at) for column in self.b]
            for row, start in enumerate(self.a):
                a = self._element(start, at)
                for column, b in enumerate(columns):
                    total = sums[column, row]
                    sums[column, row] = cutlass.select_(mine, total + a * b, total)

    def _element(self, column: Any, place: Any) -> Any:
        """One element of a column as fp32."""
        return elements_at(self.numeric, _at(column, place))[0].to(cutlass.Float32)


def _prefetch(starts: tuple, k: Any, number: Any, elements: int) -> None:
    """Prefetch the `number`-th group of `elements` elements of each row, unless it begins beyond K."""
    place = number * elements
    for start in starts:
        prefetch_line(_at(start, place), place < k)


def _inside(bases: Sequence, places: list, count: Any) -> tuple[list, list]:
    """The addresses of words of each base, those outside moved to the last of `count`, and which are inside."""
    words = [[_at(x, cutlass.min(place, count - 1) * WORD) for x in bases] for place in places]
    return words, [place < count for place in places]


def _lanes(config: GemvConfig) -> int:
    """The sums of a warp, rounded up to a power of two."""
    return 1 << (config.own * config.rows - 1).bit_length()


def _of_lane(sums: cute.Tensor, lanes: int, lane: Any) -> tuple[Any, Any]:
    """One sum over all lanes of a warp, and which: neighbouring lanes have the same if there are fewer sums.

    Lanes keep half of their sums, and give the other half to those that keep it, until each has one.
    """
    held = [sums[i] for i in range(cute.size(sums))]
    held += [cutlass.Float32(0.0)] * (lanes - len(held))
    place = cutlass.Int32(0)
    for bit in LANES:
        half = len(held) // 2
        if half:
            upper = (lane & bit) != 0
            given = [cutlass.select_(upper, held[i], held[half + i]) for i in range(half)]
            kept = [cutlass.select_(upper, held[half + i], held[i]) for i in range(half)]
            held = [x + cute.arch.shuffle_sync_bfly(y, bit) for x, y in zip(kept, given, strict=True)]
            place += cutlass.select_(upper, cutlass.Int32(half), cutlass.Int32(0))
        else:
            held = [held[0] + cute.arch.shuffle_sync_bfly(held[0], bit)]
    return held[0], place


def _misaligned(address: Any) -> Any:
    """Elements from the aligned word below an address to it."""
    return cutlass.Int32(address // ELEMENT_BYTES & (WORD - 1))


def _registers(word: list) -> cute.Tensor:
    """A word in a tensor of registers."""
    rX = cute.make_rmem_tensor(REGISTERS, cutlass.Uint32)
    for i, x in enumerate(word):
        rX[i] = x
    return rX


def _at(address: Any, elements: Any) -> Any:
    """The address so many elements further."""
    return address + cutlass.Int64(elements) * ELEMENT_BYTES
