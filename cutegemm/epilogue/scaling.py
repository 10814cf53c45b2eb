# SPDX-License-Identifier: Apache-2.0
"""An epilogue's graph with scales of operands: what `GemmSpec.scale_a` and `scale_b` make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cutegemm.epilogue.graph import Graph, Node, Result
from cutegemm.epilogue.scales import AXES, TENSOR, BlockScale, Kind
from cutegemm.errors import SpecError, field_error

# D is the sum itself
PLAIN = Graph((Node("acc"),), (Result("d", 0),))
_LEAVES = {"a": "col", "b": "row"}


def scaled(graph: Graph, kinds: Mapping[str, Kind]) -> Graph:
    """A graph whose accumulators are scaled first; itself where it reads such scales already.

    Args:
        graph: the epilogue.
        kinds: of the scales of "a" and "b", in this order; an operand that is not named has none.

    Raises:
        SpecError: the graph has an input or output of a scale's name, or a gated pair whose B has more than one scale.
    """
    wanted = {f"scale_{x}": _read(x, kind) for x, kind in kinds.items()}
    inputs = {**graph.tensors, **graph.numbers}
    if all(inputs.get(name) == kind for name, kind in wanted.items()):
        return graph
    for name in wanted:
        if name in (*inputs, *(x.name for x in graph.outputs)):
            rule = "the epilogue has another input or output of this name"
            raise field_error(SpecError, name, kinds[name[-1]], rule)
    if graph.gated and kinds.get("b", TENSOR) != TENSOR:
        raise field_error(SpecError, "scale_b", kinds["b"], "a gated pair has one scale for B", TENSOR)
    blocks = tuple(
        BlockScale(f"scale_{x}", AXES[x], kind[1]) for x, kind in kinds.items() if isinstance(kind, tuple)
    )
    whole = [Node(_read(x, kind), (), f"scale_{x}") for x, kind in kinds.items() if isinstance(kind, str)]
    nodes: list[Node] = []
    places: list[int] = []  # of the graph's nodes among the new ones
    for node in graph.nodes:
        nodes.append(dataclasses.replace(node, args=tuple(places[x] for x in node.args)))
        for leaf in whole if node.op == "acc" else ():
            nodes += [leaf, Node("mul", (len(nodes) - 1, len(nodes)))]
        places.append(len(nodes) - 1)
    outputs = tuple(dataclasses.replace(x, node=places[x.node]) for x in graph.outputs)
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs, scales=blocks)


def _read(operand: str, kind: Kind) -> str:
    """The kind of input that a graph reads as an operand's scales."""
    if isinstance(kind, tuple):
        return f"blocks_{AXES[operand]}"
    return "scalar" if kind == TENSOR else _LEAVES[operand]


__all__ = ["PLAIN", "scaled"]
