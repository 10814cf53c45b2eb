# SPDX-License-Identifier: Apache-2.0
"""A linear layer with three fp8 GEMMs: it quantizes its operands, and has gradients like a 16-bit layer.

    forward   Y  = X W^T     x and weight in e4m3, scales along K
    input     dX = dY W      dY in e5m2 along N, the transposed weight along N
    weight    dW = dY^T X    the transposed dY in e5m2 and the transposed x in e4m3, along the rows of x

The forward pass keeps the transposed x in 8 bits for dW, and the weight itself for dX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.epilogue.scaling import PLAIN
from cutegemm.errors import InputError, field_error
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import HALF, autocast_to, autocast_type
from cutegemm.ops.gradients.autograd import summed_rows
from cutegemm.ops.gradients.once import TWICE
from cutegemm.ops.products import is_compiling, product, program_of
from cutegemm.ops.program import BIASED
from cutegemm.ops.quantized.made import Quantized, quantized, twins
from cutegemm.ops.quantized.operands import KINDS
from cutegemm.ops.shortcuts import remember_scaled, scaled_again
from cutegemm.running import tangents
from cutegemm.running.arguments import zero_points
from cutegemm.running.arguments.describe import OPERANDS, check_tensor
from cutegemm.spec import GemmSpec

# name -> kinds of the scales of activations and gradients, and of weights
RECIPES = {"row": ("row", "row"), "block": ("1x128", "128x128")}
FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
NO_POINTS: Mapping[str, Tensor] = {}
# module-level names, because torch.compile finds a spec by its global name
_FP16, _BF16, _FP32 = (GemmSpec(d_dtype=x) for x in OPERANDS)


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Any, who: str, others: Any) -> Tensor:
    """`linear` with `fp8=recipe`.

    Args:
        x, weight, bias, recipe: as the caller of `linear` gave them.
        who: the result of `fallback.server`.
        others: further arguments by name; None if not given.

    Raises:
        InputError: an argument has a wrong type or shape, or is not supported with a recipe.
    """
    checks.choice(InputError, "fp8", recipe, tuple(RECIPES))
    for name, value in others.items():
        if value is not None:
            raise field_error(InputError, name, "...", "is not read where fp8 names a recipe; only a bias is")
    dtype = autocast_type(x.device)
    if dtype in HALF:
        x, weight = autocast_to(dtype, x), autocast_to(dtype, weight)
        bias = None if bias is None else autocast_to(dtype, bias)
    with torch.no_grad():
        check_tensor("x", x, tuple(range(1, 9)), OPERANDS)
        check_tensor("weight", weight, (2,), (x.dtype,))
        if bias is not None:
            check_tensor("bias", bias, (1,), OPERANDS)
    n, k = weight.shape
    if x.shape[-1] != k:
        rule = f"x is {tuple(x.shape)}, so weight must be (N, {x.shape[-1]})"
        raise field_error(InputError, "weight.shape", tuple(weight.shape), rule)
    if bias is not None and bias.shape[0] != n:
        raise field_error(InputError, "bias.shape", tuple(bias.shape), f"must be {(n,)}")
    if not is_compiling():
        tangents.refuse((("x", x), ("weight", weight), ("bias", bias)))
    flat = x.reshape(math.prod(x.shape[:-1]), k)
    if torch._C._are_functorch_transforms_active():
        found = _transformed(flat, weight, bias, recipe, who)
    else:
        apply: Any = _Fp8Linear.apply
        found = apply(flat, weight, bias, recipe, who)
    return found.reshape(*x.shape[:-1], n)


def _transformed(x: Tensor, weight: Tensor, bias: Tensor | None, recipe: str, who: str) -> Tensor:
    """Y under `vmap`, by the op's own rule.

    Raises:
        InputError: a transform differentiates, or autograd records.
    """
    if recording(x, weight, *([] if bias is None else [bias])):
        rule = "has no gradient under torch.func and vmap; use plain autograd, or torch.no_grad()"
        raise field_error(InputError, "fp8", recipe, rule)
    kinds = RECIPES[recipe]
    return gemm(_made(x, kinds[0], FORWARD), _made(weight, kinds[1], FORWARD), kinds, x.dtype, who, bias)


class _Fp8Linear(torch.autograd.Function):
    """Y (M, N) of x (M, K), weight (N, K) and a bias or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, recipe: str, who: str) -> Tensor:
        """Compute Y, and save what the backward pass reads."""
        rows, blocks = RECIPES[recipe]
        b = _made(weight, blocks, FORWARD)
        if ctx.needs_input_grad[1]:
            a, kept = _both(x, rows, FORWARD)
        else:
            a, kept = _made(x, rows, FORWARD), Quantized(None, None)  # type: ignore[arg-type]
        ctx.save_for_backward(weight if ctx.needs_input_grad[0] else None, *kept)
        ctx.recipe, ctx.who, ctx.dtypes = recipe, who, (x.dtype, weight.dtype)
        ctx.bias = None if bias is None else bias.dtype
        return gemm(a, b, (rows, blocks), x.dtype, who, bias)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        """The gradients of x, weight and bias.

        Raises:
            InputError: autograd records the backward pass (double backward).
        """
        if not is_compiling() and torch.is_grad_enabled():
            raise InputError(TWICE)
        rows, blocks = RECIPES[ctx.recipe]
        weight, *kept = ctx.saved_tensors
        dtype, weight_dtype = ctx.dtypes
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        dx = dw = db = None
        if need_x and need_weight:
            g, gt = _both(above, rows, GRADIENT)
        elif need_x:
            g = _made(above, rows, GRADIENT)
        elif need_weight:
            gt = _made(above.mT, rows, GRADIENT)
        if need_weight:
            dw = gemm(gt, Quantized(*kept), (rows, rows), weight_dtype, ctx.who)
        if need_x:
            dx = gemm(g, _made(weight.mT, blocks, FORWARD), (rows, blocks), dtype, ctx.who)
        if need_bias:
            db = summed_rows(above, ctx.bias)
        return dx, dw, db, None, None


