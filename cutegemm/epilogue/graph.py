# SPDX-License-Identifier: Apache-2.0
"""The epilogue as data: a small expression graph over logical coordinates.

A node sees the element (m, n) of batch l of the accumulator and of matrices; nothing in it knows of
fragments, threads or tiles, so a kernel may place, permute or split the accumulator as it likes. A graph
is hashable and serialisable: it is part of the spec, of the cache key and of a plan sent to a compiler
process. Backends evaluate it by supplying leaves and a table of operations (`Graph.evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.errors import SpecError, field_error

LEAVES = ("acc", "matrix", "scalar", "const")
OPERATIONS = {"add": 2, "sub": 2, "mul": 2}  # name -> operands


@dataclass(frozen=True)
class Node:
    """One value: a leaf (`op` in `LEAVES`, `value` its name or number) or an operation on earlier nodes."""

    op: str
    args: tuple[int, ...] = ()
    value: str | float | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes in evaluation order and the named outputs, e.g. (("d", 4),).

    Raises:
        SpecError: an unknown operation, an operand that is not an earlier node, or a missing output d.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            arity = 0 if node.op in LEAVES else OPERATIONS.get(node.op)
            if arity is None:
                raise field_error(SpecError, "epilogue", node.op, f"unknown operation at node {index}")
            if len(node.args) != arity or any(not 0 <= a < index for a in node.args):
                rule = f"node {index} ({node.op}) takes {arity} earlier nodes"
                raise field_error(SpecError, "epilogue", node.args, rule)
        if dict(self.outputs).keys() != {"d"}:
            raise field_error(SpecError, "epilogue", self.outputs, "must have exactly the output d")
        if not 0 <= dict(self.outputs)["d"] < len(self.nodes):
            rule = f"the output must be one of the {len(self.nodes)} nodes"
            raise field_error(SpecError, "epilogue", self.outputs, rule)

    def names(self, leaf: str) -> tuple[str, ...]:
        """The distinct names of the leaves of one kind ("matrix" or "scalar"), in order of first use."""
        return tuple(dict.fromkeys(str(n.value) for n in self.nodes if n.op == leaf))

    def evaluate(self, leaf: Callable[[Node], Any], operations: Mapping[str, Callable]) -> dict[str, Any]:
        """Compute every output, taking leaves from `leaf(node)` and arithmetic from `operations[op](*args)`."""
        values: list[Any] = []
        for node in self.nodes:
            if node.op in LEAVES:
                values.append(leaf(node))
            else:
                values.append(operations[node.op](*(values[a] for a in node.args)))
        return {name: values[index] for name, index in self.outputs}

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `Graph.from_data` reads it back."""
        return {
            "nodes": [[n.op, list(n.args), n.value] for n in self.nodes],
            "outputs": [list(o) for o in self.outputs],
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from `to_data`."""
        nodes = tuple(Node(op, tuple(args), value) for op, args, value in data["nodes"])
        return Graph(nodes, tuple((name, index) for name, index in data["outputs"]))

    def __str__(self) -> str:
        text = self.evaluate(
            lambda n: "acc" if n.op == "acc" else str(n.value),
            {"add": "({} + {})".format, "sub": "({} - {})".format, "mul": "{} * {}".format},
        )
        return ", ".join(f"{name} = {value}" for name, value in text.items())


def linear_combination(with_c: bool) -> Graph:
    """D = alpha * acc, or alpha * acc + beta * C: the BLAS epilogue.

    Without C the graph has no matrix leaf, so its kernel holds no load of C.

    Example:
        >>> print(linear_combination(with_c=True))
        d = (alpha * acc + beta * c)
    """
    scaled = (Node("acc"), Node("scalar", value="alpha"), Node("mul", (1, 0)))
    if not with_c:
        return Graph(scaled, (("d", 2),))
    with_beta = (
        Node("matrix", value="c"),
        Node("scalar", value="beta"),
        Node("mul", (4, 3)),
        Node("add", (2, 5)),
    )
    return Graph(scaled + with_beta, (("d", 6),))
