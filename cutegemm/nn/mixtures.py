# SPDX-License-Identifier: Apache-2.0
"""Converts experts of the transformers library (Mixtral, Qwen3-MoE, DeepSeek-V3, gpt-oss, ...) through its registry.

Classes decorated by `transformers.integrations.moe.use_experts_implementation` declare the layout of their weights, and
call the function that their config names. `adopt` registers our function and names it in a copy of the module's
config. Module, parameters and state dict stay the same.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.functions import silu
from cutegemm.epilogue.scales import ROW
from cutegemm.epilogue.trace import Col, Row, define
from cutegemm.epilogue.value import Value
from cutegemm.nn.experts import combined, dispatched, mixture, routes, summed
from cutegemm.nn.quantized import TYPES_8, apply_but, check_frozen, frozen, load_but
from cutegemm.ops.dispatch import recording
from cutegemm.ops.fallback import HALF, autocast_type, untouched
from cutegemm.ops.groups.grouped import grouped_mm
from cutegemm.ops.quantized.made import quantized
from cutegemm.ops.quantized.quantize import quantize
from cutegemm.running.numerics.eight_bits import dequantized

# the name of our function in the registry; the attribute of a module for its `fallback`
REGISTERED, FALLBACK = "cutegemm", "_cutegemm_fallback"
# for 8-bit weights: the name of their scales; the module attribute that is True if activations are 8-bit, too
_SCALE, _MULTIPLIES = "{}_scale", "_cutegemm_eight_bits"
# attributes with which a class of the registry describes its weights
_SAID = (
    "has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated", "_is_expert_parallel",
)  # fmt: skip


@define(gated="halves")
def _scaled(gate: Value, up: Value, *, scale_a: Col, scale_gate: Row, scale_up: Row) -> Value:
    """SwiGLU of 8-bit operands with row scales."""
    return silu(gate * scale_a * scale_gate) * (up * scale_a * scale_up)


# classes of activations that the first launch can apply as SwiGLU
_SILU = ("SiLU", "SiLUActivation")


def recognised(module: torch.nn.Module) -> bool:
    """Whether a module's class is in the registry."""
    named = hasattr(getattr(module, "config", None), "_experts_implementation")
    return named and all(hasattr(module, x) for x in _SAID)


def not_adopted(module: Any) -> str | None:
    """Why a module of the registry cannot use our kernels; None if it can."""
    if "forward" in vars(module):
        return "its forward has been replaced"
    for name, weight in module.named_parameters(recurse=False):
        if weight.dtype not in HALF and not hasattr(module, _SCALE.format("down_proj")):
            return f"its {name} is {weight.dtype}; grouped GEMMs support float16 and bfloat16"
    return None


