# SPDX-License-Identifier: Apache-2.0
"""The epilogue of the tensor-core kernels: from accumulators and inputs to stored matrices and partial results.

Every consumer warpgroup works on its own rows, independently of the others, subtile by subtile:
    inputs  TMA'd matrices from shared memory (`subtile_loads`), rows and columns (`vector_inputs`), others directly
    graph   `fusion`
    out     stored matrices (`output_store`), partial results of reductions (`partial_reductions`)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import PARTIAL_ROWS, KernelConfig, scale_places
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import REDUCTIONS, Node
from cutegemm.kernels.epilogue import element_functions as functions
from cutegemm.kernels.epilogue import partial_reductions as reduce
from cutegemm.kernels.epilogue.fusion import Fusion, Inputs, bind, wide
from cutegemm.kernels.epilogue.output_store import (
    Output,
    TileStores,
    finish_stores,
    placed,
    store_again,
    synchronise_warpgroup,
)
from cutegemm.kernels.epilogue.partial_reductions import Partials
from cutegemm.kernels.epilogue.quantized_blocks import Blocks, Held
from cutegemm.kernels.epilogue.subtile_loads import SubtileLoads
from cutegemm.kernels.epilogue.subtiles import Role, Subtile, key_of, step_to
from cutegemm.kernels.epilogue.vector_inputs import Vectors
from cutegemm.kernels.host.launch_tensors import Atoms, Tensors
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.tile_scheduler import Extent
from cutegemm.kernels.schedule.work import OutputTile


@dataclass(frozen=True)
class Epilogue:
    """Everything the consumers need after a tile's mainloop, and before it to have inputs ready."""

    config: KernelConfig
    inputs: Inputs
    loads: SubtileLoads | None
    vectors: Vectors
    outputs: tuple[Output, ...]
    partials: tuple[Partials, ...]
    blocks: Blocks | None
    extent: Extent

    @staticmethod
    def create(
        config: KernelConfig, tensors: Tensors, atoms: Atoms, numbers: Any, extent: Extent, shared: Shared
    ) -> Epilogue:
        """Take the epilogue's shared memory (`config.smem_budget.epilogue_contents`) and partition everything."""
        shape = (extent.m, extent.n)
        if not config.stores:
            return Epilogue(
                config, Inputs({}, {}, {}, shape), None, Vectors(config, None, None), (), (), None, extent
            )
        outputs = tuple(
            Output.create(config, result.name, matrix, atom, tensor, shared, memory)
            for result, matrix, atom, tensor, memory in zip(
                config.epilogue.stores,
                config.outputs,
                atoms.outputs,
                tensors.outputs,
                tensors.memory,
                strict=True,
            )
        )
        named = dict(zip(config.epilogue.tensors, zip(atoms.inputs, tensors.inputs, strict=True)))
        fetched = {name: (atom, tensor) for name, (atom, tensor) in named.items() if atom is not None}
        loads = SubtileLoads.create(config, fetched, shared)
        inputs = bind(config, tensors.inputs, numbers, tensors.scalars, shape)
        vectors = Vectors.create(config, inputs, shared)
        results = config.epilogue.reductions
        found = reduce.partials(results, tensors.partials, extent.partials, (*shape, extent.l))
        blocks = Blocks.create(config, found, shared) if config.epilogue.blocks else None
        found = tuple(x for x in found if not x.result.block)
        return Epilogue(config, inputs, loads, vectors, outputs, found, blocks, extent)

    @property
    def atoms(self) -> list[Any]:
        """Its TMA atoms: of the inputs, then of the outputs."""
        loads = [] if self.loads is None else list(self.loads.loads.values())
        return [x.atom for x in (*loads, *self.outputs)]

    def after_wait(self) -> Epilogue:
        """The epilogue of threads that have waited for earlier launches: with the scalars on the device."""
        return dataclasses.replace(self, inputs=self.inputs.read())

    def start(self) -> tuple[Any, ...]:
        """The state carried from tile to tile: (next staging buffer, parity of the input subtiles).

        Where staging buffers are stored again (`KernelConfig.repeats`), also whether they hold an empty group's tile.
        """
        return (cutlass.Int32(0),) * (3 if self.config.repeats else 2)

    def ahead(self, role: Role, tile: OutputTile) -> tuple[list, list]:
        """Before a tile's mainloop: have TMA fetch its first input subtiles and read its vectors."""
        if self.loads is not None:
            for number in range(self.config.input_stages):
                self.loads.fetch(role, self._subtile(role, tile, number))
        return self.vectors.ahead(role, tile)

    def finish(
        self, acc: cute.Tensor, role: Role, tile: OutputTile, ahead: tuple[list, list], state: tuple
    ) -> tuple:
        """After a tile's mainloop: everything that leaves it. Returns the state for the next tile.

        Args:
            acc: the thread's fp32 accumulators, ((2, 2, MMA_COLUMNS / 8), MMA_M, MMA_N).
            tile: what the CTA stores.
            ahead: from `ahead` for the same tile.
        """
        if self.config.repeats:
            return self._repeat(acc, role, tile, ahead, state)
        return self._store(acc, role, tile, ahead, state)

    @cute.jit
    def _repeat(
        self,
        acc: cute.Tensor,
        role: cutlass.Constexpr,
        tile: cutlass.Constexpr,
        ahead: cutlass.Constexpr,
        state: Any,
    ) -> Any:
        """As `finish`: all elements of empty groups are equal, so the tile after an empty one is still staged."""
        buffer, phase, staged = state
        empty = cutlass.Int32(tile.k_tiles == 0)
        if empty + staged == 2:
            for number in cutlass.range_constexpr(self.config.subtiles):
                store_again(self.outputs, self._subtile(role, tile, number), buffer)
                buffer = (buffer + 1) % self.config.epilogue_stages
        else:
            buffer, phase = self._store(acc, role, tile, ahead, (buffer, phase))
        return buffer, phase, empty

    def _store(
        self, acc: cute.Tensor, role: Role, tile: OutputTile, ahead: tuple[list, list], state: tuple
    ) -> tuple:
        """As `finish`, of any tile."""
        config = self.config
        first, phase = state  # staging buffer of the first subtile, parity of the input subtiles
        role = placed(role, self.outputs)
        self.vectors.share(role, ahead[0])
        sums, stores = _Sums(self, role, tile), TileStores(self.outputs)
        held: Held = []
        for number in range(config.subtiles):
            subtile = self._subtile(role, tile, number)
            read = {} if self.loads is None else self.loads.read(subtile, phase)
            held.append((subtile, self._evaluate(acc, subtile, read, ahead[1])))
            if self.blocks is not None:
                self._fetch(role, tile, number, False)
            if len(held) < scale_places.block_subtiles(config):
                continue
            if self.blocks is not None:
                self.blocks.quantise(held)
            for subtile, values in held:
                buffer = (first + subtile.number) % config.epilogue_stages
                stored = [v for v, x in zip(values, config.epilogue.outputs) if x.kind == "store"]
                synchronised = stores.store(subtile, stored, buffer)
                if self.blocks is None:
                    self._fetch(role, tile, number, synchronised)
                sums.add(
                    subtile, [v for v, x in zip(values, config.epilogue.outputs) if x.kind in REDUCTIONS]
                )
            held = []
        sums.finish()
        if self.vectors.sRow is not None and not synchronise_warpgroup(self.outputs) and self.loads is None:
            role.barrier()  # every thread has read the rows, which the next tile overwrites
        following = (first + config.subtiles) % config.epilogue_stages
        return following, phase if self.loads is None else self.loads.following(phase)

    def _fetch(self, role: Role, tile: OutputTile, number: int, synchronised: bool) -> None:
        """Have TMA fetch the input subtile that takes the place of one that has been read."""
        if self.loads is None:
            return
        following = number + self.config.input_stages
        if not synchronised:
            role.barrier()  # every thread has read the subtile
        if following < self.config.subtiles:
            self.loads.fetch(role, self._subtile(role, tile, following))

    def end(self, role: Role) -> None:
        """Before the CTA ends."""
        finish_stores(self.outputs, role.thread)

    def _subtile(self, role: Role, tile: OutputTile, number: int) -> Subtile:
        return Subtile.of(self.config, role, tile, divmod(number, self.config.subtiles_n))

    def _exact(self) -> dict[int, str]:
        """Outputs of the type of integer sums, by place, that are these times a number, which is named.

        Sums that scales of blocks have multiplied are fp32.
        """
        graph, found = self.config.epilogue, {}
        if graph.scales:
            return found
        for place, result in enumerate(graph.outputs):
            node = graph.nodes[result.node]
            factors = {graph.nodes[x].op: graph.nodes[x].value for x in node.args}
            if (
                self._types[result.name] is DType.INT32
                and node.op == "mul"
                and set(factors) == {"acc", "scalar"}
            ):
                found[place] = factors["scalar"]
        return found

    @property
    def _types(self) -> dict[str, DType]:
        """The outputs' types by name, fp32 of reductions."""
        stored = dict(zip((x.name for x in self.config.epilogue.stores), self.config.outputs, strict=True))
        return {
            x.name: stored[x.name].dtype if x.name in stored else DType.FP32
            for x in self.config.epilogue.outputs
        }

    def _evaluate(self, acc: cute.Tensor, subtile: Subtile, read: dict, columns: list) -> list[list[Any]]:
        """The values of every output over the subtile, in accumulator order."""
        config = self.config
        col_names = config.epilogue.names("col")
        at = {}

        def leaf(node: Node, row: int, column: tuple[int, int]) -> Any:
            if node.op == "acc":
                return acc[subtile.accumulator(at["value"], 1 if node.value == "up" else 0)]
            if node.op == "row":
                return self.vectors.row(node.value, subtile, column)
            if node.op == "col":
                return columns[col_names.index(node.value)][subtile.index[0]][row]
            if node.value in read:
                return read[node.value][at["value"]]
            first = subtile.coord(0, (0, 0))
            return self.inputs.matrix_element(node.value, first, step_to(row, column), subtile.ends)

        fusion = Fusion(config, leaf, subtile.coord, self.inputs.numbers)
        exact, types = self._exact(), [x.whole for x in self._types.values()]
        values = []
        for value in range(subtile.size):
            at["value"] = value
            found = fusion(*key_of(value))
            values.append([x if whole else wide(x) for x, whole in zip(found, types, strict=True)])
            for place, factor in exact.items():
                total = acc[subtile.accumulator(value, 0)]
                once = cutlass.Boolean(self.inputs.numbers[factor] == 1.0)
                rounded = functions.convert(values[-1][place], DType.INT32)
                values[-1][place] = cutlass.Int32(cutlass.select_(once, total, rounded))
        return [list(x) for x in zip(*values)]


