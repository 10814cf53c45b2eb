# SPDX-License-Identifier: Apache-2.0
"""From accumulators to D: the epilogue graph, then one of three ways out.

Every consumer warpgroup stores its own rows, independently of the others, in pieces of WGMMA_M x EPI_N:
    tma      registers -> stmatrix -> shared memory -> TMA. D must be TMA-addressable.
    staged   registers -> stmatrix -> shared memory -> coalesced, guarded element stores. Any strides.
    direct   registers -> guarded element stores. Any strides; poorly coalesced.

Synchronisation per piece: the warpgroup's named barrier, once before shared memory is overwritten (its
last reader, TMA or the warpgroup itself, is done) and once after it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.fusion import Fusion
from cutegemm.kernels.operands import NUMERIC, tiled_mma

FIRST_BARRIER = 1  # named barrier of consumer warpgroup 0; barrier 0 is the CTA's


@dataclass(frozen=True)
class Output:
    """Where D goes: the tensor, the TMA atom with its partitions (or None), the staging buffer (or None)."""

    config: KernelConfig
    mD: Any  # (m, n, l) in global memory
    atom: Any
    tDgD: Any  # (TMA, m / WGMMA_M, n / EPI_N, l)
    sD: Any  # (WGMMA_M, EPI_N, CONSUMERS * EPI_STAGE)
    tDsD: Any  # (TMA, CONSUMERS * EPI_STAGE)
    shape: Any  # (m, n)


def _element(thread: Any, value: int) -> tuple[Any, Any]:
    """(row, column) in a WGMMA_M x EPI_N piece of a thread's value-th accumulator (PTX ISA, wgmma D fragment)."""
    row = thread // hw.WARP * 16 + thread % hw.WARP // 4 + 8 * (value // 2 % 2)
    return row, thread % 4 * 2 + value % 2 + 8 * (value // 4)


def _fused(
    config: KernelConfig, fusion: Fusion, acc: cute.Tensor, piece: tuple[int, int], where: Any
) -> cute.Tensor:
    """D's values of one piece, converted: a register tensor of EPI_N / 2 elements in accumulator order."""
    thread, row0, col0, batch = where
    size = hw.WGMMA_M * config.epi_n // hw.WARPGROUP
    first = piece[0] * (config.tile[1] // 2) + piece[1] * size
    rD = cute.make_rmem_tensor(size, NUMERIC[config.d.dtype])
    values = cute.make_rmem_tensor(size, cutlass.Float32)
    for v in range(size):
        row, col = _element(thread, v)
        values[v] = fusion(acc[first + v], (row0 + row, col0 + col, batch))
    rD.store(values.load().to(NUMERIC[config.d.dtype]))
    return rD


def _to_shared(config: KernelConfig) -> cute.TiledCopy:
    """The copy of one piece from accumulator order to shared memory: stmatrix for 16-bit D."""
    numeric = NUMERIC[config.d.dtype]
    transpose = config.d.major == "m"
    matrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose, 4), numeric)
    layout = cute.make_tiled_copy_C_atom(matrix, tiled_mma(config, 1))
    if config.d.dtype.bytes == 4:
        return cute.make_tiled_copy_S(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), numeric), layout)
    return cute.make_tiled_copy_S(matrix, layout)


