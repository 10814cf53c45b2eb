# SPDX-License-Identifier: Apache-2.0
"""`QuantizedLinear`: an 8-bit linear layer that replaces torch's, transformers' or compressed-tensors' layers.

The computation of another library's layer is read from its attributes, not only from its name. A layer that is not
fully understood is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.scales import BLOCKS, ROW, TENSOR, BlockScale, Kind
from cutegemm.errors import InputError, field_error
from cutegemm.nn.linear import Linear
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import recording
from cutegemm.ops.quantized.frozen import Points, Storage, frozen_linear
from cutegemm.ops.quantized.made import Quantized, rows_aligned
from cutegemm.ops.quantized.quantize import quantize

# name in `convert` -> type
TYPES_8 = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_WIDER = (torch.float16, torch.bfloat16, torch.float32)
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.float32)


@dataclass(frozen=True)
class Source:
    """The properties of an 8-bit layer of another library.

    Attributes:
        storage: types and kinds of weight and activations.
        scale: name of its weight's scales.
        static: name of its input's scale; None computes the scale from the input.
        zero: name of its weight's zero points, if it has some; static_zero: of its input's, beside `static`.
    """

    storage: Storage
    scale: str
    static: str | None = None
    zero: str | None = None
    static_zero: str | None = None

    @property
    def kinds(self) -> dict[str, Kind]:
        """The scales and zero points of the layer by name, and the kind of each."""
        own, whole = (self.scale, self.zero), (self.static, self.static_zero)
        found = dict.fromkeys(own, self.storage.kind) | dict.fromkeys(whole, TENSOR)
        return {name: kind for name, kind in found.items() if name is not None}


class QuantizedLinear(torch.nn.Linear):
    """A linear layer with an 8-bit weight: input @ (weight * scale).T + bias in the input's type, for inference.

    `nn.convert` converts a layer in place. Parameters keep their names, so a state dict has the layer's keys and the
    scales under "weight_scale", or the layer's own name for them. Scales are fp32. `to(dtype)` and `half()` change only
    the bias. The input has a 16-bit gradient; the weight has none.
    """

    source: Source
    fallback: str
    weight_sums: Tensor  # of rows; a buffer of layers whose inputs have zero points

    def forward(self, input: Tensor) -> Tensor:
        """input @ (weight * scale).T + bias, for any leading dimensions."""
        if isinstance(input, Proxy):
            traced: Tensor = leaf(self, input)
            return traced
        return self.product(input, self.weight, getattr(self, self.source.scale), self.bias)

    def product(self, input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """input @ (weight * scale).T + bias with this layer's settings, for its weight or some rows of it."""
        check_tensor("input", input)
        source = self.source
        check_frozen(self, ("weight", *source.kinds))
        static, zero, beside = (
            None if name is None else getattr(self, name)
            for name in (source.static, source.zero, source.static_zero)
        )
        points = Points(zero, beside, self.weight_sums if source.storage.shifted else None)
        how = source.storage, static, self.fallback
        return frozen_linear(input, Quantized(weight, scale), bias, *how, points)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As for torch.nn.Module, but weight and scales keep their types."""
        return apply_but(self, fn, recurse, ("weight", *self.source.kinds))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """As for torch.nn.Module, but a weight of another type is refused."""
        load_but(self, ("weight",), state_dict, prefix, *args)
        if self.source.storage.shifted:
            self.weight_sums = sums_of(self.weight)

    def extra_repr(self) -> str:
        """The arguments in its repr."""
        storage = self.source.storage
        x = (
            "not quantized"
            if storage.activations is None
            else f"{storage.activations}, {storage.activation_kind}"
        )
        return f"{super().extra_repr()}, weight={self.weight.dtype}, {storage.kind}, input={x}"


def apply_but(module: torch.nn.Module, fn: Any, recurse: bool, names: Sequence[Any]) -> Any:
    """`torch.nn.Module._apply`, but some parameters keep their types, and 8-bit ones the padding of their rows."""
    whole = {id(x) for name, x in module._parameters.items() if name in names}

    def moved(x: Tensor) -> Tensor:
        found: Tensor = fn(x)
        if id(x) not in whole:
            return found
        if found.dtype != x.dtype:
            found = x.to(found.device)
        # a copy on another device has no padding, and every GEMM would align the rows again
        padded = x.dim() > 1 and not x.is_contiguous() and found.is_contiguous()
        return rows_aligned(found) if padded and x.dtype in TYPES_8.values() else found

    apply: Any = torch.nn.Module._apply
    return apply(module, moved, recurse)


def check_frozen(module: Any, names: Sequence[str | None]) -> None:
    """Refuse a call that autograd would record for 8-bit weights or their scales, which have no gradient.

    Raises:
        InputError: one of these parameters requires a gradient, and autograd records.
    """
    for name in names:
        if name is not None and recording(getattr(module, name)):
            rule = "8-bit weights and their scales do not train: call requires_grad_(False) on them"
            raise field_error(InputError, f"{name}.requires_grad", True, rule, False)


def load_but(module: Any, names: Sequence[str], state: Any, prefix: str, *args: Any) -> None:
    """`torch.nn.Module._load_from_state_dict`, but nothing is loaded where some parameters would be cast.

    A weight of 16 bits, cast to 8 without scales, would multiply as another one. torch raises the messages.
    """
    for name in names:
        given, own = state.get(prefix + name), getattr(module, name)
        if isinstance(given, Tensor) and given.dtype != own.dtype:
            rule = f"must be {own.dtype}, got {given.dtype}; load weights of other types before `convert`"
            # the last argument is torch's list of messages
            args[-1].append(f"{prefix}{name}: {rule}")
            return
    base: Any = torch.nn.Module._load_from_state_dict
    base(module, state, prefix, *args)


def store(
    layer: Any, weights: str, activations: str | None, fallback: str, kind: type = QuantizedLinear
) -> None:
    """Convert a torch.nn.Linear in place to a `QuantizedLinear` and quantize its weight with one scale per row."""
    values, scale = quantize(layer.weight.detach(), ROW, TYPES_8[weights])
    layer.weight = frozen(values)
    layer.register_parameter("weight_scale", frozen(scale))
    inputs = None if activations is None else TYPES_8[activations]
    _become(layer, Source(Storage(ROW, inputs), "weight_scale"), fallback, kind)


def load(layer: Any, source: Source, fallback: str) -> None:
    """Convert in place a layer of another library that `source_of` recognizes."""
    for name, kind in source.kinds.items():
        own = getattr(layer, name).detach()
        own = own.int() if name in (source.zero, source.static_zero) else own.float()
        shape = () if kind == TENSOR else (layer.weight.shape[0],) if kind == ROW else own.shape
        delattr(layer, name)
        layer.register_parameter(name, frozen(own.reshape(shape)))
    layer.weight = frozen(layer.weight.detach())
    if source.storage.shifted:
        layer.register_buffer("weight_sums", sums_of(layer.weight), persistent=False)
    # the other library may have replaced its forward
    vars(layer).pop("forward", None)
    _become(layer, source, fallback)


def _become(layer: Any, source: Source, fallback: str, kind: type = QuantizedLinear) -> None:
    for name in Linear.__annotations__:
        vars(layer).pop(name, None)
    layer.__class__ = kind
    layer.source, layer.fallback = source, fallback


def sums_of(weight: Tensor) -> Tensor:
    """The sums of a weight's rows in int32."""
    return weight.detach().sum(-1, dtype=torch.int32)


