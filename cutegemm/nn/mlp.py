# SPDX-License-Identifier: Apache-2.0
"""MLPs with the activation in the epilogue of the first GEMM."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.checks import keywords
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.library import act, bias_act, swiglu
from cutegemm.errors import InputError, field_error
from cutegemm.nn import state_dicts
from cutegemm.nn.linear import Linear, check_layer, promised, unserved
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.entry_points import linear
from cutegemm.ops.fallback import torch_linear
from cutegemm.ops.perceptron import perceptron

# name -> torch's module, and its `approximate` argument
ACTIVATIONS: dict[str, tuple[Any, str | None]] = {
    "gelu": (torch.nn.GELU, "none"),
    "gelu_tanh": (torch.nn.GELU, "tanh"),
    "relu": (torch.nn.ReLU, None),
    "silu": (torch.nn.SiLU, None),
}
_SWIGLU = swiglu()
_any_global_hook: Any = torch.nn.modules.module._has_any_global_hook
_GATE, _UP, _BOTH = "gate_proj.weight", "up_proj.weight", "gate_up_weight"


class MLP(torch.nn.Sequential):
    """Linear, activation, Linear, with the state dict of that torch.nn.Sequential: "0.weight", "2.weight", ...

    The first GEMM's epilogue adds the bias and applies the activation. If a gradient is needed, it also stores the
    pre-activation. In the backward pass, the second layer's GEMM applies the activation's gradient (`ops.perceptron`).

    Args:
        in_features, hidden_features, out_features: widths; out_features None is in_features.
        activation: "gelu", "gelu_tanh", "relu" or "silu".
        bias, device, dtype, fallback, constant_weights: as for `Linear`.

    Raises:
        InputError: the activation is not one of these.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        activation: str = "gelu",
        *,
        bias: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            rule = f"must be one of {', '.join(ACTIVATIONS)}; SwiGLU is a separate module"
            raise field_error(InputError, "activation", activation, rule, "gelu")
        out_features = in_features if out_features is None else out_features
        widths = {"hidden_features": hidden_features, "out_features": out_features}
        check_layer(options.get("fallback", "torch"), bias=bias, in_features=in_features, **widths)
        kind, approximate = ACTIVATIONS[activation]
        super().__init__(
            Linear(in_features, hidden_features, bias, **options),
            kind() if approximate is None else kind(approximate=approximate),
            Linear(hidden_features, out_features, bias, **options),
        )
        self.activation = activation
        self.epilogue: Graph = bias_act(activation) if bias else act(activation)

    def forward(self, input: Tensor) -> Tensor:
        """The output of the second layer."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        layers: list[Any] = list(self)
        if not self._as_made(input, layers):
            # the layers were changed, so call them one by one
            called: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return called
        return through(input, layers[0], layers[2], self.epilogue)

    def _as_made(self, input: Tensor, layers: list[Any]) -> bool:
        """Whether the first two layers are unchanged, so that one GEMM can compute both."""
        if len(layers) != 3:
            return False
        first, activation, _ = layers
        kind, approximate = ACTIVATIONS[self.activation]
        return begins(input, first, self.epilogue) and computes(activation, kind, approximate)

    def __getitem__(self, index: Any) -> Any:
        """A layer, or a slice of layers as a torch.nn.Sequential."""
        if isinstance(index, slice):
            return torch.nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


def hooked(layer: torch.nn.Module) -> bool:
    """Whether a layer has hooks or a replaced forward, as in parallel training, so that it must be called itself."""
    if "forward" in vars(layer) or layer._backward_pre_hooks:
        return True
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def watched(layer: torch.nn.Module) -> bool:
    """Whether a layer has hooks, or all modules have (`torch.nn.modules.module.register_module_forward_hook`)."""
    return hooked(layer) or bool(_any_global_hook())


def begins(input: Tensor, first: Any, epilogue: Graph) -> bool:
    """Whether a first layer is one of ours, without hooks, and has a bias if the epilogue reads one."""
    if type(first) is not Linear or watched(first) or unserved(first, input, first.weight):
        return False
    return (first.bias is None) != ("bias" in epilogue.tensors)


def computes(activation: Any, kind: Any, approximate: str | None) -> bool:
    """Whether an activation is a module of a class with an `approximate`, without hooks."""
    same = type(activation) is kind and getattr(activation, "approximate", None) == approximate
    return same and not watched(activation)


def through(input: Tensor, first: Any, last: Any, epilogue: Graph) -> Tensor:
    """last(f(first(input))), with f in the epilogue of the first layer's GEMM."""
    if _fusable(first, last):
        weights = first.weight, first.bias, epilogue, last.weight, last.bias
        return perceptron(input, *weights, fallback=first.fallback)
    spec = promised(first, first.weight) if first.constant_weights else None
    hidden = linear(input, first.weight, first.bias, epilogue=epilogue, spec=spec, fallback=first.fallback)
    found: Tensor = last(hidden)
    return found


