# SPDX-License-Identifier: Apache-2.0
"""An epilogue's graph with scales and zero points of operands: what `scale_a`, `zero_point_a` and so on make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph, Node, Result, linear_combination
from cutegemm.epilogue.scales import AXES, NAMES, ROW, TENSOR, BlockScale, Kind
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

    def scale(nodes: list[Node]) -> None:
        for leaf in whole:
            nodes += [leaf, Node("mul", (len(nodes) - 1, len(nodes)))]

    return dataclasses.replace(_after_accumulators(graph, scale), scales=blocks)


def _after_accumulators(graph: Graph, extend: Callable[[list[Node]], None]) -> Graph:
    """A graph that computes with other accumulators: `extend` appends to the nodes that end with one of them."""
    nodes: list[Node] = []
    places: list[int] = []  # of the graph's nodes among the new ones
    for node in graph.nodes:
        nodes.append(dataclasses.replace(node, args=tuple(places[x] for x in node.args)))
        if node.op == "acc":
            extend(nodes)
        places.append(len(nodes) - 1)
    outputs = tuple(dataclasses.replace(x, node=places[x.node]) for x in graph.outputs)
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs)


# what is subtracted of sums for an operand's zero points: factors, each a leaf of integers
_POINTS = {
    ("a", TENSOR): (("row", "zero_a"),),
    ("a", ROW): (("col", "zero_point_a"), ("row", "sums_b")),
    ("b", TENSOR): (("col", "zero_b"),),
    ("b", ROW): (("col", "sums_a"), ("row", "zero_point_b")),
}


def shifted(graph: Graph, kinds: Mapping[str, str]) -> Graph:
    """A graph whose accumulators are of operands less their zero points; itself where it reads these already.

    Args:
        graph: the epilogue.
        kinds: of the zero points of "a" and "b", in this order, "tensor" or "row"; an operand that is not named has
            none.

    Raises:
        SpecError: the graph has an input or output of these names, scales of blocks or a gated pair.
    """
    if graph.scales and kinds:
        x, kind = next(iter(kinds.items()))
        rule = f"is subtracted of whole sums, which {graph.scales[0].name} of blocks has scaled; scales may be of rows"
        raise field_error(SpecError, f"zero_point_{x}", kind, rule, "auto")
    terms = [_POINTS[x, kind] for x, kind in kinds.items()]
    wanted = {name: op for term in terms for op, name in term}
    inputs = {**graph.tensors, **graph.numbers}
    if all(inputs.get(name) == op for name, op in wanted.items()):
        return graph
    for name in wanted:
        if name in (*inputs, *(x.name for x in graph.outputs)):
            raise field_error(SpecError, "epilogue", name, "zero points are read by this name")
    if graph.gated:
        x, kind = next(iter(kinds.items()))
        raise field_error(SpecError, f"zero_point_{x}", kind, "a gated pair has no zero points", "auto")

    def shift(nodes: list[Node]) -> None:
        for term in terms:
            before = len(nodes) - 1
            nodes += [Node(op, (), name) for op, name in term]
            if len(term) == 2:
                nodes.append(Node("mul", (len(nodes) - 2, len(nodes) - 1)))
            nodes.append(Node("sub", (before, len(nodes) - 1)))

    return _after_accumulators(graph, shift)


def _every_sum() -> frozenset[Graph]:
    """Graphs whose D is the sum of integers itself, of operands with and without zero points."""
    kinds = [{"a": a, "b": b} for a in ("", TENSOR, ROW) for b in ("", TENSOR, ROW)]
    return frozenset(shifted(PLAIN, {x: kind for x, kind in y.items() if kind}) for y in kinds)


def _read(operand: str, kind: Kind) -> str:
    """The kind of input that a graph reads as an operand's scales."""
    if isinstance(kind, tuple):
        return f"blocks_{AXES[operand]}"
    return "scalar" if kind == TENSOR else _LEAVES[operand]


# D of integers is a sum of them, or alpha times it
SUMS = _every_sum() | {linear_combination(False)}
# inputs that are int32
INTEGERS = frozenset(name for term in _POINTS.values() for _, name in term)


def default_type(graph: Graph, kind: DType) -> DType:
    """The type of D by default, of operands of a kind: int32 for sums of integers, bf16 for others of 8 bits."""
    return kind.result if graph in SUMS else kind.fused


def input_type(name: str, kind: DType, given: DType | None) -> DType:
    """The type of an epilogue's input by default, or as given: scales are fp32, and zero points and sums int32."""
    if name in INTEGERS and kind.whole:
        return DType.INT32
    usual = DType.FP32 if name in NAMES else kind.fused
    return usual if given is None else given
