# SPDX-License-Identifier: Apache-2.0
"""The arguments of `convert`, checked against the model before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from cutegemm import checks
from cutegemm.errors import InputError, field_error
from cutegemm.nn.linear import PROMISE
from cutegemm.nn.mlp import SwiGLU
from cutegemm.nn.perceptrons import FusedMLP
from cutegemm.nn.quantized import TYPES_8
from cutegemm.ops.fallback import FALLBACKS

_GROUPS = 'must be groups of names, such as [("q_proj", "k_proj", "v_proj")]'
_NAMES = 'must be names of modules, with *, such as ["lm_head", "*.router"]'
_CLASSES = "must be classes of modules, such as [LlamaMLP]"


@dataclass(frozen=True)
class Asked:
    """The checked arguments of `convert`.

    Attributes:
        skip: patterns of module names.
        swiglu, mlp: classes of gated MLPs, and of MLPs of two layers.
        joined: groups of names of layers that a module calls on the same tensor.
        fallback, constant_weights: as for `Linear`.
        weights, activations: names of 8-bit types of weights and inputs; None does not quantize them.
    """

    skip: tuple[str, ...]
    swiglu: tuple[type[torch.nn.Module], ...]
    mlp: tuple[type[torch.nn.Module], ...]
    joined: tuple[tuple[str, ...], ...]
    fallback: str
    constant_weights: bool
    weights: str | None = None
    activations: str | None = None

    def skipped(self, name: str) -> str | None:
        """The reason to skip a module that the caller named in `skip`; None for other modules."""
        found = next((x for x in self.skip if fnmatchcase(name, x)), None)
        return None if found is None else f"skip={found!r}"


def asked(
    model: Any,
    skip: Any,
    swiglu: Any,
    mlp: Any,
    joined: Any,
    fallback: Any,
    constant_weights: Any,
    eight_bits: tuple[Any, Any] = (None, None),
) -> Asked:
    """Check the arguments of `convert`; `eight_bits` is (weights, activations).

    Raises:
        InputError: an argument has another type, matches nothing in the model, or promises constant weights in
            training.
    """
    if not isinstance(model, torch.nn.Module):
        raise field_error(InputError, "model", model, "must be a torch.nn.Module")
    checks.truth(InputError, "constant_weights", constant_weights)
    if not isinstance(fallback, str) or fallback not in FALLBACKS:
        raise field_error(InputError, "fallback", fallback, f"must be one of {', '.join(FALLBACKS)}", "torch")
    if constant_weights and any(x.training for x in model.modules()):
        raise field_error(InputError, "model.training", True, PROMISE, False)
    made = Asked(
        tuple(_several("skip", [skip] if isinstance(skip, str) else skip, str, _NAMES)),
        tuple(_several("swiglu", swiglu, type, _CLASSES)),
        tuple(_several("mlp", mlp, type, _CLASSES)),
        tuple(
            tuple(_several("joined", x, str, _GROUPS)) for x in _several("joined", joined, Sequence, _GROUPS)
        ),
        fallback,
        constant_weights,
        *eight_bits,
    )
    _check_eight_bits(made, model)
    _check_matches(made, dict(model.named_modules()))
    return made


def _check_eight_bits(made: Asked, model: torch.nn.Module) -> None:
    """Refuse 8-bit types that layers do not support.

    Raises:
        InputError: there is no such type or pair of types, or the model is in training.
    """
    for name in ("weights", "activations"):
        value = getattr(made, name)
        if value is not None:
            checks.choice(InputError, name, value, tuple(TYPES_8))
    if made.activations not in (None, made.weights):
        rule = "operands must have one type; None does not quantize activations"
        raise field_error(InputError, "activations", made.activations, rule, made.weights)
    if made.weights is None:
        return
    if made.swiglu:
        rule = "SwiGLU has no 8-bit weights; join its layers, as in joined=[('gate_proj', 'up_proj')]"
        raise field_error(InputError, "swiglu", "...", rule, ())
    if made.mlp:
        raise field_error(InputError, "mlp", "...", "an MLP in one pass has no 8-bit weights", ())
    if any(x.training for x in model.modules()):
        rule = "8-bit weights do not train: call eval() on the model, or use linear(..., fp8=...) in training"
        raise field_error(InputError, "model.training", True, rule, False)


def _several(field: str, value: Any, kind: type, rule: str) -> list[Any]:
    """The values of a collection, each of type `kind`.

    Raises:
        InputError: it is not a collection, or holds something else.
    """
    listed = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping, torch.Tensor))
    try:
        found = list(value) if listed else None
    except TypeError:
        # a 0-d array has __iter__, which raises TypeError
        found = None
    # refuse a single string, which is also a sequence of strings
    if found is None or not all(
        isinstance(x, kind) and (kind is str or not isinstance(x, str)) for x in found
    ):
        raise field_error(InputError, field, value, rule)
    return found


def _check_matches(made: Asked, modules: dict[str, torch.nn.Module]) -> None:
    """Refuse arguments that match nothing in the model, such as a misspelt layer.

    Raises:
        InputError: a pattern, a class or a group matches nothing.
    """
    for i, pattern in enumerate(made.skip):
        if not any(fnmatchcase(x, pattern) for x in modules):
            near = checks.near(pattern, modules)
            raise field_error(InputError, f"skip[{i}]", pattern, "no module of the model has this name", near)
    for field, kinds, ours in (("swiglu", made.swiglu, SwiGLU), ("mlp", made.mlp, FusedMLP)):
        # modules that were converted earlier no longer have these classes
        again = any(isinstance(x, ours) for x in modules.values())
        for i, kind in enumerate(kinds):
            if not issubclass(kind, torch.nn.Module):
                raise field_error(InputError, f"{field}[{i}]", kind, _CLASSES)
            if not again and not any(isinstance(x, kind) for x in modules.values()):
                near = checks.near(kind.__name__, {type(x).__name__ for x in modules.values()})
                rule = "no module of the model has this class"
                raise field_error(InputError, f"{field}[{i}]", kind.__name__, rule, near)
    for i, names in enumerate(made.joined):
        if len(names) < 2 or len(set(names)) < len(names):
            raise field_error(InputError, f"joined[{i}]", names, "must be the names of several layers")
        if not any(all(y in x._modules for y in names) for x in modules.values()):
            raise field_error(InputError, f"joined[{i}]", names, "no module of the model has these layers")


__all__ = ["Asked", "asked"]
