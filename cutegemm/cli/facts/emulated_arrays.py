# SPDX-License-Identifier: Apache-2.0
"""Arguments of emulated kernels as NumPy arrays: from the command line, or the operands of a problem."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.emulator.numbers.rounding import fp8_values
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error
from cutegemm.problems import Operand, Problem, columns
from cutegemm.running.arguments.named import Order

# values for an epilogue's numbers, and for its integers such as a seed
SCALAR, INTEGER = 0.5, 1
# every byte of an output before a run: a NaN in every type
POISON = 0xFF
ALIGN = 1024  # bytes; the largest alignment that a kernel requires

_ARRAY = re.compile(r"([a-z]+\d+)(?::|\[)(\d+(?:x\d+)*)\]?")
_TYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "uint16",
    **{f"{kind}{bits}": f"{name}int{bits}" for bits in (8, 16, 32, 64) for kind, name in (("s", ""), ("u", "u"))},
}  # fmt: skip
# bf16 and fp8, which NumPy lacks, are stored as bits
_NUMPY = {
    DType.FP16: "float16", DType.BF16: "uint16", DType.FP32: "float32",
    DType.FP8_E4M3: "uint8", DType.FP8_E5M2: "uint8",
    DType.INT8: "int8", DType.UINT8: "uint8", DType.INT32: "int32",
}  # fmt: skip


def argument(text: str, seed: int = 0) -> Any:
    """An argument of a kernel: a number, or `TYPE:EXTENTS` for an array such as f16:128x64.

    Raises:
        InputError: it is neither.
    """
    array = _ARRAY.fullmatch(text)
    if array is not None and array[1] in _TYPES:
        kind = array[1]
        shape, draw = tuple(map(int, array[2].split("x"))), np.random.default_rng(seed)
        if kind.startswith(("s", "u")):
            drawn = draw.integers(0, 100, shape).astype(_TYPES[kind])
        else:
            drawn = _bits_of(draw.standard_normal(shape), DType.BF16 if kind == "bf16" else _TYPES[kind])
        # as aligned as device memory, so that sectors are counted as on a GPU
        made = memory(drawn.nbytes)[: drawn.nbytes].view(drawn.dtype).reshape(shape)
        made[...] = drawn
        return made
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError as error:
        rule = f"must be a number or TYPE:EXTENTS, TYPE one of {', '.join(_TYPES)}"
        raise field_error(InputError, "--arg", text, rule, "f16:128x64") from error


def _bits_of(values: Any, dtype: DType | str) -> Any:
    """Numbers converted to a type; bf16 is truncated and returned as bits."""
    if dtype is DType.BF16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(_NUMPY[dtype] if isinstance(dtype, DType) else dtype)


def numbers_of(array: Any, dtype: DType) -> Any:
    """An array as fp64; bf16 and fp8 elements are given as bits."""
    if dtype in (DType.FP8_E4M3, DType.FP8_E5M2):
        return fp8_values(dtype.value.removeprefix("fp8_"))[array].astype(np.float64)
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


@dataclass(frozen=True)
class Arrays:
    """One call's arguments."""

    named: dict[str, Any]  # arrays by name, each with the batch first
    numbers: dict[str, float]  # passed by value
    graph: Graph  # the epilogue

    @property
    def addresses(self) -> dict[str, int]:
        """The address of each array."""
        return {name: x.ctypes.data for name, x in self.named.items()}


def arrays(problem: Problem, graph: Graph, parts: tuple[int, int, int]) -> Arrays:
    """Operands of a problem, standard normal with a fixed seed, and outputs filled with NaN.

    Args:
        problem: of the call.
        graph: the epilogue.
        parts: partial results per result of a reduction over D's rows, columns and all.
    """
    draw = np.random.default_rng(0)
    order = Order.of(graph, problem.device_scalars)
    outputs = dict(problem.outputs)
    named = {
        name: _matrices(x, None if name in outputs else draw)
        for name, x in {"a": problem.a, "b": problem.b, **dict(problem.inputs), **outputs}.items()
    }
    wide = columns(graph, problem.n)
    for result in graph.reductions:
        poison = np.uint8(POISON) if result.exponents else np.float32(np.nan)
        named[result.name] = np.full(result.shape(problem.batch, problem.m, wide, parts), poison)
    named |= {name: np.full(1, SCALAR, np.float32) for name in problem.device_scalars}
    numbers = {x: INTEGER if graph.numbers[x] == "integer" else SCALAR for x in order.numbers}
    return Arrays({x: named[x] for x in order.names}, numbers, graph)


def memory(size: int) -> Any:
    """Aligned zeros, at least one byte."""
    raw = np.zeros(max(size, 1) + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + max(size, 1)]


def _matrices(x: Operand, draw: Any) -> Any:
    """A stack of matrices with exactly an operand's strides and alignment: random, or NaN without a generator."""
    row, col, batch = x.strides
    shape, strides, size = (x.batch, x.rows, x.cols), (batch, row, col), x.dtype.bytes
    last = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    offset, count = 0 if x.align >= 16 else x.align, max(last + 1, 1)
    raw = memory(offset + count * size)[offset:].view(_NUMPY[x.dtype])
    if draw is None:
        raw.view(np.uint8)[:] = POISON
    elif size == 1:
        # small numbers of either sign, without NaNs
        raw[:] = draw.integers(0, 0x40, count) + 0x80 * draw.integers(0, 2, count)
    else:
        raw[:] = _bits_of(draw.standard_normal(count), x.dtype)
    return np.lib.stride_tricks.as_strided(raw, shape, [step * size for step in strides])
