# SPDX-License-Identifier: Apache-2.0
"""Ready epilogues, each a few lines of the epilogue language, as graphs for `GemmSpec(epilogue=...)`.

Each docstring lists the inputs as (name: kind); a call passes them by name. Your own epilogues are written the same
way, see `define`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec

from cutegemm import checks
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import functions as fn
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.epilogue.hints import nearest
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
    SumSquares,
    define,
)
from cutegemm.epilogue.value import Value
from cutegemm.errors import SpecError, field_error

__all__ = [
    "act", "bias", "bias_act", "bias_act_residual", "bias_quantize_fp8", "col_max", "cross_entropy_partials",
    "dropout_residual", "geglu", "linear_combination", "quantize_fp8", "reglu", "residual", "rms_apply",
    "rms_partial", "row_max", "scaled", "softmax_apply", "softmax_partials", "swiglu",
]  # fmt: skip


_Given = ParamSpec("_Given")


def _kept(make: Callable[_Given, Graph]) -> Callable[_Given, Graph]:
    """Give the same graph for the same words and numbers: tracing it takes longer than a call of a kernel."""
    make = checks.keywords()(make)
    known: Any = lru_cache(maxsize=64, typed=True)(make)

    @wraps(make)
    def found(*args: _Given.args, **named: _Given.kwargs) -> Graph:
        if all([type(x) in (str, float, bool, DType) for x in (*args, *named.values())]):
            graph: Graph = known(*args, **named)
            return graph
        return make(*args, **named)

    return found


@_kept
def bias() -> Graph:
    """D = acc + bias: torch.nn.Linear. (bias: Row)"""

    @define
    def bias(acc: Value, *, bias: Row) -> Value:
        return acc + bias

    return bias


@_kept
def act(activation: str = "gelu") -> Graph:
    """D = activation(acc): a layer of a perceptron without a bias."""
    function = _activation(activation)

    @define
    def act(acc: Value) -> Value:
        return function(acc)

    return act


@_kept
def bias_act(activation: str = "gelu") -> Graph:
    """D = activation(acc + bias): a layer of a perceptron. (bias: Row)"""
    act = _activation(activation)

    @define
    def bias_act(acc: Value, *, bias: Row) -> Value:
        return act(acc + bias)

    return bias_act


@_kept
def residual() -> Graph:
    """D = acc + residual: the skip of He et al., arXiv:1512.03385. (residual: Matrix)"""

    @define
    def residual(acc: Value, *, residual: Matrix) -> Value:
        return acc + residual

    return residual


@_kept
def bias_act_residual(activation: str = "gelu") -> Graph:
    """D = activation(acc + bias) + residual. (bias: Row, residual: Matrix)"""
    act = _activation(activation)

    @define
    def bias_act_residual(acc: Value, *, bias: Row, residual: Matrix) -> Value:
        return act(acc + bias) + residual

    return bias_act_residual


@_kept
def dropout_residual(p: float = 0.1) -> Graph:
    """D = dropout(acc + bias, p) + residual: the end of a transformer's block (Vaswani et al.,
    arXiv:1706.03762, section 5.4). (bias: Row, residual: Matrix, seed: Integer, offset: Integer)
    """

    @define
    def dropout_residual(acc: Value, *, bias: Row, residual: Matrix, seed: Integer, offset: Integer) -> Value:
        return fn.dropout(acc + bias, p, seed, offset) + residual

    return dropout_residual


@_kept
def swiglu(layout: str = "halves") -> Graph:
    """D = silu(gate) * up (Shazeer, arXiv:2002.05202); `layout` is that of B's columns, see `define`."""
    return _glu("silu", layout)


@_kept
def geglu(layout: str = "halves") -> Graph:
    """D = gelu(gate) * up (Shazeer, arXiv:2002.05202), gelu by erf; `layout` is that of B's columns."""
    return _glu("gelu", layout)


@_kept
def reglu(layout: str = "halves") -> Graph:
    """D = relu(gate) * up (Shazeer, arXiv:2002.05202); `layout` is that of B's columns."""
    return _glu("relu", layout)


def _glu(activation: str, layout: str) -> Graph:
    act = _activation(activation)
    layout = _choose("layout", layout, {"halves": "halves", "interleaved": "interleaved"})

    @define(gated=layout)
    def glu(gate: Value, up: Value) -> Value:
        return act(gate) * up

    return glu


@_kept
def scaled(per: str = "tensor") -> Graph:
    """D = acc * scale_a * scale_b: the product of quantised A and B, dequantised as torch._scaled_mm does.

    Args:
        per: "tensor" (scale_a: Scalar, scale_b: Scalar); "row" (scale_a: Col, one per row of A, scale_b:
            Scalar); "column" (scale_a: Scalar, scale_b: Row, one per column of B); "both" (Col and Row).

    Raises:
        SpecError: `per` is not one of these.
    """

    @define
    def tensor(acc: Value, *, scale_a: Scalar, scale_b: Scalar) -> Value:
        return acc * scale_a * scale_b

    @define
    def row(acc: Value, *, scale_a: Col, scale_b: Scalar) -> Value:
        return acc * scale_a * scale_b

    @define
    def column(acc: Value, *, scale_a: Scalar, scale_b: Row) -> Value:
        return acc * scale_a * scale_b

    @define
    def both(acc: Value, *, scale_a: Col, scale_b: Row) -> Value:
        return acc * scale_a * scale_b

    found: Graph = _choose("per", per, {"tensor": tensor, "row": row, "column": column, "both": both})
    return found


