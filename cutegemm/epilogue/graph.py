# SPDX-License-Identifier: Apache-2.0
"""The epilogue as data: a small expression graph over logical coordinates.

A node sees the element (m, n) of batch l of the accumulator and of the inputs; nothing in it knows of
fragments, threads or tiles, so a kernel may place, permute or split the accumulator as it likes. A graph
is hashable and serialisable: it is part of the spec, of the cache key and of a plan sent to a compiler
process. Backends evaluate it by supplying leaves and a table of operations (`Graph.evaluate`).

Every value is fp32, but those of comparisons and of and, or, not, which are truth values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cutegemm.errors import SpecError, field_error

TENSORS = ("matrix", "row", "col")  # inputs of M x N, N and M elements, each with an optional batch
NUMBERS = ("scalar", "integer")  # an fp32 and an int32 number, the same for every element
LEAVES = ("acc", *TENSORS, *NUMBERS, "const")

COMPARISONS = {"lt": 2, "le": 2, "gt": 2, "ge": 2, "eq": 2, "ne": 2}
LOGIC = {"and": 2, "or": 2, "not": 1}
OPERATIONS = {  # name -> operands
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1, "min": 2, "max": 2,
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "sigmoid": 1, "erf": 1,
    "floor": 1, "round": 1,  # round: to nearest, ties to even
    "cast": 1,  # through the dtype named by the node's value and back to fp32; fp8 saturates
    "where": 3,  # (truth value, x, y)
    "random": 2,  # (seed, offset), integers -> uniform in [0, 1) from the element's row, column and batch
    **COMPARISONS, **LOGIC,
}  # fmt: skip

STORE = "store"
REDUCTIONS = ("sum", "max", "logsumexp")
GATED = (None, "halves", "interleaved")
ACCUMULATORS = ("gate", "up")  # a gated graph's two accumulators; a plain one's has no name


@dataclass(frozen=True)
class Node:
    """One value: a leaf (`op` in `LEAVES`, `value` its name or number) or an operation on earlier nodes."""

    op: str
    args: tuple[int, ...] = ()
    value: str | float | None = None


@dataclass(frozen=True)
class Result:
    """One output: a node stored as an M x N matrix, or reduced over rows, columns or everything.

    Attributes:
        name: what the caller finds it by; "d" is the GEMM's D.
        node: index of the node.
        kind: "store", "sum", "max" or "logsumexp".
        dtype: of a stored matrix; None means the spec's d_dtype for d, else A's. Reductions are fp32.
        major: of a stored matrix, "n" or "m"; None means that of the tensor passed, row-major if none is.
        axis: of a reduction: 0 reduces rows (N results), 1 columns (M results), None both (one result).
        partial: the tiles' partial results are the result; nothing finishes them.
    """

    name: str
    node: int
    kind: str = STORE
    dtype: str | None = None
    major: str | None = None
    axis: int | None = None
    partial: bool = False


@dataclass(frozen=True)
class Graph:
    """Nodes in evaluation order, the outputs, and how B holds a gated pair.

    A gated graph has two accumulators, "gate" and "up", from the two halves of B's columns ("halves") or
    its even and odd ones ("interleaved"); its inputs and outputs are as wide as one half.

    Raises:
        SpecError: an unknown operation, an operand that is not an earlier node, or an ill-formed output.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Result, ...]
    gated: str | None = None

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            arity = 0 if node.op in LEAVES else OPERATIONS.get(node.op)
            if arity is None:
                raise field_error(SpecError, "epilogue", node.op, f"unknown operation at node {index}")
            if len(node.args) != arity or any(not 0 <= a < index for a in node.args):
                rule = f"node {index} ({node.op}) takes {arity} earlier nodes"
                raise field_error(SpecError, "epilogue", node.args, rule)
        if not self.outputs:
            raise field_error(SpecError, "epilogue", self.outputs, "must have an output")
        for output in self.outputs:
            if not 0 <= output.node < len(self.nodes):
                rule = f"output {output.name} must be one of the {len(self.nodes)} nodes"
                raise field_error(SpecError, "epilogue", output.node, rule)

    def names(self, *leaves: str) -> tuple[str, ...]:
        """The distinct names of the leaves of some kinds, e.g. "matrix", in order of first use."""
        return tuple(dict.fromkeys(str(n.value) for n in self.nodes if n.op in leaves))

    @property
    def tensors(self) -> dict[str, str]:
        """Name -> kind ("matrix", "row" or "col") of every tensor input, in order of first use."""
        return {str(n.value): n.op for n in self.nodes if n.op in TENSORS}

    @property
    def numbers(self) -> dict[str, str]:
        """Name -> kind ("scalar" or "integer") of every number input, in order of first use."""
        return {str(n.value): n.op for n in self.nodes if n.op in NUMBERS}

    @property
    def stores(self) -> tuple[Result, ...]:
        """The outputs stored as matrices."""
        return tuple(x for x in self.outputs if x.kind == STORE)

    @property
    def reductions(self) -> tuple[Result, ...]:
        """The outputs that are reductions."""
        return tuple(x for x in self.outputs if x.kind != STORE)

    def evaluate(self, leaf: Callable[[Node], Any], operations: Mapping[str, Callable]) -> list[Any]:
        """The values of all nodes, from `leaf(node)` and `operations[op](*args)`; a cast also gets its dtype."""
        values: list[Any] = []
        for node in self.nodes:
            if node.op in LEAVES:
                values.append(leaf(node))
            else:
                extra = () if node.value is None else (node.value,)
                values.append(operations[node.op](*(values[a] for a in node.args), *extra))
        return values

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `Graph.from_data` reads it back."""
        return {
            "nodes": [[n.op, list(n.args), n.value] for n in self.nodes],
            "outputs": [asdict(x) for x in self.outputs],
            "gated": self.gated,
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from `to_data`."""
        nodes = tuple(Node(op, tuple(args), value) for op, args, value in data["nodes"])
        return Graph(nodes, tuple(Result(**x) for x in data["outputs"]), data["gated"])

    def __str__(self) -> str:
        from cutegemm.epilogue.text import formula

        return formula(self)


def linear_combination(with_c: bool) -> Graph:
    """D = alpha * acc, or alpha * acc + beta * C: the BLAS epilogue.

    Without C the graph has no matrix leaf, so its kernel holds no load of C.

    Example:
        >>> print(linear_combination(with_c=True))
        d = (alpha * acc + beta * c)
    """
    scaled = (Node("acc"), Node("scalar", value="alpha"), Node("mul", (1, 0)))
    if not with_c:
        return Graph(scaled, (Result("d", 2),))
    with_beta = (
        Node("matrix", value="c"),
        Node("scalar", value="beta"),
        Node("mul", (4, 3)),
        Node("add", (2, 5)),
    )
    return Graph(scaled + with_beta, (Result("d", 6),))
