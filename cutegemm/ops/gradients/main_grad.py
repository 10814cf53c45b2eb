# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that a GEMM adds to `weight.main_grad` in fp32, as Megatron-LM's optimizers keep them.

The contract is that of its `gradient_accumulation_fusion`. A weight that has a `main_grad` gets no gradient of
autograd's. One that also has `grad_added_to_main_grad` has that set, and gets a gradient that nobody reads, so that its
hooks run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.errors import InputError, field_error
from cutegemm.ops.dispatch import direct, recording

OPTION = "accumulate_main_grad"


def owner_of(weight: Tensor, asked: bool) -> Tensor | None:
    """The parameter to whose `main_grad` a weight's gradient is added: itself, or the one that it is the transpose of.

    None where that is not asked for, no gradient is recorded, or there is no `main_grad`.

    Raises:
        InputError: `asked` is no truth value, `main_grad` is no fp32 tensor of the parameter's shape, or the call is
            compiled or transformed.
    """
    if not checks.truth(InputError, OPTION, asked) or not recording(weight):
        return None
    if not direct(weight):
        rule = "adds in eager mode, outside of torch.compile, torch.func, vmap and tensor subclasses"
        raise field_error(InputError, OPTION, True, rule, False)
    for x in (weight, weight._base):
        main = getattr(x, "main_grad", None)
        if x is None or main is None or not (x is weight or _transposes(x, weight)):
            continue
        _check_main_grad(main, x)
        return x
    return None


def _check_main_grad(main: Any, weight: Tensor) -> None:
    """Refuse a `main_grad` that a kernel cannot add a weight's gradient to.

    Raises:
        InputError: it is no strided fp32 tensor of the weight's shape on its device, or elements share memory.
    """
    rule = f"must be a float32 tensor of the weight's shape, {tuple(weight.shape)}, on {weight.device}"
    if not isinstance(main, Tensor):
        raise field_error(InputError, "main_grad", main, rule)
    for field, value, wanted in (
        ("dtype", main.dtype, torch.float32),
        ("shape", tuple(main.shape), tuple(weight.shape)),
        ("device", main.device, weight.device),
    ):
        if value != wanted:
            raise field_error(InputError, f"main_grad.{field}", value, rule)
    if main.is_nested or main.layout != torch.strided:
        raise field_error(InputError, "main_grad.layout", main.layout, "must be strided", torch.strided)
    if 0 in [step for step, extent in zip(main.stride(), main.shape) if extent > 1]:
        rule = "two elements of main_grad share memory"
        raise field_error(InputError, "main_grad.stride()", main.stride(), rule)


def _transposes(x: Tensor, y: Tensor) -> bool:
    """Whether one is the other's view with its last two dimensions exchanged."""
    return x.dim() > 1 and (x.mT.shape, x.mT.stride(), x.data_ptr()) == (y.shape, y.stride(), y.data_ptr())


class _Added(torch.autograd.Function):
    """The result of a call whose weight was detached: the backward pass adds the weight's gradient to `main_grad`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, owner: Tensor, add: Any, *read: Tensor) -> Tensor:
        ctx.save_for_backward(*read)
        ctx.call = owner, owner is not weight, add
        # to autograd no view, which nobody may change in place
        return y.detach()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        owner, turned, add = ctx.call
        main = owner.main_grad
        add(above, main.mT if turned else main, *ctx.saved_tensors)
        unread = None
        if hasattr(owner, "grad_added_to_main_grad"):
            owner.grad_added_to_main_grad = True
            new = torch.zeros if getattr(owner, "zero_out_wgrad", False) else torch.empty
            unread = new(main.shape, dtype=owner.dtype, device=owner.device)
            unread = unread.mT if turned else unread
        return above, unread, None, None, *(None for _ in ctx.saved_tensors)


def added(y: Tensor, weight: Tensor, owner: Tensor, add: Callable[..., None], *read: Tensor) -> Tensor:
    """A call's result, by which the backward pass adds the weight's gradient to `main_grad`.

    Args:
        y: of the call with `weight.detach()`.
        weight, owner: of `owner_of`.
        add: (gradient of y, `main_grad` as the weight lies, *read): adds to it.
        read: tensors that it reads, kept for the backward pass.
    """
    found: Tensor = _Added.apply(y, weight, owner, add, *(x.detach() for x in read))  # type: ignore[no-untyped-call]
    return found


__all__ = ["added", "owner_of"]
