# SPDX-License-Identifier: Apache-2.0
"""The epilogue as data: a small expression graph over logical coordinates.

A node sees the element (m, n) of batch l of the accumulator and of the inputs; nothing in it knows of
fragments, threads or tiles, so a kernel may place, permute or split the accumulator as it likes. A graph
is hashable and serialisable: it is part of the spec, of the cache key and of a plan sent to a compiler
process. Backends evaluate it by supplying leaves and a table of operations (`Graph.evaluate`).

Every value is fp32, but those of comparisons and of and, or, not, which are truth values.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

from cutegemm import checks
from cutegemm.epilogue.result import CASTS as CASTS
from cutegemm.epilogue.result import INFINITY as INFINITY
from cutegemm.epilogue.result import NEUTRAL as NEUTRAL
from cutegemm.epilogue.result import REDUCTIONS as REDUCTIONS
from cutegemm.epilogue.result import SCALE as SCALE
from cutegemm.epilogue.result import STORE as STORE
from cutegemm.epilogue.result import Result as Result
from cutegemm.epilogue.result import check_form
from cutegemm.epilogue.scales import BlockScale
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

NUMBER, TRUTH, INTEGER = "number", "truth", "integer"  # what a node yields
FP32_MAX = (2 - 2.0**-23) * 2.0**127
RESERVED = ("a", "b", "acc", "backend", "groups", "out", "self", "workspace")  # other parameters of a run
GATED = (None, "halves", "interleaved")
ACCUMULATORS = ("gate", "up")  # a gated graph's two accumulators; a plain one's has no name
_TRANSPOSED = {"row": "col", "col": "row", "n": "m", "m": "n"}


def is_name(value: object) -> bool:
    """Whether a value can name an input or output: a Python identifier that is no keyword, not private."""
    return (
        isinstance(value, str)
        and value.isidentifier()
        and not keyword.iskeyword(value)
        and not value.startswith("_")
    )


@dataclass(frozen=True)
class Node:
    """One value: a leaf (`op` in `LEAVES`, `value` its name or number) or an operation on earlier nodes."""

    op: str
    args: tuple[int, ...] = ()
    value: str | float | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes in evaluation order, the outputs, and how B holds a gated pair.

    A gated graph has two accumulators, "gate" and "up", from the two halves of B's columns ("halves") or
    its even and odd ones ("interleaved"); its inputs and outputs are as wide as one half.

    `swapped` says that the accumulator is that of the transposed product (`transposed`): a gated pair then
    lies along its rows, the columns of the B that was meant, and "random" counts its rows as D's columns.
    It is False where neither occurs, so that graphs that compute alike are equal.

    `scales` are those of operands' blocks: the accumulator is the sum over blocks of K of partial sums times them.

    Raises:
        SpecError: an unknown operation, an operand that is not an earlier node or of the wrong type (truth
            values may meet only and, or, not and where), a name used twice or reserved, an ill-formed output,
            `swapped` where it would change nothing.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Result, ...]
    gated: str | None = None
    swapped: bool = False
    scales: tuple[BlockScale, ...] = ()

    def __post_init__(self) -> None:
        for field, kind in (("nodes", Node), ("outputs", Result)):
            object.__setattr__(self, field, _records(field, getattr(self, field), kind))
        if not checks.among(self.gated, GATED):
            raise field_error(SpecError, "gated", self.gated, f"must be one of {GATED}")
        types: list[str] = []
        for index, node in enumerate(self.nodes):
            _check_operands(index, node)
            _check_value(index, node, self.gated)
            types.append(result_type(node.op, [types[a] for a in node.args]))
        _check_inputs(self)
        _check_results(self, types)

    def names(self, *leaves: str) -> tuple[str, ...]:
        """The distinct names of the leaves of some kinds, e.g. "matrix", in order of first use."""
        return tuple(dict.fromkeys(str(n.value) for n in self.nodes if n.op in leaves))

    @cached_property
    def tensors(self) -> dict[str, str]:
        """Name -> kind of every tensor input: "matrix", "row" or "col" in order of first use, then scales of blocks."""
        read = {str(n.value): n.op for n in self.nodes if n.op in TENSORS}
        return read | {x.name: x.kind for x in self.scales}

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Name -> kind ("scalar" or "integer") of every number input, in order of first use."""
        return {str(n.value): n.op for n in self.nodes if n.op in NUMBERS}

    @cached_property
    def stores(self) -> tuple[Result, ...]:
        """The outputs stored as matrices."""
        return tuple(x for x in self.outputs if x.kind == STORE)

    @cached_property
    def reductions(self) -> tuple[Result, ...]:
        """The outputs that are reductions, scales of blocks among them."""
        return tuple(x for x in self.outputs if x.kind != STORE)

    @cached_property
    def blocks(self) -> tuple[Result, ...]:
        """The outputs of blocks: values and scales."""
        return tuple(x for x in self.outputs if x.block)

    @property
    def gated_axis(self) -> str | None:
        """The axis of the accumulator along which gate and up lie: "n", of a swapped graph "m"; None if plain."""
        return None if self.gated is None else "m" if self.swapped else "n"

    def transposed(self) -> Graph:
        """The epilogue of the transposed product, D^T = B^T A^T: it gives the transposes of the same outputs.

        Rows and columns exchange their parts: row inputs are column inputs, reductions over rows are over
        columns, an output's major is the other one, a gated pair lies along the accumulator's other axis, and
        "random" gives the same number to the same element of D. Names and the order of inputs and outputs
        stay. Matrix inputs and stored outputs are to be passed transposed: the same memory, strides exchanged.

        Returns:
            A graph whose own transpose is this one.

        Raises:
            SpecError: it stores values of blocks of D's columns.
        """
        if self.blocks:
            rule = "blocks of 128 columns lie along D's rows"
            raise field_error(SpecError, f"epilogue.{self.blocks[0].name}", "quantize", rule)
        nodes = (replace(x, op=_TRANSPOSED.get(x.op, x.op)) for x in self.nodes)
        outputs = (
            replace(
                x,
                major=None if x.major is None else _TRANSPOSED[x.major],
                axis=None if x.axis is None else 1 - x.axis,
            )
            for x in self.outputs
        )
        swapped = _has_direction(self) and not self.swapped
        scales = tuple(x.transposed for x in self.scales)
        return Graph(tuple(nodes), tuple(outputs), self.gated, swapped, scales)

    def finished(self) -> Graph:
        """The graph whose partial reductions are finished; itself where it has none."""
        if not any(x.partial for x in self.outputs):
            return self
        return replace(self, outputs=tuple(replace(x, partial=False) for x in self.outputs))

    def evaluate(
        self, leaf: Callable[[Node], Any], operations: Mapping[str, Callable[..., Any]]
    ) -> list[Any]:
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
        found = {
            "nodes": [[n.op, list(n.args), n.value] for n in self.nodes],
            "outputs": [x.to_data() for x in self.outputs],
            "gated": self.gated,
            "swapped": self.swapped,
        }
        return found | ({"scales": [asdict(x) for x in self.scales]} if self.scales else {})

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from `to_data`."""
        nodes = tuple(Node(op, tuple(args), value) for op, args, value in data["nodes"])
        outputs = tuple(Result(**x) for x in data["outputs"])
        scales = tuple(BlockScale(**x) for x in data.get("scales", ()))
        return Graph(nodes, outputs, data["gated"], data["swapped"], scales)

    def __str__(self) -> str:
        from cutegemm.epilogue.text import formula

        return formula(self)


def result_type(op: str, operands: list[str]) -> str:
    """What an operation or leaf yields, "number", "truth" or "integer", from the types of its operands.

    Raises:
        SpecError: an operand is of the wrong type.
    """
    if op in LEAVES:
        return INTEGER if op == "integer" else NUMBER
    if op == "random":
        expected = [INTEGER, INTEGER]
    elif op in LOGIC:
        expected = [TRUTH] * LOGIC[op]
    else:
        expected = [TRUTH, NUMBER, NUMBER] if op == "where" else [NUMBER] * OPERATIONS[op]
    if operands != expected:
        rule = f"takes ({', '.join(expected)}), not ({', '.join(operands)})"
        raise field_error(SpecError, "epilogue", op, rule)
    return TRUTH if op in LOGIC or op in COMPARISONS else NUMBER


def _records(field: str, value: object, kind: type) -> tuple[Any, ...]:
    """The nodes or outputs of a graph as a tuple."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(x, kind) for x in value):
        raise field_error(SpecError, f"epilogue.{field}", value, f"must be a tuple of {kind.__name__}s")
    return tuple(value)


