# SPDX-License-Identifier: Apache-2.0
"""Backward passes of several gradients at once: `torch.autograd.grad(..., is_grads_batched=True)` and its users.

Torch maps such a call by its older vmap, which does not use the op's rule and whose tensors have no memory. So the
batch is unwrapped, and the backward is mapped by `torch.vmap`, for which the op has a rule (`batching`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cutegemm.errors import InputError, field_error
from cutegemm.ops.gradients.once import final, sources_of
from cutegemm.ops.gradients.saved import Read

# vmap levels that are searched for a tensor's own (at::kVmapMaxTensorDims)
LEVELS = range(1, 65)

_compiling = torch.compiler.is_compiling
_mapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
Backward = Callable[..., Any]


def takes_batches(backward: Backward) -> Backward:
    """Extend a backward pass to batches of gradients."""

    @functools.wraps(backward)
    def either(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if _compiling() or not any(x is not None and _mapped(x) for x in grads):
            return backward(ctx, *grads)
        return _over_batch(backward, ctx, grads)

    return either


def _over_batch(backward: Backward, ctx: Any, grads: tuple[torch.Tensor | None, ...]) -> tuple[Any, ...]:
    """Run a backward on mapped gradients, and return mapped results; unmapped gradients are shared."""
    given = {i: x for i, x in enumerate(grads) if x is not None}
    level = next(_taken_out(x)[0] for x in given.values() if _mapped(x))
    plain = {i: _taken_out(x, level)[1] if _mapped(x) else x for i, x in given.items()}
    # read outside the map, or a checkpoint would recompute its forward inside it
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
    """The vmap level of a tensor, and the tensor with its batch dimension in front.

    Raises:
        InputError: it is mapped more than once.
    """
    for i in LEVELS if level is None else (level,):
        # at a level where it is not mapped, it gets a dimension of 1 and stays mapped
        plain = torch._remove_batch_dim(x, i, 1, 0)
        if not _mapped(plain):
            return i, plain
    rule = "nested maps are not supported: use torch.func.jacrev or torch.vmap over torch.autograd.grad"
    raise field_error(InputError, "is_grads_batched", True, rule, False)


__all__ = ["takes_batches"]
