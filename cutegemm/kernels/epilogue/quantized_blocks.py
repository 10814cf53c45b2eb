# SPDX-License-Identifier: Apache-2.0
"""Values of blocks in 8 bits and their scales, from a tile's values before they are stored.

A row's 128 columns lie in some neighbouring subtiles, with the four lanes of a quad. A block of 128 x 128 lies with the
two warpgroups that share a tile: each warp's maximum goes to shared memory, and all threads wait for the others'. There
is a place for each block of a tile; with one block, they also wait until it has been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, scale_places
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import STORE, Result
from cutegemm.kernels.eight_bits.scales import (
    INFINITE,
    across,
    divide,
    inverse_of,
    key,
    number,
    scale_of,
    top,
)
from cutegemm.kernels.epilogue.element_functions import where
from cutegemm.kernels.epilogue.partial_reductions import Partials
from cutegemm.kernels.epilogue.subtiles import Subtile, key_of
from cutegemm.kernels.epilogue.vector_inputs import as_type
from cutegemm.kernels.mainloop.shared_storage import Shared, wait_named

Held = list[tuple[Subtile, list[list[Any]]]]  # subtiles of 128 columns, and their values by output


@dataclass(frozen=True)
class Blocks:
    """The outputs of blocks: where their scales go, and the maxima that warps share."""

    config: KernelConfig
    scales: dict[str, Partials]  # by name
    sMost: Any  # (WARPS, BLOCKS) keys, or None

    @staticmethod
    def create(config: KernelConfig, partials: tuple[Partials, ...], shared: Shared) -> Blocks:
        """Take the places of maxima."""
        found, shape = (
            {x.result.name: x for x in partials},
            (config.consumers * 4, scale_places.shared_blocks(config)),
        )
        sMost = None
        if scale_places.shared_blocks(config):
            sMost = shared.tensor("block maxima", cutlass.Uint32, cute.make_layout(shape))
        return Blocks(config, found, sMost)

    def quantise(self, held: Held) -> None:
        """Put quotients in the place of values, and store the scales."""
        known: dict[tuple, tuple] = {}
        for place, x in enumerate(self.config.epilogue.outputs):
            if not x.block:
                continue
            which = (x.node, x.block, x.dtype, x.exponents)
            if which not in known:
                known[which] = self._divided(x, held, place)
            quotients, scales = known[which]
            if x.kind == STORE:
                for (_, values), found in zip(held, quotients, strict=True):
                    values[place] = found
            else:
                self._put(x, held[0][0], scales)

    def _divided(self, x: Result, held: Held, place: int) -> tuple[list[list[Any]], list[Any]]:
        """Quotients of an output's values, by subtile, and what is stored of the scales: of two rows, or of a block."""
        dtype, quotients = DType(x.dtype), [list(values[place]) for _, values in held]
        each = range(held[0][0].size)
        rows = [[(i, v) for i in range(len(held)) for v in each if key_of(v)[0] == row] for row in (0, 1)]
        stored = []
        for members in rows if x.block == 1 else [rows[0] + rows[1]]:
            rQ = cute.make_rmem_tensor(len(members), cutlass.Float32)
            rK = cute.make_rmem_tensor(len(members), cutlass.Uint32)
            for at, (i, v) in enumerate(members):
                rQ[at] = quotients[i][v]
                bits = key(as_type(rQ[at], cutlass.Uint32), cutlass.Float32, False)
                rK[at] = where(self._inside(held[i][0], v, x.block > 1), bits, cutlass.Uint32(0))
            most = across(self._top(rK, dtype), 32, 1, 2)
            if x.block > 1:
                most = self._shared(across(most, 32, 4, 8, 16), held[0][0])
            scale, exponent = scale_of(number(most, cutlass.Float32, dtype), dtype, x.exponents)
            divide(rQ, scale, inverse_of(scale), 2)
            for at, (i, v) in enumerate(members):
                quotients[i][v] = rQ[at]
            stored.append(exponent.to(cutlass.Uint8) if x.exponents else scale)
        return quotients, stored

    def _inside(self, subtile: Subtile, value: int, rows: bool) -> Any:
        """Whether a value counts: D's columns, and rows of a block of many, may end in it."""
        row, column, _ = subtile.coord(*key_of(value))
        found = cutlass.Boolean(column < subtile.ends[1])
        return found & cutlass.Boolean(row < subtile.ends[0]) if rows else found

    @cute.jit
    def _top(self, rK: cute.Tensor, dtype: cutlass.Constexpr):
        """A thread's largest key; for fp8 what is not finite does not count."""
        most = top([rK[i] for i in range(cute.size(rK))], 32)
        if cutlass.const_expr(not dtype.whole):
            if most >= cutlass.Uint32(INFINITE[cutlass.Float32]):
                most = top([key(rK[i], cutlass.Float32, True) for i in range(cute.size(rK))], 32)
        return most

    def _shared(self, most: Any, subtile: Subtile) -> Any:
        """The largest key of both warpgroups' rows."""
        config, role = self.config, subtile.role
        block = subtile.number // scale_places.block_subtiles(config)
        self._note(most, role.thread, role.band * 4, block)
        wait_named(config, "blocks")  # every warp's maximum is there
        found = top([self.sMost[warp, block] for warp in range(config.consumers * 4)], 32)
        if scale_places.shared_blocks(config) == 1:
            wait_named(config, "blocks")  # every thread has read them, which the next tile overwrites
        return found

    @cute.jit
    def _note(self, most: Any, thread: Any, first: Any, block: cutlass.Constexpr) -> None:
        """Write a warp's maximum."""
        sMost = self.sMost
        if thread % hw.WARP == 0:
            sMost[first + thread // hw.WARP, block] = most

    def _put(self, x: Result, subtile: Subtile, scales: list[Any]) -> None:
        """Store the scales of a thread's two rows, from one lane of each quad, or of a block, from one thread."""
        thread, column = subtile.role.thread, subtile.column // scale_places.block_subtiles(self.config)
        there = cutlass.Boolean(subtile.origin[1] < subtile.ends[1])
        for i, scale in enumerate(scales):
            row = subtile.row(i) if x.block == 1 else subtile.origin[0]
            mine = cutlass.Boolean(thread % 4 == 0)
            if x.block > 1:
                mine = cutlass.Boolean(thread == 0) & cutlass.Boolean(subtile.role.band == 0)
            wanted = mine & there & cutlass.Boolean(row < subtile.ends[0])
            self.scales[x.name].put((scale,), column, subtile.batch, row // x.block, wanted)