@_kept
def quantize_fp8(dtype: Any = "fp8_e4m3") -> Graph:
    """D = fp8(acc * scale), and the maximum of |acc| for the next scale: delayed scaling, as in
    Transformer Engine (formats: Micikevicius et al., arXiv:2209.05433). (scale: Scalar); outputs d, amax.
    """
    dtype = _fp8(dtype)

    @define
    def quantize_fp8(acc: Value, *, scale: Scalar) -> Output:
        return Output(d=Store(acc * scale, dtype), amax=AbsMax(acc))

    return quantize_fp8


@_kept
def bias_quantize_fp8(dtype: Any = "fp8_e4m3") -> Graph:
    """`quantize_fp8` of acc + bias. (bias: Row, scale: Scalar); outputs d, amax."""
    dtype = _fp8(dtype)

    @define
    def bias_quantize_fp8(acc: Value, *, bias: Row, scale: Scalar) -> Output:
        h = acc + bias
        return Output(d=Store(h * scale, dtype), amax=AbsMax(h))

    return bias_quantize_fp8


@_kept
def rms_partial() -> Graph:
    """D = acc + residual, and partial sums of squares of its rows: the statistic of RMSNorm (Zhang and Sennrich,
    arXiv:1910.07467), computed while D is in registers. (residual: Matrix); outputs d and squares. `Gemm.run` gives
    squares per row and tile, `linear` per row.

    Example, a norm between two layers; its weight `gain` is multiplied into the second layer's weight:
        >>> h = linear(x, w, epilogue=rms_partial(), residual=x)                           # doctest: +SKIP
        >>> known = dict(squares=h.squares, inverse_n=1 / h.d.shape[-1], eps=1e-6)         # doctest: +SKIP
        >>> y = linear(h.d, w2 * gain, epilogue=rms_apply(), **known)                      # doctest: +SKIP
    """

    @define
    def rms_partial(acc: Value, *, residual: Matrix) -> Output:
        h = acc + residual
        return Output(d=h, squares=SumSquares(h, axis=1, partial=True))

    return rms_partial


@_kept
def rms_apply() -> Graph:
    """D = acc / sqrt(squares * inverse_n + eps): the RMSNorm of A's rows, applied after the GEMM that follows it.
    Multiply its weight into B. (squares: Col, inverse_n: Scalar, 1 / A's columns, eps: Scalar)
    """

    @define
    def rms_apply(acc: Value, *, squares: Col, inverse_n: Scalar, eps: Scalar) -> Value:
        return acc * fn.rsqrt(squares * inverse_n + eps)

    return rms_apply


@_kept
def softmax_partials() -> Graph:
    """D = acc * scale, and partial log-sum-exps of its rows (Milakov and Gimelshein,
    arXiv:1805.02867); softmax is exp(D - lse). (scale: Scalar); outputs d, lse (per row and tile).
    """

    @define
    def softmax_partials(acc: Value, *, scale: Scalar) -> Output:
        x = acc * scale
        return Output(d=x, lse=LogSumExp(x, axis=1, partial=True))

    return softmax_partials


@_kept
def softmax_apply() -> Graph:
    """D = exp(acc * scale - lse): the softmax of the rows, given their log-sum-exp. (scale: Scalar, lse: Col)"""

    @define
    def softmax_apply(acc: Value, *, scale: Scalar, lse: Col) -> Value:
        return fn.exp(acc * scale - lse)

    return softmax_apply


@_kept
def row_max() -> Graph:
    """D = acc and the maximum of every row; outputs d, row_max (M)."""
    return define(lambda acc: Output(d=acc, row_max=Max(acc, axis=1)))


@_kept
def col_max() -> Graph:
    """D = acc and the maximum of every column; outputs d, col_max (N)."""
    return define(lambda acc: Output(d=acc, col_max=Max(acc, axis=0)))


@_kept
def cross_entropy_partials(store_logits: bool = False) -> Graph:
    """Partial log-sum-exps of the rows of logits, which need not be stored (Wijmans et al.,
    arXiv:2411.09009); the loss is lse minus the target's logit. Outputs lse (per row and tile), with
    `store_logits` also d.
    """
    checks.truth(SpecError, "store_logits", store_logits)

    @define
    def cross_entropy_partials(acc: Value) -> Output:
        lse = LogSumExp(acc, axis=1, partial=True)
        return Output(d=acc, lse=lse) if store_logits else Output(lse=lse)

    return cross_entropy_partials


def _activation(name: str) -> Callable[[Value], Value]:
    found: Callable[[Value], Value] = _choose("activation", name, fn.ACTIVATIONS)
    return found


def _fp8(dtype: Any) -> DType:
    found = as_dtype(dtype)
    if found not in (DType.FP8_E4M3, DType.FP8_E5M2):
        raise field_error(SpecError, "dtype", dtype, "must be fp8_e4m3 or fp8_e5m2", "fp8_e4m3")
    return found


def _choose(field: str, name: str, choices: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in choices:
        near = nearest(name, choices) if isinstance(name, str) else None
        raise field_error(SpecError, field, name, f"must be one of {', '.join(choices)}", near)
    return choices[name]
