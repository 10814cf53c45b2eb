# SPDX-License-Identifier: Apache-2.0
"""Atomic operations (atom, red), and the elementwise reductions of cp.reduce.async.bulk.

Source: PTX ISA 9.0, 9.7.9.25.4.2 (cp.reduce.async.bulk), 9.7.9.27.1.3 (cp.reduce.async.bulk.tensor), 9.7.13.5 (atom),
9.7.13.6 (red).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers import floats
from cutegemm.emulator.numbers.types import Bytes, Mask, Value, Vector
from cutegemm.emulator.numbers.values import FLOAT, REDUCTIONS, SINT, UINT
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Touch
from cutegemm.emulator.state.memory import Fault, resolve
from cutegemm.emulator.units.access import POLL_COST, by_region, locate, polled

Reduce: TypeAlias = Callable[[Bytes, Bytes], Bytes]  # old and new bytes to their combination
_FLOAT_ACTS: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "min": np.fmin, "max": np.fmax}
_ACTS: dict[str, Callable[[Any, Any], Any]] = {
    **REDUCTIONS,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}


def combine(operation: str, kind: str, old: Vector, operands: Sequence[Vector], in_l2: bool) -> Vector:
    """New values of atomic operations on contiguous bit patterns; `in_l2`: the memory is global.

    Packed types act on both halves; minimum and maximum ignore NaN.
    """
    new, pattern = operands[0], old.dtype
    if operation == "exch":
        return new
    if operation == "cas":
        return np.where(old == new, operands[1], old)
    if kind in ("f32", "f64"):
        real = FLOAT[int(kind[1:])]
        # sums of fp32 in L2: subnormal operands and results become zero with their sign (PTX ISA 9.7.13.5)
        flush = floats.flush if operation == "add" and in_l2 and kind == "f32" else np.asarray
        values: Vector = np.asarray(
            flush(_FLOAT_ACTS[operation](flush(old.view(real)), flush(new.view(real))))
        )
        return np.asarray(floats.bits(values.ravel())).view(pattern).reshape(values.shape)
    if kind.startswith(("f16", "bf16")):
        half = kind[0] == "f"
        read, narrow = (floats.f16, floats.narrow_f16) if half else (floats.bf16, floats.narrow_bf16)
        x, y = (read(v.view(np.uint16)).astype(np.float32) for v in (old, new))
        return np.asarray(narrow(_FLOAT_ACTS[operation](x, y))).astype(np.uint16).view(pattern)
    if operation not in _ACTS:
        raise Fault(f"reduction {operation} is not emulated")
    whole = SINT[8 * pattern.itemsize] if kind[0] == "s" else pattern
    integers: Vector = _ACTS[operation](old.view(whole), new.view(whole)).astype(whole).view(pattern)
    return integers


def reducer(operation: str, kind: str, item: int) -> Reduce:
    """The function by which L2 combines bytes of elements of a type, `item` bytes each."""
    pattern = UINT[8 * item]
    return lambda old, new: combine(operation, kind, old.view(pattern), [new.view(pattern)], True).view(
        np.uint8
    )


def atomic(
    group: WarpSet,
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
    """atom and red of the active lanes, in lane order; returns the old values, which an instruction reads if `used`."""
    if returns:
        group.budget -= POLL_COST
    generic = space
    size = {"f16": 2, "bf16": 2, "b16": 2}.get(kind, 8 if "64" in kind else 4)
    pattern = UINT[8 * size]
    old = np.zeros(group.lanes, pattern)
    lanes = group.active(m)
    operands = [np.broadcast_to(np.asarray(v).astype(pattern), group.lanes) for v in values]
    a = np.broadcast_to(np.asarray(a, np.uint64), group.lanes)
    space, address = resolve(a[lanes]) if space == "generic" else (space, a[lanes])
    region, offset = locate(group, m, address, size, space)
    if region is None:
        for one in by_region(group, m, address, size, space):
            part = atomic(group, one, a, values, operation, kind, generic, returns, order, used)
            old[one] = part[one]
        return old
    offset = offset.astype(np.int64)
    view, index = region.view(size), offset // size
    for turn in _turns(index):
        at, who = index[turn], lanes[turn]
        old[who] = before = view[at]
        view[at] = after = combine(operation, kind, before, [v[who] for v in operands], not region.shared)
        group.device.events += bool((after != before).any())  # a failed compare-and-swap is no progress
    if group.device.watch.hears("access"):
        touch = Touch(m, region, offset, size, True, "shared" if region.shared else "global", order)
        group.device.watch.atomics(group, touch, returns and used)
    if returns:
        polled(group, region, offset[-1:])
    return old


def _turns(index: npt.NDArray[np.int64]) -> list[Any]:
    """Sets of lanes with different addresses; lanes with the same address are in different sets, in order."""
    if len(np.unique(index)) == len(index):
        return [slice(None)]
    before: Counter[int] = Counter()
    turn = np.zeros(len(index), np.int64)
    for i, place in enumerate(index.tolist()):
        turn[i] = before[place]
        before[place] += 1
    return [turn == n for n in range(int(turn.max()) + 1)]
