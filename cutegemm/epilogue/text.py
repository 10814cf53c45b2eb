# SPDX-License-Identifier: Apache-2.0
"""A graph as text: the formula of every output, in the epilogue language itself."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from cutegemm.epilogue.graph import LEAVES, SCALE, STORE, Graph, Node, Result
from cutegemm.epilogue.scales import K_BLOCK, UE8M0

_INFIX = {  # op -> (symbol, how tightly it binds in Python)
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
    "or": ("|", 2), "and": ("&", 3),
    "add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5),
}  # fmt: skip
_PREFIX = {"neg": "-", "not": "~"}
_UNARY, _ATOM = 6, 7
_REDUCTIONS = {"sum": "Sum", "max": "Max", "logsumexp": "LogSumExp"}

Term = tuple[str, int]  # an expression and how tightly its outermost operator binds


def formula(graph: Graph) -> str:
    """One `name = expression` per line: intermediate values that are used more than once, then outputs.

    The text is Python over the names of `cutegemm.epilogue`, the inputs and `acc` (or `gate` and `up`); it
    has the fewest parentheses that keep the graph's own order of operations. That of a swapped graph begins
    with a comment that says so.
    """
    needed = _needed(graph)
    uses = Counter(a for i in needed for a in graph.nodes[i].args) + Counter(x.node for x in graph.outputs)
    prefix = _free_prefix(graph)
    lines = ["# of the transposed product"] if graph.swapped else []
    lines += [
        f"# acc sums blocks of K times {x.name}, {x.extent} along {x.axis.upper()}" for x in graph.scales
    ]
    temporaries = itertools.count()
    terms: list[Term] = []
    for index, node in enumerate(graph.nodes):
        term = _term(node, [terms[a] for a in node.args])
        if uses[index] > 1 and node.op not in LEAVES:
            name = f"{prefix}{next(temporaries)}"
            lines.append(f"{name} = {term[0]}")
            term = (name, _ATOM)
        terms.append(term)
    lines += [f"{x.name} = {_output(x, terms[x.node][0])}" for x in graph.outputs]
    return "\n".join(lines)


def _term(node: Node, args: list[Term]) -> Term:
    if node.op == "acc":
        return str(node.value or "acc"), _ATOM
    if node.op == "const":
        return repr(node.value), _ATOM
    if node.op in LEAVES:
        return str(node.value), _ATOM
    if node.op in _INFIX:
        symbol, binding = _INFIX[node.op]
        return f"{_within(args[0], binding)} {symbol} {_within(args[1], binding + 1)}", binding
    if node.op in _PREFIX:
        return _PREFIX[node.op] + _within(args[0], _UNARY), _UNARY
    texts = [text for text, _ in args]
    if node.op == "cast":
        texts.append(repr(node.value))
    return f"{node.op}({', '.join(texts)})", _ATOM


def _within(term: Term, binding: int) -> str:
    """An operand, in parentheses if its operator binds less tightly than needed."""
    text, own = term
    return text if own >= binding else f"({text})"


def _output(x: Result, value: str) -> str:
    if x.block:
        given = [("block", x.block, K_BLOCK), x.dtype, *([UE8M0] if x.exponents else [])]
        part = "scale" if x.kind == SCALE else "values"
        return f"quantize({', '.join([value, *map(repr, given)])}).{part}"
    if x.kind == STORE:
        named: dict[str, Any] = {"dtype": x.dtype, "major": x.major}
        call = "Store"
    else:
        named = {"axis": x.axis, "partial": x.partial or None}
        call = _REDUCTIONS[x.kind]
    options = [f"{name}={field!r}" for name, field in named.items() if field is not None]
    return value if call == "Store" and not options else f"{call}({', '.join([value, *options])})"


def _needed(graph: Graph) -> set[int]:
    """The nodes that an output depends on."""
    needed = {x.node for x in graph.outputs}
    for index in reversed(range(len(graph.nodes))):
        if index in needed:
            needed.update(graph.nodes[index].args)
    return needed


def _free_prefix(graph: Graph) -> str:
    """A first letter for intermediate values under which no input or output goes."""
    taken = [*graph.tensors, *graph.numbers, *(x.name for x in graph.outputs)]
    prefix = "t"
    while any(name.removeprefix(prefix).isdigit() for name in taken):
        prefix += "_"
    return prefix
