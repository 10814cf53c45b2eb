# SPDX-License-Identifier: Apache-2.0
"""`convert`: converts the linear layers of an existing model in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cutegemm.checks import keywords
from cutegemm.nn.asked import Asked, asked
from cutegemm.nn.experts import MoE
from cutegemm.nn.gated import NAMES, not_swiglu, swiglu_of
from cutegemm.nn.joined import Joined, Part, QuantizedJoined, Sharing, join
from cutegemm.nn.linear import TYPES, Linear, multiplies
from cutegemm.nn.mixtures import adopt, not_adopted, recognised
from cutegemm.nn.mlp import SwiGLU, hooked
from cutegemm.nn.perceptrons import fuse, parts_of
from cutegemm.nn.quantized import TYPES_8, QuantizedLinear, load, source_of, store, unallocated
from cutegemm.ops.fallback import HALF

# Modules that multiply by their weights themselves; they are not converted.
_OWN_PRODUCTS = (torch.nn.MultiheadAttention, torch.nn.Bilinear, torch.nn.RNNBase)
_OURS = (Linear, QuantizedLinear, SwiGLU, Sharing, Part, MoE)


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`, by the modules' names.

    Attributes:
        converted: the layers that now use cutegemm.
        left: the layers that were left alone, and why.
        varying: converted layers to which `constant_weights` does not apply, and why.
        others: number of other modules with parameters, by class name, such as "Embedding".
    """

    converted: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    varying: dict[str, str] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"converted {len(self.converted)} of {len(self.converted) + len(self.left)} layers"]
        lines += [f"left {name}: {why}" for name, why in self.left.items()]
        lines += [f"without constant weights {name}: {why}" for name, why in self.varying.items()]
        if self.others:
            kinds = (f"{count} {kind}" for kind, count in self.others.items())
            lines.append(f"other modules with parameters: {', '.join(kinds)}")
        return "\n".join(lines)


@keywords()
def convert(
    model: torch.nn.Module,
    *,
    constant_weights: bool = False,
    fallback: str = "torch",
    skip: Collection[str] = (),
    swiglu: Collection[type[torch.nn.Module]] = (),
    mlp: Collection[type[torch.nn.Module]] = (),
    joined: Collection[Sequence[str]] = (),
    weights: str | None = None,
    activations: str | None = None,
) -> Conversion:
    """Convert the linear layers of a model to cutegemm, in place.

    A torch.nn.Linear becomes a `Linear`: the object, its parameters, hooks and state dict stay the same. The experts of
    transformers' mixtures then use `grouped_mm`, and stay the same, too. Subclasses and layers with changed behaviour
    are left alone, and the result says why.

    Args:
        model: a module; it may itself be a torch.nn.Linear.
        constant_weights: for inference. A layer's kernel starts to load its weights before the previous kernel has
            ended; you promise that no kernel is writing them then. Refused for a model in training, here and in every
            call.
        fallback: the behaviour without a Hopper GPU, as for `cutegemm.matmul`.
        skip: names of modules to leave alone, with wildcards, such as "lm_head" or "*.router". A name that matches no
            module is refused; so are unmatched `swiglu`, `mlp` and `joined`.
        swiglu: classes of MLPs that compute down_proj(silu(gate_proj(x)) * up_proj(x)), such as transformers' LlamaMLP.
            `SwiGLU` replaces them if their forward does exactly that. Gate and up become one new parameter, so convert
            before you make an optimizer. The state dict does not change.
        joined: names of layers of one module that are called on the same tensor, such as ("q_proj", "k_proj",
            "v_proj"). One GEMM computes all of them. Their weights become one new parameter, as for `swiglu`;
            `layer.weight` is a view of it. Their results are views of one tensor, so autograd refuses in-place writes
            to them. Layers that share a parameter with others are not joined.
        weights: "fp8" or "int8" stores weights in 8 bits with one scale per row (`QuantizedLinear`), also those of
            mixtures' experts; for inference. Layers that share a parameter are left alone. Layers may be `joined`, so
            that their input is quantized once; `swiglu` and `mlp` are refused.
        activations: the same type quantizes inputs with one scale per row, so that GEMMs run in 8 bits. None
            dequantizes the weight in each call, which saves memory but no time.

    Raises:
        InputError: an argument has another type or matches nothing in the model, or `constant_weights` is given for a
            model in training. The model is then unchanged.

    Example:
        >>> print(convert(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())))
        converted 1 of 1 layers
    """
    what = asked(model, skip, swiglu, mlp, joined, fallback, constant_weights, (weights, activations))
    made = Conversion(())
    mixtures = list(_mixtures(model, what, made))
    converted = [
        *_gated(model, what, made),
        *_perceptrons(model, what, made),
        *_joined(model, what, made),
        *mixtures,
    ]
    for parent, _, name, module in _named(model):
        if name in mixtures:
            continue
        source = None if isinstance(module, QuantizedLinear) else source_of(module)
        if source is not None:
            why = what.skipped(name) or _not_stored(model, name, module)
            if isinstance(source, str) or why is not None:
                made.left[name] = why or str(source)
                continue
            load(module, source, what.fallback)
            converted.append(name)
            continue
        ours = isinstance(module, Linear) and (what.weights is None or type(module) is not Linear)
        other = not isinstance(module, (torch.nn.Linear, *_OWN_PRODUCTS))
        if ours or other or isinstance(module, QuantizedLinear):
            if what.weights is not None and (why := _kept(module, what)) is not None:
                made.left[name] = why
            _overlook(name, module, made)
            continue
        why = _unconverted(module, name, what)
        if why is None and what.weights is not None:
            why = _of_parent(parent, module) or _not_stored(model, name, module)
        if why is not None:
            made.left[name] = why
            continue
        converted.append(name)
        if what.weights is not None:
            _quantize(module, name, what, made)
            continue
        module.__class__ = Linear
        _settle(module, name, what, made)
    return replace(made, converted=tuple(converted))


