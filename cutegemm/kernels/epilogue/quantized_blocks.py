# SPDX-License-Identifier: Apache-2.0
"""Quantises the blocks of a tile to 8 bits, before they are stored, and stores their scales.

The four lanes of a quad hold 128 columns of a row, in consecutive subtiles, so shuffles find the maximum of a block of
1 x 128. The two warpgroups that share a tile hold a block of 128 x 128: each warp writes its maximum to shared memory,
and a named barrier separates writes from reads. Each block of a tile has its own slots. If a tile has one block, a
second barrier keeps the next tile from overwriting slots that are still read.
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
from cutegemm.kernels.mainloop.shared_storage import Shared, wait_named
from cutegemm.kernels.memory_views import as_type, store_if

Held = list[tuple[Subtile, list[list[Any]]]]  # the subtiles of 128 columns, each with its values by output


@dataclass(frozen=True)
class Blocks:
    """Quantises outputs by blocks: their scales in global memory, and warps' maxima in shared memory."""

    config: KernelConfig
    scales: dict[str, Partials]  # by name
    sMost: Any  # (WARPS, BLOCKS): each warp's largest key; None without blocks of 128 rows

    @staticmethod
    def create(config: KernelConfig, partials: tuple[Partials, ...], shared: Shared) -> Blocks:
        """Allocate the shared memory of maxima."""
        scales = {x.result.name: x for x in partials}
        shape = config.consumers * 4, scale_places.shared_blocks(config)
        sMost = None
        if scale_places.shared_blocks(config):
            sMost = shared.tensor("block maxima", cutlass.Uint32, cute.make_layout(shape))
        return Blocks(config, scales, sMost)

    def quantise(self, held: Held) -> None:
        """Replace values by value / scale, and store the scales."""
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
        """An output's values / scale, by subtile; and the scales of a thread's two rows, or of the block, as stored."""
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
        """Whether a value lies in D: its columns, and with `rows` also its rows, may end inside a block."""
        row, column, _ = subtile.coord(*key_of(value))
        found = cutlass.Boolean(column < subtile.ends[1])
        return found & cutlass.Boolean(row < subtile.ends[0]) if rows else found

    @cute.jit
    def _top(self, rK: cute.Tensor, dtype: cutlass.Constexpr):
        """The largest key of a thread; fp8 ignores values that are not finite."""
        most = top([rK[i] for i in range(cute.size(rK))], 32)
        if cutlass.const_expr(not dtype.whole):
            if most >= cutlass.Uint32(INFINITE[cutlass.Float32]):
                most = top([key(rK[i], cutlass.Float32, True) for i in range(cute.size(rK))], 32)
        return most

    def _shared(self, most: Any, subtile: Subtile) -> Any:
        """The largest key of a block of 128 rows, over all warps of both warpgroups."""
        config, role = self.config, subtile.role
        block = subtile.number // scale_places.block_subtiles(config)
        slot = (role.band * 4 + role.thread // hw.WARP, block)
        store_if(role.thread % hw.WARP == 0, self.sMost, slot, most)
        wait_named(config, "blocks")  # every warp's maximum is there
        found = top([self.sMost[warp, block] for warp in range(config.consumers * 4)], 32)
        if scale_places.shared_blocks(config) == 1:
            wait_named(config, "blocks")  # every thread has read the maxima, which the next tile overwrites
        return found

    def _put(self, x: Result, subtile: Subtile, scales: list[Any]) -> None:
        """Store scales: of two rows by one lane of each quad, or of a block of 128 rows by one thread."""
        thread, column = subtile.role.thread, subtile.column // scale_places.block_subtiles(self.config)
        there = cutlass.Boolean(subtile.origin[1] < subtile.ends[1])
        for i, scale in enumerate(scales):
            row = subtile.row(i) if x.block == 1 else subtile.origin[0]
            mine = cutlass.Boolean(thread % 4 == 0)
            if x.block > 1:
                mine = cutlass.Boolean(thread == 0) & cutlass.Boolean(subtile.role.band == 0)
            wanted = mine & there & cutlass.Boolean(row < subtile.ends[0])
            self.scales[x.name].put((scale,), column, subtile.batch, row // x.block, wanted)
