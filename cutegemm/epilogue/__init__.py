# SPDX-License-Identifier: Apache-2.0
"""Epilogues: what happens to an accumulator element on its way to D, written as a Python function.

>>> from cutegemm import epilogue as epi
>>> @epi.define
... def mlp(acc, *, bias: epi.Row, residual: epi.Matrix, scale: epi.Scalar):
...     h = epi.gelu(acc * scale + bias)
...     return epi.Output(d=h + residual, pre=epi.Store(h, dtype="bf16"), amax=epi.Max(abs(h)))
"""

import difflib

from cutegemm.epilogue import functions, library
from cutegemm.epilogue.derivative import backward
from cutegemm.epilogue.functions import *  # noqa: F403
from cutegemm.epilogue.graph import Graph, Node, Result
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
)
from cutegemm.epilogue.value import Value
from cutegemm.errors import SpecError, field_error

__all__ = [
    "AbsMax", "Col", "Graph", "Integer", "LogSumExp", "Matrix", "Max", "Node", "Output", "Result", "Row",
    "Scalar", "Store", "Sum", "SumSquares", "Value", "backward", "define", *functions.__all__, *library.__all__,
]  # fmt: skip


class UnknownOperation(SpecError, AttributeError):
    """The epilogue language has no such name."""


def __getattr__(name: str) -> object:
    near = difflib.get_close_matches(name, __all__, 1)
    error = field_error(SpecError, "epilogue", name, "unknown operation", near[0] if near else None)
    raise UnknownOperation(str(error))