def _check_operands(index: int, node: Node) -> None:
    if not checks.among(node.op, (*LEAVES, *OPERATIONS)):
        raise field_error(SpecError, "epilogue", node.op, f"unknown operation at node {index}")
    arity, args = 0 if node.op in LEAVES else OPERATIONS[node.op], node.args
    earlier = isinstance(args, tuple) and all(type(a) is int and 0 <= a < index for a in args)
    if not earlier or len(args) != arity:
        rule = f"node {index} ({node.op}) takes {arity} earlier nodes"
        raise field_error(SpecError, "epilogue", node.args, rule)


def _check_value(index: int, node: Node, gated: str | None) -> None:
    """What a node carries beside its operands: a leaf its name or number, a cast its dtype."""
    legal, rule = node.value is None, "carries no value"
    if node.op == "acc":
        names = ACCUMULATORS if gated else (None,)
        legal, rule = checks.among(node.value, names), f"must be one of {names}"
    elif node.op == "const":
        # NaN and -0.0 would make equal graphs unequal, or unequal ones equal.
        legal = (
            type(node.value) is float
            and f"{node.value:g}" not in ("nan", "-0")
            and (abs(node.value) <= FP32_MAX or node.value in (INFINITY, -INFINITY))
        )
        rule = "must be a float in the range of fp32, neither NaN nor -0.0"
    elif node.op == "cast":
        legal, rule = checks.among(node.value, CASTS), f"must be one of {', '.join(CASTS)}"
    elif node.op in LEAVES:
        legal, rule = is_name(node.value), "must name an input"
    if not legal:
        raise field_error(SpecError, "epilogue", node.value, f"node {index} ({node.op}) {rule}")


