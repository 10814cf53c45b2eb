# SPDX-License-Identifier: Apache-2.0
"""The functions of the epilogue language, on values and Python numbers.

NaN and infinities behave as in torch's functions of the same name. The activations are written to take few
instructions; a fused multiply-add counts as one.
"""

from __future__ import annotations

import math
from typing import Any

from cutegemm import checks
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.hints import FUNCTIONS
from cutegemm.epilogue.value import Value, apply
from cutegemm.errors import SpecError, field_error, shown

__all__ = [
    "abs", "cast", "clamp", "dropout", "erf", "exp", "floor", "gelu", "gelu_tanh", "hardswish", "leaky_relu", "log",
    "max", "min", "mish", "random", "relu", "round", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "square", "tanh",
    "where",
]  # fmt: skip
FUNCTIONS.extend(__all__)

Number = float | int
Operand = Value | Number


def _traced(name: str, x: object) -> Value:
    """The operand of a function that is written with operators, which another type may have too.

    Raises:
        SpecError: it is no value of the epilogue being defined.
    """
    if not isinstance(x, Value):
        raise field_error(SpecError, f"{name}.x", x, "must be a value of the epilogue being defined")
    return x


def abs(x: Value) -> Value:
    """|x|."""
    return apply("abs", x)


def min(x: Operand, y: Operand) -> Value:
    """The smaller of two; NaN if either is, as torch.minimum."""
    return apply("min", x, y)


def max(x: Operand, y: Operand) -> Value:
    """The larger of two; NaN if either is, as torch.maximum."""
    return apply("max", x, y)


def clamp(x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """x limited to two bounds, either of which may be None; NaN stays NaN."""
    if low is None and high is None:
        raise field_error(SpecError, "clamp", (low, high), "must have a lower or an upper bound")
    x = x if low is None else max(x, low)
    return x if high is None else min(x, high)


def where(condition: Value, x: Operand, y: Operand) -> Value:
    """x if the truth value holds, else y. Both are computed; a NaN in the one not taken does not spread."""
    return apply("where", condition, x, y)


def exp(x: Value) -> Value:
    """e to the power of x."""
    return apply("exp", x)


def log(x: Value) -> Value:
    """The natural logarithm: -inf at 0, NaN below."""
    return apply("log", x)


def sqrt(x: Value) -> Value:
    """The square root; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x): infinite at 0, NaN below."""
    return apply("rsqrt", x)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def erf(x: Value) -> Value:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return apply("erf", x)


def floor(x: Value) -> Value:
    """The largest integer not above x."""
    return apply("floor", x)


def round(x: Value) -> Value:
    """The nearest integer, ties to even."""
    return apply("round", x)


def cast(x: Value, dtype: Any) -> Value:
    """x rounded to a type ("fp16", torch.bfloat16, "fp8_e4m3", ...) and back to fp32; fp8 saturates."""
    return apply("cast", x, value=as_dtype(dtype, "cast").value)


def square(x: Value) -> Value:
    """x * x."""
    x = _traced("square", x)
    return x * x


def relu(x: Value) -> Value:
    """max(x, 0)."""
    return max(x, 0.0)


def leaky_relu(x: Value, slope: Operand = 0.01) -> Value:
    """x above 0, slope * x below (Maas et al., 2013)."""
    x = _traced("leaky_relu", x)
    return x * where(x > 0.0, 1.0, slope)


def gelu(x: Value, approximate: str = "none") -> Value:
    """The Gaussian error linear unit (Hendrycks and Gimpel, arXiv:1606.08415), by default as torch has it.

    Args:
        x: its operand.
        approximate: "none" is x/2 (1 + erf(x / sqrt(2))); "tanh" is
            x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which differs by up to 5e-4. For 16-bit outputs both
            take one tanh instruction and about eight others; "tanh" takes two fewer.

    Raises:
        SpecError: the approximation is not one of these.
    """
    x = _traced("gelu", x)
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        near = checks.near(shown(approximate).strip("'"), ("none", "tanh"))
        raise field_error(SpecError, "gelu.approximate", approximate, "must be 'none' or 'tanh'", near)
    if approximate == "none":
        t = erf(x * math.sqrt(0.5))
    else:
        c = math.sqrt(2 / math.pi)
        t = tanh(x * (c + (c * 0.044715) * (x * x)))
    h = 0.5 * x
    return h + h * t


def gelu_tanh(x: Value) -> Value:
    """`gelu(x, approximate="tanh")`."""
    return gelu(x, "tanh")


def silu(x: Value) -> Value:
    """x * sigmoid(x) (Hendrycks and Gimpel, arXiv:1606.08415), through sigmoid(x) = (1 + tanh(x/2)) / 2."""
    h = 0.5 * _traced("silu", x)
    return h + h * tanh(h)


def softplus(x: Value) -> Value:
    """log(1 + exp(x)), computed without overflow."""
    x = _traced("softplus", x)
    return max(x, 0.0) + log(1.0 + exp(-abs(x)))


def mish(x: Value) -> Value:
    """x * tanh(softplus(x)) (Misra, arXiv:1908.08681).

    tanh(log(1 + e)) = n / (n + 2) with e = exp(x) and n = e (e + 2); above 20 it is 1 to 17 digits.
    """
    e = exp(min(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def hardswish(x: Value) -> Value:
    """x * clamp(x + 3, 0, 6) / 6 (Howard et al., arXiv:1905.02244)."""
    x = _traced("hardswish", x)
    return x * (clamp(x + 3.0, 0.0, 6.0) * (1 / 6))


def random(seed: Value, offset: Value) -> Value:
    """A number in [0, 1), a multiple of 2^-24, which depends only on the two integers and the element's coordinates.

    Philox4x32-10 (Salmon et al., SC'11) with key (seed, 0) and counter (column, row, batch, offset), all
    uint32; of its first word the upper 24 bits. Column and row are those of D, whatever the tiles.
    """
    return apply("random", seed, offset)


def dropout(x: Value, p: Number, seed: Value, offset: Value) -> Value:
    """x / (1 - p) where `random(seed, offset)` >= p, else 0 * x (Srivastava et al., JMLR 15, 2014).

    Args:
        x: its operand; NaN stays NaN, as in torch.
        p: the share dropped, a Python number from 0 to 1, 1 excluded.
        seed, offset: integers; another offset gives other elements.

    Raises:
        SpecError: p is not such a number.
    """
    if not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise field_error(SpecError, "dropout.p", p, "must be a Python number in [0, 1)")
    return _traced("dropout", x) * where(random(seed, offset) >= p, 1 / (1 - p), 0.0)


ACTIVATIONS = {
    "relu": relu, "leaky_relu": leaky_relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu,
    "softplus": softplus, "mish": mish, "hardswish": hardswish, "sigmoid": sigmoid, "tanh": tanh,
}  # fmt: skip
