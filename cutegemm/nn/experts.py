# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: from routing to the weighted sum of the experts' results, in two grouped launches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.epilogue.library import swiglu
from cutegemm.errors import InputError, field_error
from cutegemm.nn.linear import check_layer
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import recording
from cutegemm.ops.groups.grouped import grouped_mm

_SWIGLU = swiglu()
MOST_EXPERTS = 1 << 20


def mixture(
    x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, fallback: str = "torch"
) -> Tensor:
    """sum_j weights[t, j] * down_e(silu(gate_e(x)) * up_e(x)) with e = experts[t, j]; nothing waits for the device.

    Without gradients the activation is the first launch's epilogue.

    Args:
        x: (T, H).
        experts, weights: (T, k), of each token.
        gate_up: (E, 2 I, H), gates before linear parts; down: (E, H, I).
        fallback: as of `grouped_mm`.
    """

    def computed(rows: Tensor, offs: Tensor) -> Tensor:
        if recording(x, gate_up, down):
            gate, up = grouped_mm(rows, gate_up.mT, offs, fallback=fallback).chunk(2, -1)
            hidden = torch.nn.functional.silu(gate) * up
        else:
            hidden = grouped_mm(rows, gate_up.mT, offs, epilogue=_SWIGLU, fallback=fallback)
        found: Tensor = grouped_mm(hidden, down.mT, offs, fallback=fallback)
        return found

    return routed(x, experts, weights, gate_up.shape[0], computed)


def routed(
    x: Tensor, experts: Tensor, weights: Tensor, count: int, compute: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """sum_j weights[t, j] * compute(x[t]) by expert experts[t, j], (T, H) of x's type; nothing waits for the device.

    A token's results are added in the order in which it names its experts, in fp32. An expert beyond the last gives 0.

    Args:
        x: (T, H).
        experts, weights: (T, k), of each token.
        count: of experts.
        compute: of rows by expert, (T k, H), and the ends of the experts' groups, (count,), their results (T k, H).
    """
    tokens, each = experts.shape
    named, order = experts.flatten().sort(stable=True)
    offs = torch.searchsorted(named, torch.arange(count, device=x.device, dtype=named.dtype), right=True)
    found = compute(x[order // each], offs)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=x.device))
    weighed: Tensor = found[place].view(tokens, each, -1).float() * weights.float()[..., None]
    return weighed.sum(1).to(x.dtype)


class MoE(torch.nn.Module):
    """A mixture of SwiGLU experts: softmax routing to `top_k` of them, and perhaps a shared one beside.

    Parameters: "router.weight" (E, H), "gate_up_weight" (E, 2 I, H), "down_weight" (E, H, I).

    Args:
        hidden, intermediate: widths of a token and of an expert.
        experts, top_k: how many there are, and how many a token takes.
        shared: a module that every token passes as well, added; None is none.
        normalise: whether a token's weights are scaled to add up to 1.
        device, dtype: of the parameters.
        fallback: as of `grouped_mm`.

    Raises:
        InputError: an argument is of another kind, or a token takes more experts than there are.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        *,
        shared: torch.nn.Module | None = None,
        normalise: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        fallback: str = "torch",
    ) -> None:
        check_layer(fallback, hidden=hidden, intermediate=intermediate)
        checks.integer(InputError, "experts", experts, 1, MOST_EXPERTS)
        if checks.integers((top_k,)) is None or not 0 < top_k <= experts:
            raise field_error(InputError, "top_k", top_k, f"must be from 1 to the {experts} experts", experts)
        super().__init__()
        self.router = torch.nn.Linear(hidden, experts, bias=False, device=device, dtype=dtype)
        self.gate_up_weight, self.down_weight = (
            torch.nn.Parameter(torch.empty(experts, *shape, device=device, dtype=dtype))
            for shape in ((2 * intermediate, hidden), (hidden, intermediate))
        )
        self.top_k, self.normalise, self.shared, self.fallback = top_k, normalise, shared, fallback
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the experts' weights as torch.nn.Linear draws its own."""
        for x in (self.gate_up_weight, self.down_weight):
            bound = x.shape[-1] ** -0.5
            torch.nn.init.uniform_(x, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) of (..., H)."""
        check_tensor("x", x)
        weight = self.gate_up_weight
        if x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
            rule = f"must be (..., {weight.shape[-1]})"
            raise field_error(InputError, "x.shape", tuple(x.shape), rule)
        if x.dtype != weight.dtype and not torch._C._is_any_autocast_enabled():
            raise field_error(InputError, "x.dtype", x.dtype, f"must be that of the weights, {weight.dtype}")
        flat = x.reshape(-1, x.shape[-1])
        chances = self.router(flat).float().softmax(-1)
        weights, experts = chances.topk(self.top_k, -1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        found = mixture(flat, experts, weights, self.gate_up_weight, self.down_weight, self.fallback)
        if self.shared is not None:
            found = found + self.shared(flat)
        return found.view(x.shape)


__all__ = ["MoE", "mixture", "routed"]
