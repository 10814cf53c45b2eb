# SPDX-License-Identifier: Apache-2.0
"""Joins linear layers that are called on the same tensor, such as attention projections, into one GEMM.

Their weights may be quantized to 8 bits. Then their input is quantized once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cutegemm.nn import state_dicts
from cutegemm.nn.linear import Linear, check_input
from cutegemm.nn.quantized import QuantizedLinear, store
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.fallback import autocast_type

is_compiling = torch.compiler.is_compiling

# name of the joined layer as a child of its parts
_KEY = "joined"
_KINDS = ("weight", "bias")
# the scales of an 8-bit weight, one per row
_SCALE = "weight_scale"


class Sharing(torch.nn.Linear):
    """Several linear layers as one GEMM, with their weights concatenated along rows.

    It keeps the result for the first part's input until the other parts have taken their shares.

    Attributes:
        sizes: the parts' widths.
        pending: empty, or one entry [input, weight, bias, modes, the other parts' shares] of the last GEMM. A share
            that was taken is None. Each GEMM stores a new list, so that threads do not mix their results.
    """

    sizes: tuple[int, ...]
    pending: list[list[Any]]

    def share(self, index: int, input: Tensor) -> Tensor:
        """The output of part `index` for an input.

        The first part computes all outputs. Another part takes its share if it has the same input and the state that
        the result depends on has not changed; else it computes its own output.
        """
        check_input(input)
        found: Tensor
        # each part computes a nested tensor itself, because torch cannot differentiate a split of one
        if index == 0 and not input.is_nested:
            # read before the GEMM, because the state may change during it
            known = [input, *self._circumstances(input)]
            found, *rest = self(input).split(self.sizes, -1)
            # a new list, because torch 2.11's compiler makes a starred name a tuple
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
        return self.rows(input, slice(start, start + self.sizes[index]))

    def rows(self, input: Tensor, which: slice) -> Tensor:
        """The output of some rows of the weight."""
        raise NotImplementedError

    def _circumstances(self, input: Tensor) -> tuple[Any, Any, list[Any]]:
        """The state that a result depends on besides its input: weight, bias, and modes with the tensors' versions.

        Every part calls this; `_parameters` is faster than attribute lookup.
        """
        if is_compiling():
            # traced tensors have no version counters
            return None, None, [torch.is_grad_enabled(), autocast_type(input.device)]
        known = self._parameters
        # a DataParallel replica has them as attributes
        weight, bias = (known["weight"], known["bias"]) if "weight" in known else (self.weight, self.bias)
        found: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        if torch._C._is_any_autocast_enabled():
            found.append(autocast_type(input.device))
        # tensors created in inference mode have no version counters
        for x in (input, weight, bias):
            if x is not None:
                found.append(None if x.is_inference() else x._version)
        return weight, bias, found

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield this module once, even if duplicates are requested.

        torch.func.functional_call swaps tensors into each place of a parameter and restores them in the same order. A
        module that is listed several times would keep the caller's tensors.
        """
        found: Iterator[tuple[str, torch.nn.Module]] = super().named_modules(memo, prefix, True)
        return found

    def _replicate_for_data_parallel(self) -> Sharing:
        """A replica runs in its own thread, so it has its own pending results."""
        made: Sharing = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        made.pending = []
        return made

    def __getstate__(self) -> dict[str, Any]:
        """The state without pending results, for copies and pickles."""
        return {**self.__dict__, "pending": []}


class Joined(Sharing, Linear):
    """Joined layers of 16 or 32 bits."""

    def rows(self, input: Tensor, which: slice) -> Tensor:
        """The output of some rows of the weight."""
        return self.product(input, self.weight[which], None if self.bias is None else self.bias[which])


class QuantizedJoined(Sharing, QuantizedLinear):
    """Joined layers with 8-bit weights and one scale per row of them."""

    def rows(self, input: Tensor, which: slice) -> Tensor:
        """The output of some rows of the weight."""
        bias = None if self.bias is None else self.bias[which]
        return self.product(input, self.weight[which], getattr(self, self.source.scale)[which], bias)


class Part(torch.nn.Module):
    """A layer of a `Joined`. It is called like the original layer; its `weight` and `bias` are views."""

    def __init__(self, whole: Sharing, index: int) -> None:
        super().__init__()
        # a child of every part, so that code that copies a model module by module copies the joined layer
        self.joined, self.index = whole, index
        self.in_features, self.out_features = whole.in_features, whole.sizes[index]

    def forward(self, input: Tensor) -> Tensor:
        """Its columns of the joined output."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        found: Tensor = self.joined.share(self.index, input)
        return found

    @property
    def weight(self) -> Tensor:
        """Its rows of the weight, (out_features, in_features); a view, not a parameter."""
        whole = self.joined
        found: Tensor = whole.weight.split(whole.sizes)[self.index]
        return found

    @property
    def bias(self) -> Tensor | None:
        """Its part of the bias, or None."""
        whole = self.joined
        if whole.bias is None:
            return None
        found: Tensor = whole.bias.split(whole.sizes)[self.index]
        return found

    def __repr__(self) -> str:
        """The first part also shows the joined layer."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        below = f", joined={self.joined!r}" if self.index == 0 else ""
        return f"Part({shape}, part={self.index}{below})"


def join(parent: torch.nn.Module, names: Sequence[str], layers: Sequence[Any]) -> Joined:
    """Replace layers of a module by parts of one joined layer. The state dict does not change.

    Args:
        parent: the module that has the layers as children.
        names: of these children.
        layers: torch.nn.Linear with equal input width, type and device, all with a bias or none.

    Returns:
        The joined layer, with new parameters.
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


def store_joined(layer: Joined, weights: str, activations: str | None, fallback: str) -> None:
    """Quantize the weights of joined layers in place, with one scale per row."""
    store(layer, weights, activations, fallback, QuantizedJoined)


def _keys(names: Sequence[str], kind: str, prefix: str) -> tuple[list[str], list[str]]:
    """The keys of the original layers in a state dict, and the keys of the joined tensor, one per part."""
    return [f"{prefix}{x}.{kind}" for x in names], [f"{prefix}{x}.{_KEY}.{kind}" for x in names]


def _apart(names: Sequence[str], sizes: Sequence[int], module: Any, state: Any, prefix: str, _: Any) -> None:
    """Replace joined tensors by the parts' tensors in a state dict."""
    wholes = {}
    for kind in (*_KINDS, _SCALE):
        parts, (whole, *others) = _keys(names, kind, prefix)
        wholes[whole] = dict(zip(parts, sizes))
        for key in others:
            state.pop(key, None)
    state_dicts.apart(state, wholes)


def _together(names: Sequence[str], module: Any, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
    """Replace the parts' tensors by joined tensors in a state dict that is loaded."""
    (_, missing, _, errors), whole = rest, getattr(module, names[0]).joined
    for kind in (*_KINDS, _SCALE):
        parts, keys = _keys(names, kind, prefix)
        sizes = dict(zip(parts, whole.sizes))
        state_dicts.together(state, keys, whole._parameters.get(kind), sizes, metadata, missing, errors)


__all__ = ["Joined", "Part", "QuantizedJoined", "Sharing", "join", "store_joined"]
