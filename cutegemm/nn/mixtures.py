# SPDX-License-Identifier: Apache-2.0
"""The experts of transformers' mixtures (Mixtral, Qwen3-MoE, DeepSeek-V3, gpt-oss and others), by its registry.

A class that `transformers.integrations.moe.use_experts_implementation` decorates says how its weights lie, and computes
with the function that its config names. `adopt` registers ours there and names it in a copy of the module's config;
module, parameters and state dict stay.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.library import swiglu
from cutegemm.nn.experts import routed
from cutegemm.ops.dispatch import recording
from cutegemm.ops.fallback import HALF
from cutegemm.ops.groups.grouped import grouped_mm

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
    product = functools.partial(_product, module)

    def computed(rows: Tensor, offs: Tensor) -> Tensor:
        name = "gate_up_proj" if module.has_gate else "up_proj"
        weight = getattr(module, name)
        if _fused(module) and not recording(rows, weight):
            hidden = product(name, rows, offs, epilogue=swiglu("halves"))
        else:
            found = product(name, rows, offs)
            hidden = module._apply_gate(found) if module.has_gate else module.act_fn(found)
        out = product("down_proj", hidden, offs)
        return module.post_expert_norm(out) if module.has_post_expert_norm else out

    weight = module.down_proj
    # autocast gives what a norm computed in fp32
    rows = hidden_states.to(weight.dtype)
    out = routed(rows, top_k_index, top_k_weights, module.num_experts, computed)
    return out.to(hidden_states.dtype)


def _product(module: Any, name: str, rows: Tensor, offs: Tensor, **more: Any) -> Tensor:
    """The rows of each expert times its matrix, with its bias."""
    weight = getattr(module, name)
    if module.has_bias and "epilogue" not in more:
        more["bias"] = getattr(module, f"{name}_bias")
    matrices = weight if module.is_transposed else weight.mT
    found: Tensor = grouped_mm(rows, matrices, offs, fallback=getattr(module, FALLBACK, "torch"), **more)
    return found


def _fused(module: Any) -> bool:
    """Whether the first launch's epilogue can be the module's gate: silu(gate) * up, halves, no bias."""
    if not module.has_gate or module.has_bias or not module.is_concatenated:
        return False
    own = type(module)._apply_gate.__module__ != "transformers.integrations.moe"
    return not own and type(getattr(module, "act_fn", None)).__name__ in _SILU


__all__ = ["REGISTERED", "adopt", "forward", "not_adopted", "recognised"]
