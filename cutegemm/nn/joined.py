# SPDX-License-Identifier: Apache-2.0
"""Linear layers that are called on the same tensor, such as the projections of attention, as one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cutegemm.nn import state_dicts
from cutegemm.nn.linear import Linear, check_input
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.fallback import autocast_type

is_compiling = torch.compiler.is_compiling

# under which the joined layer hangs below its parts
_KEY = "joined"
_KINDS = ("weight", "bias")


class Joined(Linear):
    """The product of several layers: their weights one below the other.

    What it computes for the first part's input it keeps until the other parts have come for theirs.

    Attributes:
        sizes: the parts' widths.
        pending: nothing, or of the last product [input, weight, bias, modes, the other parts' shares], where a share
            that has been taken is None. Each product puts a new list there, so that threads do not mix theirs.
    """

    sizes: tuple[int, ...]
    pending: list[list[Any]]

    def share(self, index: int, input: Tensor) -> Tensor:
        """What the part of some index gives for an input.

        The first part computes all; another one is given its own where it comes with the same tensor and nothing that
        the product depends on has changed, else computes it.
        """
        check_input(input)
        found: Tensor
        # of a nested tensor, which torch computes, every part its own: torch cannot take back a split of one
        if index == 0 and not input.is_nested:
            # before the product, which may take a while
            known = [input, *self._circumstances(input)]
            found, *rest = self(input).split(self.sizes, -1)
            # a new list: what a starred name takes is a tuple to the compiler of torch 2.11
            self.pending[:] = [[*known, [*rest]]]
            return found
        for of, *known, shares in self.pending[:]:
            if of is not input:
                continue
            weight, bias, modes = self._circumstances(input)
            if known[0] is not weight or known[1] is not bias or known[2] != modes:
                continue
            taken, shares[index - 1] = shares[index - 1], None
            if all([x is None for x in shares]):
                self.pending.clear()
            if taken is not None:
                found = taken
                return found
        start = sum(self.sizes[:index])
        stop = start + self.sizes[index]
        bias = None if self.bias is None else self.bias[start:stop]
        return self.product(input, self.weight[start:stop], bias)

    def _circumstances(self, input: Tensor) -> tuple[Any, Any, list[Any]]:
        """What a product depends on beside its input: weight, bias; modes and how often the tensors were written.

        Every part asks; parameters are looked up where torch.nn.Module has them, which is sooner than by name.
        """
        if is_compiling():
            # of traced tensors nobody counts the writes
            return None, None, [torch.is_grad_enabled()]
        known = self._parameters
        # a replica of data parallelism has them as attributes
        weight, bias = (known["weight"], known["bias"]) if "weight" in known else (self.weight, self.bias)
        found: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        if torch._C._is_any_autocast_enabled():
            found.append(autocast_type(input.device))
        # torch does not count writes of what was made in inference mode
        for x in (input, weight, bias):
            if x is not None:
                found.append(None if x.is_inference() else x._version)
        return weight, bias, found

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Itself once, also where a module is asked for at every place that has it.

        torch.func.functional_call puts tensors in all places of a parameter and takes them out in the same order, so
        that a module which hangs at several of them would keep the caller's.
        """
        found: Iterator[tuple[str, torch.nn.Module]] = super().named_modules(memo, prefix, True)
        return found

    def _replicate_for_data_parallel(self) -> Joined:
        """A replica, which works in a thread of its own; its products are its own, too."""
        made: Joined = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        made.pending = []
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the last product's shares: a copy, or an unpickled one, has computed nothing."""
        return {**self.__dict__, "pending": []}


class Part(torch.nn.Module):
    """One of the layers of a `Joined`: called as the layer that it was, with its `weight` and `bias` as views."""

    def __init__(self, whole: Joined, index: int) -> None:
        super().__init__()
        # a child of every part, so that whoever copies a model's modules one by one copies what they share
        self.joined, self.index = whole, index
        self.in_features, self.out_features = whole.in_features, whole.sizes[index]

    def forward(self, input: Tensor) -> Tensor:
        """Its share of the product."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        found: Tensor = self.joined.share(self.index, input)
        return found

    @property
    def weight(self) -> Tensor:
        """Its rows of the weight, (out_features, in_features); no parameter."""
        whole = self.joined
        found: Tensor = whole.weight.split(whole.sizes)[self.index]
        return found

    @property
    def bias(self) -> Tensor | None:
        """Its part of the bias; None where there is none."""
        whole = self.joined
        if whole.bias is None:
            return None
        found: Tensor = whole.bias.split(whole.sizes)[self.index]
        return found

    def __repr__(self) -> str:
        """Below the first part the joined layer, too."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        below = f", joined={self.joined!r}" if self.index == 0 else ""
        return f"Part({shape}, part={self.index}{below})"


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
    for kind in _KINDS if first.bias is not None else _KINDS[:1]:
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


def _keys(names: Sequence[str], kind: str, prefix: str) -> tuple[list[str], list[str]]:
    """The parts' keys in a state dict of torch's layers, and those under which every part has the joined tensor."""
    return [f"{prefix}{x}.{kind}" for x in names], [f"{prefix}{x}.{_KEY}.{kind}" for x in names]


def _apart(names: Sequence[str], sizes: Sequence[int], module: Any, state: Any, prefix: str, _: Any) -> None:
    """The parts' tensors for the joined ones, in a state dict."""
    wholes = {}
    for kind in _KINDS:
        parts, (whole, *others) = _keys(names, kind, prefix)
        wholes[whole] = dict(zip(parts, sizes))
        for key in others:
            state.pop(key, None)
    state_dicts.apart(state, wholes)


def _together(names: Sequence[str], module: Any, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
    """The joined tensors for the parts', in a state dict that is loaded."""
    (_, missing, _, errors), whole = rest, getattr(module, names[0]).joined
    for kind in _KINDS:
        parts, keys = _keys(names, kind, prefix)
        sizes = dict(zip(parts, whole.sizes))
        state_dicts.together(state, keys, getattr(whole, kind), sizes, metadata, missing, errors)


__all__ = ["Joined", "Part", "join"]
