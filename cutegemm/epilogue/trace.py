# SPDX-License-Identifier: Apache-2.0
"""`define`: a Python function, run once on values that record it, becomes an epilogue graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, overload

from cutegemm import checks
from cutegemm.dtypes import LARGEST, DType, as_dtype
from cutegemm.epilogue.functions import abs as magnitude
from cutegemm.epilogue.functions import square
from cutegemm.epilogue.graph import ACCUMULATORS, GATED, RESERVED, SCALE, STORE, Graph, Result, is_name
from cutegemm.epilogue.scales import BLOCKS, ROW, TENSOR, UE8M0, checked
from cutegemm.epilogue.value import Trace, Value
from cutegemm.errors import SpecError, field_error


class Row(Value):
    """Annotates an input with one number per column of D: (N,), or (L, N) per batch."""


class Col(Value):
    """Annotates an input of one number per row of D: a vector of M elements, or (L, M) per batch."""


class Matrix(Value):
    """Annotates an input of D's shape: (M, N) or (L, M, N), any dtype, any strides."""


class Scalar(Value):
    """Annotates a number given at run time: a Python number or a 0-d tensor, fp32."""


class Integer(Value):
    """Annotates an integer given at run time, int32: the seed or offset of `random`."""


KINDS = {Row: "row", Col: "col", Matrix: "matrix", Scalar: "scalar", Integer: "integer"}


class _Finished:
    """What an epilogue gives, and cannot compute with: it is known when all tiles are done."""