def _gated(model: torch.nn.Module, what: Asked, made: Conversion) -> Iterator[str]:
    """Replace gated MLPs of the classes that the caller named; yields the replaced names."""
    for parent, key, name, module in list(_named(model)):
        if not isinstance(module, what.swiglu):
            continue
        parts: list[Any] = [getattr(module, x, None) for x in NAMES]
        why = what.skipped(name) or not_swiglu(module)
        if why is None and parent is None:
            why = "is the model itself, which cannot be replaced"
        names = [name, *(f"{name}.{x}" for x in NAMES[:2])]
        why = why or _shared(model, names, [module, *parts[:2]])
        if why is not None:
            made.left[name] = why
            continue
        early = what.constant_weights and _varies(parts[0]) is None
        setattr(parent, key, swiglu_of(module, what.fallback, early))
        yield name


def _perceptrons(model: torch.nn.Module, what: Asked, made: Conversion) -> Iterator[str]:
    """Give MLPs of the classes that the caller named the forward of `MLP`; yields their names."""
    for _, _, name, module in list(_named(model)):
        if not isinstance(module, what.mlp):
            continue
        found = what.skipped(name) or parts_of(module)
        if isinstance(found, str):
            made.left[name] = found
            continue
        fuse(module, found)
        yield name


def _joined(model: torch.nn.Module, what: Asked, made: Conversion) -> Iterator[str]:
    """Join each group of layers that the caller named; yields the names of the joined layers."""
    for _, _, name, module in list(_named(model)):
        for names in what.joined:
            layers: list[Any] = [module._modules.get(x) for x in names]
            if None in layers or all(isinstance(x, Part) for x in layers):
                continue
            every = [f"{name}.{x}" if name else x for x in names]
            why = _not_joined(every, layers, what) or _shared(model, every, layers)
            if why is None and what.weights is not None:
                why = unallocated(*layers)
            if why is not None:
                made.left[f"{every[0]} with {', '.join(names[1:])}"] = why
                continue
            whole = join(module, names, layers)
            if what.weights is None:
                _settle(whole, every[0], what, made)
            else:
                _quantize(whole, every[0], what, made, QuantizedJoined)
            yield from every


def _mixtures(model: torch.nn.Module, what: Asked, made: Conversion) -> Iterator[str]:
    """Convert the experts of transformers' mixtures; yields the converted names."""
    for _, _, name, module in _named(model):
        if not recognised(module):
            continue
        why = what.skipped(name) or not_adopted(module) or (what.weights and _not_stored(model, name, module))
        if what.activations == "int8":
            why = why or "groups support fp8, not int8; activations=None dequantizes weights"
        if why:
            made.left[name] = why
            continue
        adopt(module, what.fallback, what.weights, what.activations)
        yield name


def _overlook(name: str, module: torch.nn.Module, made: Conversion) -> None:
    """Record a module that is not a linear layer: by name if it may multiply by a weight, else in `others`."""
    own = list(module.parameters(recurse=False))
    if not own or isinstance(module, _OURS) or name in made.left:
        return
    kind = type(module).__name__
    weight = next((x for x in own if x.dim() > 1 and x.is_floating_point()), None)
    if weight is not None and type(module).__module__.partition(".")[0] != "torch":
        shape = tuple(weight.shape)
        made.left[name] = f"{kind} is not a torch.nn.Linear and may use its weight {shape} in its own way"
    else:
        made.others[kind] = made.others.get(kind, 0) + 1


def _settle(layer: Any, name: str, what: Asked, made: Conversion) -> None:
    """Set a converted layer's options; record in `varying` why its weights cannot load early."""
    layer.fallback = what.fallback
    varies = _varies(layer) if what.constant_weights else None
    layer.constant_weights = what.constant_weights and varies is None
    if varies is not None:
        made.varying[name] = varies


