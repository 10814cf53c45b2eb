# SPDX-License-Identifier: Apache-2.0
"""The epilogue of the tensor-core kernels: from accumulators and inputs to stored matrices and partial results.

Every consumer warpgroup works on its own rows, independently of the others, piece by piece:
    inputs  TMA'd matrices from shared memory (`piece_loads`), rows and columns (`vectors`), others directly
    graph   `fusion`
    out     stored matrices (`store`), partial results of reductions (`reduce`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import PARTIAL_ROWS, KernelConfig
from cutegemm.epilogue.graph import Node
from cutegemm.kernels import reduce
from cutegemm.kernels.fusion import Fusion, Inputs, bind
from cutegemm.kernels.piece_loads import PieceLoads
from cutegemm.kernels.pieces import Piece, Role, key_of, step_to
from cutegemm.kernels.reduce import Partials
from cutegemm.kernels.scheduler import Extent
from cutegemm.kernels.shared import Shared
from cutegemm.kernels.store import Output, finish_stores, placed, store_piece, synchronise_warpgroup
from cutegemm.kernels.tensors import Atoms, Tensors
from cutegemm.kernels.vectors import Vectors
from cutegemm.kernels.work import OutputTile


@dataclass(frozen=True)
class Epilogue:
    """Everything the consumers need after a tile's mainloop, and before it to have inputs ready."""

    config: KernelConfig
    inputs: Inputs
    loads: PieceLoads | None
    vectors: Vectors
    outputs: tuple[Output, ...]
    partials: tuple[Partials, ...]
    extent: Extent

    @staticmethod
    def create(
        config: KernelConfig, tensors: Tensors, atoms: Atoms, numbers: Any, extent: Extent, shared: Shared
    ) -> Epilogue:
        """Take what the epilogue has of shared memory (`config.memory.epilogue_contents`) and partition everything."""
        shape = (extent.m, extent.n)
        if not config.stores:
            return Epilogue(config, Inputs({}, {}, shape), None, Vectors(config, None, None), (), (), extent)
        outputs = tuple(
            Output.create(config, result.name, matrix, atom, tensor, shared)
            for result, matrix, atom, tensor in zip(
                config.epilogue.stores, config.outputs, atoms.outputs, tensors.outputs, strict=True
            )
        )
        named = dict(
            zip(config.epilogue.tensors, zip(atoms.inputs, tensors.inputs, strict=True), strict=True)
        )
        fetched = {name: (atom, tensor) for name, (atom, tensor) in named.items() if atom is not None}
        loads = PieceLoads.create(config, fetched, shared)
        inputs = bind(config, tensors.inputs, numbers, tensors.scalars, shape)
        vectors = Vectors.create(config, inputs, shared)
        results = config.epilogue.reductions
        found = reduce.partials(results, tensors.partials, extent.parts, (*shape, extent.l))
        return Epilogue(config, inputs, loads, vectors, outputs, found, extent)

    @property
    def atoms(self) -> list[Any]:
        """Its TMA atoms: of the inputs, then of the outputs."""
        loads = [] if self.loads is None else list(self.loads.loads.values())
        return [x.atom for x in (*loads, *self.outputs)]

    def start(self) -> tuple[Any, Any]:
        """The state carried from tile to tile: (staging buffer whose turn is next, parity of the input pieces)."""
        return cutlass.Int32(0), cutlass.Int32(0)

    def ahead(self, role: Role, tile: OutputTile) -> tuple[list, list]:
        """Before a tile's mainloop: have TMA fetch its first input pieces and read its vectors."""
        if self.loads is not None:
            for number in range(self.config.input_stages):
                self.loads.fetch(role, self._piece(role, tile, number))
        return self.vectors.ahead(role, tile)

    def finish(
        self, acc: cute.Tensor, role: Role, tile: OutputTile, ahead: tuple[list, list], state: tuple
    ) -> tuple:
        """After a tile's mainloop: everything that leaves it. Returns the state for the next tile.

        Args:
            acc: the thread's fp32 accumulators, ((2, 2, BLK_N / 8), MMA_M, 1).
            tile: what the CTA stores.
            ahead: from `ahead` for the same tile.
        """
        config = self.config
        turn, phase = state
        role = placed(role, self.outputs)
        self.vectors.share(role, ahead[0])
        sums, rests = _Sums(self, role, tile), {}
        for number in range(config.pieces):
            piece = self._piece(role, tile, number)
            read = {} if self.loads is None else self.loads.read(piece, phase)
            values = self._evaluate(acc, piece, read, ahead[1])
            buffer = (turn + number) % config.epilogue_stages
            stored = [v for v, x in zip(values, config.epilogue.outputs) if x.kind == "store"]
            synchronised = store_piece(self.outputs, piece, stored, buffer, rests)
            if self.loads is not None:
                following = number + config.input_stages
                if not synchronised:
                    role.barrier()  # every thread has read the piece
                if following < config.pieces:
                    self.loads.fetch(role, self._piece(role, tile, following))
            sums.add(piece, [v for v, x in zip(values, config.epilogue.outputs) if x.kind != "store"])
        sums.finish()
        if self.vectors.sRow is not None and not synchronise_warpgroup(self.outputs) and self.loads is None:
            role.barrier()  # every thread has read the rows, which the next tile overwrites
        turn = (turn + config.pieces) % config.epilogue_stages
        return turn, phase if self.loads is None else self.loads.turn(phase)

    def end(self, role: Role) -> None:
        """Before the CTA ends."""
        finish_stores(self.outputs, role.thread)

    def _piece(self, role: Role, tile: OutputTile, number: int) -> Piece:
        return Piece.of(self.config, role, tile, divmod(number, self.config.pieces_n))

    def _evaluate(self, acc: cute.Tensor, piece: Piece, read: dict, columns: list) -> list[list[Any]]:
        """The values of every output over the piece, in accumulator order."""
        config = self.config
        col_names = config.epilogue.names("col")
        at = {}

        def leaf(node: Node, row: int, column: tuple[int, int]) -> Any:
            if node.op == "acc":
                # graphs compute in fp32, whatever a tile's sums are
                return cutlass.Float32(acc[piece.accumulator(at["value"], 1 if node.value == "up" else 0)])
            if node.op == "row":
                return self.vectors.row(node.value, piece, column)
            if node.op == "col":
                return columns[col_names.index(node.value)][piece.index[0]][row]
            if node.value in read:
                return read[node.value][at["value"]]
            first = piece.coord(0, (0, 0))
            return self.inputs.matrix_element(node.value, first, step_to(row, column), piece.ends)

        fusion = Fusion(config, leaf, piece.coord, self.inputs.numbers)
        values = []
        for value in range(piece.size):
            at["value"] = value
            values.append(fusion(*key_of(value)))
        return [list(x) for x in zip(*values)]


