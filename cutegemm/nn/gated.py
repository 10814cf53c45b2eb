# SPDX-License-Identifier: Apache-2.0
"""Which perceptrons of somebody else's class compute what `SwiGLU` computes, and the `SwiGLU` in their place.

A class is recognised by its children's types and by what its forward does, read with torch.fx: a probe with a few
numbers would accept an activation that differs elsewhere.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from cutegemm.nn.linear import TYPES, multiplies
from cutegemm.nn.mlp import SwiGLU, hooked

NAMES = ("gate_proj", "up_proj", "down_proj")
_PRODUCTS = (operator.mul, torch.mul, "mul")
# transformers' own module of torch's function, named and not imported
_SILU_OF_OTHERS = ("transformers.activations", "SiLUActivation")


def not_swiglu(module: Any) -> str | None:
    """Why a perceptron cannot become a `SwiGLU`; None if it can.

    Sharing with other modules is not looked at.
    """
    parts: list[Any] = [getattr(module, x, None) for x in NAMES]
    if {x for x, _ in module.named_children()} - {*NAMES, "act_fn"}:
        return "has other modules than gate_proj, up_proj, down_proj and act_fn"
    own = [x for x, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]
    if own:
        return f"has parameters or buffers of its own: {', '.join(own)}"
    if any(type(x) is not torch.nn.Linear or x.bias is not None for x in parts):
        return "gate_proj, up_proj and down_proj must be torch.nn.Linear without biases"
    if any(hooked(x) for x in (module, *parts[:2])):
        return "something is done around its call or its layers' (a hook, another forward)"
    activation = getattr(module, "act_fn", None)
    if activation is not None and not _silu(activation):
        name = getattr(activation, "__name__", type(activation).__name__)
        return f"its act_fn is {name}, which is not known to be silu"
    if _kind(parts[0].weight) != _kind(parts[1].weight) or parts[0].weight.dtype not in TYPES:
        return "gate_proj and up_proj must be alike, of float16, bfloat16 or float32"
    if multiplies(type(parts[0].weight)):
        return "its weights multiply in a way of their own"
    return _another_forward(module)


def swiglu_of(module: Any, fallback: str, constant_weights: bool) -> SwiGLU:
    """A perceptron's weights in a `SwiGLU`; down_proj stays the same object."""
    gate, up, down = module.gate_proj.weight, module.up_proj.weight, module.down_proj
    made = SwiGLU(gate.shape[1], gate.shape[0], down.out_features, device="meta", dtype=gate.dtype)
    both = torch.cat((gate.detach(), up.detach()))
    made.gate_up_weight = torch.nn.Parameter(both, requires_grad=gate.requires_grad)
    made.down_proj = down
    made.fallback = fallback
    made.constant_weights = constant_weights
    made.train(module.training)
    return made


def _kind(x: torch.Tensor) -> tuple[Any, ...]:
    """What parameters of layers that become one have in common."""
    return type(x), x.shape, x.dtype, x.device, x.requires_grad


def _silu(activation: Any) -> bool:
    """Whether a function or module is torch's silu, with nothing done around its call."""
    kind = type(activation)
    if not isinstance(activation, torch.nn.Module):
        return activation is torch.nn.functional.silu
    known = kind is torch.nn.SiLU or (kind.__module__, kind.__name__) == _SILU_OF_OTHERS
    return known and not hooked(activation)


def _another_forward(module: Any) -> str | None:
    """What a forward does instead of down_proj(silu(gate_proj(x)) * up_proj(x)); None if it does that."""
    try:
        graph = torch.fx.Tracer().trace(module)
    except Exception as error:
        # whatever somebody's forward raises when it is given no tensor
        return f"its forward cannot be read: {type(error).__name__}"
    nodes = list(graph.nodes)
    product = _called(module, nodes[-1].args[0], "down_proj")
    inputs = [x for x in nodes if x.op == "placeholder"]
    # the input, three layers, silu, the product of both, and what is returned
    if len(nodes) == 7 and len(inputs) == 1 and product is not None and product.target in _PRODUCTS:
        gates = [_called(module, _activated(module, x), "gate_proj") for x in product.args]
        ups = [_called(module, x, "up_proj") for x in product.args]
        if inputs * 2 in ([gates[0], ups[-1]], [gates[-1], ups[0]]):
            return None
    return "its forward is not down_proj(silu(gate_proj(x)) * up_proj(x))"


def _called(module: Any, node: Any, name: str) -> Any:
    """What a layer was called on, if a node is its call; None if it is something else."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or node.target != name:
        return None
    return node.args[0] if len(node.args) == 1 and not node.kwargs else None


def _activated(module: Any, node: Any) -> Any:
    """What silu was called on, if a node is its call; None if it is something else."""
    if isinstance(node, torch.fx.Node) and node.target is torch.nn.functional.silu:
        return node.args[0] if node.args else node.kwargs.get("input")
    return _called(module, node, "act_fn")


__all__ = ["NAMES", "not_swiglu", "swiglu_of"]
