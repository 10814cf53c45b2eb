# SPDX-License-Identifier: Apache-2.0
"""Gradients that cannot be differentiated, and raise an error if they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.errors import InputError

TWICE = (
    "cutegemm's gradient cannot be differentiated: double backward (create_graph=True, gradient penalties) is not "
    "supported; use torch's matmul there"
)


class _Once(torch.autograd.Function):
    """A gradient that refuses differentiation with respect to anything on which its sources depend."""

    @staticmethod
    def forward(x: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        # detach, so that autograd does not treat the result as a view, which could not be changed in place
        return x.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, *sources: torch.Tensor) -> Any:
        return _once(x, *sources), in_dims[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise InputError(TWICE)


_once: Any = _Once.apply


def sources_of(*tensors: torch.Tensor | None) -> Sequence[torch.Tensor] | None:
    """The tensors on which a backward's gradients depend, if autograd records the backward; else None, so that no
    tensor is held.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return [x for x in tensors if x is not None]


def final(
    found: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor] | None
) -> Sequence[torch.Tensor | None]:
    """Gradients of a backward that raise an error if they are differentiated with respect to any of their sources.
    Without this, autograd would silently omit the dependencies that it does not see.

    Args:
        found: the gradients.
        sources: the earlier result of `sources_of`.
    """
    if sources is None:
        return found
    return [None if x is None else _once(x, *sources) for x in found]


__all__ = ["TWICE", "final", "sources_of"]
