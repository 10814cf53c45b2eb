# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core kernel's epilogue: a thread's accumulators through the graph and straight out.

`Lanes` says which lanes of a warp stand along M and which along N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import SimtConfig
from cutegemm.epilogue.graph import Node
from cutegemm.kernels.cuda_cores.simt_tile import GROUP
from cutegemm.kernels.epilogue import partial_reductions as reduce
from cutegemm.kernels.epilogue.element_functions import converted
from cutegemm.kernels.epilogue.fusion import Fusion, Inputs
from cutegemm.kernels.schedule.work import OutputTile

# Lanes along M -> the bits of a lane's number that say where it stands along M, and along N. Bit 0 is M's and bit 1
# is N's, so that either operand's fragments meet the rule of `simt_tile`.
LANE_BITS = {
    2: ((1,), (2, 4, 8, 16)),
    4: ((1, 8), (2, 4, 16)),
    8: ((1, 8, 16), (2, 4)),
    16: ((1, 4, 8, 16), (2,)),
}


def lane_place(config: SimtConfig, lane: Any) -> tuple[Any, Any]:
    """Where a lane stands along (M, N)."""
    if config.lanes_m == 8:
        return lane % 2 + lane // 8 * 2, lane // 2 % 4
    return tuple(
        sum(((lane // bit % 2) * (1 << i) for i, bit in enumerate(bits)), cutlass.Int32(0))
        for bits in LANE_BITS[config.lanes_m]
    )


@dataclass(frozen=True)
class Patch:
    """What one thread takes through the epilogue at once, as its place within the CTA tile.

    `rows` and `cols` are the first rows and first output columns of its groups of four; (`part_m`, `part_n`) is
    the warp's place among areas of `partial_width`, and `part` its number among them.
    """

    rows: list
    cols: list
    part_m: Any
    part_n: Any
    part: Any
    lane: Any


@dataclass(frozen=True)
class SimtEpilogue:
    """Everything a CTA's tile becomes after its k loop."""

    config: SimtConfig
    inputs: Inputs
    outputs: tuple  # (m, n, l) tensors in global memory
    partials: tuple[reduce.Partials, ...]
    tiles_n: Any

    def finish(self, acc: cute.Tensor, patch: Patch, tile: OutputTile) -> None:
        """Evaluate and store one thread's patch, neighbours at a time.

        Args:
            acc: (FINISHED_M * FINISHED_N,) fp32, row by row.
            tile: what the CTA stores.
        """
        rows, cols = patch.rows, patch.cols
        fusion = self._fusion(acc, rows, cols, tile)
        sums = _Sums(self, tile, patch)
        for i in range(len(rows)):
            for j in range(len(cols)):
                for keys in self._lines(i, j):
                    values = [list(v) for v in zip(*(fusion(*key) for key in keys))]
                    stored = [v for v, x in zip(values, self.config.epilogue.outputs) if x.kind == "store"]
                    coords = [fusion.coord(*key) for key in keys]
                    for output, matrix, part in zip(self.outputs, self.config.outputs, stored, strict=True):
                        together = self.config.vector[2] == GROUP and matrix.major == self.config.d.major
                        _store_group(output, part, matrix.dtype, coords, together, tile.ends)
                    reduced = [v for v, x in zip(values, self.config.epilogue.outputs) if x.kind != "store"]
                    sums.add(keys, coords, reduced)
        sums.finish()

    def _lines(self, i: int, j: int) -> list[list[tuple[tuple[int, int], tuple[int, int]]]]:
        """The elements of a group of rows and one of columns, each as (row, column), in lines along D's unit stride."""
        across, along = range(self.config.group), range(GROUP)
        if self.config.d is not None and self.config.d.major == "m":
            return [[((i, x), (j, y)) for x in across] for y in along]
        return [[((i, x), (j, y)) for y in along] for x in across]

    def _fusion(self, acc: cute.Tensor, rows: list, cols: list, tile: OutputTile) -> Fusion:
        config = self.config
        origin = self.origin(tile)

        def coord(row: tuple[int, int], column: tuple[int, int]) -> tuple[Any, Any, Any]:
            return origin[0] + rows[row[0]] + row[1], origin[1] + cols[column[0]] + column[1], tile.batch

        def leaf(node: Node, row: Any, column: Any) -> Any:
            if node.op == "acc":
                group = column[0] * config.gates + (node.value == "up")
                return acc[(row[0] * config.group + row[1]) * config.finished[1] + group * GROUP + column[1]]
            if node.op == "matrix":
                first = coord((row[0], 0), (column[0], 0))
                return self.inputs.matrix_element(node.value, first, (row[1], column[1]), tile.ends)
            m = 0 if row is None or node.op == "row" else coord(row, (0, 0))[0]
            n = 0 if column is None or node.op == "col" else coord((0, 0), column)[1]
            return self.inputs.element(node.value, (m, n, tile.l))

        return Fusion(config, leaf, coord, self.inputs.numbers)

    def origin(self, tile: OutputTile) -> tuple[Any, Any]:
        """(m, n) of a tile's first element."""
        first, config = tile.origin, self.config
        return first.row + tile.m * config.tile[0], first.column + tile.n * config.columns


@cute.jit
def _store_group(
    mD: cute.Tensor, values: cutlass.Constexpr, dtype: cutlass.Constexpr, coords: Any, together: cutlass.Constexpr,
    ends: Any,
) -> None:  # fmt: skip
    """Neighbours to one output, in one access where they are known to be aligned; nothing from `ends` on."""
    size, rD = len(values), converted(values, dtype)
    if cutlass.const_expr(together):
        row, col, batch = coords[0]
        if row < ends[0] and col < ends[1]:
            offset = cute.assume(cute.crd2idx((row, col, batch), mD.layout), divby=size)
            cute.autovec_copy(rD, cute.make_tensor(mD.iterator + offset, cute.make_layout(size)))
    else:
        for x in cutlass.range_constexpr(size):
            row, col, batch = coords[x]
            if row < ends[0] and col < ends[1]:
                mD[row, col, batch] = rD[x]


class _Sums:
    """The reductions of one thread's elements."""

    def __init__(self, epilogue: SimtEpilogue, tile: OutputTile, patch: Patch) -> None:
        self.epilogue, self.tile, self.patch = epilogue, tile, patch
        self.states: list[dict] = [{} for _ in epilogue.partials]

    def add(self, keys: list, coords: list, values: list[list[Any]]) -> None:
        """Take in some elements' values of every reduction."""
        shape = self.tile.ends
        for states, partials, of in zip(self.states, self.epilogue.partials, values, strict=True):
            kind = partials.result.kind
            for key, coord, value in zip(keys, coords, of, strict=True):
                inside = cutlass.Boolean(coord[0] < shape[0]) & cutlass.Boolean(coord[1] < shape[1])
                where = partials.result.by_axis(key[1], key[0], None)
                states[where] = reduce.fold(kind, [value], [inside], states.get(where))

    def finish(self) -> None:
        """Combine with the warp's other lanes and write."""
        epilogue, config, tile, patch = self.epilogue, self.epilogue.config, self.tile, self.patch
        shape = tile.ends
        same_columns, same_rows = LANE_BITS[config.lanes_m]
        lane_m, lane_n = lane_place(config, patch.lane)
        origin = epilogue.origin(tile)
        part_m = tile.m * (config.tile[0] // config.partial_width[0]) + patch.part_m
        part_n = tile.n * (config.columns // config.partial_width[1]) + patch.part_n
        in_m = cutlass.Boolean(part_m * config.partial_width[0] < shape[0])
        in_n = cutlass.Boolean(part_n * config.partial_width[1] < shape[1])
        for states, partials in zip(self.states, epilogue.partials, strict=True):
            axis, kind = partials.result.axis, partials.result.kind
            lanes = partials.result.by_axis(same_columns, same_rows, (*same_rows, *same_columns))
            for where, state in states.items():
                state = reduce.across_lanes(kind, state, lanes)
                if axis is None:
                    part = (tile.m * epilogue.tiles_n + tile.n) * config.partials_per_tile + patch.part
                    partials.put(state, part, tile.l, 0, cutlass.Boolean(patch.lane == 0))
                elif axis == 1:
                    row = origin[0] + patch.rows[where[0]] + where[1]
                    first = cutlass.Boolean(lane_n == 0)
                    partials.put(state, part_n, tile.l, row, first & in_n & cutlass.Boolean(row < shape[0]))
                else:
                    column = origin[1] + patch.cols[where[0]] + where[1]
                    first = cutlass.Boolean(lane_m == 0)
                    inside = first & in_m & cutlass.Boolean(column < shape[1])
                    partials.put(state, part_m, tile.l, column, inside)
