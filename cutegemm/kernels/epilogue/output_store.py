# SPDX-License-Identifier: Apache-2.0
"""Stored matrices: a subtile's values from registers to global memory, each output in one of three ways.

    tma      registers -> stmatrix -> shared memory -> TMA. The output must be TMA-addressable.
    staged   registers -> stmatrix -> shared memory -> coalesced words of lines at any address (`unaligned_store`);
             guarded elements where neither axis has unit stride.
    direct   registers -> guarded element stores. Any strides; poorly coalesced.

Synchronisation: the warpgroup's named barrier, once before shared memory is overwritten (its last reader, TMA or the
warpgroup itself, is done) and once after it is written, for as many subtiles as are stored at once. Where every warp
itself stores all that it staged, and nothing else, its lanes wait for each other only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import SECTOR, KernelConfig, OutputConfig
from cutegemm.kernels.epilogue.element_functions import converted, opaque
from cutegemm.kernels.epilogue.group_edge import store_ended
from cutegemm.kernels.epilogue.subtiles import Role, Subtile, key_of, to_shared
from cutegemm.kernels.epilogue.unaligned_store import SubtileRows
from cutegemm.kernels.host import operand_layouts as ops
from cutegemm.kernels.load.cache_hints import hint
from cutegemm.kernels.mainloop.shared_storage import Shared


@dataclass(frozen=True)
class Output:
    """Where one matrix goes: the tensor, the staging buffer (or None), the TMA atom with its partitions (or None)."""

    config: KernelConfig
    matrix: OutputConfig
    mD: Any  # (m, n, l) in global memory
    sD: Any = None  # (WGMMA_M, EPI_N, CONSUMERS * EPI_STAGE)
    atom: Any = None
    tDgD: Any = None  # (TMA) coordinates of the matrix' first subtile
    tDsD: Any = None  # (TMA, CONSUMERS * EPI_STAGE)
    memory: Any = None  # of groups: (m, n, l) in global memory, where `mD` are TMA's coordinates

    @staticmethod
    def create(
        config: KernelConfig, name: str, matrix: OutputConfig, atom: Any, mD: Any, shared: Shared, memory: Any
    ) -> Output:
        """Take staging buffers and, for TMA, partition the matrix into subtiles."""
        if matrix.store == "direct":
            return Output(config, matrix, mD)
        if matrix.store == "staged" and matrix.major != "strided":
            return Output(config, matrix, mD, _line_buffers(config, name, matrix, shared))
        layout = ops.subtile_layout(config, matrix, config.epilogue_stages)
        sD = shared.tensor(f"{name} staging", ops.NUMERIC[matrix.dtype], layout)
        if matrix.store == "staged":
            return Output(config, matrix, mD, sD)
        gD = cute.local_tile(mD, (hw.WGMMA_M, config.epi_n), (0, 0, 0))  # (WGMMA_M, EPI_N)
        tDsD, tDgD = ops.partition(atom, sD, gD)
        return Output(config, matrix, mD, sD, atom, tDgD, tDsD, memory)

    @property
    def staged(self) -> bool:
        """Whether it goes through shared memory."""
        return self.matrix.store != "direct"

    @property
    def by_tma(self) -> bool:
        """Whether TMA stores it."""
        return self.matrix.store == "tma"

    @property
    def by_lines(self) -> bool:
        """Whether its lines leave in whole sectors (`unaligned_store`)."""
        return self.matrix.store == "staged" and self.matrix.major != "strided"

    @property
    def by_warps(self) -> bool:
        """Whether every warp stores what it staged: lines are rows, of which a warp holds as many as it stores."""
        return self.matrix.store == "staged" and self.matrix.major == "n"


def _line_buffers(config: KernelConfig, name: str, matrix: OutputConfig, shared: Shared) -> cute.Tensor:
    """Staging buffers of an output's lines (`unaligned_store`): (WGMMA_M, EPI_N, CONSUMERS * EPI_STAGE)."""
    numeric, pitch = ops.NUMERIC[matrix.dtype], config.row_pitch(matrix) // matrix.dtype.bytes
    shape = (hw.WGMMA_M, config.epi_n)
    (lines, length), strides = (shape, (pitch, 1)) if matrix.major != "m" else (shape[::-1], (1, pitch))
    buffers = config.consumers * config.epilogue_stages
    held = shared.array(f"{name} staging", numeric)
    layout = cute.make_layout((*shape, buffers), stride=(*strides, lines * pitch))
    return cute.make_tensor(held + (pitch - length), layout)


