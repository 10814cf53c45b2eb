# SPDX-License-Identifier: Apache-2.0
"""Atomic operations lane after lane (atom, red), and elementwise reductions of byte arrays (cp.reduce.async.bulk).

Source: PTX ISA 9.0, 9.7.9.25.4.2 (cp.reduce.async.bulk), 9.7.9.27.1.3 (cp.reduce.async.bulk.tensor), 9.7.13.5 (atom),
9.7.13.6 (red).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers import floats
from cutegemm.emulator.numbers.types import Bytes, Mask, Real, Value, Vector
from cutegemm.emulator.numbers.values import SINT, UINT, lane_of
from cutegemm.emulator.state.group import Group
from cutegemm.emulator.state.memory import Fault, resolve
from cutegemm.emulator.units.access import POLL_COST, locate, polled

Act: TypeAlias = Callable[[Any, Any], Any]  # of two floating-point scalars of any width


def _float_atomic(kind: str) -> Callable[[Act, int, int], int]:
    """Unpack, act, pack for one float type; packed pairs act on both halves."""
    base = kind.removesuffix("x2")
    if base in ("f32", "f64"):
        width = 32 if base == "f32" else 64
        read = floats.f32 if base == "f32" else floats.f64
        return lambda f, x, y: int(floats.bits(f(read(x), read(y)))) & ((1 << width) - 1)
    read = floats.f16 if base == "f16" else floats.bf16
    narrow = floats.narrow_f16 if base == "f16" else floats.narrow_bf16

    def half(f: Act, x: int, y: int) -> int:
        return int(narrow(np.float32(f(np.float32(read(x)), np.float32(read(y))))))

    if base == kind:
        return half
    return lambda f, x, y: half(f, x >> 16, y >> 16) << 16 | half(f, x & 0xFFFF, y & 0xFFFF)


def add_flushed(a: Real, b: Real) -> Real:
    """fp32 sum as L2 forms it: subnormal operands and results become zero of their sign (PTX ISA 9.7.13.5)."""
    return floats.flush(floats.flush(a) + floats.flush(b))


def atomic_update(operation: str, kind: str, old: int, values: list[int], in_l2: bool = False) -> int:
    """New memory value of one atomic operation on patterns; `in_l2` when the memory is global."""
    bits = 8 * {"f16": 2, "bf16": 2}.get(kind, 8 if "64" in kind else 4) if kind not in ("b16",) else 16
    v = values[0]
    if operation == "exch":
        return v
    if operation == "cas":
        return values[1] if old == v else old
    if kind.startswith(("f", "bf")):
        acts: dict[str, Act] = {"add": operator.add, "min": np.fmin, "max": np.fmax}
        act = add_flushed if operation == "add" and in_l2 and kind == "f32" else acts[operation]
        return _float_atomic(kind)(act, old, v)
    top = 1 << bits - 1 if kind[0] == "s" else 0

    def read(u: int) -> int:
        return (u ^ top) - top

    if operation == "inc":
        return 0 if old >= v else old + 1
    if operation == "dec":
        return v if old == 0 or old > v else old - 1
    acts_on: dict[str, Callable[[], int]] = {
        "add": lambda: old + v,
        "and": lambda: old & v,
        "or": lambda: old | v,
        "xor": lambda: old ^ v,
        "min": lambda: min(read(old), read(v)),
        "max": lambda: max(read(old), read(v)),
    }
    return acts_on[operation]() & ((1 << bits) - 1)


def atomic(
    group: Group,
    m: Mask,
    a: Value,
    values: Sequence[Value],
    operation: str,
    kind: str,
    space: str,
    returns: bool,
    order: str = "relaxed",
    used: bool = True,
) -> Vector:
    """atom and red: the active lanes act in lane order; returns the old values, which something reads if `used`."""
    group.device.events += 1
    if returns:
        group.budget -= POLL_COST
    size = {"f16": 2, "bf16": 2, "b16": 2}.get(kind, 8 if "64" in kind else 4)
    lanes = np.arange(group.lanes) if m is None else np.flatnonzero(m)
    old_values = np.zeros(group.lanes, UINT[8 * size])
    touched = []
    for lane in lanes.tolist():
        address: int = lane_of(a, lane)
        where = space
        if where == "generic":
            where, address = resolve(address)
        region, offset = locate(group, m, address, size, where)
        view = region.view(size)
        old = int(view[offset // size])
        old_values[lane] = old
        view[offset // size] = atomic_update(
            operation, kind, old, [lane_of(v, lane) for v in values], not region.shared
        )
        touched.append((lane, region, offset))
    if group.device.watch.listening:
        group.device.watch.atomics(group, touched, size, order, returns and used)
    if returns and len(lanes):
        polled(group, region, offset)
    return old_values


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
    pattern = UINT[8 * item]
    if kind in ("f32", "f64"):
        real = np.float32 if kind == "f32" else np.float64
        act = {**_FLOAT_ACTS, "add": add_flushed if kind == "f32" else np.add}[operation]
        made: Any = act(old.view(real), new.view(real))
        return np.asarray(made).view(np.uint8)
    if kind in ("f16", "bf16"):
        read, narrow = (floats.f16, floats.narrow_f16) if kind == "f16" else (floats.bf16, floats.narrow_bf16)
        x, y = (read(v.view(np.uint16)).astype(np.float32) for v in (old, new))
        return np.asarray(narrow(_FLOAT_ACTS[operation](x, y))).astype(np.uint16).view(np.uint8)
    signed = SINT[8 * item] if kind[0] == "s" else None
    a, b = (v.view(pattern if signed is None else signed) for v in (old, new))
    if operation == "inc":
        return np.where(a >= b, pattern(0), a + pattern(1)).view(np.uint8)
    if operation == "dec":
        return np.where((a == 0) | (a > b), b, a - pattern(1)).view(np.uint8)
    if operation not in _ACTS:
        raise Fault(f"reduction {operation} is not emulated")
    combined: Vector = _ACTS[operation](a, b)
    return combined.view(np.uint8)
