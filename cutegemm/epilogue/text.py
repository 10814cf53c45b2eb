# SPDX-License-Identifier: Apache-2.0
"""A graph as text: the formula of every output."""

from __future__ import annotations

from cutegemm.epilogue.graph import STORE, Graph, Node

_INFIX = {
    "add": "+",
    "sub": "-",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}


def formula(graph: Graph) -> str:
    """One `name = expression` per output, comma-separated; reductions name their axis."""

    def leaf(node: Node) -> str:
        return "acc" if node.op == "acc" and node.value is None else str(node.value)

    def call(op: str):
        if op == "mul":
            return "{} * {}".format
        if op in _INFIX:
            return lambda x, y: f"({x} {_INFIX[op]} {y})"
        return lambda *args: f"{op}({', '.join(str(x) for x in args)})"

    from cutegemm.epilogue.graph import OPERATIONS

    values = graph.evaluate(leaf, {op: call(op) for op in OPERATIONS})
    parts = []
    for x in graph.outputs:
        value = values[x.node]
        if x.kind != STORE:
            over = {0: "rows", 1: "columns", None: "all"}[x.axis]
            value = f"{x.kind}({value} over {over}{', partial' if x.partial else ''})"
        parts.append(f"{x.name} = {value}")
    return ", ".join(parts)
