# SPDX-License-Identifier: Apache-2.0
"""Reads a forward's saved tensors in the backward once, because hooks that recompute them return them only once."""

from __future__ import annotations

from typing import Any

import torch

_compiling = torch.compiler.is_compiling
_unwrapped: Any = torch._C._functorch.unwrap_if_dead


def taken(ctx: Any) -> Any:
    """The saved tensors of a forward. Unless the graph is retained, each is freed when the caller drops it.

    A function of `torch.func.vjp` is called after its transform has ended, with tensors that the transform wrapped.
    torch's functions unwrap those, and kernels need their memory.
    """
    saved = ctx.saved_tensors
    if _compiling():
        return saved
    ctx.maybe_clear_saved_tensors()
    return tuple([None if x is None else _unwrapped(x) for x in saved])


class Read:
    """A backward's context that has read its saved tensors; it can return them any number of times."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, taken(ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def maybe_clear_saved_tensors(self) -> None:
        """Does nothing: the tensors live as long as this object."""


__all__ = ["Read", "taken"]
