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

from cutegemm.errors import InputError, field_error
from cutegemm.nn import state_dicts
from cutegemm.nn.linear import Linear, check_input
from cutegemm.nn.quantized import QuantizedLinear
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.fallback import autocast_type

is_compiling = torch.compiler.is_compiling

# name of the joined layer as a child of its parts
_KEY = "joined"
_KINDS = ("weight", "bias")
# with the scales of an 8-bit weight, one per row
_SAVED = (*_KINDS, "weight_scale")


class Sharing(torch.nn.Linear):
    """Several linear layers as one GEMM, with their weights concatenated along rows.

    It keeps the result for the first part's input until the other parts have taken their shares.

    Attributes:
        sizes: the parts' widths.
        read: names of the parameters that a result depends on.
        pending: empty, or one entry [input, parameters, modes, the other parts' shares] of the last GEMM. A share that
            was taken is None. Each GEMM stores a new list, so that threads do not mix their results.
    """

    read: tuple[str, ...] = _KINDS
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
        for of, parameters, modes, shares in self.pending[:]:
            if of is not input:
                continue
            now, modes_now = self._circumstances(input)
            if modes != modes_now or not all([x is y for x, y in zip(parameters, now)]):
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

    def _circumstances(self, input: Tensor) -> tuple[list[Any], list[Any]]:
        """The state that a result depends on besides its input: parameters, and modes with the tensors' versions.

        Every part calls this; `_parameters` is faster than attribute lookup.
        """
        if is_compiling():
            # traced tensors have no version counters
            return [], [torch.is_grad_enabled(), autocast_type(input.device)]
        known = self._parameters
        # a DataParallel replica has them as attributes
        parameters = [known[x] if x in known else getattr(self, x) for x in self.read]
        found: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        if torch._C._is_any_autocast_enabled():
            found.append(autocast_type(input.device))
        # tensors created in inference mode have no version counters
        for x in (input, *parameters):
            if x is not None:
                found.append(None if x.is_inference() else x._version)
        return parameters, found

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

    read = _SAVED

    def rows(self, input: Tensor, which: slice) -> Tensor:
        """The output of some rows of the weight."""
        bias = None if self.bias is None else self.bias[which]
        return self.product(input, self.weight[which], getattr(self, self.source.scale)[which], bias)


class Part(torch.nn.Module):
    """A layer of a `Joined`. It is called like the original layer; its weight, bias and scales are views."""

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
        found: Tensor = self._own("weight")
        return found

    @property
    def weight_scale(self) -> Tensor:
        """The scales of its rows, (out_features,), if its weight has 8 bits; a view, not a parameter."""
        found: Tensor = self._own("weight_scale")
        return found

    @property
    def bias(self) -> Tensor | None:
        """Its part of the bias, or None."""
        found: Tensor | None = self._own("bias")
        return found

    def _own(self, name: str) -> Any:
        """Its rows of a joined parameter, or None."""
        whole = getattr(self.joined, name)
        return None if whole is None else whole.split(self.joined.sizes)[self.index]

    def requires_grad_(self, requires_grad: bool = True) -> Part:
        """Refuse a change: all parts have one weight, so the others would be frozen, or train, too.

        Raises:
            InputError: the joined parameters have the other value.
        """
        if all(x.requires_grad == requires_grad for x in self.parameters()):
            return self
        rule = "is a part of a joined layer, whose parts train together: call it on the model, or do not join them"
        raise field_error(InputError, "requires_grad_", requires_grad, rule)

    def register_parameter(self, name: str, param: Any) -> None:
        """As for torch.nn.Module, but its weight and bias cannot be replaced.

        Raises:
            InputError: they are to be, as by an assignment or torch.nn.utils.prune.
        """
        if name.partition("_")[0] in _KINDS:
            rule = "is a view of the joined layer's parameter: write into it under torch.no_grad()"
            raise field_error(InputError, name, param, rule)
        super().register_parameter(name, param)

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


def _parts(module: Any, names: Sequence[str]) -> list[str]:
    """The names under which a module still has parts; a part may have been wrapped or replaced since `join`."""
    return [x for x in names if isinstance(module._modules.get(x), Part)]


def _apart(names: Sequence[str], sizes: Sequence[int], module: Any, state: Any, prefix: str, _: Any) -> None:
    """Replace joined tensors by the parts' tensors in a state dict."""
    parts = _parts(module, names)
    wholes, gone = {}, [x for x in names if x not in parts]
    own: dict[str, Any] = {}
    for kind in _SAVED if parts else ():
        whole, *others = [f"{prefix}{x}.{_KEY}.{kind}" for x in parts]
        if whole in state:
            # another layer in a part's place has this key itself
            own |= {key: state.get(key) for key in (f"{prefix}{x}.{kind}" for x in gone)}
        wholes[whole] = dict(zip((f"{prefix}{x}.{kind}" for x in names), sizes))
        for key in others:
            state.pop(key, None)
    state_dicts.apart(state, wholes)
    for key, x in own.items():
        del state[key]
        if x is not None:
            state[key] = x


def _wrapped(state: Any, names: Sequence[str], kind: str, prefix: str) -> list[tuple[str, Tensor]]:
    """(name, joined tensor in a state dict) of parts that other modules have wrapped."""
    return [
        (x, t)
        for x in names
        for key, t in state.items()
        if key.startswith(f"{prefix}{x}.") and key.endswith(f".{_KEY}.{kind}")
    ]


def _together(names: Sequence[str], module: Any, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
    """Replace the parts' tensors by joined tensors in a state dict that is loaded."""
    (_, missing, _, errors), parts = rest, _parts(module, names)
    gone = {f"{prefix}{x}.{kind}" for x in names if x not in parts for kind in _SAVED}
    own = {key: state.pop(key) for key in gone if key in state}
    for kind in _SAVED if parts else ():
        whole = module._modules[parts[0]].joined
        keys = [f"{prefix}{x}.{_KEY}.{kind}" for x in parts]
        sizes = dict(zip((f"{prefix}{x}.{kind}" for x in names), whole.sizes))
        # a wrapped part still has the joined layer, and saves all of it
        for x, rows in _wrapped(state, [x for x in names if x not in parts], kind, prefix):
            if rows.shape[0] == sum(whole.sizes):
                key = f"{prefix}{x}.{kind}"
                state[key] = dict(zip(sizes, rows.split(whole.sizes)))[key]
        state_dicts.together(state, keys, whole._parameters.get(kind), sizes, metadata, missing, errors)
    missing[:] = [key for key in missing if key not in gone]
    state.update(own)


__all__ = ["Joined", "Part", "QuantizedJoined", "Sharing", "join"]
