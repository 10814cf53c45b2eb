# SPDX-License-Identifier: Apache-2.0
"""Linear layers that are called on the same tensor, such as the projections of attention, as one product."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cutegemm.nn.linear import Linear

# under which the joined layer hangs below the first of its parts
_KEY = "joined"


class Joined(Linear):
    """The product of several layers: their weights one below the other.

    What it computes for the first part's input it keeps until the other parts have come for theirs.

    Attributes:
        sizes: the parts' widths.
        pending: of the last product the input, whether autograd recorded it, and every part's share not yet taken.
    """

    sizes: tuple[int, ...]
    pending: list[Any]

    def share(self, index: int, input: Tensor) -> Tensor:
        """What the part of some index gives for an input.

        The first part computes all; another one is given its own where it comes with the same tensor, else computes it.
        """
        found: Tensor
        if index == 0:
            found, *rest = self(input).split(self.sizes, -1)
            self.pending[:] = [input, torch.is_grad_enabled(), *rest]
            return found
        pending = self.pending
        same = len(pending) > 1 + index and pending[0] is input and pending[1] == torch.is_grad_enabled()
        if same and pending[1 + index] is not None:
            found, pending[1 + index] = pending[1 + index], None
        else:
            start = sum(self.sizes[:index])
            stop = start + self.sizes[index]
            weight, bias = self.weight[start:stop], None if self.bias is None else self.bias[start:stop]
            found = self.product(input, weight, bias)
        if all([x is None for x in pending[2:]]):
            pending.clear()
        return found


class Part(torch.nn.Module):
    """One of the layers of a `Joined`: called as the layer that it was, with its `weight` and `bias` as views."""

    def __init__(self, whole: Joined, index: int) -> None:
        super().__init__()
        if index == 0:
            self.add_module(_KEY, whole)
        # in a tuple, so that it is a child of the first part alone
        self._whole, self.index = (whole,), index
        self.in_features, self.out_features = whole.in_features, whole.sizes[index]

    def forward(self, input: Tensor) -> Tensor:
        """Its share of the product."""
        found: Tensor = self._whole[0].share(self.index, input)
        return found

    @property
    def weight(self) -> Tensor:
        """Its rows of the weight, (out_features, in_features); no parameter."""
        whole = self._whole[0]
        found: Tensor = whole.weight.split(whole.sizes)[self.index]
        return found

    @property
    def bias(self) -> Tensor | None:
        """Its part of the bias; None where there is none."""
        whole = self._whole[0]
        if whole.bias is None:
            return None
        found: Tensor = whole.bias.split(whole.sizes)[self.index]
        return found

    def extra_repr(self) -> str:
        """What is printed of it."""
        return f"in_features={self.in_features}, out_features={self.out_features}, part={self.index}"


def join(parent: torch.nn.Module, names: Sequence[str], layers: Sequence[Any]) -> Joined:
    """Replace layers of a module by parts of one; its state dict stays as it was.

    Args:
        parent: whose children they are.
        names: by which it has them.
        layers: torch.nn.Linear of equal width of input, type and device, all with a bias or none.

    Returns:
        The joined layer, whose parameters are new.
    """
    first = layers[0]
    sizes = tuple(x.out_features for x in layers)
    whole = Joined(
        first.in_features, sum(sizes), first.bias is not None, device="meta", dtype=first.weight.dtype
    )
    for kind in ("weight", "bias") if first.bias is not None else ("weight",):
        given = [getattr(x, kind) for x in layers]
        made = torch.cat([x.detach() for x in given])
        setattr(whole, kind, torch.nn.Parameter(made, requires_grad=given[0].requires_grad))
    whole.sizes, whole.pending = sizes, []
    whole.train(first.training)
    for i, name in enumerate(names):
        setattr(parent, name, Part(whole, i).train(first.training))
    hooks: Any = parent
    hooks.register_state_dict_post_hook(partial(_apart, tuple(names), sizes))
    hooks.register_load_state_dict_pre_hook(partial(_together, tuple(names)))
    return whole


def _apart(
    names: tuple[str, ...], sizes: tuple[int, ...], module: Any, state: Any, prefix: str, _: Any
) -> None:
    """The parts' tensors for the joined ones, in a state dict, in the places where the layers had them."""
    head = f"{prefix}{names[0]}.{_KEY}."
    keys = list(state)
    later = [key for key in keys[keys.index(f"{head}weight") :] if not key.startswith(head)]
    shares = {
        kind: state.pop(head + kind).split(sizes) for kind in ("weight", "bias") if head + kind in state
    }
    for i, name in enumerate(names):
        for kind, tensors in shares.items():
            state[f"{prefix}{name}.{kind}"] = tensors[i]
    for key in later:
        state[key] = state.pop(key)


def _together(names: tuple[str, ...], module: Any, state: Any, prefix: str, *rest: Any) -> None:
    """The joined tensors for the parts', in a state dict that is loaded."""
    for kind in ("weight", "bias"):
        keys = [f"{prefix}{name}.{kind}" for name in names]
        if all(key in state for key in keys):
            state[f"{prefix}{names[0]}.{_KEY}.{kind}"] = torch.cat([state.pop(key) for key in keys])


__all__ = ["Joined", "Part", "join"]
