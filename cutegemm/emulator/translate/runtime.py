# SPDX-License-Identifier: Apache-2.0
"""The names translated kernels call: one dictionary, filled from the modules that implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.emulator.numbers import extended, floats, rounding, values
from cutegemm.emulator.numbers.values import ND, SINT, UINT
from cutegemm.emulator.state import memory, warp_ops
from cutegemm.emulator.state.addresses import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.units import (
    async_store,
    atomics,
    barriers,
    bulk,
    copies,
    host_calls,
    mma,
    registers,
    tma,
    warpgroup,
    wgmma,
)

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Real, Value, Vector
    from cutegemm.emulator.state.group import Group


def least(a: Value, b: Value) -> Value:
    """Smaller of two integers."""
    return np.minimum(a, b) if a.__class__ is ND or b.__class__ is ND else min(a, b)


def most(a: Value, b: Value) -> Value:
    """Larger of two integers."""
    return np.maximum(a, b) if a.__class__ is ND or b.__class__ is ND else max(a, b)


def low(x: Value) -> Value:
    """Low half of a 32-bit register."""
    return x & 0xFFFF


def high(x: Value) -> Value:
    """High half of a 32-bit register."""
    return x >> 16


def saturate(x: Real) -> Real:
    """.sat: clamp to [0, 1], NaN and -0 to +0."""
    zero = x.dtype.type(0)
    return (np.clip(np.where(np.isnan(x), zero, x), zero, x.dtype.type(1)) + zero)[()]


def relu(x: Real) -> Real:
    """.relu: negative values become 0, NaN the canonical NaN."""
    return np.where(np.isnan(x), x, np.maximum(x, x.dtype.type(0)))[()]


def integral(x: Real, mode: str) -> Real:
    """cvt between equal float types with an integer rounding."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x)


def fma64_wide(a: Real, b: Real, c: Real) -> Vector:
    """fp16 or bf16 a*b+c as fp64, rounded to odd: the rounding to 16 bits that follows is then the only one."""
    product = np.multiply(a, b, dtype=np.float64)
    c = np.asarray(c, np.float64)
    return floats.to_odd(product, c, product + c)


def saturate_integer(x: Value, source: str, to: str, bits: int) -> Value:
    """cvt.sat between integers: clamp to the target's range."""
    width, target = int(source[1:]), int(to[1:])
    wide = values.as_wide(x, width, source[0] == "s")
    bottom, top = (-(1 << target - 1), (1 << target - 1) - 1) if to[0] == "s" else (0, (1 << target) - 1)
    clamped: Value = np.clip(wide, bottom, top)
    return values.wrap(clamped, bits)


def note(group: Group, m: Mask, op: str) -> None:
    """Fences and register-pool changes: nothing to compute, but the observers are told."""
    if group.tracker is not None:
        if op == "griddepcontrol.wait":
            group.tracker.grid_wait(m)
        elif op == "griddepcontrol.launch_dependents":
            group.tracker.grid_trigger(m)
        else:
            group.tracker.fence(op)


def fragment_written(group: Group, slot: int) -> None:
    """A register that some wgmma reads A from is written."""
    if group.tracker is not None:
        group.tracker.fragment_written(slot)


NAMES: dict[str, Any] = {"np": np, "ND": ND, "M32": values.M32, "M64": values.M64, "BOOL": np.bool_, "U8": UINT[8],
               "U16": UINT[16],
               "U32": UINT[32], "U64": UINT[64], "SINT": SINT, "Fault": Fault, "SHARED_WINDOW": SHARED_WINDOW,
               "LOCAL_WINDOW": LOCAL_WINDOW, "PARAM_WINDOW": PARAM_WINDOW}  # fmt: skip
_MODULES = (
    values, extended, floats, rounding, memory, atomics, warp_ops, barriers, bulk, async_store, copies, tma, wgmma, mma,
    registers,
    host_calls,
    warpgroup,
)  # fmt: skip
for _module in _MODULES:
    NAMES |= {name: f for name, f in vars(_module).items() if callable(f) and not name.startswith("_")}
for _f in (
    least,
    most,
    low,
    high,
    saturate,
    relu,
    integral,
    fma64_wide,
    saturate_integer,
    note,
    fragment_written,
):
    NAMES[_f.__name__] = _f
