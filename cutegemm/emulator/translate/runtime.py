# SPDX-License-Identifier: Apache-2.0
"""The names translated kernels call: one dictionary, filled from the modules that implement them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.emulator.numbers import extended, floats, fused_jit, rounding, values
from cutegemm.emulator.numbers.types import Mask, Real, Value, Vector
from cutegemm.emulator.numbers.values import ND, SINT, UINT
from cutegemm.emulator.state import memory
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.units import (
    access,
    atomics,
    barriers,
    bulk,
    copies,
    host_calls,
    mma,
    tma,
    warp_ops,
    wgmma,
)


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


def note(group: WarpSet, m: Mask, op: str) -> None:
    """Fences: there is nothing to compute, but the race detector follows them."""
    if op == "griddepcontrol.wait":
        group.tracker.grid_wait(m)
    elif op == "griddepcontrol.launch_dependents":
        group.tracker.grid_trigger(m)
    else:
        group.tracker.fence(op)


def fragment_written(group: WarpSet, slot: int) -> None:
    """A register that some wgmma reads A from is written."""
    group.tracker.fragment_written(slot)


def _names() -> dict[str, Any]:
    """Constants, the functions of this module, and those of the modules that implement instructions."""
    out = {"np": np, "ND": ND, "M32": values.M32, "M64": values.M64, "BOOL": np.bool_, "SINT": SINT}
    out |= {f"U{bits}": kind for bits, kind in UINT.items()}
    out |= {
        name: getattr(memory, name) for name in ("Fault", "SHARED_WINDOW", "LOCAL_WINDOW", "PARAM_WINDOW")
    }
    modules = (values, extended, floats, fused_jit, rounding, memory, access, atomics, warp_ops, barriers, bulk,
               copies, tma, wgmma, mma, host_calls)  # fmt: skip
    for members in (*(vars(module) for module in modules), globals()):
        out |= {name: f for name, f in members.items() if callable(f) and not name.startswith("_")}
    return out


NAMES = _names()