def _made(x: Tensor, kind: str, dtype: torch.dtype) -> Quantized:
    """x quantized."""
    return quantized(x, KINDS[kind], dtype)


def _both(x: Tensor, kind: str, dtype: torch.dtype) -> tuple[Quantized, Quantized]:
    """x and its transpose quantized."""
    return twins(x, KINDS[kind], dtype)


def gemm(
    a: Quantized,
    b: Quantized,
    kinds: tuple[str, str],
    dtype: torch.dtype,
    who: str,
    bias: Any = None,
    points: Mapping[str, Tensor] = NO_POINTS,
) -> Tensor:
    """A B^T of quantized matrices, with D in `dtype`; `points` has zero points and sums, as `zero_points.read`."""
    named = {"scale_a": a.scale, "scale_b": b.scale} | ({} if bias is None else {"bias": bias})
    graph = PLAIN if bias is None else BIASED
    spec = _BF16 if dtype == torch.bfloat16 else _FP16 if dtype == torch.float16 else _FP32
    shifts = [zero_points.kind_of(points[x]) if x in points else "" for x in zero_points.NAMES]
    if points:
        named |= zero_points.read((shifts[0], shifts[1]), a.values, b.values.mT, points)
    short = who == "gpu" and not points and not is_compiling() and direct(a.values, b.values)
    asked = (*kinds, *shifts)
    found: Any = scaled_again((kinds, dtype), a.values, b.values, named) if short else None
    if found is None:
        found = product(a.values, b.values, graph, spec, "linear", named, None, who, asked)
        if short:
            program = program_of(graph, spec, "linear", named, None, asked)
            remember_scaled((kinds, dtype), program, a.values, b.values, named)
    return found  # type: ignore[no-any-return]


__all__ = ["RECIPES", "fp8_linear", "gemm"]
