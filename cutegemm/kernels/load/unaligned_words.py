# SPDX-License-Identifier: Apache-2.0
"""Sixteen bytes at any address, assembled from the aligned words that hold them; asynchronous copies."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm

from cutegemm.kernels.memory_views import REGISTER, WORD, elements_at, word_at


def align(words: list[Any], address: Any, size: int, rD: cute.Tensor) -> None:
    """rD = the 16 bytes that start `address % 16` bytes into the eight registers `words`.

    Args:
        size: bytes of an element, 1, 2 or 4; the address is a multiple of it.
    """
    offset = cutlass.Int32(address & (WORD - 1))
    for step in (2, 1):  # registers
        move = (offset & (step * REGISTER)) != 0
        words = [
            cutlass.Uint32(cutlass.select_(move, words[x + step], words[x])) for x in range(len(words) - step)
        ]
    for x in range(WORD // REGISTER):
        if size < REGISTER:  # the remaining offset is less than a register
            rD[x] = cute.arch.shf(words[x], words[x + 1], (offset & (REGISTER - 1)) * 8, "r")
        else:
            rD[x] = words[x]


def chunk(rW: cute.Tensor, first: int, offset: Any, size: int, rD: cute.Tensor) -> None:
    """rD = the 16 bytes that begin in register `first` of the eight registers of two words.

    Args:
        offset: bytes into the words; only the byte within a register matters.
        size: bytes of an element, 1, 2 or 4.
    """
    for x in range(WORD // REGISTER):
        if size < REGISTER:
            rD[x] = cute.arch.shf(rW[first + x], rW[first + x + 1], (offset & (REGISTER - 1)) * 8, "r")
        else:
            rD[x] = rW[first + x]


def clear(rD: cute.Tensor, count: Any, size: int) -> None:
    """Zero the elements of rD, of `size` bytes, from `count` on."""
    each = REGISTER // size
    for x in range(WORD // REGISTER):
        kept = cutlass.Uint32(cutlass.select_(count > x * each, rD[x], cutlass.Uint32(0)))
        for left in range(each - 1, 0, -1):
            mask = (1 << 8 * size * left) - 1
            kept = cutlass.select_(count > x * each + left, kept, kept & mask)
        rD[x] = kept


def around(address: Any) -> list[Any]:
    """The registers of the aligned words that hold the 16 bytes at `address`; twice the same if they are one."""
    return [x for low in (address & -WORD, address + (WORD - 1) & -WORD) for x in registers(low)]


def registers(address: Any) -> list[Any]:
    """The registers of the word at an address, which is a multiple of 16."""
    rW = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
    cute.autovec_copy(word_at(address), rW)
    return [rW[x] for x in range(WORD // REGISTER)]


def registers_past_l1(address: Any, policy: Any = None) -> list[Any]:
    """The registers of the word at an address, which is a multiple of 16; L1 keeps nothing of it (PTX ISA, ld.cg).

    Args:
        policy: by which L2 keeps the word (`cache_hints`); None is the usual one.
    """
    if policy is not None:
        ptx = "ld.global.cg.L2::cache_hint.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}], {$r1};"
        types, given = [cutlass.Uint32] * (WORD // REGISTER), [cutlass.Int64(address), policy]
        return list(cute.arch.inline_ptx(ptx, write_only_types=types, read_only_args=given))
    kind = ir.VectorType.get([WORD // REGISTER], cutlass.Uint32.mlir_type)
    word = cute.arch.load(word_at(address).iterator, kind, cop="cg")
    places = [cutlass.Int32(x).ir_value() for x in range(WORD // REGISTER)]
    return [cutlass.Uint32(llvm.extractelement(word, place)) for place in places]


@cute.jit
def anywhere(address: Any, span: Any, count: Any, numeric: cutlass.Constexpr, rD: cute.Tensor):
    """rD = the 16 bytes at `address`, of which `count` elements count, without a byte outside of `span`."""
    if (address & -WORD) >= span[0] and (address + (WORD - 1) & -WORD) + WORD <= span[1]:
        align(around(address), address, numeric.width // 8, rD)
    else:
        elements(address, count, numeric, rD)


@cute.jit
def elements(address: Any, count: Any, numeric: cutlass.Constexpr, rD: cute.Tensor):
    """rD = the `count` elements at `address`, as far as they fit, read one by one, and zeros."""
    each = WORD * 8 // numeric.width
    rX = cute.make_rmem_tensor(each, numeric)
    rX.fill(0)
    gX = elements_at(numeric, address, each)
    for x in cutlass.range_constexpr(each):
        if x < count:
            rX[x] = gX[x]
    rD.store(cute.recast_tensor(rX, cutlass.Uint32).load())


def quotient(value: Any, by: Any) -> Any:
    """value // by, of numbers that are not negative."""
    return cutlass.Int32(cutlass.Uint32(value) // cutlass.Uint32(by))


def copy_async(source: Any, target: Any, size: int, used: Any = None) -> None:
    """cp.async of `size` bytes, 4, 8 or 16, from global to shared memory (PTX ISA, cp.async).

    Args:
        used: how many of them to read, Int32; the others are zero. None is all.
    """
    mode = nvvm.LoadCacheModifierKind.CG if size == WORD else nvvm.LoadCacheModifierKind.CA
    count = None if used is None else used.ir_value()
    nvvm.cp_async_shared_global(target.to_llvm_ptr(), source.to_llvm_ptr(), size, mode, cp_size=count)
