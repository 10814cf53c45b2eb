# SPDX-License-Identifier: Apache-2.0
"""The gradient of alpha * A B, perhaps with a bias: most calls of a training step, whose time on the host counts."""

from __future__ import annotations

from typing import Any

import torch

from cutegemm.ops.dispatch import direct
from cutegemm.ops.gradients.autograd import (
    Product,
    What,
    asked,
    operands,
    plan_of,
    summed_along,
    summed_rows,
    summed_to,
)
from cutegemm.ops.gradients.saved import taken
from cutegemm.ops.program import Program
from cutegemm.ops.serve import serve
from cutegemm.ops.shortcuts import cached, remember

_mapped, _recording = torch._C._functorch.is_legacy_batchedtensor, torch.is_grad_enabled


class Plain(Product):
    """`Direct` for alpha * A B, perhaps with a bias, as in most calls; its gradient reads only A and B."""

    @staticmethod
    def forward(ctx: Any, what: What, a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        """D, with the operands saved for the gradient."""
        needs = ctx.needs_input_grad
        ctx.save_for_backward(a if needs[2] else None, b if needs[1] else None)
        program, numbers, _ = what
        batched = program.form == "matrix" and (a.dim() != 2 or b.dim() != 2)
        shapes = (a.shape, b.shape) if batched else None
        kinds = [(x.shape, x.dtype) for x in bias] if bias else ()
        ctx.call = program.plans.get(needs) or plan_of(program, needs), what, a.dtype, shapes, kinds
        key = a.shape, b.shape, needs
        row = bias[0] if bias else None
        found: Any = cached(program, key, a, b, row, numbers[0] if numbers else 1.0)
        if found is None:
            (found,) = serve(program, a, b, bias, numbers, ())
            if program.backend is None:
                remember(program, key, a, b, row)
        return found  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradients of a, b and a bias.

        In an ordinary backward pass of a linear layer directly: no graph is recorded, and nothing is mapped or traced.
        """
        (g,), program = grads, ctx.call[0].forward
        if program.form == "linear" and g is not None and direct(g) and not _recording() and not _mapped(g):
            return _of_linear(ctx, program, g)
        return Product.backward(ctx, *grads)


def _of_linear(ctx: Any, program: Program, g: torch.Tensor) -> Any:
    """The gradients of x, weight and a bias from that of D."""
    _, (_, numbers, _), dtype, _, kinds = ctx.call
    need_x, need_weight, *need_bias = asked(ctx)
    acc, factor = g if g.dtype is dtype else g.to(dtype), numbers[0] if numbers else 1.0
    dx, dw = operands(ctx, program, dict(zip("ab", taken(ctx))), acc, factor, (need_x, need_weight))
    if not kinds:
        return None, dx, dw
    return None, dx, dw, _of_bias(g, *kinds[0]) if need_bias[0] else None


def _of_bias(g: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of a bias, (N,) or of broadcast extents."""
    if len(shape) == 1 and shape[0] == g.shape[-1]:
        return summed_rows(g, dtype)
    return summed_to(summed_along(g, tuple(range(g.dim() - 1))), shape).to(dtype)


record_plain: Any = Plain.apply  # type: ignore[attr-defined]

__all__ = ["Plain", "record_plain"]
