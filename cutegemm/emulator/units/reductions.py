# SPDX-License-Identifier: Apache-2.0
"""Elementwise reductions of byte arrays: what cp.reduce.async.bulk does at its destination.

Source: PTX ISA 9.0, 9.7.9.25.4.2 (cp.reduce.async.bulk), 9.7.9.27.1.3 (cp.reduce.async.bulk.tensor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.emulator.numbers import floats
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.units.atomics import add_flushed

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Bytes, Vector

_SIGNED: dict[str, type[np.signedinteger[Any]]] = {"s32": np.int32, "s64": np.int64}
_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOAT_ACTS: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "min": np.fmin, "max": np.fmax}
_ACTS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce_bytes(old: Bytes, new: Bytes, kind: str, item: int, operation: str) -> Bytes:
    """`old` and `new`, contiguous bytes of elements of a type, combined: bytes again.

    fp32 sums are those of L2, where subnormal operands and results become zero; minimum and maximum drop NaN.
    """
    pattern = _UNSIGNED[item]
    if kind in ("f32", "f64"):
        real = np.float32 if kind == "f32" else np.float64
        act = {**_FLOAT_ACTS, "add": add_flushed if kind == "f32" else np.add}[operation]
        made: Any = act(old.view(real), new.view(real))
        return np.asarray(made).view(np.uint8)
    if kind in ("f16", "bf16"):
        read, narrow = (floats.f16, floats.narrow_f16) if kind == "f16" else (floats.bf16, floats.narrow_bf16)
        x, y = (read(v.view(np.uint16)).astype(np.float32) for v in (old, new))
        return np.asarray(narrow(_FLOAT_ACTS[operation](x, y))).astype(np.uint16).view(np.uint8)
    signed = _SIGNED.get(kind)
    a, b = (v.view(pattern if signed is None else signed) for v in (old, new))
    if operation == "inc":
        return np.where(a >= b, pattern(0), a + pattern(1)).view(np.uint8)
    if operation == "dec":
        return np.where((a == 0) | (a > b), b, a - pattern(1)).view(np.uint8)
    if operation not in _ACTS:
        raise Fault(f"reduction {operation} is not emulated")
    combined: Vector = _ACTS[operation](a, b)
    return combined.view(np.uint8)
