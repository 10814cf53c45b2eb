# SPDX-License-Identifier: Apache-2.0
"""Epilogues: what happens to an accumulator element on its way to D, written as a Python function.

>>> from cutegemm import epilogue as epi
>>> @epi.define
... def mlp(acc, *, bias: epi.Row, residual: epi.Matrix, scale: epi.Scalar):
...     h = epi.gelu(acc * scale + bias)
...     return epi.Output(d=h + residual, pre=epi.Store(h, dtype="bf16"), amax=epi.Max(abs(h)))
"""

from cutegemm.epilogue.functions import (
    abs,
    cast,
    clamp,
    dropout,
    erf,
    exp,
    floor,
    gelu,
    hardswish,
    leaky_relu,
    log,
    max,
    min,
    mish,
    random,
    relu,
    round,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    sqrt,
    square,
    tanh,
    where,
)  # fmt: skip
from cutegemm.epilogue.graph import Graph, Node, Result, linear_combination
from cutegemm.epilogue.trace import (
    AbsMax,
    Col,
    Integer,
    LogSumExp,
    Matrix,
    Max,
    Output,
    Row,
    Scalar,
    Store,
    Sum,
    SumSquares,
    define,
)  # fmt: skip
from cutegemm.epilogue.value import Value

__all__ = [
    "AbsMax", "Col", "Graph", "Integer", "LogSumExp", "Matrix", "Max", "Node", "Output", "Result", "Row",
    "Scalar", "Store", "Sum", "SumSquares", "Value", "abs", "cast", "clamp", "define", "dropout", "erf", "exp",
    "floor", "gelu", "hardswish", "leaky_relu", "linear_combination", "log", "max", "min", "mish", "random",
    "relu", "round", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "square", "tanh", "where",
]  # fmt: skip
