# SPDX-License-Identifier: Apache-2.0
"""Gradients that have no gradient of their own, and say so when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.errors import InputError

TWICE = (
    "cutegemm's gradient has no gradient of its own: double backward (create_graph=True, gradient penalties) is not "
    "supported; use torch's matmul there"
)


class _Once(torch.autograd.Function):
    """A gradient that refuses to be differentiated: by anything that its sources, which it does not read, come from."""

    @staticmethod
    def forward(x: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        # to autograd no view, which nobody may change in place
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
    """The tensors through which a backward's gradients depend on something, where autograd records them; elsewhere
    None, and no tensor is held.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return [x for x in tensors if x is not None]


def final(
    found: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor] | None
) -> Sequence[torch.Tensor | None]:
    """Gradients of a backward. Whoever differentiates those that autograd records finds a refusal on every way back to
    what they depend on, where autograd would leave out a way that it does not see.

    Args:
        found: the gradients.
        sources: as `sources_of` gave them before.
    """
    if sources is None:
        return found
    return [None if x is None else _once(x, *sources) for x in found]


__all__ = ["TWICE", "final", "sources_of"]
