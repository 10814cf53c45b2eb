# SPDX-License-Identifier: Apache-2.0
"""The experts of transformers' mixtures (Mixtral, Qwen3-MoE, DeepSeek-V3, gpt-oss and others), by its registry.

A class that `transformers.integrations.moe.use_experts_implementation` decorates says how its weights lie, and computes
with the function that its config names. `adopt` registers ours there and names it in a copy of the module's config;
module, parameters and state dict stay.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from cutegemm.nn.experts import combined, dispatched, mixture, routes, summed
from cutegemm.ops.dispatch import recording
from cutegemm.ops.fallback import HALF
from cutegemm.ops.groups.grouped import grouped_mm
from cutegemm.ops.perceptron import untouched

# what our function is called in the registry, and where a module keeps what to do without a Hopper GPU
REGISTERED, FALLBACK = "cutegemm", "_cutegemm_fallback"
# what a class of the registry says of its weights
_SAID = (
    "has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated", "_is_expert_parallel",
)  # fmt: skip
# activations that the first launch applies as swiglu does
_SILU = ("SiLU", "SiLUActivation")


def recognised(module: torch.nn.Module) -> bool:
    """Whether a module is of the registry's classes."""
    named = hasattr(getattr(module, "config", None), "_experts_implementation")
    return named and all(hasattr(module, x) for x in _SAID)


def not_adopted(module: Any) -> str | None:
    """Why a module of the registry cannot compute with us; None if it can."""
    if "forward" in vars(module):
        return "its forward has been replaced"
    for name, weight in module.named_parameters(recurse=False):
        if weight.dtype not in HALF:
            return f"its {name} is {weight.dtype}; products of groups are of float16 or bfloat16"
    return None


def adopt(module: Any, fallback: str) -> None:
    """Have a module of the registry compute with us.

    Args:
        module: `recognised`, and not `not_adopted`.
        fallback: as of `grouped_mm`.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(REGISTERED, forward)
    # the whole model has one config, whose other experts may have been left
    module.config = copy.copy(module.config)
    module.config._experts_implementation = REGISTERED
    setattr(module, FALLBACK, fallback)


def forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What the registry calls: the weighted sum of the experts' results, (T, H).

    Args:
        module: the experts.
        hidden_states: (T, H).
        top_k_index, top_k_weights: (T, k), of each token; an index beyond the last expert is one of another process.
    """
    up, down = (_matrices(module, x) for x in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj"))
    # autocast gives what a norm computed in fp32
    x = hidden_states.to(down.dtype)
    fallback = getattr(module, FALLBACK, "torch")
    if _fused(module):
        return mixture(x, top_k_index, top_k_weights, up, down, fallback).to(hidden_states.dtype)
    to = routes(top_k_index, module.num_experts)
    told: dict[str, Any] = {"cu_seqlens": to.bounds, "fallback": fallback}
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    recorded = recording(x, top_k_weights, *module.parameters()) and not untouched()
    rows, index = (dispatched(x, to.rows, to.place), None) if recorded else (x, to.rows)
    found = grouped_mm(rows, up, bias=biases[0], rows=index, **told)
    hidden = module._apply_gate(found) if module.has_gate else module.act_fn(found)
    if recorded or module.has_post_expert_norm:
        found = grouped_mm(hidden, down, bias=biases[1], **told)
        found = module.post_expert_norm(found) if module.has_post_expert_norm else found
        return combined(found, top_k_weights, *to[:3]).to(hidden_states.dtype)  # type: ignore[no-any-return]
    weight = top_k_weights.reshape(-1).index_select(0, to.order)
    found = grouped_mm(hidden, down, bias=biases[1], weight=weight, **told)
    return summed(found, to.place).to(hidden_states.dtype)


def _matrices(module: Any, name: str) -> Tensor:
    """The experts' matrices, (E, K, N)."""
    weight: Tensor = getattr(module, name)
    return weight if module.is_transposed else weight.mT


def _fused(module: Any) -> bool:
    """Whether a module is a `mixture`: its gate is silu(gate) * up, halves, without biases and a norm after it."""
    if not module.has_gate or module.has_bias or module.has_post_expert_norm or not module.is_concatenated:
        return False
    own = type(module)._apply_gate.__module__ != "transformers.integrations.moe"
    return not own and type(getattr(module, "act_fn", None)).__name__ in _SILU


__all__ = ["REGISTERED", "adopt", "forward", "not_adopted", "recognised"]
