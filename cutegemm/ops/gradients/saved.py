# SPDX-License-Identifier: Apache-2.0
"""What a forward saved, as its backward reads it: once, for hooks that recompute it hand it out to one reader."""

from __future__ import annotations

from typing import Any

import torch

_compiling = torch.compiler.is_compiling


def taken(ctx: Any) -> Any:
    """What a forward saved; each tensor is free as soon as the caller lets it go, unless the graph is kept."""
    saved = ctx.saved_tensors
    if not _compiling():
        ctx.maybe_clear_saved_tensors()
    return saved


class Read:
    """A backward's context whose saved tensors have been read: it hands out the same ones however often."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, taken(ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def maybe_clear_saved_tensors(self) -> None:
        """They stay as long as this does."""


__all__ = ["Read", "taken"]
