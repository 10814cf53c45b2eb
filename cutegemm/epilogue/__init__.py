# SPDX-License-Identifier: Apache-2.0
"""Epilogues: what happens to an accumulator element on its way to D, written as a Python function.

>>> from cutegemm import epilogue as epi
>>> @epi.define
... def mlp(acc, *, bias: epi.Row, residual: epi.Matrix, scale: epi.Scalar):
...     h = epi.gelu(acc * scale + bias)
...     return epi.Output(d=h + residual, hidden=epi.Store(h, dtype="bf16"), amax=epi.Max(abs(h)))
"""

from cutegemm.epilogue import functions, library
from cutegemm.epilogue.derivative import backward, with_saved
from cutegemm.epilogue.functions import *  # noqa: F403
from cutegemm.epilogue.graph import Graph, Node, Result
from cutegemm.epilogue.hints import UnknownOperation, unknown
from cutegemm.epilogue.library import *  # noqa: F403
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
    quantize,
)
from cutegemm.epilogue.value import Value

__all__ = [
    "AbsMax", "Col", "Graph", "Integer", "LogSumExp", "Matrix", "Max", "Node", "Output", "Result", "Row",
    "Scalar", "Store", "Sum", "SumSquares", "UnknownOperation", "Value", "backward", "define", "quantize", "with_saved",
    *functions.__all__, *library.__all__,
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise unknown(name, __all__)