def adopt(module: Any, fallback: str, weights: str | None = None, activations: str | None = None) -> None:
    """Make a module of the registry use our kernels.

    Args:
        module: one for which `recognised` is True and `not_adopted` is None.
        fallback: as of `grouped_mm`.
        weights, activations: names of 8-bit types, as for `convert`; matrices have one scale per row.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(REGISTERED, forward)
    # all modules share one config, so copy it; other modules may keep their implementation
    module.config = copy.copy(module.config)
    module.config._experts_implementation = REGISTERED
    setattr(module, FALLBACK, fallback)
    names = [*_names(module), *map(_SCALE.format, _names(module))]
    if weights is None or hasattr(module, names[-1]):
        return
    for name, scales in zip(names[:2], names[2:]):
        values, scale = quantize(_rows(module, name).detach(), ROW, TYPES_8[weights])
        setattr(module, name, frozen(values.mT if module.is_transposed else values))
        module.register_parameter(scales, frozen(scale))
    setattr(module, _MULTIPLIES, activations is not None)
    module._apply = functools.partial(_moved, module, names)
    module._load_from_state_dict = functools.partial(load_but, module, names[:2])


def _moved(module: Any, names: list[str], fn: Any, recurse: bool = True) -> Any:
    """`_apply` of 8-bit experts, so that `model.half()` and the like do not change weights and scales."""
    return apply_but(module, fn, recurse, names)


def forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The function that the registry calls: the weighted sum of the experts' results, (T, H).

    Args:
        module: the experts.
        hidden_states: (T, H).
        top_k_index, top_k_weights: (T, k), of each token; an out-of-range index is another process's expert.
    """
    if not _supported(module, hidden_states):
        own: Tensor = _own_forward(module)(module, hidden_states, top_k_index, top_k_weights)
        return own
    first, last = _names(module)
    if hasattr(module, _SCALE.format(last)):
        check_frozen(module, (first, last, *map(_SCALE.format, (first, last))))
    dtype, given = module.down_proj.dtype, hidden_states.dtype
    dtype = dtype if dtype in HALF else given if given in HALF else torch.bfloat16
    # under autocast a norm may have returned fp32
    x, fallback = hidden_states.to(dtype), getattr(module, FALLBACK, "torch")
    recorded = recording(x, top_k_weights, *module.parameters())
    # 8-bit operands have no gradient, so a call that autograd records dequantizes the matrices
    eight = getattr(module, _MULTIPLIES, False) and not recorded
    fused = _fused(module)
    if fused and not eight:
        up, down = (_matrices(module, name, dtype) for name in (first, last))
        return mixture(x, top_k_index, top_k_weights, up, down, fallback).to(given)
    to = routes(top_k_index, module.num_experts)
    # alpha: see `experts.mixture`
    told: dict[str, Any] = {"cu_seqlens": to.bounds, "alpha": 1.0, "fallback": fallback}

    def product(x: Tensor, name: str, rows: Tensor | None = None, **more: Any) -> Tensor:
        bias = getattr(module, f"{name}_bias") if module.has_bias else None
        if not eight:
            found: Tensor = grouped_mm(
                x, _matrices(module, name, dtype), bias=bias, rows=rows, **told, **more
            )
            return found
        matrices = _rows(module, name)
        a, scale = quantized(x, ROW, matrices.dtype)
        if rows is not None:
            # index bytes, which torch supports on every device, unlike fp8
            a, scale = (y.index_select(0, rows) for y in (a.view(torch.uint8), scale))
        scales = {"scale_a": scale, "scale_b": getattr(module, _SCALE.format(name))}
        if fused and name == first:
            gate, up = scales.pop("scale_b").chunk(2, -1)
            scales |= {"scale_gate": gate, "scale_up": up}
            more["epilogue"] = _scaled
        found = grouped_mm(
            a.view(matrices.dtype), matrices.mT, bias=bias, out_dtype=dtype, **scales, **told, **more
        )
        return found

    recorded = recorded and not untouched()
    rows, index = (dispatched(x, to.rows, to.place), None) if recorded else (x, to.rows)
    found = product(rows, first, index)
    hidden = found if fused else module._apply_gate(found) if module.has_gate else module.act_fn(found)
    if recorded or eight or module.has_post_expert_norm:
        found = product(hidden, last)
        found = module.post_expert_norm(found) if module.has_post_expert_norm else found
        return combined(found, top_k_weights, *to[:3]).to(given)
    weight = top_k_weights.reshape(-1).index_select(0, to.order)
    return summed(product(hidden, last, weight=weight), to.place).to(given)


def _supported(module: Any, x: Tensor) -> bool:
    """Whether groups multiply a module's weights, whose type may have changed since `adopt`."""
    dtype = module.down_proj.dtype
    if dtype in HALF or hasattr(module, _SCALE.format("down_proj")):
        return True
    cast = torch._C._is_any_autocast_enabled() and autocast_type(x.device) in HALF
    return cast and dtype == torch.float32


def _own_forward(module: Any) -> Any:
    """The forward function of the module's class, which the registry's decorator wraps."""
    found = (getattr(vars(x).get("forward"), "__wrapped__", None) for x in type(module).__mro__)
    return next(x for x in found if x is not None)


def _names(module: Any) -> tuple[str, str]:
    """The names of the first and the second matrices of the experts."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def _rows(module: Any, name: str) -> Tensor:
    """The experts' matrices in the layout of linear layers, (E, N, K)."""
    weight: Tensor = getattr(module, name)
    return weight.mT if module.is_transposed else weight


def _matrices(module: Any, name: str, dtype: torch.dtype) -> Tensor:
    """The experts' matrices, (E, K, N); dequantized if stored in 8 bits."""
    rows, scale = _rows(module, name), getattr(module, _SCALE.format(name), None)
    return (rows if scale is None else dequantized(rows, scale, ROW, dtype)).mT


def _fused(module: Any) -> bool:
    """Whether `mixture` computes a module: silu(gate) * up of concatenated halves, no biases, no norm after it."""
    if not module.has_gate or module.has_bias or module.has_post_expert_norm or not module.is_concatenated:
        return False
    own = type(module)._apply_gate.__module__ != "transformers.integrations.moe"
    return not own and type(getattr(module, "act_fn", None)).__name__ in _SILU


__all__ = ["REGISTERED", "adopt", "forward", "not_adopted", "recognised"]
