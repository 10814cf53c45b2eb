# SPDX-License-Identifier: Apache-2.0
"""`convert`: the linear layers of an existing model become ours, in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from cutegemm.errors import InputError, field_error
from cutegemm.nn.joined import join
from cutegemm.nn.linear import PROMISE, TYPES, Linear, multiplies
from cutegemm.nn.mlp import SwiGLU, hooked
from cutegemm.ops.fallback import FALLBACKS

_HALF = (torch.float16, torch.bfloat16)
# Modules that multiply by their own weights, of which nothing is converted.
_OWN_PRODUCTS = (torch.nn.MultiheadAttention, torch.nn.Bilinear, torch.nn.RNNBase)


@dataclass(frozen=True)
class Conversion:
    """What `convert` did, by the modules' names.

    Attributes:
        converted: the layers that multiply with cutegemm now.
        left: the layers that do not, and why.
        varying: of the converted the ones that `constant_weights` says nothing about, and why.
    """

    converted: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    varying: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"converted {len(self.converted)} of {len(self.converted) + len(self.left)} layers"]
        lines += [f"left {name}: {why}" for name, why in self.left.items()]
        lines += [f"without constant weights {name}: {why}" for name, why in self.varying.items()]
        return "\n".join(lines)


def convert(
    model: torch.nn.Module,
    *,
    constant_weights: bool = False,
    fallback: str = "torch",
    skip: Collection[str] = (),
    swiglu: Collection[type[torch.nn.Module]] = (),
    joined: Collection[Sequence[str]] = (),
) -> Conversion:
    """Make the linear layers of a model multiply with cutegemm.

    A torch.nn.Linear becomes a `Linear` and stays the same object, with its parameters, hooks and state dict. What is
    not exactly a torch.nn.Linear, or not known to be one in all it does, is left alone, and the result says why.

    Args:
        model: the model, itself perhaps a torch.nn.Linear.
        constant_weights: for inference: weights load before the launch before has ended. It is the caller's promise
            that no launch which may still run writes them; refused for a model in training, here and at every call.
        fallback: what is done without a Hopper GPU, as of `cutegemm.matmul`.
        skip: names of modules to leave alone, with *, as "lm_head" or "*.router".
        swiglu: classes of perceptrons that compute down_proj(silu(gate_proj(x)) * up_proj(x)), such as transformers'
            LlamaMLP, to be replaced by `SwiGLU`. Their gate and up become one new parameter, so convert before an
            optimizer is made; the state dict stays as it is.
        joined: names of layers of one module that are called one after another on the same unchanged tensor, such as
            ("q_proj", "k_proj", "v_proj"): they become one product, whose parts they give. Their weights become one new
            parameter, as of `swiglu`; `layer.weight` is a view of it. Their results are views of one tensor, so that
            torch refuses writes to them where autograd records. Layers with a parameter that others have stay apart.

    Raises:
        InputError: constant weights of a model in training; `joined` that is no collection of groups; another fallback.

    Example:
        >>> print(convert(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())))
        converted 1 of 1 layers
    """
    if constant_weights and any(x.training for x in model.modules()):
        raise field_error(InputError, "model.training", True, PROMISE, False)
    if isinstance(joined, str) or any(isinstance(x, str) for x in joined):
        rule = 'must be groups of names, such as [("q_proj", "k_proj", "v_proj")]'
        raise field_error(InputError, "joined", joined, rule)
    if fallback not in FALLBACKS:
        raise field_error(InputError, "fallback", fallback, f"must be one of {', '.join(FALLBACKS)}", "torch")
    converted: list[str] = []
    left: dict[str, str] = {}
    varying: dict[str, str] = {}
    for parent, key, name, module in list(_named(model)):
        if isinstance(module, tuple(swiglu)):
            why = _no_swiglu(model, module, name, skip)
            if why is None and parent is not None:
                setattr(parent, key, _swiglu(module, fallback, constant_weights))
                converted.append(name)
            else:
                left[name] = why or "is the model itself, which cannot be replaced"
    for _, _, name, module in list(_named(model)):
        for names in joined:
            layers = [getattr(module, x, None) for x in names]
            if len(names) < 2 or not all(isinstance(x, torch.nn.Linear) for x in layers):
                continue
            every = [f"{name}.{x}" if name else x for x in names]
            why = _not_joined(every, layers, skip) or _shared(model, every, layers)
            if why is not None:
                left[f"{every[0]} with {', '.join(names[1:])}"] = why
                continue
            whole = join(module, names, layers)
            _settle(whole, every[0], fallback, constant_weights, varying)
            converted += every
    for _, _, name, module in _named(model):
        if isinstance(module, Linear) or not isinstance(module, (torch.nn.Linear, *_OWN_PRODUCTS)):
            continue
        why = _unconverted(module, name, skip)
        if why is not None:
            left[name] = why
            continue
        module.__class__ = Linear
        _settle(module, name, fallback, constant_weights, varying)
        converted.append(name)
    return Conversion(tuple(converted), left, varying)


def _settle(layer: Any, name: str, fallback: str, constant_weights: bool, varying: dict[str, str]) -> None:
    """Give a layer that is ours now its options; say in `varying` why its weights cannot load early."""
    layer.fallback = fallback
    varies = _varies(layer) if constant_weights else None
    layer.constant_weights = constant_weights and varies is None
    if varies is not None:
        varying[name] = varies


def _not_joined(names: Sequence[str], layers: Sequence[Any], skip: Collection[str]) -> str | None:
    """Why layers cannot become one product; None if they can."""
    for name, layer in zip(names, layers):
        if why := _unconverted(layer, name, skip):
            return f"{name}: {why}"
        if hooked(layer):
            return f"{name}: something is done around its call (a hook)"
    alike = {
        (
            x.in_features,
            *[None if p is None else (p.dtype, p.device, p.requires_grad) for p in (x.weight, x.bias)],
        )
        for x in layers
    }
    if len(alike) > 1:
        return "they must be alike: inputs' width, bias, type, device, requires_grad"
    return None


def _shared(model: torch.nn.Module, names: Sequence[str], layers: Sequence[Any]) -> str | None:
    """Why layers must keep their parameters: others have them too, or the layers; None if nobody has."""
    every = list(model.modules())
    children = Counter(id(x) for module in every for x in module._modules.values())
    owned = Counter(id(x) for module in every for x in module._parameters.values())
    for name, layer in zip(names, layers):
        if children[id(layer)] > 1:
            return f"{name}: the same layer is elsewhere in the model, too"
        if any(owned[id(x)] > 1 for x in layer.parameters(recurse=False)):
            return f"{name}: another layer has the same parameter"
    return None


def _named(model: torch.nn.Module) -> Iterator[tuple[Any, str, str, torch.nn.Module]]:
    """(parent, attribute, whole name, module) of every module, each once."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        above, _, key = name.rpartition(".")
        yield (modules[above] if name else None), key, name, module


