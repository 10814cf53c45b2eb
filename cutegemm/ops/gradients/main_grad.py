# SPDX-License-Identifier: Apache-2.0
"""Weight gradients that a GEMM adds to `weight.main_grad` in fp32, the convention of Megatron-LM's optimizers.

The contract is that of Megatron-LM's `gradient_accumulation_fusion`. A weight with a `main_grad` gets no gradient from
autograd. If it also has `grad_added_to_main_grad`, that is set to True, and the weight gets an unused gradient so that
its hooks run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.errors import InputError, field_error
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.gradients.saved import taken

OPTION = "accumulate_main_grad"


class Main(NamedTuple):
    """Where a call's gradient of a weight is added.

    Attributes:
        weight: the call's argument, before autocast.
        owner: the parameter with the `main_grad`: the weight, or the parameter that it is the transpose of.
    """

    weight: Tensor
    owner: Tensor


def owner_of(weight: Tensor, asked: bool) -> Main | None:
    """The weight and the parameter with the `main_grad` to add to.

    None if this is not requested, no gradient is recorded, or there is no `main_grad`.

    Raises:
        InputError: `asked` is not a bool, `main_grad` is not an fp32 tensor of the parameter's shape, or the call is
            compiled or transformed.
    """
    if not checks.truth(InputError, OPTION, asked) or not recording(weight):
        return None
    if not direct(weight):
        rule = (
            "needs eager mode, without torch.compile (torch.compiler.disable excludes a layer from it), torch.func, "
            "vmap and tensor subclasses such as DTensor"
        )
        raise field_error(InputError, OPTION, True, rule, False)
    for x in (weight, weight._base):
        main = getattr(x, "main_grad", None)
        if x is None or main is None or not (x is weight or _transposes(x, weight)):
            continue
        _check_main_grad(main, x)
        return Main(weight, x)
    return None


def _check_main_grad(main: Any, weight: Tensor) -> None:
    """Refuse a `main_grad` that a kernel cannot add a weight's gradient to.

    Raises:
        InputError: it is not a strided fp32 tensor of the weight's shape on its device, or elements share memory.
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
    """Whether one tensor is the other's transposed view."""
    return x.dim() > 1 and (x.mT.shape, x.mT.stride(), x.data_ptr()) == (y.shape, y.stride(), y.data_ptr())


class _Added(torch.autograd.Function):
    """The result of a call whose weight was detached: the backward pass adds the weight's gradient to `main_grad`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, call: tuple[Any, ...], *read: Tensor) -> Tensor:
        ctx.save_for_backward(*read)
        ctx.call = call
        # detach, so that autograd does not treat the result as a view, which could not be changed in place
        return y.detach()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        owner, turned, add = ctx.call
        read, main = taken(ctx), owner.main_grad
        out = main.mT if turned else main
        if torch.compiler.is_compiling() and not out.is_contiguous():
            # Dynamo passes only contiguous tensors as out=
            add(above, whole := torch.zeros(out.shape, dtype=out.dtype, device=out.device), *read)
            out.add_(whole)
        else:
            add(above, out, *read)
        unread = None
        if hasattr(owner, "grad_added_to_main_grad"):
            owner.grad_added_to_main_grad = True
            new = torch.zeros if getattr(owner, "zero_out_wgrad", False) else torch.empty
            unread = new(main.shape, dtype=owner.dtype, device=owner.device)
            unread = unread.mT if turned else unread
        return above, unread, None, *(None for _ in read)


def added(y: Tensor, main: Main, add: Callable[..., None], *read: Tensor) -> Tensor:
    """Attach to a call's result a backward pass that adds the weight's gradient to `main_grad`.

    Args:
        y: result of the call with the weight detached.
        main: result of `owner_of`.
        add: takes (gradient of y, `main_grad` in the weight's layout, *read), and adds to `main_grad`.
        read: tensors that `add` reads, saved for the backward pass.
    """
    # in a tuple, because compiled autograd cannot add two missing gradients of one parameter
    call = main.owner, main.owner is not main.weight, add
    found: Tensor = _Added.apply(y, main.weight, call, *(x.detach() for x in read))  # type: ignore[no-untyped-call]
    return found


__all__ = ["Main", "added", "owner_of"]