def _has_direction(graph: Graph) -> bool:
    """Whether anything but inputs and outputs tells the accumulator's rows from its columns."""
    return graph.gated is not None or any(x.op == "random" for x in graph.nodes)


def _check_inputs(graph: Graph) -> None:
    if type(graph.swapped) is not bool or graph.swapped and not _has_direction(graph):
        rule = "must be a truth value, and False where the graph has no gated pair and no random"
        raise field_error(SpecError, "swapped", graph.swapped, rule, False)
    reserved = (*RESERVED, *ACCUMULATORS) if graph.gated else RESERVED
    kinds: dict[str, str] = {}
    for node in graph.nodes:
        if node.op not in (*TENSORS, *NUMBERS):
            continue
        name = str(node.value)
        if name in reserved:
            raise field_error(SpecError, "epilogue", name, "an input may not have this name", name + "_")
        if kinds.setdefault(name, node.op) != node.op:
            rule = f"an input is of one kind, not both {kinds[name]} and {node.op}"
            raise field_error(SpecError, "epilogue", name, rule)


def _check_results(graph: Graph, types: list[str]) -> None:
    if not graph.outputs:
        raise field_error(SpecError, "epilogue", graph.outputs, "must have an output")
    names = [x.name for x in graph.outputs]
    taken = (*graph.tensors, *graph.numbers, "acc", *(ACCUMULATORS if graph.gated else ()))
    for x in graph.outputs:
        if not is_name(x.name) or names.count(x.name) > 1:
            raise field_error(SpecError, "epilogue", x.name, "outputs must have different names, identifiers")
        if x.name in taken:
            raise field_error(SpecError, "epilogue", x.name, "an output may not have an input's name")
        if x.name in RESERVED:
            rule = f"an output may not have the name of a parameter of a run: {', '.join(RESERVED)}"
            raise field_error(SpecError, "epilogue", x.name, rule)
        if type(x.node) is not int or not 0 <= x.node < len(graph.nodes):
            rule = f"output {x.name} must be one of the {len(graph.nodes)} nodes"
            raise field_error(SpecError, "epilogue", x.node, rule)
        if types[x.node] != NUMBER:
            nearest = "where(value, 1, 0)" if types[x.node] == TRUTH else None
            rule = f"output {x.name} must be a number"
            raise field_error(SpecError, "epilogue", types[x.node], rule, nearest)
        check_form(x)
        if x.name == "d" and x.kind != STORE:
            rule = "d is the stored matrix; give the reduction another name"
            raise field_error(SpecError, "epilogue", "d", rule)


def linear_combination(with_c: bool) -> Graph:
    """D = alpha * acc, or alpha * acc + beta * C: the BLAS epilogue.

    Without C the graph has no matrix leaf, so its kernel holds no load of C.

    Example:
        >>> print(linear_combination(with_c=True))
        d = alpha * acc + beta * c
    """
    checks.truth(SpecError, "with_c", with_c)
    return _linear_combination(with_c)


@cache
def _linear_combination(with_c: bool) -> Graph:
    # a new plan asks for it several times; the check comes first, since a cache takes 1 for True and hashes its key
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