@cute.jit
def store_tile(
    output: cutlass.Constexpr, fusion: cutlass.Constexpr, acc: cute.Tensor, role: Any, tile: Any, turn: Any
) -> Any:
    """Store a warpgroup's share of a CTA tile; returns the staging buffer whose turn is next.

    Args:
        output, fusion: where D goes and the epilogue.
        acc: fp32 accumulators, ((2, 2, BLK_N / 8), MMA_M, 1).
        role: (the consumer warpgroup's index, the thread's index in it).
        tile: (m, n, l) of the CTA tile.
        turn: the staging buffer, of EPI_STAGE, that the first piece takes.
    """
    config = output.config
    group, thread = role
    tile_m, tile_n, batch = tile
    for i in cutlass.range_constexpr(config.passes):
        for j in cutlass.range_constexpr(config.pieces_n):
            block = tile_m * (config.tile[0] // hw.WGMMA_M) + i * config.consumers + group
            column = tile_n * config.pieces_n + j
            origin = (block * hw.WGMMA_M, column * config.epi_n, batch)
            rD = _fused(config, fusion, acc, (i, j), (thread, *origin))
            if cutlass.const_expr(config.store == "direct"):
                _store_direct(output, rD, thread, origin)
            else:
                buffer = group * config.epi_stages + (turn + i * config.pieces_n + j) % config.epi_stages
                _fill_buffer(output, rD, group, thread, buffer)
                if cutlass.const_expr(config.store == "staged"):
                    _store_staged(output, thread, buffer, origin)
                elif thread // hw.WARP == 0:
                    target = output.tDgD[None, block, column, batch]
                    cute.copy(output.atom, output.tDsD[None, buffer], target)
                    cute.arch.cp_async_bulk_commit_group()
    return (turn + config.passes * config.pieces_n) % config.epi_stages


@cute.jit
def _fill_buffer(output: cutlass.Constexpr, rD: cute.Tensor, group: Any, thread: Any, buffer: Any) -> None:
    """Wait until the buffer's last reader is done, write one piece to it, make it visible to the reader."""
    config = output.config
    if cutlass.const_expr(config.store == "tma"):
        if (
            thread // hw.WARP == 0
        ):  # the warp that stores: its TMA has read what it stored EPI_STAGE pieces ago
            cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=hw.WARPGROUP)
    copy = _to_shared(config)
    tRsD = copy.get_slice(thread).partition_D(output.sD)  # (COPY, 1, COPY_N, CONSUMERS * EPI_STAGE)
    shape = cute.shape(tRsD)[:3]
    cute.copy(copy, cute.make_tensor(rD.iterator, cute.make_layout(shape)), tRsD[None, None, None, buffer])
    if cutlass.const_expr(config.store == "tma"):
        cute.arch.fence_proxy("async.shared", space="cta")  # stmatrix before TMA reads
    cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=hw.WARPGROUP)


@cute.jit
def _store_direct(output: cutlass.Constexpr, rD: cute.Tensor, thread: Any, origin: Any) -> None:
    """Guarded stores from registers: a thread's two neighbours at a time."""
    row0, col0, batch = origin
    mD, (rows, cols) = output.mD, output.shape
    for v in cutlass.range_constexpr(cute.size(rD)):
        row, col = _element(thread, v)
        if row0 + row < rows and col0 + col < cols:
            mD[row0 + row, col0 + col, batch] = rD[v]


@cute.jit
def _store_staged(output: cutlass.Constexpr, thread: Any, buffer: Any, origin: Any) -> None:
    """Guarded stores from shared memory: a warp's lanes take neighbours along D's unit-stride axis."""
    row0, col0, batch = origin
    config = output.config
    mD, sD, (rows, cols) = output.mD, output.sD, output.shape
    lane, warp_index = thread % hw.WARP, thread // hw.WARP
    along = hw.WGMMA_M if cutlass.const_expr(config.d.major == "m") else config.epi_n
    across = config.epi_n if cutlass.const_expr(config.d.major == "m") else hw.WGMMA_M
    lanes = min(hw.WARP, along)
    step = hw.WARP // lanes * 4  # lines that the warpgroup stores at once
    line0 = warp_index * (hw.WARP // lanes) + lane // lanes
    for i in cutlass.range_constexpr((across + step - 1) // step):
        for j in cutlass.range_constexpr(along // lanes):
            line = line0 + i * step
            at = lane % lanes + j * lanes
            row = at if cutlass.const_expr(config.d.major == "m") else line
            col = line if cutlass.const_expr(config.d.major == "m") else at
            if line < across and row0 + row < rows and col0 + col < cols:
                mD[row0 + row, col0 + col, batch] = sD[row, col, buffer]


@cute.jit
def finish_stores(output: cutlass.Constexpr, thread: Any) -> None:
    """Before the CTA ends: TMA has read every buffer."""
    if cutlass.const_expr(output.config.store == "tma"):
        if thread // hw.WARP == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
