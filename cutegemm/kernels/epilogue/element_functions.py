# SPDX-License-Identifier: Apache-2.0
"""The graph's operations on one fp32 element, inside a kernel.

Approximate instructions are those of PTX ISA 9.7.3: ex2, lg2, rsqrt, rcp and sqrt err by about 2**-22,
tanh by 2**-11. Where a finer result is stored, tanh, sigmoid and erf come from ex2 and rcp instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from cutegemm.dtypes import DType, as_dtype
from cutegemm.kernels.host.operand_layouts import NUMERIC

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Salmon et al., SC'11, table 2
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
# of integers of fewer bits than the sums
LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
# erf(x) = tanh(x (a + b x^2 + c x^4)) for x^2 <= ERF_RANGE to 2**-14 of its value: our own minimax fit, see
# tests/kernels/test_functions.py. Beyond it the polynomial in x^2 is held, and erf is 1 to fp32.
ERF_TANH = (1.1283139, 0.10364077, -0.0016151425)
ERF_RANGE = 20.0
# 1 - erf(x) = (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p x) for x >= 0, to 1.5e-7: Abramowitz and Stegun,
# Handbook of Mathematical Functions, 7.1.26
_ERF_P = 0.3275911
_ERF_EXP = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _exp(x: Any) -> Any:
    return cute.math.exp(x, fastmath=True)


def _tanh_fine(x: Any) -> Any:
    """1 - 2 / (1 + exp(2 |x|)) with x's sign; absolute error about 2**-22."""
    size = 1.0 - 2.0 * cute.arch.rcp_approx(1.0 + _exp(2.0 * cute.math.absf(x)))
    return cute.math.copysign(size, x)


def _sigmoid_fine(x: Any) -> Any:
    return cute.arch.rcp_approx(1.0 + _exp(-x))


def _tanh_fast(x: Any) -> Any:
    return cute.math.tanh(x, fastmath=True)


def _sigmoid_fast(x: Any) -> Any:
    return 0.5 * _tanh_fast(0.5 * x) + 0.5


def erf_fast(x: Any, scale: float) -> Any:
    """erf(scale * x) through one tanh; the factor goes into the coefficients."""
    a, b, c = (k * scale ** (2 * i + 1) for i, k in enumerate(ERF_TANH))
    # min gives the bound for NaN, but x stays a factor
    square = cute.arch.fmin(x * x, cutlass.Float32(ERF_RANGE / scale**2))
    return _tanh_fast(x * (a + square * (b + square * c)))


def _erf_fine(x: Any) -> Any:
    """Absolute error about 2**-22."""
    size = cute.math.absf(x)
    t = cute.arch.rcp_approx(1.0 + _ERF_P * size)
    rest = cutlass.Float32(_ERF_EXP[-1])
    for coefficient in reversed(_ERF_EXP[:-1]):
        rest = coefficient + t * rest
    return cute.math.copysign(1.0 - t * rest * _exp(-(x * x)), x)


def convert(x: Any, dtype: DType) -> Any:
    """An fp32 element, or an Int32 for an integer type, in another type; it saturates, NaN is the integer 0."""
    if not dtype.whole:
        return x.to(NUMERIC[dtype])
    # to nearest even; the conversion itself saturates (PTX ISA, cvt)
    found = x if isinstance(x, cutlass.Int32) else cute.math.roundeven(x).to(cutlass.Int32)
    return found if dtype is DType.INT32 else narrow(found, dtype)


def converted(values: list[Any], dtype: DType) -> cute.Tensor:
    """A thread's elements in another type, in registers: `convert` of each, floating-point types several at once."""
    rD = cute.make_rmem_tensor(len(values), NUMERIC[dtype])
    if dtype.whole:
        for i, value in enumerate(values):
            rD[i] = convert(value, dtype)
        return rD
    rX = cute.make_rmem_tensor(len(values), cutlass.Float32)
    for i, value in enumerate(values):
        rX[i] = value
    rD.store(rX.load().to(NUMERIC[dtype]))
    return rD


def narrow(x: Any, dtype: DType) -> Any:
    """An Int32 in an integer type; it saturates."""
    low, high = LIMITS[dtype]
    return cutlass.max(cutlass.min(x, high), low).to(NUMERIC[dtype])


def _cast(x: Any, name: str) -> Any:
    return convert(x, as_dtype(name)).to(Float32)


def opaque(x: Any) -> Any:
    """An Int32 of which the compiler knows nothing, neither its bounds nor where else it is computed."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[Int32(x)])


def where(truth: Any, x: Any, y: Any) -> Any:
    """x or y, without a branch."""
    return cutlass.select_(cutlass.Boolean(truth), x, y)


_COMMON: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": cute.math.absf,
    "min": lambda x, y: cute.arch.fmin(x, y, nan=True),
    "max": lambda x, y: cute.arch.fmax(x, y, nan=True),
    "exp": _exp,
    "log": lambda x: cute.math.log(x, fastmath=True),
    "sqrt": lambda x: cute.math.sqrt(x, fastmath=True),
    "rsqrt": lambda x: cute.math.rsqrt(x, fastmath=True),
    "floor": cute.math.floor,
    "round": cute.math.roundeven,
    "cast": _cast,
    "where": where,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "and": lambda x, y: cutlass.Boolean(x) & cutlass.Boolean(y),
    "or": lambda x, y: cutlass.Boolean(x) | cutlass.Boolean(y),
    "not": lambda x: where(x, cutlass.Boolean(False), cutlass.Boolean(True)),
}  # fmt: skip
FINE = _COMMON | {"tanh": _tanh_fine, "sigmoid": _sigmoid_fine, "erf": _erf_fine}
FAST = _COMMON | {"tanh": _tanh_fast, "sigmoid": _sigmoid_fast, "erf": lambda x: erf_fast(x, 1.0)}


def uniform(seed: Any, offset: Any, coord: tuple[Any, Any, Any]) -> Any:
    """A number in [0, 1) that depends on seed, offset, row, column and batch alone: Philox4x32-10's first word.

    Key (seed, 0), counter (column, row, batch, offset); 24 bits of the word make the number.
    """
    row, col, batch = coord
    counter = [Uint32(x) for x in (col, row, batch, offset)]
    for i in range(_PHILOX_ROUNDS):
        steps = [Uint32(w * i & 0xFFFFFFFF) for w in _PHILOX_WEYL]
        key = [Uint32(seed) + steps[0], steps[1]]
        a, b = (Uint32(x) for x in _PHILOX_MULTIPLIERS)
        high = cute.arch.mul_hi(a, counter[0]), cute.arch.mul_hi(b, counter[2])
        low = a * counter[0], b * counter[2]
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
    return Float32(counter[0] >> 8) * 2.0**-24
