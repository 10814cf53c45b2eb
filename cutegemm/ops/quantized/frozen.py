# SPDX-License-Identifier: Apache-2.0
"""A linear layer with an 8-bit weight that does not train; the gradient of x is a 16-bit GEMM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.epilogue.scales import Kind
from cutegemm.errors import InputError, field_error
from cutegemm.ops.dispatch import recording
from cutegemm.ops.entry_points import linear, matmul, server_of
from cutegemm.ops.fallback import HALF, autocast_to, autocast_type
from cutegemm.ops.gradients.autograd import summed_rows
from cutegemm.ops.gradients.once import TWICE
from cutegemm.ops.products import is_compiling
from cutegemm.ops.quantized.made import Quantized, quantized, rows_aligned
from cutegemm.ops.quantized.operands import KINDS
from cutegemm.ops.quantized.training import gemm
from cutegemm.running import tangents
from cutegemm.running.arguments.describe import OPERANDS
from cutegemm.running.numerics.eight_bits import dequantized, shifted

_NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Storage:
    """The storage of a layer's operands.

    Attributes:
        kind: of the weight's scales.
        activations: the type that x is quantized to; None dequantizes the weight and multiplies in x's type.
        activation_kind: of x's scales.
        shifted: whether x has zero points, as int8 activations of a tensor or of rows may.
    """

    kind: Kind
    activations: torch.dtype | None
    activation_kind: Kind = "row"
    shifted: bool = False


class Points(NamedTuple):
    """int32 zero points of a layer, and what they need.

    Attributes:
        weight: the weight's, one for each row or 0-d; None if it has none.
        static: x's, 0-d; None computes them with its scales.
        sums: the sums of the weight's rows, which x's zero points need; None sums them in each call.
    """

    weight: Tensor | None = None
    static: Tensor | None = None
    sums: Tensor | None = None


NO_POINTS = Points()


def frozen_linear(
    x: Tensor,
    weight: Quantized,
    bias: Tensor | None,
    storage: Storage,
    static: Tensor | None,
    fallback: str,
    points: Points = NO_POINTS,
) -> Tensor:
    """x @ weight.T + bias in x's type, or in autocast's.

    Args:
        x: (..., K), fp16, bf16 or fp32.
        weight: (N, K) in 8 bits, and its scales.
        bias: None or (N,).
        storage: of both operands.
        static: the scale of x, 0-d; None computes scales from x.
        fallback: as for `linear`.
        points: zero points of both operands.

    Raises:
        GemmError: as for `linear`.
    """
    depth = weight.values.shape[-1]
    if x.dim() == 0 or x.shape[-1] != depth:
        raise field_error(InputError, "input.shape", tuple(x.shape), f"must be (..., {depth})")
    if x.dtype not in OPERANDS:
        raise field_error(InputError, "input.dtype", x.dtype, "must be float16, bfloat16 or float32")
    if storage.activations is None:
        wide = dequantized(*weight, storage.kind, x.dtype, points.weight)
        given = None if bias is None else bias.to(x.dtype)
        found: Tensor = linear(x, wide, given, fallback=fallback)
        return found
    if not is_compiling():
        tangents.refuse((("input", x), ("bias", bias)))
    if (dtype := autocast_type(x.device)) in HALF:
        x, bias = autocast_to(dtype, x), None if bias is None else autocast_to(dtype, bias)
    who = server_of(x.device, fallback, "cutegemm.nn.QuantizedLinear")
    how = storage, fallback, "reference" if who == "torch" else who
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if recording(x, *([] if bias is None else [bias])):
        if torch._C._are_functorch_transforms_active():
            field = "input" if recording(x) else "bias"
            rule = (
                "has no gradient in 8 bits under torch.func and vmap; use plain autograd, or torch.no_grad()"
            )
            raise field_error(InputError, f"{field}.requires_grad", True, rule)
        apply: Any = _Frozen.apply
        found = apply(flat, *weight, bias, static, how, *points)
    else:
        found = _forward(flat, weight, bias, static, how, points)
    return found.reshape(*x.shape[:-1], weight.values.shape[0])


def _forward(
    x: Tensor, weight: Quantized, bias: Any, static: Any, how: tuple[Storage, str, str], points: Points
) -> Tensor:
    storage, _, who = how
    dtype: Any = storage.activations
    kinds = _NAMES[storage.activation_kind], _NAMES[storage.kind]
    given = {} if points.weight is None else {"zero_point_b": points.weight}
    if not storage.shifted:
        made = quantized(x, storage.activation_kind, dtype, static)
    else:
        values, scale, given["zero_point_a"] = shifted(x, storage.activation_kind, static, points.static)
        made = Quantized(rows_aligned(values), scale)
        given |= {} if points.sums is None else {"sums_b": points.sums}
    return gemm(made, weight, kinds, x.dtype, who, bias, given)


class _Frozen(torch.autograd.Function):
    """`_forward` with a gradient that ignores the quantization of x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, scale: Tensor, bias: Any, static: Any, how: Any, *points: Any
    ) -> Tensor:
        """The layer's output."""
        ctx.save_for_backward(values, scale, points[0])
        ctx.how, ctx.bias = how, None if bias is None else bias.dtype
        return _forward(x, Quantized(values, scale), bias, static, how, Points(*points))

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        """dX = dY W with the dequantized weight, and the bias's gradient.

        Raises:
            InputError: autograd records the backward pass (double backward).
        """
        if not is_compiling() and torch.is_grad_enabled():
            raise InputError(TWICE)
        storage, fallback, _ = ctx.how
        values, scale, zero = ctx.saved_tensors
        dx = db = None
        if ctx.needs_input_grad[0]:
            wide = dequantized(values, scale, storage.kind, above.dtype, zero)
            # a literal alpha, because Dynamo fails on float defaults in a second backward graph (docs/pytorch.md)
            dx = matmul(above, wide, alpha=1.0, fallback=fallback)
        if ctx.needs_input_grad[3]:
            db = summed_rows(above, ctx.bias)
        return dx, None, None, db, None, None, None, None, None


__all__ = ["NO_POINTS", "Points", "Storage", "frozen_linear"]
