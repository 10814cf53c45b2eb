# SPDX-License-Identifier: Apache-2.0
"""A matrix in 8 bits and its scales, its transpose too, in one read: registers hold elements while scales are found.

A CTA has a whole row, or a tile of 128 columns. Of a tile, sixteen threads have 128 columns of some neighbouring rows,
and each thread reads CHUNK neighbours of each:
    "row"         all threads of the CTA, which has a row, combine their maxima
    "1x128"       the sixteen lanes of a row's block do; for the transpose all threads of a column's
    "128x128"     all threads of the CTA, which has the block
    "amax"        nothing is stored but the maximum of all elements, by atomics; of rows and columns: "amax_lines"
    "tensor"      the scale is that of the maximum which "amax" found; of those of rows and columns: "lines"
    "given"       a scale is read, for all elements
Rows of the transpose have scales of columns, and their values pass through shared memory on their way out. What is
computed, also of zeros, infinities and NaN, is what `running.numerics.eight_bits` says, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import QuantizeConfig
from cutegemm.config.helpers import CHUNK, TILE
from cutegemm.kernels.eight_bits.maxima import ACROSS, WARPS, Maxima
from cutegemm.kernels.eight_bits.scales import LEAST, RAISED, divide, inverse_of, quotient, scale_of
from cutegemm.kernels.epilogue.element_functions import convert, opaque, where
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.memory_views import WORD, act_if, as_type, elements_at, store_if

SHARED = 50  # percent of an SM's memory that are not L1's: three transposed tiles are a quarter


class QuantizeGroups:
    """The driver of one `QuantizeConfig`."""

    def __init__(self, config: QuantizeConfig) -> None:
        self.config, self.kind = config, config.kind
        self.source, self.numeric = NUMERIC[config.source], NUMERIC[config.dtype]
        self.steps, self.width = config.chunks, config.source.bits
        self.maxima = Maxima(config)

    @cute.jit
    def __call__(self, addresses, shape, strides, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        extents = launch.named(self.config, "shape", shape)
        rows, columns, batch = extents["rows"], extents["columns"], extents["batch"]
        grid = (rows, 1, batch)
        if cutlass.const_expr(self.kind != "row"):
            height = self.config.rows
            grid = ((columns + (TILE - 1)) // TILE, (rows + (height - 1)) // height, batch)
        self.kernel(addresses, shape, strides).launch(
            grid=grid,
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=self.config.residents,
            preferred_smem_carveout=SHARED,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, addresses, shape, strides):
        """One CTA's elements."""
        config, kind = self.config, self.kind
        places = launch.named(config, "addresses", addresses)
        extents = launch.named(config, "shape", shape)
        steps = launch.named(config, "strides", strides)
        thread, _, _ = cute.arch.thread_idx()
        x, y, batch = cute.arch.block_idx()
        if cutlass.const_expr(kind in ("tensor", "lines")):
            # what was read last for the maxima is in L2
            last_x, last_y, _ = cute.arch.grid_dim()
            x, y = last_x - 1 - x, last_y - 1 - y
        smem = cutlass.memory.SmemAllocator()
        sM = smem.allocate_tensor(cutlass.Uint32, cute.make_layout(config.threads // hw.WARP), 16)  # (WARPS)
        if cutlass.const_expr(kind == "row"):
            row, column, down, along = x, thread * CHUNK, 0, config.threads * CHUNK
        else:
            # neighbouring rows: of eight, a thread stores eight neighbours of the transpose
            row, column = y * config.rows + thread // ACROSS * self.steps, x * TILE + thread % ACROSS * CHUNK
            down, along = 1, 0
        at = (row, column, down, along)
        rX = cute.make_rmem_tensor((CHUNK, self.steps), self.source)  # (CHUNK, STEP)
        rX.fill(0)
        found = self._places(at, steps["source.row"], cutlass.Int64(batch) * steps["source.batch"])
        for i in cutlass.range_constexpr(self.steps):
            chunk = self._chunk(self.source, places["source"], next(found))
            if row + down * i < extents["rows"] and column + along * i < extents["columns"]:
                cute.autovec_copy(chunk, rX[None, i])
        shared = (sM, None, None)
        if cutlass.const_expr(config.turned):
            # maxima, then pairs of scales and inverses, of columns (COLUMN, WARPS or 2); the transpose, whose groups
            # of eight rows lie eight bytes further apart than a row has: sixteen lanes that write them use all banks
            sC = smem.allocate_tensor(cutlass.Uint32, cute.make_layout((TILE, WARPS)), 16)
            turned = cute.make_layout(
                ((CHUNK, ACROSS), (CHUNK, ACROSS)), stride=((TILE, CHUNK * TILE + CHUNK), (1, CHUNK))
            )
            sT = smem.allocate_tensor(cutlass.Uint8, turned, 16)  # ((CHUNK, ACROSS), (CHUNK, ACROSS))
            shared = (sM, sC, sT)
        here = (places, extents, steps, (x, y, batch))
        if cutlass.const_expr(kind == "amax"):
            self._raise(thread == 0, places["most"], 0, self.maxima.whole(rX, sM))
        elif cutlass.const_expr(kind == "amax_lines"):
            self._maxima(rX, shared, at, here)
        else:
            self._quantise(rX, shared, at, here)

    def _places(self, at: tuple, step: Any, first: Any) -> Iterator[Any]:
        """Where each of a thread's chunks lies in a matrix: sums, which take less than products of 64 bits."""
        row, column, down, along = at
        place = first + cutlass.Int64(row) * step + column
        for _ in range(self.steps):
            yield place
            place = place + (step * down + along if down else along)

    def _maxima(self, rX: cute.Tensor, shared: tuple, at: tuple, here: tuple) -> None:
        """Raise the maxima of rows, of columns, or of both to a tile's."""
        places, extents, _, (x, _, batch) = here
        thread, _, _ = cute.arch.thread_idx()
        lane, column = thread % ACROSS, x * TILE + thread
        words = self.maxima.found(rX, self.config.plain, self.config.turned)
        if self.config.plain:
            mine = cutlass.Boolean(lane < self.steps) & cutlass.Boolean(at[0] + lane < extents["rows"])
            place = cutlass.Int64(batch) * extents["rows"] + at[0] + lane
            self._raise(mine, places["most"], place, self.maxima.row_most(words, lane))
        if self.config.turned:
            mine = cutlass.Boolean(thread < TILE) & cutlass.Boolean(column < extents["columns"])
            place = cutlass.Int64(batch) * extents["columns"] + column
            self._raise(mine, places["turned.most"], place, self.maxima.column_most(words, shared[1]))

    def _quantise(self, rX: cute.Tensor, shared: tuple, at: tuple, here: tuple) -> None:
        """Find scales, store those that are a thread's own, and store the values."""
        sM, sC, sT = shared
        lines, (plain, turned) = self.kind in ("1x128", "lines"), (self.config.plain, self.config.turned)
        if lines:
            words = self.maxima.found(rX, plain, turned) if self.kind == "1x128" else None
            rows = self._row_scales(words, at, here) if plain else None
            columns = self._column_scales(words, sC, here) if turned else None
        else:
            one = self._one_scale(rX, sM, at, here)
            rows = columns = lambda i: one
        values: list[cute.Tensor] = []
        if plain:
            steps, batch = here[2], here[3][2]
            found = self._places(at, steps["values.row"], cutlass.Int64(batch) * steps["values.batch"])
            for i in range(self.steps):
                values.append(self._values(rX, self._row(i), rows(i)))
                self._store(values[-1], next(found), i, at, here)
        if turned:
            thread, _, _ = cute.arch.thread_idx()
            group, part = thread % ACROSS, thread // ACROSS
            rX = self._once_more(rX) if plain else rX
            for c in range(CHUNK):
                if values and not lines:
                    # the same values
                    rV = cute.make_rmem_tensor(CHUNK, cutlass.Uint8)
                    for i in range(CHUNK):
                        rV[i] = cute.recast_tensor(values[i], cutlass.Uint8)[c]
                else:
                    found = self._values(rX, tuple((c, i) for i in range(CHUNK)), columns(c))
                    rV = cute.recast_tensor(found, cutlass.Uint8)
                cute.autovec_copy(rV, sT[(c, group), (None, part)])
            cute.arch.sync_threads()  # the transpose is written
            self._store_turned(sT, here)

    def _once_more(self, rX: cute.Tensor) -> cute.Tensor:
        """The same elements, of which the compiler keeps no copies in fp32 from earlier uses."""
        if self.width == 32:
            return rX
        again = cute.make_rmem_tensor(rX.shape, self.source)
        rI, rO = cute.recast_tensor(rX, cutlass.Int32), cute.recast_tensor(again, cutlass.Int32)
        for i in range(cute.size(rI)):
            rO[i] = opaque(rI[i])
        return again

    def _row_scales(self, words: Any, at: tuple, here: tuple) -> Callable[[int], tuple]:
        """What divides each of a thread's rows: a lane finds the scale of one row, and the row's lanes ask it."""
        places, extents, _, (x, _, batch) = here
        thread, _, _ = cute.arch.thread_idx()
        lane, rows = thread % ACROSS, extents["rows"]
        own = at[0] + lane
        there = cutlass.Boolean(lane < self.steps) & cutlass.Boolean(own < rows)
        if self.kind == "lines":
            near = cutlass.Int64(batch) * rows + cutlass.min(own, rows - 1)
            most = self._one(cutlass.Float32, places["most"], near)[0]
            place, there = cutlass.Int64(batch) * rows + own, there & cutlass.Boolean(x == 0)
        else:
            most = self.maxima.row_most(words, lane)
            blocks = (extents["columns"] + (TILE - 1)) // TILE
            place = cutlass.Int64(batch * blocks + x) * rows + own
        scale, exponent = scale_of(most, self.config.dtype, self.config.exponents)
        self._put(there, scale, exponent, places["scale"], place)
        first, inverse = thread % hw.WARP // ACROSS * ACROSS, inverse_of(scale)
        ask = cute.arch.shuffle_sync
        return lambda i: (ask(scale, first + i), ask(inverse, first + i))

    def _column_scales(self, words: Any, sC: cute.Tensor, here: tuple) -> Callable[[int], tuple]:
        """What divides each of a thread's columns: 128 threads find a scale each and share it."""
        places, extents, _, (x, y, batch) = here
        thread, _, _ = cute.arch.thread_idx()
        column, columns = x * TILE + thread, extents["columns"]
        there = cutlass.Boolean(thread < TILE) & cutlass.Boolean(column < columns)
        if self.kind == "lines":
            place = cutlass.Int64(batch) * columns + column
            near = cutlass.Int64(batch) * columns + cutlass.min(column, columns - 1)
            most = self._one(cutlass.Float32, places["turned.most"], near)[0]
            there = there & cutlass.Boolean(y == 0)
        else:
            most = self.maxima.column_most(words, sC)
            above = (extents["rows"] + (TILE - 1)) // TILE
            place = cutlass.Int64(batch * above + y) * columns + column
            cute.arch.sync_threads()  # every maximum has been read
        scale, exponent = scale_of(most, self.config.dtype, self.config.exponents)
        self._put(there, scale, exponent, places["turned.scale"], place)
        sS = cute.recast_tensor(sC, cutlass.Float32)
        inverse = inverse_of(scale)

        def share() -> None:
            sS[thread, 0], sS[thread, 1] = scale, inverse

        act_if(thread < TILE, share)
        cute.arch.sync_threads()  # every scale is there
        first = thread % ACROSS * CHUNK
        return lambda c: (sS[first + c, 0], sS[first + c, 1])

    def _one_scale(self, rX: cute.Tensor, sM: cute.Tensor, at: tuple, here: tuple) -> tuple:
        """What divides all of a CTA's elements: the scale and its inverse."""
        places, extents, _, (x, y, batch) = here
        thread, _, _ = cute.arch.thread_idx()
        rows, columns = extents["rows"], extents["columns"]
        if self.kind == "given":
            return (self._one(cutlass.Float32, places["scale"], cutlass.Int64(0))[0],)
        there = cutlass.Boolean(thread == 0)
        if self.kind == "tensor":
            most, place = self._one(cutlass.Float32, places["most"], cutlass.Int64(0))[0], cutlass.Int64(0)
            there = there & cutlass.Boolean(x + y + batch == 0)
        else:
            most = self.maxima.whole(rX, sM)
            along, above = (columns + (TILE - 1)) // TILE, (rows + (TILE - 1)) // TILE
            if self.kind == "row":
                place = cutlass.Int64(batch) * rows + at[0]
            elif self.config.plain:
                place = cutlass.Int64(batch * above + y) * along + x
            else:
                place = cutlass.Int64(batch * along + x) * above + y
        scale, exponent = scale_of(most, self.config.dtype, self.config.exponents)
        self._put(there, scale, exponent, places["scale"], place)
        return scale, inverse_of(scale)

    def _row(self, step: int) -> tuple[tuple[int, int], ...]:
        """The elements of one of a thread's chunks."""
        return tuple((x, step) for x in range(CHUNK))

    def _chunk(self, numeric: Any, address: Any, place: Any) -> cute.Tensor:
        """CHUNK elements of a matrix from one on."""
        size = numeric.width // 8
        return elements_at(numeric, address + place * size, CHUNK, min(WORD, CHUNK * size))

    def _one(self, numeric: Any, address: Any, place: Any) -> cute.Tensor:
        """One element."""
        return elements_at(numeric, address + place * (numeric.width // 8))

    def _put(self, wanted: Any, scale: Any, exponent: Any, address: Any, place: Any) -> None:
        """Store a scale or its exponent."""
        exponents = self.config.exponents
        target = self._one(cutlass.Uint8 if exponents else cutlass.Float32, address, place)
        store_if(wanted, target, 0, exponent.to(cutlass.Uint8) if exponents else scale)

    @cute.jit
    def _raise(self, wanted: Any, address: Any, place: Any, most: Any) -> None:
        """Raise a maximum in memory to another; magnitudes, NaN too, are ordered as their bits are."""
        target, bits = self._one(cutlass.Uint32, address, cutlass.Int64(place)), as_type(most, cutlass.Uint32)
        if wanted:
            ptx = "red.relaxed.gpu.global.max.u32 [{$r0}], {$r1};"
            cute.arch.inline_ptx(ptx, read_only_args=[target.iterator, bits])

    def _values(self, rX: cute.Tensor, elements: tuple, divisor: tuple) -> cute.Tensor:
        """CHUNK of a thread's elements in 8 bits."""
        rQ = cute.make_rmem_tensor(CHUNK, cutlass.Float32)
        for x, element in enumerate(elements):
            rQ[x] = rX[element].to(cutlass.Float32)
        if self.kind == "given":
            self._divide_by_any(rQ, *divisor)
        else:
            divide(rQ, *divisor, 2 if self.width == 32 else 1)
        rV = cute.make_rmem_tensor(CHUNK, self.numeric)
        if self.config.dtype.whole:
            for x in range(CHUNK):
                rV[x] = convert(rQ[x], self.config.dtype)
        else:
            rV.store(rQ.load().to(self.numeric))
        return rV

    def _divide_by_any(self, rQ: cute.Tensor, scale: Any) -> None:
        """Divide elements by any number: negative, subnormal, not finite."""
        size = cute.math.absf(scale)
        factor = cutlass.Float32(where(size < LEAST, cutlass.Float32(RAISED), cutlass.Float32(1.0)))
        factor = cutlass.Float32(where(size > 1.0 / LEAST, cutlass.Float32(1.0 / RAISED), factor))
        divisor, factor = size * factor, cute.math.copysign(factor, scale)
        inverse = 1.0 / divisor
        beyond = cutlass.Float32(0.0 if self.config.dtype.whole else float("nan"))
        for i in range(CHUNK):
            x = rQ[i] * factor
            first = x * inverse
            found = quotient(x, divisor, inverse, 2 if self.width == 32 else 1)
            # where the product is zero, or beyond all types, the remainder is no number
            near = cutlass.Boolean(cute.math.absf(first) < 2.0**20) & cutlass.Boolean(first != 0.0)
            rQ[i] = where(cute.math.absf(rQ[i]) < float("inf"), where(near, found, first), beyond)

    @cute.jit
    def _store(
        self,
        rV: cute.Tensor,
        place: Any,
        i: cutlass.Constexpr,
        at: cutlass.Constexpr,
        here: cutlass.Constexpr,
    ) -> None:
        """Store a chunk of values."""
        (row, column, down, along), (places, extents, _, _) = at, here
        if row + down * i < extents["rows"] and column + along * i < extents["columns"]:
            cute.autovec_copy(rV, self._chunk(self.numeric, places["values"], place))

    @cute.jit
    def _store_turned(self, sT: cute.Tensor, here: cutlass.Constexpr) -> None:
        """Store a tile of the transpose: sixteen threads have a row."""
        places, extents, steps, (x, y, batch) = here
        thread, _, _ = cute.arch.thread_idx()
        line, chunk = thread // ACROSS, thread % ACROSS
        row, column, step = y * TILE + chunk * CHUNK, x * TILE + line, self.config.threads // ACROSS
        place = (
            cutlass.Int64(batch) * steps["turned.batch"] + cutlass.Int64(column) * steps["turned.row"] + row
        )
        for i in cutlass.range_constexpr(CHUNK):
            if row < extents["rows"] and column + i * step < extents["columns"]:
                rV = cute.make_rmem_tensor(CHUNK, cutlass.Uint8)
                cute.autovec_copy(sT[(line % CHUNK, line // CHUNK + i * step // CHUNK), (None, chunk)], rV)
                cute.autovec_copy(rV, self._chunk(cutlass.Uint8, places["turned"], place))
            place = place + steps["turned.row"] * step
