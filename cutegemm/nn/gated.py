# SPDX-License-Identifier: Apache-2.0
"""Recognizes MLPs of other classes that compute the same as `SwiGLU`, and builds their replacements.

A class is recognized by its children's types and by its forward, traced with torch.fx. A probe with a few
values would accept an activation that differs for other values.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from cutegemm.nn.linear import TYPES, multiplies
from cutegemm.nn.mlp import SwiGLU, hooked
from cutegemm.nn.tracing import owning, traced

NAMES = ("gate_proj", "up_proj", "down_proj")
_PRODUCTS = (operator.mul, torch.mul, "mul")
# module and class of transformers that wraps torch's silu; named, not imported
_SILU_OF_OTHERS = ("transformers.activations", "SiLUActivation")


def not_swiglu(module: Any) -> str | None:
    """Why an MLP cannot become a `SwiGLU`; None if it can.

    Does not check whether parameters are shared with other modules.
    """
    parts: list[Any] = [getattr(module, x, None) for x in NAMES]
    if {x for x, _ in module.named_children()} - {*NAMES, "act_fn"}:
        return "its modules are not exactly gate_proj, up_proj, down_proj and act_fn"
    if why := owning(module):
        return why
    if any(type(x) is not torch.nn.Linear or x.bias is not None for x in parts):
        return "gate_proj, up_proj and down_proj must be torch.nn.Linear without biases"
    if any(hooked(x) for x in (module, *parts[:2])):
        return "it or one of its layers has hooks or a replaced forward"
    activation = getattr(module, "act_fn", None)
    if activation is not None and not _silu(activation):
        name = getattr(activation, "__name__", type(activation).__name__)
        return f"its act_fn is {name}, not a known silu"
    if _kind(parts[0].weight) != _kind(parts[1].weight) or parts[0].weight.dtype not in TYPES:
        return "gate_proj and up_proj must agree and be float16, bfloat16 or float32"
    if multiplies(type(parts[0].weight)):
        return "the class of its weights overrides matmul"
    return _another_forward(module)


def swiglu_of(module: Any, fallback: str, constant_weights: bool) -> SwiGLU:
    """A `SwiGLU` with an MLP's weights; down_proj stays the same object."""
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
    """The properties that parameters of joined layers must share."""
    return type(x), x.shape, x.dtype, x.device, x.requires_grad


def _silu(activation: Any) -> bool:
    """Whether a function or module is torch's silu, without hooks."""
    kind = type(activation)
    if not isinstance(activation, torch.nn.Module):
        return activation is torch.nn.functional.silu
    known = kind is torch.nn.SiLU or (kind.__module__, kind.__name__) == _SILU_OF_OTHERS
    return known and not hooked(activation)


def _another_forward(module: Any) -> str | None:
    """Why a forward is not down_proj(silu(gate_proj(x)) * up_proj(x)); None if it is."""
    nodes = traced(module)
    if isinstance(nodes, str):
        return nodes
    product = _called(module, nodes[-1].args[0], "down_proj")
    inputs = [x for x in nodes if x.op == "placeholder"]
    # nodes: input, three layers, silu, the elementwise product, and the output
    if len(nodes) == 7 and len(inputs) == 1 and product is not None and product.target in _PRODUCTS:
        gates = [_called(module, _activated(module, x), "gate_proj") for x in product.args]
        ups = [_called(module, x, "up_proj") for x in product.args]
        if inputs * 2 in ([gates[0], ups[-1]], [gates[-1], ups[0]]):
            return None
    return "its forward is not down_proj(silu(gate_proj(x)) * up_proj(x))"


def _called(module: Any, node: Any, name: str) -> Any:
    """The argument of a node that calls layer `name`; None for other nodes."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or node.target != name:
        return None
    return node.args[0] if len(node.args) == 1 and not node.kwargs else None


def _activated(module: Any, node: Any) -> Any:
    """The argument of a node that calls silu; None for other nodes."""
    if isinstance(node, torch.fx.Node) and node.target is torch.nn.functional.silu:
        return node.args[0] if node.args else node.kwargs.get("input")
    return _called(module, node, "act_fn")


__all__ = ["NAMES", "not_swiglu", "swiglu_of"]
