# SPDX-License-Identifier: Apache-2.0
"""Storing a staged subtile in which a group ends, of an output that TMA stores elsewhere.

Groups end between lines of D: rows, or columns where tokens lie along them. TMA can store every line, so each begins
and ends at a multiple of 16 bytes (`Operand.tma_store_reason`), and threads store whole chunks of it.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.load.operand_rows import divided
from cutegemm.kernels.memory_views import WORD, word_at
from cutegemm.layouts.hardware import SWIZZLE_SPANS


@cute.jit
def store_ended(output: cutlass.Constexpr, subtile: cutlass.Constexpr, buffer: Any) -> None:
    """Store a staged subtile's elements that are the group's; by a warpgroup's threads.

    Args:
        output: an `output_store.Output` that TMA stores, its lines across the axis of groups.
        subtile: of the role's warpgroup; buffer: where it is staged.
    """
    axis = 0 if cutlass.const_expr(output.matrix.major == "m") else 1  # along which lines run
    shape = (hw.WGMMA_M, output.config.epi_n)
    each = WORD // output.matrix.dtype.bytes
    chunks = shape[axis] // each
    count = shape[1 - axis] * chunks
    # a loop on the device: addresses of unrolled steps would be computed before the kernel's loop, and spilled
    for i in cutlass.range(subtile.role.thread, count, hw.WARPGROUP, unroll=1):
        line, chunk = divided(i, chunks)
        _store_chunk(output, subtile, (line, chunk * each), buffer)


@cute.jit
def _store_chunk(output: cutlass.Constexpr, subtile: cutlass.Constexpr, place: Any, buffer: Any) -> None:
    """Store a chunk of the subtile: (its line, its first element of it)."""
    size = output.matrix.dtype.bytes
    row, column = place[::-1] if cutlass.const_expr(output.matrix.major == "m") else place
    m, n = subtile.origin[0] + row, subtile.origin[1] + column
    if m < subtile.ends[0] and n < subtile.ends[1]:
        memory = output.memory
        index = cutlass.Int64(cute.crd2idx((m, n, subtile.batch), memory.layout))
        rX = cute.make_rmem_tensor(WORD // 4, cutlass.Uint32)
        cute.autovec_copy(word_at(_staged(output, row, column, buffer), shared=True), rX)
        cute.autovec_copy(rX, word_at(memory.iterator.toint() + index * size))


def _staged(output: Any, row: Any, column: Any, buffer: Any) -> Any:
    """Where an element lies in shared memory; the swizzle permutes chunks, by the address' bits from 7 on."""
    index = cute.crd2idx((row, column, buffer), output.sD.layout)
    plain = output.sD.iterator.toint() + index * output.matrix.dtype.bytes
    span = SWIZZLE_SPANS[output.config.subtile_swizzle(output.matrix)]
    return plain ^ ((plain >> 3) & (span - WORD))
