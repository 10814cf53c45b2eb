# SPDX-License-Identifier: Apache-2.0
"""Atomic operations: atom and red on any memory, lane after lane.

Source: PTX ISA 9.0, 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers import floats
from cutegemm.emulator.numbers.values import UINT
from cutegemm.emulator.state.memory import POLL_COST, lane_of, locate, polled, resolve

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Real, Value, Vector
    from cutegemm.emulator.state.group import Group


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
        in_l2 = not region.name.startswith("shared memory")
        view[offset // size] = atomic_update(operation, kind, old, [lane_of(v, lane) for v in values], in_l2)
        touched.append((lane, region, offset))
    if group.device.watch.listening:
        group.device.watch.atomics(group, touched, size, order, returns and used)
    if returns and len(lanes):
        polled(group, region, offset)
    return old_values