class _Sums:
    """The reductions of one tile, gathered subtile by subtile."""

    def __init__(self, epilogue: Epilogue, role: Role, tile: OutputTile) -> None:
        self.epilogue, self.config, self.role, self.tile = epilogue, epilogue.config, role, tile
        subtile = Subtile.of(self.config, role, tile, (0, 0))
        # (m, n, l) of the thread's first element of the tile; rows and columns from there to the output's ends
        self.first = subtile.coord(0, (0, 0))
        self.room = [end - first for end, first in zip(subtile.ends, self.first)]
        self.rows = [{} for _ in epilogue.partials]  # (pass, row key) -> state
        self.whole = [None for _ in epilogue.partials]

    def add(self, subtile: Subtile, values: list[list[Any]]) -> None:
        """Take in a subtile's values of every reduction."""
        if not self.epilogue.partials:
            return
        # opaque: what two subtiles share, say the columns of two passes, would be kept from the first to the second
        room = [functions.opaque(x) for x in self.room]
        for i, partials in enumerate(self.epilogue.partials):
            groups: dict[Any, list[int]] = {}
            axis = partials.result.axis
            for value in range(subtile.size):
                row, column = key_of(value)
                groups.setdefault(partials.result.by_axis(column, row, None), []).append(value)
            kind, place = partials.result.kind, subtile.index[0]
            for key, members in groups.items():
                inside = [self._inside(axis, room, subtile, value) for value in members]
                of = [values[i][v] for v in members]
                if axis == 0:
                    self._put_column(partials, subtile, key, reduce.fold(kind, of, inside), room)
                elif axis == 1:
                    self.rows[i][place, key] = reduce.fold(kind, of, inside, self.rows[i].get((place, key)))
                else:
                    self.whole[i] = reduce.fold(kind, of, inside, self.whole[i])

    def _step(self, subtile: Subtile, row: int, column: tuple[int, int]) -> tuple[int, int]:
        """(m, n) from the thread's first element of the tile to one of a subtile with these keys."""
        (a_pass, along), step = subtile.index, step_to(row, column)
        return a_pass * self.config.team * hw.WGMMA_M + step[0], along * self.config.epi_n + step[1]

    def _inside(self, axis: int | None, room: list[Any], subtile: Subtile, value: int) -> Any:
        """Whether a value counts, along the axes that a result covers: none outside the output is ever written."""
        step = self._step(subtile, *key_of(value))
        (one, *other) = [cutlass.Boolean(step[x] < room[x]) for x in (0, 1) if axis is None or x == axis]
        return one & other[0] if other else one

    def _put_column(
        self, partials: Partials, subtile: Subtile, key: tuple[int, int], state: tuple, room: list[Any]
    ) -> None:
        """Over the warp's rows: eight lanes hold a column."""
        state = reduce.across_lanes(partials.result.kind, state, (4, 8, 16))
        thread = self.role.thread
        part = subtile.block * (hw.WGMMA_M // PARTIAL_ROWS) + thread // hw.WARP
        step = self._step(subtile, 0, key)[1]
        wanted = (
            cutlass.Boolean(thread % hw.WARP < 4)
            & cutlass.Boolean(step < room[1])
            & cutlass.Boolean(part * PARTIAL_ROWS < subtile.ends[0])
        )
        partials.put(state, part, subtile.batch, self.first[1], wanted, step)

    def finish(self) -> None:
        """Write what a tile's rows and the tile itself reduce to."""
        thread, tile = self.role.thread, self.tile
        shape = tile.ends
        lane = thread % hw.WARP
        for i, partials in enumerate(self.epilogue.partials):
            kind, axis = partials.result.kind, partials.result.axis
            for (a_pass, key), state in self.rows[i].items():
                state = reduce.across_lanes(kind, state, (1, 2))
                row = Subtile.of(self.config, self.role, tile, (a_pass, 0)).row(key)
                inside = cutlass.Boolean(row < shape[0]) & cutlass.Boolean(
                    tile.n * self.config.stored_columns < shape[1]
                )
                partials.put(state, tile.n, tile.batch, row, cutlass.Boolean(lane % 4 == 0) & inside)
            if axis is None:
                state = reduce.across_lanes(kind, self.whole[i], (1, 2, 4, 8, 16))
                warp = self.role.band * (hw.WARPGROUP // hw.WARP) + thread // hw.WARP
                part = (
                    tile.m * self.epilogue.extent.tiles_n + tile.n
                ) * self.config.partials_per_slice + warp
                partials.put(state, part, tile.l, 0, cutlass.Boolean(lane == 0))