def unallocated(*layers: torch.nn.Module) -> str | None:
    """Why layers cannot be stored: a parameter is on the meta device. None if none is."""
    missing = any(p.is_meta for x in layers for p in x.parameters(recurse=False))
    return "its parameters have no memory yet" if missing else None


def frozen(x: Tensor) -> torch.nn.Parameter:
    """A parameter that does not train."""
    return torch.nn.Parameter(x, requires_grad=False)


def source_of(module: torch.nn.Module) -> Source | str | None:
    """The 8-bit format of another library's layer, or why it is not supported; None if it is not such a layer."""
    if not isinstance(module, torch.nn.Linear):
        return None
    weight: Any = module._parameters.get("weight")
    if getattr(module, "quantization_scheme", None) is not None:
        found = _compressed(module, weight)
    elif type(module).__name__ == "FP8Linear" and hasattr(module, "weight_scale_inv"):
        found = (
            "its forward has been replaced" if "forward" in vars(module) else _fine_grained(module, weight)
        )
    else:
        return None
    if isinstance(found, str):
        return found
    scale: Any = getattr(module, found.scale, None)
    for name in found.kinds:
        if not isinstance(getattr(module, name, None), Tensor):
            return f"it has no {name}"
    if scale.dtype not in (*_WIDER, _E8M0):
        return f"its {found.scale} is {scale.dtype}"
    if not _fits(scale, found.storage.kind, weight):
        return f"its {found.scale} is {tuple(scale.shape)}, which does not match its scheme"
    zero: Any = getattr(module, found.zero or "", None)
    if zero is not None and not _fits(zero, found.storage.kind, weight):
        return f"its {found.zero} is {tuple(zero.shape)}, which does not match its scheme"
    for single in filter(None, (found.static, found.static_zero)):
        if getattr(module, single).numel() != 1:
            return f"its {single} has more than one element"
    return found


def _fits(scale: Tensor, kind: Kind, weight: Tensor) -> bool:
    n, k = weight.shape
    if kind == TENSOR:
        return scale.numel() == 1
    if kind == ROW:
        return tuple(scale.shape) in ((n,), (n, 1))
    blocks = BlockScale("scale", "n", kind[1])  # type: ignore[arg-type]
    return blocks.fits(tuple(scale.shape), blocks.shape(0, n, k))


