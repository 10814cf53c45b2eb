# SPDX-License-Identifier: Apache-2.0
"""A matrix in 8 bits and its scales, in one read: each CTA holds its elements in registers while it finds their scales.

A CTA has 128 x 128 elements, sixteen threads for a row, or a whole row; each thread reads CHUNK neighbours at a time:
    "1x128"    the sixteen lanes of a row's block combine their maxima
    "128x128"  all threads of the CTA do
    "row"      the same, of a CTA that has a row
    "amax"     as "row", but the maximum is all that is stored
    "given"    a scale is read, for all elements
The transpose in 8 bits (`QuantizeConfig.turned`) has scales of columns: of 128 of a tile's, whose maxima meet in shared
memory, and which pass through it on their way out; of whole ones, from "amax" of tiles, which "row" reads as scales.
What is computed, also of zeros, infinities and NaN, is what `ops.quantized.quantize` says, bit by bit.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import QuantizeConfig
from cutegemm.config.helpers import CHUNK, TILE
from cutegemm.kernels.epilogue.element_functions import convert, where
from cutegemm.kernels.epilogue.vector_inputs import as_type
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.operand_layouts import NUMERIC

ACROSS = TILE // CHUNK  # threads of a row of a tile
WARPS = 8  # of a CTA that transposes a tile
SMALLEST = 2.0**-126  # of scales
# scales from which on `_values` computes with their reciprocals: products of last places are normal numbers
LEAST, MOST = 2.0**-80, 2.0**80


class QuantizeGroups:
    """The driver of one `QuantizeConfig`."""

    def __init__(self, config: QuantizeConfig) -> None:
        self.config = config
        self.rows = config.kind in ("row", "amax") and not config.turned  # a CTA has a row
        self.source, self.numeric = NUMERIC[config.source], NUMERIC[config.dtype]
        self.steps = config.chunks

    @cute.jit
    def __call__(self, addresses, shape, strides, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        extents = launch.named(self.config, "shape", shape)
        rows, columns, batch = extents["rows"], extents["columns"], extents["batch"]
        grid = (rows, 1, batch)
        if cutlass.const_expr(not self.rows):
            grid = ((columns + (TILE - 1)) // TILE, (rows + (TILE - 1)) // TILE, batch)
        self.kernel(addresses, shape, strides).launch(
            grid=grid, block=(self.config.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, addresses, shape, strides):
        """One CTA's elements."""
        config = self.config
        places = launch.named(config, "addresses", addresses)
        extents = launch.named(config, "shape", shape)
        steps = launch.named(config, "strides", strides)
        thread, _, _ = cute.arch.thread_idx()
        x, y, batch = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        sM = smem.allocate_tensor(cutlass.Float32, cute.make_layout(config.threads // hw.WARP), 16)  # (WARPS)
        if cutlass.const_expr(self.rows):
            row, column, down, along = x, thread * CHUNK, 0, config.threads * CHUNK
        elif cutlass.const_expr(config.turned):
            # eight neighbouring rows, so that a thread stores eight neighbours of the transpose
            row, column, down, along = (
                y * TILE + thread // ACROSS * CHUNK,
                x * TILE + thread % ACROSS * CHUNK,
                1,
                0,
            )
        else:
            row, column = y * TILE + thread // ACROSS, x * TILE + thread % ACROSS * CHUNK
            down, along = config.threads // ACROSS, 0
        at = (row, column, down, along)
        rX = cute.make_rmem_tensor((CHUNK, self.steps), self.source)  # (CHUNK, STEP)
        rX.fill(0)
        first = cutlass.Int64(batch) * steps["source.batch"] + cutlass.Int64(row) * steps["source.row"]
        for i in cutlass.range_constexpr(self.steps):
            if row + down * i < extents["rows"] and column + along * i < extents["columns"]:
                place = first + steps["source.row"] * (down * i) + (column + along * i)
                cute.autovec_copy(self._chunk(self.source, places["source"], place), rX[None, i])
        if cutlass.const_expr(config.turned):
            # pairs of maxima and scales of columns (COLUMN, WARPS or 2); the transpose, whose groups of eight rows lie
            # eight bytes further apart than a row has, so that sixteen lanes that write them use all banks
            sC = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, WARPS)), 16)
            turned = cute.make_layout(
                ((CHUNK, ACROSS), (CHUNK, ACROSS)), stride=((TILE, CHUNK * TILE + CHUNK), (1, CHUNK))
            )
            sT = smem.allocate_tensor(cutlass.Uint8, turned, 16)  # ((CHUNK, ACROSS), (CHUNK, ACROSS))
            self._turned(rX, (sM, sC, sT), places, extents, steps, (x, y, batch))
        else:
            self._scales(rX, at, sM, places, extents, steps, batch)

    @cute.jit
    def _turned(
        self,
        rX: cute.Tensor,
        shared: cutlass.Constexpr,
        places: cutlass.Constexpr,
        extents: cutlass.Constexpr,
        steps: cutlass.Constexpr,
        tile: Any,
    ):
        """Quantise the transpose of a tile: a thread's chunks are eight rows of eight columns."""
        sM, sC, sT = shared
        x, y, batch = tile
        rows, columns = extents["rows"], extents["columns"]
        thread, _, _ = cute.arch.thread_idx()
        group, part = thread % ACROSS, thread // ACROSS
        kind = self.config.kind
        rS = cute.make_rmem_tensor((CHUNK, 2), cutlass.Float32)  # scale and inverse of each column
        if cutlass.const_expr(kind in ("1x128", "amax")):
            above = (rows + (TILE - 1)) // TILE
            for c in cutlass.range_constexpr(CHUNK):
                most = self._most(rX, tuple((c, i) for i in range(self.steps)))
                most = maximum(most, cute.arch.shuffle_sync_bfly(most, ACROSS))
                if thread % hw.WARP < ACROSS:
                    sC[group * CHUNK + c, thread // hw.WARP] = most
            cute.arch.sync_threads()
            scale, inverse = cutlass.Float32(0.0), cutlass.Float32(0.0)
            if thread < TILE:
                most = sC[thread, 0]
                for warp in cutlass.range_constexpr(1, WARPS):
                    most = maximum(most, sC[thread, warp])
                scale, exponent = self._scale(most)
                inverse = 1.0 / scale
                if x * TILE + thread < columns:
                    place = cutlass.Int64(batch * above + y) * columns + (x * TILE + thread)
                    found = most if cutlass.const_expr(kind == "amax") else scale
                    self._put(found, exponent, places["scale"], place)
            if cutlass.const_expr(kind == "1x128"):
                cute.arch.sync_threads()  # every maximum has been read
                if thread < TILE:
                    sC[thread, 0], sC[thread, 1] = scale, inverse
                cute.arch.sync_threads()
                for c in cutlass.range_constexpr(CHUNK):
                    for which in cutlass.range_constexpr(2):
                        rS[c, which] = sC[group * CHUNK + c, which]
        elif cutlass.const_expr(kind == "row"):
            for c in cutlass.range_constexpr(CHUNK):
                column = cutlass.min(x * TILE + group * CHUNK + c, columns - 1)
                scale = self._one(cutlass.Float32, places["scale"], cutlass.Int64(batch) * columns + column)[
                    0
                ]
                rS[c, 0], rS[c, 1] = scale, 1.0 / scale
        else:
            if cutlass.const_expr(kind == "given"):
                scale = self._one(cutlass.Float32, places["scale"], cutlass.Int64(0))[0]
            else:
                every = tuple((c, i) for c in range(CHUNK) for i in range(self.steps))
                scale, exponent = self._scale(self._whole(self._most(rX, every), sM))
                along, above = (columns + (TILE - 1)) // TILE, (rows + (TILE - 1)) // TILE
                if thread == 0:
                    self._put(scale, exponent, places["scale"], cutlass.Int64(batch * along + x) * above + y)
            for c in cutlass.range_constexpr(CHUNK):
                rS[c, 0], rS[c, 1] = scale, 1.0 / scale
        if cutlass.const_expr(kind != "amax"):
            for c in cutlass.range_constexpr(CHUNK):
                pairs = tuple((c, i) for i in range(self.steps))
                rV = cute.recast_tensor(self._values(rX, pairs, (rS[c, 0], rS[c, 1])), cutlass.Uint8)
                cute.autovec_copy(rV, sT[(c, group), (None, part)])
            cute.arch.sync_threads()  # the transpose is written
            for i in cutlass.range_constexpr(self.steps):
                line, chunk = (thread + i * self.config.threads) // ACROSS, thread % ACROSS
                row, column = y * TILE + chunk * CHUNK, x * TILE + line
                if row < rows and column < columns:
                    rV = cute.make_rmem_tensor(CHUNK, cutlass.Uint8)
                    cute.autovec_copy(sT[(line % CHUNK, line // CHUNK), (None, chunk)], rV)
                    place = (
                        cutlass.Int64(batch) * steps["values.batch"]
                        + cutlass.Int64(column) * steps["values.row"]
                    )
                    cute.autovec_copy(rV, self._chunk(cutlass.Uint8, places["values"], place + row))

    def _whole(self, most: Any, sM: cute.Tensor) -> Any:
        """The largest magnitude of all threads of the CTA."""
        thread, _, _ = cute.arch.thread_idx()
        return self._together(self._across(most, hw.WARP), sM, thread)

    @cute.jit
    def _together(self, most: Any, sM: cute.Tensor, thread: Any):
        """The largest of all warps' numbers."""
        if thread % hw.WARP == 0:
            sM[thread // hw.WARP] = most
        cute.arch.sync_threads()
        for warp in cutlass.range_constexpr(self.config.threads // hw.WARP):
            most = maximum(most, sM[warp])
        return most

    @cute.jit
    def _scales(
        self,
        rX: cute.Tensor,
        at: cutlass.Constexpr,
        sM: cute.Tensor,
        places: cutlass.Constexpr,
        extents: cutlass.Constexpr,
        steps: cutlass.Constexpr,
        batch: Any,
    ):
        """Find the scales of a thread's chunks, store those that are its own, and the values."""
        config = self.config
        row, column, down, along = at
        thread, _, _ = cute.arch.thread_idx()
        rows, columns = extents["rows"], extents["columns"]
        blocks = (columns + (TILE - 1)) // TILE
        kind = config.kind
        if cutlass.const_expr(kind == "given"):
            scale = self._one(cutlass.Float32, places["scale"], cutlass.Int64(0))[0]
            for i in cutlass.range_constexpr(self.steps):
                self._store(rX, i, (scale, 1.0 / scale), at, places, extents, steps, batch)
        elif cutlass.const_expr(kind == "1x128"):
            # each lane finds the scale of one of its chunks' rows, and all lanes of the row ask it
            lane, count = thread % ACROSS, self.steps
            mosts = [self._across(self._most(rX, chunk_of(i)), ACROSS) for i in range(count)]
            most = mosts[0]
            for i in cutlass.range_constexpr(1, count):
                most = cutlass.Float32(where(lane % count == i, mosts[i], most))
            scale, exponent = self._scale(most)
            own = row + down * lane
            if lane < count and own < rows:
                place = cutlass.Int64(batch * blocks + column // TILE) * rows + own
                self._put(scale, exponent, places["scale"], place)
            first, inverse = thread % hw.WARP // ACROSS * ACROSS, 1.0 / scale
            for i in cutlass.range_constexpr(count):
                pair = (cute.arch.shuffle_sync(scale, first + i), cute.arch.shuffle_sync(inverse, first + i))
                self._store(rX, i, pair, at, places, extents, steps, batch)
        else:
            most = self._whole(self._most(rX, sum(map(chunk_of, range(self.steps)), ())), sM)
            scale, exponent = self._scale(most)
            place = cutlass.Int64(batch) * rows + row
            if cutlass.const_expr(kind == "128x128"):
                above = (rows + (TILE - 1)) // TILE
                place = cutlass.Int64(batch * above + row // TILE) * blocks + column // TILE
            if thread == 0:
                found = most if cutlass.const_expr(kind == "amax") else scale
                self._put(found, exponent, places["scale"], place)
            if cutlass.const_expr(kind != "amax"):
                for i in cutlass.range_constexpr(self.steps):
                    self._store(rX, i, (scale, 1.0 / scale), at, places, extents, steps, batch)

    def _chunk(self, numeric: Any, address: Any, place: Any) -> cute.Tensor:
        """CHUNK elements of a matrix from one on."""
        size = numeric.width // 8
        start = address + place * size
        align = min(16, CHUNK * size)
        return cute.make_tensor(
            cute.make_ptr(numeric, start, cute.AddressSpace.gmem, assumed_align=align), CHUNK
        )

    def _one(self, numeric: Any, address: Any, place: Any) -> cute.Tensor:
        """One element."""
        size = numeric.width // 8
        ptr = cute.make_ptr(numeric, address + place * size, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(ptr, 1)

    def _put(self, scale: Any, exponent: Any, address: Any, place: Any) -> None:
        """Store a scale or its exponent."""
        if self.config.exponents:
            self._one(cutlass.Uint8, address, place)[0] = exponent.to(cutlass.Uint8)
        else:
            self._one(cutlass.Float32, address, place)[0] = scale

    @cute.jit
    def _most(self, rX: cute.Tensor, elements: cutlass.Constexpr):
        """The largest magnitude of a thread's elements. One that is not finite makes that of integers NaN; of fp8 it
        does not count.
        """
        infinity = float("inf")
        found = cutlass.Float32(0.0)
        for element in elements:
            found = maximum(found, magnitude(rX[element]))
        if cutlass.const_expr(self.config.dtype.whole):
            found = cutlass.Float32(where(found < infinity, found, cutlass.Float32(float("nan"))))
        elif found == infinity or found != found:
            found = cutlass.Float32(0.0)
            for element in elements:
                size = magnitude(rX[element])
                found = maximum(found, where(size < infinity, size, cutlass.Float32(0.0)))
        return found

    def _across(self, most: Any, lanes: int) -> Any:
        """The largest of neighbouring lanes."""
        offset = lanes // 2
        while offset:
            most = maximum(most, cute.arch.shuffle_sync_bfly(most, offset))
            offset //= 2
        return most

    def _scale(self, most: Any) -> tuple[Any, Any]:
        """The scale of elements with a largest magnitude, and its exponent where scales are powers of two."""
        one = cutlass.Float32(1.0)
        largest = self.config.largest
        scale = quotient(most, cutlass.Float32(largest), cutlass.Float32(1.0) / cutlass.Float32(largest), 2)
        scale = maximum(scale, cutlass.Float32(SMALLEST))
        scale = cutlass.Float32(where(most == 0.0, one, scale))
        if not self.config.exponents:
            return scale, None
        bits = as_type(scale, cutlass.Uint32)
        above = (bits + cutlass.Uint32((1 << 23) - 1)) >> 23
        exponent = cutlass.Uint32(where(scale == scale, above, cutlass.Uint32(255)))
        return as_type(exponent << 23, cutlass.Float32), exponent

    @cute.jit
    def _store(
        self,
        rX: cute.Tensor,
        i: cutlass.Constexpr[int],
        scale: Any,
        at: cutlass.Constexpr,
        places: cutlass.Constexpr,
        extents: cutlass.Constexpr,
        steps: cutlass.Constexpr,
        batch: Any,
    ) -> None:
        """Quantise a chunk and store it."""
        row, column, down, along = at
        rV = self._values(rX, chunk_of(i), scale)
        if row + down * i < extents["rows"] and column + along * i < extents["columns"]:
            place = (
                cutlass.Int64(batch) * steps["values.batch"]
                + cutlass.Int64(row + down * i) * steps["values.row"]
                + (column + along * i)
            )
            cute.autovec_copy(rV, self._chunk(self.numeric, places["values"], place))

    @cute.jit
    def _values(self, rX: cute.Tensor, elements: cutlass.Constexpr, scale: Any):
        """CHUNK of a thread's elements in 8 bits, by a scale and its inverse."""
        rQ = cute.make_rmem_tensor(CHUNK, cutlass.Float32)
        divisor, inverse = scale
        # what is not finite is NaN, or the integer 0; of a remainder too, unless a given scale makes quotients infinite
        beyond = cutlass.Float32(0.0 if self.config.dtype.whole else float("nan"))
        if divisor >= LEAST and divisor <= MOST:
            rounds = 2 if cutlass.const_expr(self.config.source.bits == 32) else 1
            for x in cutlass.range_constexpr(CHUNK):
                element = rX[elements[x]].to(cutlass.Float32)
                rQ[x] = quotient(element, divisor, inverse, rounds)
                if cutlass.const_expr(self.config.kind == "given"):
                    first = element * inverse
                    rQ[x] = where(cute.math.absf(first) < 2.0**20, rQ[x], first)
                    rQ[x] = where(cute.math.absf(element) < float("inf"), rQ[x], beyond)
        else:
            for x in cutlass.range_constexpr(CHUNK):
                rQ[x] = rX[elements[x]].to(cutlass.Float32) / divisor
                rQ[x] = where(magnitude(rX[elements[x]]) < float("inf"), rQ[x], beyond)
        rV = cute.make_rmem_tensor(CHUNK, self.numeric)
        if cutlass.const_expr(self.config.dtype.whole):
            for x in cutlass.range_constexpr(CHUNK):
                rV[x] = convert(rQ[x], self.config.dtype)
        else:
            rV.store(rQ.load().to(self.numeric))
        return rV


def chunk_of(step: int) -> tuple[tuple[int, int], ...]:
    """The elements of one of a thread's chunks."""
    return tuple((x, step) for x in range(CHUNK))


def maximum(x: Any, y: Any) -> Any:
    """The larger of two numbers; NaN if one is."""
    return cute.arch.fmax(x, y, nan=True)


def magnitude(x: Any) -> Any:
    """An element's, in fp32."""
    return cute.math.absf(x.to(cutlass.Float32))


def quotient(x: Any, scale: Any, inverse: Any, rounds: int) -> Any:
    """fp32(x / scale) of a positive scale, rounded to nearest; NaN where the quotient is infinite.

    Steps of Newton's iteration from the product with the correctly rounded inverse; remainders are exact (Markstein,
    IBM Journal of Research and Development 34, 1990). One is enough for elements of 16 bits, which all pairs of
    mantissas show.
    """
    found = x * inverse
    for _ in range(rounds):
        # with these signs a zero keeps its own
        rest = cute.math.fma(found, scale, -x)
        found = cute.math.fma(rest, -inverse, found)
    return found