def _quantize(
    layer: Any, name: str, what: Asked, made: Conversion, kind: type[QuantizedLinear] = QuantizedLinear
) -> None:
    """Store a layer's weight in 8 bits; record in `varying` that it cannot load early."""
    assert what.weights is not None
    store(layer, what.weights, what.activations, what.fallback, kind)
    if what.constant_weights:
        made.varying[name] = "8-bit weights are loaded after earlier launches"


def _not_joined(names: Sequence[str], layers: Sequence[Any], what: Asked) -> str | None:
    """Why layers cannot be joined into one GEMM; None if they can."""
    for name, layer in zip(names, layers):
        if not isinstance(layer, torch.nn.Linear):
            return f"{name}: {type(layer).__name__} is not a torch.nn.Linear"
        if why := _unconverted(layer, name, what):
            return f"{name}: {why}"
        if hooked(layer):
            return f"{name}: it has hooks"
    alike = {
        (
            x.in_features,
            *[None if p is None else (p.dtype, p.device, p.requires_grad) for p in (x.weight, x.bias)],
        )
        for x in layers
    }
    if len(alike) > 1:
        return "they must agree in input width, bias, type, device and requires_grad"
    return None


def _shared(model: torch.nn.Module, names: Sequence[str], layers: Sequence[Any]) -> str | None:
    """Why layers must keep their parameters: the layers or their parameters are shared. None if not."""
    every = list(model.modules())
    children = Counter(id(x) for module in every for x in module._modules.values())
    owned = Counter(id(x) for module in every for x in module._parameters.values())
    for name, layer in zip(names, layers):
        if children[id(layer)] > 1:
            return f"{name}: the model has the same layer in another place"
        if any(owned[id(x)] > 1 for x in layer.parameters(recurse=False)):
            return f"{name}: another layer has the same parameter"
    return None


def _named(model: torch.nn.Module) -> Iterator[tuple[Any, str, str, torch.nn.Module]]:
    """(parent, attribute, full name, module) of every module, each once."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        above, _, key = name.rpartition(".")
        yield (modules[above] if name else None), key, name, module


def _unconverted(module: torch.nn.Module, name: str, what: Asked) -> str | None:
    """Why a module is left alone; None if it is converted."""
    kind = type(module).__name__
    if why := what.skipped(name):
        return why
    if isinstance(module, _OWN_PRODUCTS):
        return f"{kind} multiplies by its weights itself"
    if isinstance(module, QuantizedLinear):
        return "its weight has 8 bits already: give `joined` in the call that stores the model in 8 bits"
    if type(module) not in (torch.nn.Linear, Linear):
        return f"{kind} is a subclass, which may compute something else"
    if "forward" in vars(module):
        return "its forward has been replaced"
    weight: Any = module.weight
    if weight.dtype not in TYPES:
        return f"its weight is {weight.dtype}; supported are float16, bfloat16 and float32"
    if multiplies(type(weight)):
        return f"its weight is a {type(weight).__name__}, which overrides matmul"
    return None


def _not_stored(model: torch.nn.Module, name: str, module: torch.nn.Module) -> str | None:
    """Why a layer's weight cannot be quantized to 8 bits; None if it can."""
    return unallocated(module) or _shared(model, [name], [module])


def _of_parent(parent: Any, module: torch.nn.Module) -> str | None:
    """Why a layer of this module must not be stored in 8 bits; None if it may be."""
    if isinstance(parent, MoE) and parent.router is module:
        return "it routes tokens, and 8-bit weights would choose other experts"
    if isinstance(parent, torch.nn.TransformerEncoderLayer):
        return "torch.nn.TransformerEncoderLayer reads its weight itself in evaluation"
    return None


def _kept(module: torch.nn.Module, what: Asked) -> str | None:
    """Why a module of ours stays as it is when `convert` stores weights in 8 bits; None if it is as asked."""
    if isinstance(module, MoE):
        return "the experts of nn.MoE are not stored in 8 bits; those of transformers are"
    if isinstance(module, (SwiGLU, Joined)):
        return "it was made from several layers of 16 bits: give `joined` in the call that stores the model in 8 bits"
    if isinstance(module, QuantizedLinear):
        weights, inputs = (TYPES_8.get(x or "") for x in (what.weights, what.activations))
        if module.weight.dtype != weights:
            return f"its weight is {module.weight.dtype} already"
        if (own := module.source.storage.activations) != inputs:
            return f"it has 8 bits already, and {'quantizes no input' if own is None else f'inputs of {own}'}"
    return None


def _varies(module: Any) -> str | None:
    """Why a layer's weights cannot load early; None if they can."""
    weight = module.weight
    if weight.dtype not in HALF:
        return f"kernels of {weight.dtype} load nothing early"
    if not weight.is_contiguous() or weight.shape[1] * weight.element_size() % 16:
        return f"rows of {tuple(weight.shape)} are not multiples of 16 bytes, which TMA needs"
    return None


__all__ = ["Conversion", "convert"]
