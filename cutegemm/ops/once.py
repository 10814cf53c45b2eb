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
    def forward(ctx: Any, x: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise InputError(TWICE)


_once: Any = _Once.apply


def final(found: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of a backward that autograd records. Whoever differentiates them finds a refusal on every way back to
    what they depend on, where autograd would leave out a way that it does not see.

    Args:
        found: the gradients.
        sources: tensors through which they depend on something.
    """
    return [None if x is None else _once(x, *sources) for x in found]


__all__ = ["TWICE", "final"]