@dataclass
class TileStores:
    """Stores a tile's subtiles in order, as many at once as staging buffers allow (`KernelConfig.stored_at_once`).

    Attributes:
        outputs: the stored matrices.
        rests: per output, the ends of rows that this thread keeps for the next subtile.
        filled: (subtile, buffer) of the batch so far.
    """

    outputs: tuple[Output, ...]
    rests: dict = dataclasses.field(default_factory=dict)
    filled: list = dataclasses.field(default_factory=list)

    def store(self, subtile: Subtile, values: list[list[Any]], stage: Any) -> bool:
        """Store one subtile of every output; returns whether the warpgroup synchronised after evaluating it.

        Of a batch it does so for the last subtile alone. Where TMA loads inputs, whose buffers are then free, a batch
        has one subtile. A tile's last subtile always ends a batch.

        Args:
            values: per output, a thread's fp32 values in accumulator order.
            stage: the staging buffer to use, of EPI_STAGE.
        """
        outputs, config = self.outputs, subtile.config
        buffer = subtile.role.slot * config.epilogue_stages + stage
        registers = [converted(v, x.matrix.dtype) for x, v in zip(outputs, values, strict=True)]
        staged = [(x, r) for x, r in zip(outputs, registers) if x.staged]
        by_tma = [x for x in outputs if x.by_tma]
        together = synchronise_warpgroup(outputs)
        wait = subtile.role.barrier if together else cute.arch.sync_warp
        number, at_once = subtile.number, config.stored_at_once
        ends = (number + 1) % at_once == 0 or number + 1 == config.subtiles
        if staged:
            if number % at_once == 0:
                count = min(at_once, config.subtiles - number)
                if by_tma:
                    _wait_for_buffers(config.epilogue_stages, count, subtile.role.thread)
                wait()
            self._fill(subtile, staged, buffer)
            self.filled.append((subtile, buffer))
            if ends:
                if by_tma:
                    cute.arch.fence_proxy("async.shared", space="cta")  # the threads' stores before TMA reads
                wait()
                for filled in self.filled:
                    _tma_stores(by_tma, *filled)
                self.filled = []
        self._store_by_threads(subtile, registers, buffer)
        return together and ends

    def _fill(self, subtile: Subtile, staged: list[tuple[Output, cute.Tensor]], buffer: Any) -> None:
        """Write one subtile of every staged output to its buffer."""
        for i, (output, rD) in enumerate(staged):
            if output.by_lines:
                lines, rest = _lines(output, subtile, buffer), self.rests.pop(i, None)
                # a row of less than a sector leaves what lies before it, too
                if rest is not None or (lines.kept and lines.width < SECTOR):
                    lines.carry(subtile.role.thread, rest)
            _fill_buffer(output, subtile, rD, buffer)

    def _store_by_threads(self, subtile: Subtile, registers: list[cute.Tensor], buffer: Any) -> None:
        """Store what TMA does not: lines and elements from the buffer, elements from registers."""
        for i, output in enumerate(x for x in self.outputs if x.staged):
            if output.by_lines:
                lines = _lines(output, subtile, buffer)
                if lines.kept:
                    self.rests[i] = lines.rest(subtile.role.thread)
                lines.store(subtile.role.thread)
            elif not output.by_tma:
                _store_elements(output, subtile, buffer)
        for output, rD in zip(self.outputs, registers):
            if not output.staged:
                _store_direct(output, rD, subtile)


def store_again(outputs: tuple[Output, ...], subtile: Subtile, stage: Any) -> None:
    """Have TMA store a subtile of every output from staging buffers that hold it already."""
    _tma_stores(outputs, subtile, subtile.role.slot * subtile.config.epilogue_stages + stage)


def placed(role: Role, outputs: tuple[Output, ...]) -> Role:
    """The role that stores a tile. Where lines are stored the compiler is not to know a thread's number to be small.

    It would compute places of lines in 8 and 16 bits, with conversions and dot products of two.
    """
    if not any(x.by_lines for x in outputs):
        return role
    return dataclasses.replace(role, thread=opaque(role.thread))


def synchronise_warpgroup(outputs: tuple[Output, ...]) -> bool:
    """Whether storing a subtile of these takes the warpgroup's barrier."""
    return any(x.staged and not x.by_warps for x in outputs)


@cute.jit
def _wait_for_buffers(stages: cutlass.Constexpr, count: cutlass.Constexpr, thread: Any) -> None:
    """The warp that stores waits until its TMA has read the next `count` of the EPI_STAGE buffers."""
    if thread // hw.WARP == 0:
        cute.arch.cp_async_bulk_wait_group(stages - count, read=True)