def _refusal(operation: str) -> Callable[..., Any]:
    def method(self: _Finished, *_: Any) -> Any:
        rule = (
            f"an output cannot take part in {operation}: it is known when the launch has ended. Compute with it after "
            "the launch, or in the next epilogue, as an input (epi.Col, epi.Row, epi.Scalar)"
        )
        raise field_error(SpecError, "epilogue", type(self).__name__, rule)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv", "matmul", "and", "or"):
    for _side in ("", "r"):
        setattr(_Finished, f"__{_side}{_name}__", _refusal("arithmetic"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(_Finished, f"__{_name}__", _refusal("arithmetic"))
for _name in ("lt", "le", "gt", "ge", "bool"):
    setattr(_Finished, f"__{_name}__", _refusal("a comparison"))


@dataclass(frozen=True, eq=False)
class Store(_Finished, checks.Named):
    """An output of D's shape: `value` rounded to `dtype` (fp8 saturates).

    Attributes:
        value: what is stored.
        dtype: a name or torch dtype; None means the spec's d_dtype for d, else A's dtype.
        major: "n" (row-major) or "m"; None means that of the tensor passed, row-major if none is.
    """

    value: Value
    dtype: Any = None
    major: str | None = None

    def result(self, name: str) -> Result:
        """The graph's record of this output."""
        dtype = None if self.dtype is None else as_dtype(self.dtype, f"{name}.dtype").value
        return Result(name, self.value.index, dtype=dtype, major=self.major)


@dataclass(frozen=True, eq=False)
class _Reduction(_Finished, checks.Named):
    """An fp32 output reduced along an axis of D, as torch counts axes: batches are reduced one by one.

    A run returns (N,) for axis 0, (M,) for axis 1 and () for None, with a batch (L, N), (L, M) and (L,). `linear`
    returns x's leading dimensions in the place of (M,).

    Attributes:
        value: what is reduced; outside the matrix there is nothing.
        axis: 1 or -1 reduces the columns of every row, 0 or -2 the rows of every column, None both.
        partial: `Gemm.run` returns the tiles' partial results (`results.Partial`), for an own reduction; `linear`,
            `matmul` and `bmm` finish them.
    """

    value: Value
    axis: int | None = None
    partial: bool = False
    kind: ClassVar[str]

    def result(self, name: str) -> Result:
        """The graph's record of this output."""
        # an integer of any type is Python's own in the graph
        found = checks.integers((self.axis,))
        axis = self.axis if found is None else {-1: 1, -2: 0}.get(found[0], found[0])
        return Result(name, self.value.index, self.kind, axis=axis, partial=self.partial)


class Sum(_Reduction):
    """The sum."""

    kind = "sum"


class Max(_Reduction):
    """The maximum; NaN if any element is."""

    kind = "max"


class LogSumExp(_Reduction):
    """log(sum(exp(value))), computed without overflow."""

    kind = "logsumexp"


def AbsMax(value: Value, axis: int | None = None, partial: bool = False) -> Max:  # noqa: N802
    """The maximum magnitude: `Max` of abs(value), and what it returns."""
    return Max(magnitude(value), axis, partial)


def SumSquares(value: Value, axis: int | None = None, partial: bool = False) -> Sum:  # noqa: N802
    """The sum of squares: `Sum` of value * value, and what it returns."""
    return Sum(square(value), axis, partial)


@dataclass(frozen=True, eq=False)
class _OfBlocks(_Finished, checks.Named):
    """Values or scales of blocks, which `quantize` gives."""

    value: Value
    kind: str
    dtype: str
    block: int
    exponents: bool

    def result(self, name: str) -> Result:
        """The graph's record of this output."""
        axis = 1 if self.kind == SCALE else None
        return Result(
            name,
            self.value.index,
            self.kind,
            self.dtype,
            axis=axis,
            block=self.block,
            exponents=self.exponents,
        )


class Quantized(NamedTuple):
    """A matrix in 8 bits and the scales of its blocks, two outputs."""

    values: _OfBlocks
    scale: _OfBlocks


def quantize(
    value: Value, kind: Any = BLOCKS[0], dtype: Any = DType.FP8_E4M3, scale_dtype: Any = DType.FP32
) -> Quantized:
    """D in 8 bits and a scale for each block of 128 columns, as `cutegemm.quantize` makes both of the fp32 value.

    A run gives them as the next GEMM takes them: `run(out.d, ..., scale_a=out.scale)`. Scales of rows are known when
    all tiles are: store the value, and quantise it by `cutegemm.quantize`, which reads it once.

    Args:
        value: what is quantised.
        kind: ("block", 1, 128), a row's 128 columns, or ("block", 128, 128).
        dtype: "fp8_e4m3", "fp8_e5m2" or "int8".
        scale_dtype: "fp32", or "ue8m0" for powers of two, which are returned as torch.float8_e8m0fnu.

    Raises:
        SpecError: an argument is none of these.

    Example:
        >>> q = quantize(relu(acc + bias))   # doctest: +SKIP
        >>> return Output(d=q.values, scale=q.scale)   # doctest: +SKIP
    """
    if not isinstance(value, Value):
        raise field_error(SpecError, "value", value, "must be a value of this epilogue")
    if isinstance(kind, str) and kind in (ROW, TENSOR):
        rule = "is known when all tiles of D are; store D, and quantise it by cutegemm.quantize"
        raise field_error(SpecError, "kind", kind, rule, BLOCKS[0])
    found = checked("kind", kind, BLOCKS)
    if (of := as_dtype(dtype)) not in LARGEST:
        rule = f"must be one of {', '.join(x.value for x in LARGEST)}"
        raise field_error(SpecError, "dtype", dtype, rule, DType.FP8_E4M3)
    exponents = str(scale_dtype) in (UE8M0, "torch.float8_e8m0fnu")
    if not exponents and str(scale_dtype) not in ("fp32", "torch.float32", str(DType.FP32)):
        rule = f'must be "fp32" or "{UE8M0}"'
        raise field_error(SpecError, "scale_dtype", scale_dtype, rule, "fp32")
    made = (_OfBlocks(value, x, of.value, int(found[1]), exponents) for x in (STORE, SCALE))
    return Quantized(*made)


class Output(_Finished):
    """The return value of an epilogue function with more outputs than D: outputs by name, at least one.

    A plain value is stored as a matrix; `d` is the GEMM's D and may be absent.

    Example:
        >>> Output(d=h + residual, hidden=Store(h, dtype="bf16"), amax=Max(abs(h)))   # doctest: +SKIP
    """

    def __init__(self, /, **named: Value | Store | _Reduction) -> None:
        self.named = named


@overload
def define(function: Callable[..., Value | Store | Output], *, gated: str | None = None) -> Graph: ...


@overload
def define(
    function: None = None, *, gated: str | None = None
) -> Callable[[Callable[..., Value | Store | Output]], Graph]: ...


def define(function: Callable[..., Any] | None = None, *, gated: str | None = None) -> Any:
    """Make an epilogue graph of a function; a decorator, with or without arguments.

    The function's first parameter is `acc`, the accumulator's element; of a gated epilogue the first two
    are `gate` and `up`. Inputs follow as keyword-only parameters annotated `Row`, `Col`, `Matrix`, `Scalar`
    or `Integer`. The function runs once, here, in plain Python, and returns D's value or an `Output`.

    Args:
        function: the function.
        gated: None, or where B's columns hold the gate and up matrices: "halves" ([gate | up]) or
            "interleaved" (gate in the even columns); D then has N / 2 columns.

    Returns:
        The `Graph`, ready for `GemmSpec(epilogue=...)`. Functions that compute alike give equal graphs.

    Raises:
        SpecError: the signature or what is returned is not as above, an input is not used, or the function
            needs a value while it is being traced, as a Python `if` does.

    Example:
        >>> @define
        ... def biased(acc, *, bias: Row, scale: Scalar):
        ...     return acc * scale + bias
        >>> print(biased)
        d = acc * scale + bias
    """
    if not checks.among(gated, GATED):
        raise field_error(SpecError, "gated", gated, f"must be one of {GATED}")
    if function is None:
        return lambda f: define(f, gated=gated)
    if not callable(function):
        raise field_error(SpecError, "define", function, "must be a function")
    name = getattr(function, "__name__", "epilogue")
    inputs = _inputs(function, name, gated)
    trace = Trace()
    accumulators = [trace.record("acc", value=x) for x in (ACCUMULATORS if gated else (None,))]
    leaves = {x: trace.record(kind, value=x) for x, kind in inputs.items()}
    graph = trace.graph(_results(function(*accumulators, **leaves), name, trace), gated)
    for unused in sorted(inputs.keys() - {*graph.tensors, *graph.numbers}):
        raise field_error(SpecError, name, unused, "no output depends on this input; remove the parameter")
    return graph


def _inputs(function: Callable[..., Any], name: str, gated: str | None) -> dict[str, str]:
    """Name -> kind of the inputs, from the signature."""
    first = ACCUMULATORS if gated else ("acc",)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        rule = "must be a function whose parameters Python can tell"
        raise field_error(SpecError, "define", function, rule) from error
    leading = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if tuple(p.name for p in leading) != first:
        rule = f"the parameters before the * must be {', '.join(first)}; inputs follow it"
        raise field_error(SpecError, name, tuple(p.name for p in leading), rule, first)
    reserved = (*RESERVED, *ACCUMULATORS) if gated else RESERVED
    inputs = {}
    for p in parameters:
        if p.default is not p.empty:
            raise field_error(SpecError, f"{name}.{p.name}", p.default, "an input has no default value")
        if p in leading:
            continue
        if p.kind is not p.KEYWORD_ONLY:
            rule = "inputs must be named one by one, not collected by * or **"
            raise field_error(SpecError, name, str(p), rule)
        if p.name in reserved or not is_name(p.name):
            rule = "an input may not have this name"
            raise field_error(SpecError, name, p.name, rule, p.name.lstrip("_") + "_")
        inputs[p.name] = _kind(function, f"{name}.{p.name}", p.annotation)
    return inputs


def _kind(function: Callable[..., Any], field: str, annotation: Any) -> str:
    """The kind of input an annotation names; one left as text is read where the function was written."""
    if isinstance(annotation, str):
        variables = inspect.getclosurevars(function)
        try:
            annotation = eval(
                annotation, {**variables.globals, **function.__globals__, **variables.nonlocals}
            )
        except (NameError, AttributeError):  # a local name that the body does not use, or no name at all
            last = annotation.rpartition(".")[2]
            annotation = next((k for k in KINDS if k.__name__ == last), annotation)
    if isinstance(annotation, type) and annotation in KINDS:
        return KINDS[annotation]
    given = None if annotation is inspect.Parameter.empty else annotation
    legal = [k.__name__ for k in KINDS]
    near = checks.near(getattr(given, "__name__", str(given)).rpartition(".")[2], legal)
    rule = f"an input must be annotated with one of {', '.join(legal)}"
    raise field_error(SpecError, field, given, rule, near)


def _results(returned: Any, name: str, trace: Trace) -> list[Result]:
    """The records of what a function returned."""
    if isinstance(returned, (Value, Store)):
        returned = Output(d=returned)
    if not isinstance(returned, Output):
        raise field_error(SpecError, name, returned, "must return a value or an Output of named values")
    if not returned.named:
        raise field_error(SpecError, name, "Output()", "must have an output")
    results = []
    for key, x in returned.named.items():
        if isinstance(x, Value):
            x = Store(x)
        if (
            not isinstance(x, (Store, _Reduction, _OfBlocks))
            or not isinstance(x.value, Value)
            or x.value.trace is not trace
        ):
            rule = (
                "an output must be a value of this epilogue, or Store, Sum, Max, LogSumExp or quantize of one"
            )
            raise field_error(SpecError, f"{name}.{key}", x, rule)
        results.append(x.result(key))
    return results
