# SPDX-License-Identifier: Apache-2.0
"""A driver in the CuTe DSL for GEMMs of its examples: addresses in, tensors of a fixed shape to the kernel's class."""

# No postponed annotations: the DSL reads the driver's.
from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute

ALIGN = 16  # bytes, of every operand


def _tensor(address: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    """Row-major matrix (rows, columns, 1), or one number."""
    pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=ALIGN)
    if len(shape) == 1:
        return cute.make_tensor(pointer, cute.make_layout(shape))
    rows, columns = shape
    layout = cute.make_layout((rows, columns, 1), stride=(columns, 1, rows * columns))
    return cute.make_tensor(pointer, layout)


def driver_of(
    gemm: Any, kinds: tuple[Any, Any], shape: tuple[int, int, int], scaled: bool, arguments: Sequence[Any]
) -> Any:
    """A driver of A (M x K), B (N x K), D (M x N) and, where `scaled`, one scale of A and one of B in memory.

    kinds: types of the operands and of D. shape: M, N, K. arguments: what `gemm` takes behind its tensors.
    """
    m, n, k = shape

    @cute.jit
    def driver(  # type: ignore[no-untyped-def]
        a: cutlass.Int64, b: cutlass.Int64, d: cutlass.Int64, s: cutlass.Int64, t: cutlass.Int64, stream
    ):
        given = [_tensor(a, kinds[0], (m, k)), _tensor(b, kinds[0], (n, k)), _tensor(d, kinds[1], (m, n))]
        if cutlass.const_expr(scaled):
            given += [_tensor(s, cutlass.Float32, (1,)), _tensor(t, cutlass.Float32, (1,))]
        gemm(*given, *arguments, stream)

    return driver
