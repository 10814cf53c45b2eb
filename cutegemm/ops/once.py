# SPDX-License-Identifier: Apache-2.0
"""Gradients that have no gradient of their own, and say so when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cutegemm.errors import InputError

TWICE = (
    "cutegemm's gradient has no gradient of its own: double backward (create_graph=True, gradient penalties) is not "
    "supported; use torch's matmul there"
)


class _Once(torch.autograd.Function):
    """A gradient that refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise InputError(TWICE)


_once: Any = _Once.apply


def final(grads: Iterable[torch.Tensor | None], recorded: bool) -> list[torch.Tensor | None]:
    """Gradients, which refuse to be differentiated where autograd records them."""
    if not recorded:
        return list(grads)
    return [None if x is None else _once(x.detach().requires_grad_()) for x in grads]


__all__ = ["TWICE", "final"]