def _fine_grained(module: Any, weight: Any) -> Source | str:
    """transformers' FP8Linear: e4m3 in blocks of 128 x 128 or with one scale; `weight_scale_inv` multiplies."""
    if weight is None or weight.dtype != torch.float8_e4m3fn:
        return f"its weight is {getattr(weight, 'dtype', None)}, not torch.float8_e4m3fn"
    size, scheme = getattr(module, "block_size", None), getattr(module, "activation_scheme", None)
    if size is not None and tuple(size) != (128, 128):
        return f"its blocks are {tuple(size)}, not (128, 128)"
    kind = TENSOR if size is None else BLOCKS[1]
    if scheme == "dynamic":
        rows: Kind = ROW if size is None else BLOCKS[0]
        return Source(Storage(kind, weight.dtype, rows), "weight_scale_inv")
    if scheme == "static":
        return Source(Storage(kind, weight.dtype, TENSOR), "weight_scale_inv", "activation_scale")
    return f"its activation_scheme is {scheme!r}"


def _compressed(module: Any, weight: Any) -> Source | str:
    """compressed-tensors' float-quantized and int-quantized layers, 8 bits; int8 may have zero points."""
    scheme = module.quantization_scheme
    if type(module).__name__ not in ("Linear", "CompressedLinear"):
        return f"{type(module).__name__} is a subclass, which may compute something else"
    if weight is None or weight.dtype not in (torch.float8_e4m3fn, torch.int8):
        return f"its weight is {getattr(weight, 'dtype', 'packed')}; 8-bit layers are float8_e4m3fn or int8"
    if getattr(scheme, "output_activations", None) is not None:
        return "its scheme quantizes outputs"
    weights, inputs = getattr(scheme, "weights", None), getattr(scheme, "input_activations", None)
    if weights is None:
        return "its scheme does not describe weights"
    if (why := unallocated(module)) is not None:
        return why
    kinds: dict[Any, Kind] = {"tensor": TENSOR, "channel": ROW}
    if list(getattr(weights, "block_structure", None) or ()) == [128, 128]:
        kinds["block"] = BLOCKS[1]
    kind = kinds.get(_name(weights.strategy))
    zero = None if weights.symmetric else "weight_zero_point"
    if kind is None or weights.num_bits != 8:
        return f"its weights are {_said(weights)}"
    if (why := _without_points(module, "weight", weights, kind)) is not None:
        return f"its weights are {_said(weights)}: {why}"
    if inputs is None:
        return Source(Storage(kind, None), "weight_scale", zero=zero)
    rows: Kind | None = {"token": ROW, "tensor": TENSOR}.get(_name(inputs.strategy))
    if _name(inputs.strategy) == "group" and inputs.group_size == 128:
        rows = BLOCKS[0]
    dynamic = inputs.dynamic is True
    static = None if dynamic else "input_scale"
    known = dynamic or (rows == TENSOR and hasattr(module, "input_scale"))
    if rows is None or inputs.num_bits != 8 or not known:
        return f"its inputs are {_said(inputs)}"
    if (why := _without_points(module, "input", inputs, rows)) is not None:
        return f"its inputs are {_said(inputs)}: {why}"
    whole = {"int": torch.int8, "float": torch.float8_e4m3fn}.get(_name(inputs.type))
    if whole != weight.dtype:
        return f"its inputs are {_said(inputs)}, its weights {weight.dtype}"
    if zero is not None and isinstance(rows, tuple):
        return f"its weights are {_said(weights)}: scales of blocks exclude zero points"
    beside = None if dynamic or inputs.symmetric else "input_zero_point"
    return Source(
        Storage(kind, weight.dtype, rows, not inputs.symmetric), "weight_scale", static, zero, beside
    )


def _name(value: Any) -> Any:
    """The value of an enumeration member; other values unchanged."""
    return getattr(value, "value", value)


def _without_points(module: Any, of: str, args: Any, kind: Kind) -> str | None:
    """Why a scheme's zero points of "weight" or "input" are not supported; None if they are, or if it has none."""
    if args.symmetric:
        found = getattr(module, f"{of}_zero_point", None)
        nonzero = found is not None and bool((found.float() != 0).any())
        return "a symmetric scheme has no zero points" if nonzero else None
    if _name(args.type) != "int":
        return "only int8 has zero points"
    return "scales of blocks exclude zero points" if isinstance(kind, tuple) else None


def _said(args: Any) -> str:
    """A scheme's arguments as text."""
    shown = [f"{'' if args.symmetric else 'a'}symmetric", f"{_name(args.type)}{args.num_bits}"]
    return f"{' '.join(shown)} by {_name(args.strategy)}, {'dynamic' if args.dynamic else 'static'}"


__all__ = [
    "TYPES_8",
    "QuantizedLinear",
    "Source",
    "apply_but",
    "check_frozen",
    "frozen",
    "load",
    "load_but",
    "source_of",
    "store",
    "unallocated",
]
