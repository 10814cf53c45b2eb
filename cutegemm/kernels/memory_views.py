# SPDX-License-Identifier: Apache-2.0
"""Elements at an address, elements as bits, and accesses under a condition: what kernels do outside of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

WORD = 16  # bytes of the widest access
REGISTER = 4  # bytes
BITS = {1: cutlass.Uint8, 2: cutlass.Uint16, 4: cutlass.Uint32}  # an element as bits, by its bytes


def elements_at(
    numeric: Any, address: Any, count: Any = 1, align: int = 0, shared: bool = False
) -> cute.Tensor:
    """So many neighbouring elements at an address of global or of shared memory.

    Args:
        align: bytes of which the address is a multiple; 0 is an element's.
    """
    space = cute.AddressSpace.smem if shared else cute.AddressSpace.gmem
    ptr = cute.make_ptr(numeric, address, space, assumed_align=align or numeric.width // 8)
    return cute.make_tensor(ptr, cute.make_layout(count))


def word_at(address: Any, shared: bool = False, numeric: Any = cutlass.Uint32) -> cute.Tensor:
    """The 16 bytes at an address, which is a multiple of 16."""
    return elements_at(numeric, address, WORD * 8 // numeric.width, WORD, shared)


def put_element(numeric: Any, address: Any, value: Any, shared: bool = False) -> None:
    """Store an element at an address."""
    elements_at(numeric, address, shared=shared)[0] = value


def prefetch_line(address: Any, wanted: Any) -> None:
    """Prefetch the cache line of an address of global memory into L2, if `wanted` (PTX ISA, prefetch).

    Safe before griddepcontrol.wait: earlier launches write to L2, too, so the line cannot go stale.
    """
    cute.arch.inline_ptx(
        "@{$r1} prefetch.global.L2 [{$r0}];",
        read_only_args=[cutlass.Int64(address), cutlass.Boolean(wanted)],
    )


def zero_word() -> cute.Tensor:
    """16 bytes of zeros in registers."""
    zeros = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
    zeros.fill(cutlass.Uint32(0))
    return zeros


def as_type(value: Any, numeric: Any) -> Any:
    """The same 32 bits as another type; itself if it is of that one."""
    if isinstance(value, numeric):
        return value
    rX = cute.make_rmem_tensor(1, type(value))
    rX[0] = value
    return cute.recast_tensor(rX, numeric)[0]


@cute.jit
def store_if(wanted: Any, target: cute.Tensor, place: Any, value: Any) -> None:
    """Store an element under a condition of the device; without a branch where that is None."""
    if cutlass.const_expr(wanted is None):
        target[place] = value
    elif wanted:
        target[place] = value


@cute.jit
def act_if(wanted: Any, action: cutlass.Constexpr[Callable[[], None]]) -> None:
    """Call a function under a condition of the device; without a branch where that is None."""
    if cutlass.const_expr(wanted is None):
        action()
    elif wanted:
        action()
