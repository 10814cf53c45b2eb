# SPDX-License-Identifier: Apache-2.0
"""A driver for the CuTe DSL's examples: it takes addresses and passes tensors of fixed layouts to the kernel."""

# No postponed annotations: the DSL reads the driver's.
from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute

ALIGN = 16  # bytes, of every operand

Tensor = tuple[Any, tuple[int, ...], tuple[int, ...]]  # type, extents, strides in elements


def _tensor(address: Any, of: Tensor) -> Any:
    kind, shape, strides = of
    pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=ALIGN)
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=strides))


def driver_of(kernel: Any, tensors: Sequence[Tensor], arguments: Sequence[Any]) -> Any:
    """A driver that takes five addresses, the first ones for `tensors`; `arguments` follow the tensors."""

    @cute.jit
    def driver(  # type: ignore[no-untyped-def]
        p: cutlass.Int64, q: cutlass.Int64, r: cutlass.Int64, s: cutlass.Int64, t: cutlass.Int64, stream
    ):
        given = [_tensor(address, of) for address, of in zip((p, q, r, s, t), tensors)]
        kernel(*given, *arguments, stream)

    return driver
