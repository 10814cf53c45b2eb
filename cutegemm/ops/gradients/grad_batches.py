# SPDX-License-Identifier: Apache-2.0
"""Backward passes of many gradients at once: `torch.autograd.grad(..., is_grads_batched=True)`, and what is made of it.

Torch maps such a call by its older vmap, which knows no rule of the op and whose tensors have no memory. The batch is
taken out of them and the backward mapped by `torch.vmap` instead, under which the op has a rule (`batching`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cutegemm.errors import InputError, field_error
from cutegemm.ops.gradients.once import final, sources_of
from cutegemm.ops.gradients.saved import Read

# nested maps that are looked at for a tensor's own (at::kVmapMaxTensorDims)
LEVELS = range(1, 65)

_compiling = torch.compiler.is_compiling
_mapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
Backward = Callable[..., Any]


def takes_batches(backward: Backward) -> Backward:
    """A backward pass that takes a batch of gradients, too."""

    @functools.wraps(backward)
    def either(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if _compiling() or not any(x is not None and _mapped(x) for x in grads):
            return backward(ctx, *grads)
        return _over_batch(backward, ctx, grads)

    return either


def _over_batch(backward: Backward, ctx: Any, grads: tuple[torch.Tensor | None, ...]) -> tuple[Any, ...]:
    """What a backward gives of mapped gradients, mapped likewise; a gradient that is not mapped serves them all."""
    given = {i: x for i, x in enumerate(grads) if x is not None}
    level = next(_taken_out(x)[0] for x in given.values() if _mapped(x))
    plain = {i: _taken_out(x, level)[1] if _mapped(x) else x for i, x in given.items()}
    # outside of the map, which a checkpoint's forward, run once more for them, would take part in
    ctx = Read(ctx)
    sources = sources_of(*plain.values(), *ctx.saved_tensors, getattr(ctx, "token", None))
    found: list[bool] = []

    def one(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = dict(zip(given, some, strict=True))
        results = backward(ctx, *[known.get(i) for i in range(len(grads))])
        found[:] = [x is not None for x in results]
        return tuple(x for x in results if x is not None)

    dims = tuple(0 if _mapped(x) else None for x in given.values())
    with torch.no_grad():
        made = torch.vmap(one, dims)(*plain.values())
    results: Iterator[Any] = iter(final(made, sources))
    return tuple(torch._add_batch_dim(next(results), 0, level) if there else None for there in found)


def _taken_out(x: torch.Tensor, level: int | None = None) -> tuple[int, torch.Tensor]:
    """The level at which a tensor is mapped, and the tensor with its batch in front.

    Raises:
        InputError: it is mapped more than once.
    """
    for i in LEVELS if level is None else (level,):
        # of a level at which it is not mapped it gets a dimension of 1 and stays mapped
        plain = torch._remove_batch_dim(x, i, 1, 0)
        if not _mapped(plain):
            return i, plain
    rule = "maps within maps have no rule here: use torch.func.jacrev or torch.vmap over torch.autograd.grad"
    raise field_error(InputError, "is_grads_batched", True, rule, False)


__all__ = ["takes_batches"]