def _skipped(name: str, skip: Collection[str]) -> str | None:
    """Why a module is left alone that the caller named."""
    patterns = (skip,) if isinstance(skip, str) else skip
    found = next((x for x in patterns if fnmatchcase(name, x)), None)
    return None if found is None else f"skip={found!r}"


def _unconverted(module: torch.nn.Module, name: str, skip: Collection[str]) -> str | None:
    """Why a module that multiplies is left alone; None if it is not."""
    kind = type(module).__name__
    if _skipped(name, skip):
        return _skipped(name, skip)
    if isinstance(module, _OWN_PRODUCTS):
        return f"{kind} multiplies by its weights itself"
    if type(module) is not torch.nn.Linear:
        return f"{kind} is a class of its own, which may compute something else"
    if "forward" in vars(module):
        return "its forward has been replaced"
    weight: Any = module.weight
    if weight.dtype not in TYPES:
        return f"its weight is {weight.dtype}; products are of float16, bfloat16 or float32"
    if multiplies(type(weight)):
        return f"its weight is a {type(weight).__name__}, which multiplies in a way of its own"
    return None


def _varies(module: Any) -> str | None:
    """Why weights cannot load early; None if they can."""
    weight = module.weight
    if weight.dtype not in _HALF:
        return f"{weight.dtype} runs on the CUDA cores, whose kernels load nothing early"
    if not weight.is_contiguous() or weight.shape[1] * weight.element_size() % 16:
        return f"rows of {tuple(weight.shape)} are not multiples of 16 bytes, which TMA needs"
    return None


def _no_swiglu(model: torch.nn.Module, module: Any, name: str, skip: Collection[str]) -> str | None:
    """Why a perceptron cannot become a `SwiGLU`; None if it can."""
    names = ("gate_proj", "up_proj", "down_proj")
    parts: list[Any] = [getattr(module, x, None) for x in names]
    if _skipped(name, skip):
        return _skipped(name, skip)
    if {x for x, _ in module.named_children()} - {*names, "act_fn"}:
        return "has other modules than gate_proj, up_proj, down_proj and act_fn"
    if any(type(x) is not torch.nn.Linear or x.bias is not None for x in parts):
        return "gate_proj, up_proj and down_proj must be torch.nn.Linear without biases"
    if any(hooked(x) for x in (module, *parts[:2])):
        return "something is done around its call or its layers' (a hook, another forward)"
    if not _silu(getattr(module, "act_fn", None)):
        return "its act_fn is not silu"
    if _kind(parts[0].weight) != _kind(parts[1].weight) or parts[0].weight.dtype not in TYPES:
        return "gate_proj and up_proj must be alike, of float16, bfloat16 or float32"
    if multiplies(type(parts[0].weight)):
        return "its weights multiply in a way of their own"
    return _shared(model, [name, *(f"{name}.{x}" for x in names[:2])], [module, *parts[:2]])


def _kind(x: torch.Tensor) -> tuple[Any, ...]:
    """What parameters of layers that become one have in common."""
    return type(x), x.shape, x.dtype, x.device, x.requires_grad


def _silu(act: Any) -> bool:
    """Whether a function gives what silu gives."""
    # wherever the model is, and whatever the current device
    probe = torch.tensor([-2.0, -0.5, 0.0, 1.5], device="cpu")
    try:
        return torch.equal(act(probe), torch.nn.functional.silu(probe))
    except (RuntimeError, TypeError):
        # it takes no such tensor, or is no function
        return False


def _swiglu(module: Any, fallback: str, constant_weights: bool) -> SwiGLU:
    """A perceptron's weights in a `SwiGLU`; down_proj stays the same object."""
    gate, up, down = module.gate_proj.weight, module.up_proj.weight, module.down_proj
    made = SwiGLU(gate.shape[1], gate.shape[0], down.out_features, device="meta", dtype=gate.dtype)
    both = torch.cat((gate.detach(), up.detach()))
    made.gate_up_weight = torch.nn.Parameter(both, requires_grad=gate.requires_grad)
    made.down_proj = down
    made.fallback = fallback
    made.constant_weights = constant_weights and _varies(module.gate_proj) is None
    made.train(module.training)
    return made


__all__ = ["Conversion", "convert"]