def _fusable(first: Any, last: Any) -> bool:
    """Whether one function may run both layers: no constant weights, equal fallbacks, no hooks on the last one."""
    plain = type(last) is Linear and not last.constant_weights
    return plain and not first.constant_weights and first.fallback == last.fallback and not watched(last)


class Rows(NamedTuple):
    """Stands for a layer whose weight is a view of rows of another layer's parameter."""

    weight: Tensor


class SwiGLU(torch.nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv:2002.05202), the MLP of Llama, without biases.

    Gate and up are one parameter, (2 hidden, in), and one GEMM with a gated epilogue. The state dict is that of three
    linear layers: "gate_proj.weight", "up_proj.weight", "down_proj.weight".

    Args:
        in_features, hidden_features, out_features: widths; out_features None is in_features.
        device, dtype, fallback, constant_weights: as for `Linear`.
    """

    @keywords()
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
        fallback: str = "torch",
        constant_weights: bool = False,
    ) -> None:
        widths = {"out_features": in_features if out_features is None else out_features}
        check_layer(
            fallback, constant_weights, in_features=in_features, hidden_features=hidden_features, **widths
        )
        super().__init__()
        self.in_features, self.hidden_features = in_features, hidden_features
        self.fallback, self.constant_weights = fallback, constant_weights
        gate_up = torch.empty(2 * hidden_features, in_features, device=device, dtype=dtype)
        self.gate_up_weight = torch.nn.Parameter(gate_up)
        self.down_proj = Linear(
            hidden_features, in_features if out_features is None else out_features, bias=False,
            device=device, dtype=dtype, fallback=fallback, constant_weights=constant_weights,
        )  # fmt: skip
        self.reset_parameters()
        hooks: Any = self
        hooks.register_state_dict_post_hook(_apart)
        hooks.register_load_state_dict_pre_hook(_together)

    @property
    def gate_proj(self) -> Rows:
        """The gate's rows of the weight, under the original layer's name."""
        return Rows(self.gate_up_weight[: self.hidden_features])

    @property
    def up_proj(self) -> Rows:
        """The up projection's rows of the weight, under the original layer's name."""
        return Rows(self.gate_up_weight[self.hidden_features :])

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(in_features), the initialization of torch.nn.Linear."""
        bound = self.in_features**-0.5 if self.in_features else 0.0
        torch.nn.init.uniform_(self.gate_up_weight, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """The output of the down projection."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        down: Any = self.down_proj
        if unserved(self, input, self.gate_up_weight):
            gate, up = torch_linear(input, self.gate_up_weight, None).chunk(2, -1)
            product: Tensor = down(torch.nn.functional.silu(gate) * up)
            return product
        if _fusable(self, down):
            weight = self.gate_up_weight
            return perceptron(input, weight, None, _SWIGLU, down.weight, down.bias, fallback=self.fallback)
        spec = promised(self, self.gate_up_weight) if self.constant_weights else None
        hidden = linear(input, self.gate_up_weight, epilogue=_SWIGLU, spec=spec, fallback=self.fallback)
        found: Tensor = down(hidden)
        return found

    def extra_repr(self) -> str:
        """The arguments in its repr."""
        return f"in_features={self.in_features}, hidden_features={self.hidden_features}"


def _parts(module: Any, prefix: str) -> dict[str, int]:
    """The keys of gate and up in a state dict, and their rows."""
    return dict.fromkeys((prefix + _GATE, prefix + _UP), module.hidden_features)


def _apart(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Replace the joined weight by gate and up in a state dict."""
    state_dicts.apart(state, {prefix + _BOTH: _parts(module, prefix)})


def _together(module: Any, state: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
    """Replace gate and up by the joined weight in a state dict that is loaded."""
    _, missing, _, errors = rest
    both, parts = module._parameters.get(_BOTH), _parts(module, prefix)
    state_dicts.together(state, [prefix + _BOTH], both, parts, metadata, missing, errors)


__all__ = ["ACTIVATIONS", "MLP", "SwiGLU", "hooked"]