class _Sums:
    """The reductions of one tile, gathered piece by piece."""

    def __init__(self, epilogue: Epilogue, role: Role, tile: OutputTile) -> None:
        self.epilogue, self.config, self.role, self.tile = epilogue, epilogue.config, role, tile
        self.rows = [{} for _ in epilogue.partials]  # (pass, row key) -> state
        self.whole = [None for _ in epilogue.partials]

    def add(self, piece: Piece, values: list[list[Any]]) -> None:
        """Take in a piece's values of every reduction."""
        shape = piece.ends
        for i, partials in enumerate(self.epilogue.partials):
            groups: dict[Any, list[int]] = {}
            axis = partials.result.axis
            for value in range(piece.size):
                row, column = key_of(value)
                groups.setdefault(partials.result.by_axis(column, row, None), []).append(value)
            for key, members in groups.items():
                inside = []
                for value in members:
                    m, n, _ = piece.coord(*key_of(value))
                    inside.append(cutlass.Boolean(m < shape[0]) & cutlass.Boolean(n < shape[1]))
                state = reduce.fold(partials.result.kind, [values[i][v] for v in members], inside)
                if axis == 0:
                    self._put_column(partials, piece, key, state)
                elif axis == 1:
                    self.rows[i][piece.index[0], key] = self._with(
                        i, self.rows[i].get((piece.index[0], key)), state
                    )
                else:
                    self.whole[i] = self._with(i, self.whole[i], state)

    def _with(self, i: int, known: tuple | None, state: tuple) -> tuple:
        kind = self.epilogue.partials[i].result.kind
        return state if known is None else reduce.COMBINE[kind](known, state)

    def _put_column(self, partials: Partials, piece: Piece, key: tuple[int, int], state: tuple) -> None:
        """Over the warp's rows: eight lanes hold a column."""
        state = reduce.across_lanes(partials.result.kind, state, (4, 8, 16))
        shape, thread = piece.ends, self.role.thread
        part = piece.block * (hw.WGMMA_M // PARTIAL_ROWS) + thread // hw.WARP
        column = piece.origin[1] + piece.column_in(key)
        wanted = (
            cutlass.Boolean(thread % hw.WARP < 4)
            & cutlass.Boolean(column < shape[1])
            & cutlass.Boolean(part * PARTIAL_ROWS < shape[0])
        )
        partials.put(state, part, piece.batch, column, wanted)

    def finish(self) -> None:
        """Write what a tile's rows and the tile itself reduce to."""
        thread, tile = self.role.thread, self.tile
        shape = tile.ends
        lane = thread % hw.WARP
        for i, partials in enumerate(self.epilogue.partials):
            kind, axis = partials.result.kind, partials.result.axis
            for (a_pass, key), state in self.rows[i].items():
                state = reduce.across_lanes(kind, state, (1, 2))
                row = Piece.of(self.config, self.role, tile, (a_pass, 0)).row(key)
                inside = cutlass.Boolean(row < shape[0]) & cutlass.Boolean(
                    tile.n * self.config.stored_columns < shape[1]
                )
                partials.put(state, tile.n, tile.l, row, cutlass.Boolean(lane % 4 == 0) & inside)
            if axis is None:
                state = reduce.across_lanes(kind, self.whole[i], (1, 2, 4, 8, 16))
                warp = self.role.band * (hw.WARPGROUP // hw.WARP) + thread // hw.WARP
                part = (
                    tile.m * self.epilogue.extent.tiles_n + tile.n
                ) * self.config.partials_per_slice + warp
                partials.put(state, part, tile.l, 0, cutlass.Boolean(lane == 0))
