# SPDX-License-Identifier: Apache-2.0
"""Recognizes MLPs of other classes that compute the same as `MLP`, and gives them its forward.

A class is recognized as in `gated`: by its children's types, and by its forward, traced with torch.fx.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.library import act, bias_act
from cutegemm.nn.linear import Linear
from cutegemm.nn.mlp import ACTIVATIONS, begins, computes, through
from cutegemm.nn.tracing import Proxy, leaf, owning, traced

# functions of torch that a traced forward calls, and their names in `ACTIVATIONS`
_FUNCTIONS: dict[Any, str] = {
    functional.gelu: "gelu", functional.relu: "relu", torch.relu: "relu", functional.silu: "silu"
}  # fmt: skip
_FORWARD = "its forward is not second(activation(first(x))) with gelu, relu or silu"


class Parts(NamedTuple):
    """How a recognized MLP was made.

    Attributes:
        original: its class.
        first, last: names of its layers.
        epilogue: of the first layer: its bias and the activation.
        module: of the activation: its name, class and `approximate`; None if a function computes it.
    """

    original: type[torch.nn.Module]
    first: str
    last: str
    epilogue: Graph
    module: tuple[str, type[torch.nn.Module], str | None] | None


class FusedMLP(torch.nn.Module):
    """An MLP of another class, with `MLP`'s forward. `convert` makes it: the same object, modules and state dict.

    It computes as its original class while a layer has hooks or has been replaced.
    """

    made_of: Parts

    def forward(self, *args: Any, **named: Any) -> Any:
        """The output of the second layer."""
        if len(args) == 1 and not named:
            (x,) = args
            if isinstance(x, Proxy):
                return leaf(self, x)
            if self._as_made(x):
                first, last = self._modules[self.made_of.first], self._modules[self.made_of.last]
                return through(x, first, last, self.made_of.epilogue)
        return self.made_of.original.forward(self, *args, **named)

    def _as_made(self, x: Any) -> bool:
        """Whether the first layer and the activation are unchanged, so that one GEMM can compute both."""
        if not begins(x, self._modules.get(self.made_of.first), self.made_of.epilogue):
            return False
        if self.made_of.module is None:
            return True
        name, kind, approximate = self.made_of.module
        return computes(self._modules.get(name), kind, approximate)

    def extra_repr(self) -> str:
        """Its class before."""
        return self.made_of.original.__name__


def fuse(module: Any, parts: Parts) -> None:
    """Give an MLP the forward of `MLP`, in place; `parts` are what `parts_of` found."""
    module.made_of = parts
    module.__class__ = FusedMLP


def parts_of(module: Any) -> Parts | str:
    """The parts of an MLP, or why it cannot become a `FusedMLP`."""
    children = dict(module.named_children())
    layers = [name for name, x in children.items() if type(x) in (torch.nn.Linear, Linear)]
    others = [name for name in children if name not in layers]
    if len(layers) != 2 or len(others) > 1:
        return "its modules are not exactly two torch.nn.Linear and an activation"
    if why := owning(module):
        return why
    if "forward" in vars(module):
        return "its forward has been replaced"
    nodes = traced(module)
    if isinstance(nodes, str):
        return nodes
    # input, first layer, activation, second layer, output
    if len(nodes) != 5 or nodes[0].op != "placeholder":
        return _FORWARD
    begin, first, middle, last, end = nodes
    called = all(x.op == "call_module" and x.target in layers and not x.kwargs for x in (first, last))
    chained = first.args == (begin,) and last.args == (middle,) and end.args == (last,)
    name = _activation(module, middle)
    if not called or not chained or first.target == last.target or name is None or middle.args != (first,):
        return _FORWARD
    epilogue = (act if children[first.target].bias is None else bias_act)(name)
    kinds = [(x, type(y := children[x]), getattr(y, "approximate", None)) for x in others]
    return Parts(type(module), str(first.target), str(last.target), epilogue, kinds[0] if kinds else None)


def _activation(module: torch.nn.Module, node: Any) -> str | None:
    """The name of the activation that a node computes; None for others."""
    if node.op == "call_module" and not node.kwargs:
        found = module.get_submodule(node.target)
        known = type(found), getattr(found, "approximate", None)
        return next((x for x, kind in ACTIVATIONS.items() if kind == known), None)
    name = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
    tanh = name == "gelu" and node.kwargs.get("approximate", "none") == "tanh"
    plain = {"approximate": ("none", "tanh"), "inplace": (False,)}
    if name is None or any(value not in plain.get(x, ()) for x, value in node.kwargs.items()):
        return None
    return "gelu_tanh" if tanh else name


__all__ = ["FusedMLP", "Parts", "fuse", "parts_of"]