def _fill_buffer(output: Output, subtile: Subtile, rD: cute.Tensor, buffer: Any) -> None:
    """Write one subtile to its staging buffer."""
    copy = to_shared(output.config, output.matrix.dtype, output.matrix.major)
    part = copy.get_slice(subtile.role.thread)
    tRsD = part.partition_D(output.sD)  # (COPY, 1, COPY_N, CONSUMERS * EPI_STAGE)
    # what a thread passes: with stmatrix.x2 half of what it addresses
    shape = cute.shape(part.partition_S(output.sD))[:3]
    cute.copy(copy, cute.make_tensor(rD.iterator, cute.make_layout(shape)), tRsD[None, None, None, buffer])


@cute.jit
def _tma_stores(outputs: cutlass.Constexpr, subtile: cutlass.Constexpr, buffer: Any) -> None:
    """Issue one subtile's TMA stores from the warpgroup's first warp, as one bulk group.

    TMA would write rows of the next group: threads store a subtile in which a group ends.
    """
    if cutlass.const_expr(len(outputs) > 0):
        if subtile.role.thread // hw.WARP == 0:
            if cutlass.const_expr(subtile.config.grouped not in ("m", "n")):
                _tma_copies(outputs, subtile, buffer)
            elif subtile.whole:
                _tma_copies(outputs, subtile, buffer)
            # also where none is issued: buffers are counted by groups
            cute.arch.cp_async_bulk_commit_group()
        if cutlass.const_expr(subtile.config.grouped in ("m", "n")):
            if subtile.whole == False:  # noqa: E712 (a value of the device)
                for output in outputs:
                    store_ended(output, subtile, buffer)


def _tma_copies(outputs: Any, subtile: Subtile, buffer: Any) -> None:
    """Issue the TMA stores of one subtile."""
    for output in outputs:
        target = ops.moved(output.tDgD, output.mD, (*subtile.origin, subtile.batch))
        options = hint("d" in output.config.evict_first)
        cute.copy(output.atom, output.tDsD[None, buffer], target, **options)


@cute.jit
def _store_direct(output: cutlass.Constexpr, rD: cute.Tensor, subtile: cutlass.Constexpr) -> None:
    """Guarded stores from registers, element by element."""
    mD, (rows, cols) = output.mD, subtile.ends
    for v in cutlass.range_constexpr(cute.size(rD)):
        row, col, batch = subtile.coord(*key_of(v))
        if row < rows and col < cols:
            mD[row, col, batch] = rD[v]


def _lines(output: Output, subtile: Subtile, buffer: Any) -> SubtileRows:
    """A subtile's lines, which are rows that go on in the tile's next subtile, or columns."""
    config, matrix = output.config, output.matrix
    return SubtileRows(
        matrix=matrix,
        shape=(hw.WGMMA_M, config.epi_n),
        mD=output.mD,
        start=output.sD[None, None, buffer].iterator.toint(),
        pitch=config.row_pitch(matrix),
        extents=subtile.ends,
        origin=(*subtile.origin, subtile.batch),
        held=min(subtile.index[1] * config.epi_n * matrix.dtype.bytes, SECTOR) if output.by_warps else 0,
        kept=output.by_warps and subtile.index[1] < config.subtiles_n - 1,
    )


@cute.jit
def _store_elements(output: cutlass.Constexpr, subtile: cutlass.Constexpr, buffer: Any) -> None:
    """Guarded stores from shared memory, element by element: of an output without unit stride."""
    (row0, col0), batch, thread = subtile.origin, subtile.batch, subtile.role.thread
    config = output.config
    sD, (rows, cols) = output.sD, subtile.ends
    mD = output.mD
    column_major = output.matrix.major == "m"
    lane, warp_index = thread % hw.WARP, thread // hw.WARP
    along = hw.WGMMA_M if cutlass.const_expr(column_major) else config.epi_n
    across = config.epi_n if cutlass.const_expr(column_major) else hw.WGMMA_M
    lanes = min(hw.WARP, along)
    step = hw.WARP // lanes * 4  # lines that the warpgroup stores at once
    line0 = warp_index * (hw.WARP // lanes) + lane // lanes
    for i in cutlass.range_constexpr((across + step - 1) // step):
        for j in cutlass.range_constexpr(along // lanes):
            line = line0 + i * step
            at = lane % lanes + j * lanes
            row = at if cutlass.const_expr(column_major) else line
            col = line if cutlass.const_expr(column_major) else at
            if line < across and row0 + row < rows and col0 + col < cols:
                mD[row0 + row, col0 + col, batch] = sD[row, col, buffer]


@cute.jit
def finish_stores(outputs: cutlass.Constexpr, thread: Any) -> None:
    """Before the CTA ends: TMA has read every buffer."""
    if cutlass.const_expr(any(x.by_tma for x in outputs)):
        _wait_for_buffers(1, 1, thread)
