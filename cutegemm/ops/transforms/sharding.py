# SPDX-License-Identifier: Apache-2.0
"""Sharding rules for DTensor: the axes of a GEMM along which its tensors may be sharded, as for torch's own GEMMs.

Every tensor of a call has named axes: rows, N, a batch, and the axis "k" that the GEMM reduces. A call may be sharded
along one of them per mesh dimension. Along "k" each part gives a partial D, if the epilogue is linear; a bias is then
passed as a partial sum, too. Axes that an epilogue needs whole are not sharded: a gated pair's columns, and axes under
dropout, which counts elements from the matrix's origin.

This module does not import DTensor. The rules are registered when a program that has imported it calls the op.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cutegemm.epilogue.graph import STORE, Graph
from cutegemm.epilogue.scales import BLOCK_KINDS
from cutegemm.ops.program import Program, decode

Axes = tuple[str, ...]
_registered = False


def ensure() -> None:
    """Register the rules, once, if DTensor is there."""
    global _registered
    if not _registered and "torch.distributed.tensor" in sys.modules:
        _registered = True
        _register()


def axes(program: Program, shapes: Sequence[Sequence[int]]) -> tuple[list[Axes], list[Axes]]:
    """The names of the axes of (a, b, inputs) and of the outputs; "" for an axis along which a tensor is broadcast.

    Args:
        program: of the call.
        shapes: of a, b and the inputs.
    """
    a, b = shapes[:2]
    lead: Axes = tuple(f"row{i}" for i in range(len(a) - 1))
    # a weight's gradient reduces over the leading dimensions
    summed: Axes = tuple(f"k{i}" for i in range(len(a) - 1))
    rows, operands = {
        "linear": (lead, [(*lead, "k"), ("n", "k")]),
        "input": (lead, [(*lead, "k"), ("k", "n")]),
        "weight": (("m",), [(*summed, "m"), (*summed, "n")]),
        "matrix": (("m",), [("l", "m", "k")[3 - len(a) :], ("l", "k", "n")[3 - len(b) :]]),
    }[program.form]  # fmt: skip
    batch: Axes = ("l",) if program.form == "matrix" and 3 in (len(a), len(b)) else ()
    kinds = [program.graph.tensors.get(name, "scalar") for name in program.inputs]
    whole = {"matrix": (*batch, *rows, "n"), "row": (*batch, "n"), "col": (*batch, *rows), "scalar": ()}
    whole |= dict.fromkeys(BLOCK_KINDS, ("",) * max(map(len, shapes)))
    read = [whole[kind][len(whole[kind]) - len(shape) :] for kind, shape in zip(kinds, shapes[2:])]
    named = [
        tuple("" if name == "l" and extent == 1 else name for name, extent in zip(x, shape))
        for x, shape in zip([*operands, *read], shapes)
    ]
    given = [
        whole["matrix"] if x.kind == STORE else x.by_axis((*batch, "n"), (*batch, *rows), batch)
        for x in program.results
    ]
    return named, given


def cuts(program: Program, shapes: Sequence[Sequence[int]]) -> list[tuple[list[Any], list[Any]]]:
    """All ways to shard a call along one mesh dimension: placements of the outputs, and of the inputs.

    A placement is the sharded dimension, None for a replica, or "sum" or "max" for partial results.
    """
    read, given = axes(program, shapes)
    found: list[tuple[list[Any], list[Any]]] = [([None] * len(given), [None] * len(read))]
    if program.graph.scales or program.graph.blocks:
        # shards may end inside blocks of 128
        return found
    for name in dict.fromkeys(x for y in read[:2] for x in y if x):
        inner = name.startswith("k")
        if inner and not (homogeneous(program.graph) and _extent(name, read, shapes)):
            continue
        if not inner and name != "l" and not _may_cut(program, name):
            continue
        outs: list[Any] = []
        for x, output in zip(given, program.results):
            partial = "sum" if inner else {"sum": "sum", "max": "max"}.get(output.kind)
            outs.append(x.index(name) if name in x else partial)
        ins: list[Any] = [x.index(name) if name in x else "sum" if inner else None for x in read]
        for i, name_of in enumerate(program.inputs, 2):
            if name_of in program.scalars:
                ins[i] = None
        found.append((outs, ins))
    return found


def _extent(name: str, read: list[Axes], shapes: Sequence[Sequence[int]]) -> int:
    """The extent of an axis."""
    return next(shape[x.index(name)] for x, shape in zip(read, shapes) if name in x)


def _may_cut(program: Program, name: str) -> bool:
    """Whether an epilogue gives the same results on a shard of the rows or columns."""
    graph = program.graph
    if any(x.op == "random" for x in graph.nodes) or (name == "n" and (graph.gated or program.merged)):
        return False
    reduces = (0, None) if name != "n" else (1, None)
    return all(x.kind in ("sum", "max") or x.axis not in reduces for x in graph.reductions)


def homogeneous(graph: Graph) -> bool:
    """Whether every output is linear in the accumulator and tensors, so that partial sums can be added."""
    if graph.gated or graph.reductions:
        return False
    kinds: list[str | None] = []
    for node in graph.nodes:
        args = [kinds[i] for i in node.args]
        if node.op in ("acc", "matrix", "row", "col"):
            kinds.append("linear")
        elif node.op in ("const", "scalar"):
            kinds.append("number")
        elif node.op in ("add", "sub") and args == ["linear", "linear"] or node.op == "neg":
            kinds.append(args[0])
        elif node.op == "mul" and sorted(map(str, args)) == ["linear", "number"]:
            kinds.append("linear")
        else:
            kinds.append(None)
    return all(kinds[x.node] == "linear" for x in graph.outputs)


def _register() -> None:
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard

    def placement(x: Any) -> Any:
        if x is None:
            return Replicate()
        return Partial(x) if isinstance(x, str) else Shard(x)

    def rule(a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str) -> Any:
        shapes = [tuple(x.shape) for x in (a, b, *inputs)]
        return [
            ([placement(x) for x in outs], [placement(x) for x in ins])
            for outs, ins in cuts(decode(program), shapes)
        ]

    for op in (torch.ops.cutegemm.gemm.default, torch.ops.cutegemm.gemm.many):
        _register_rule(op, rule)


def _register_rule(op: Any, rule: Any) -> None:
    """Like `torch.distributed.tensor.experimental.register_sharding`, which does not support ops that return a list,
    nor decisions that depend on other arguments than integers, since its cache ignores these.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo, TupleStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def spec(x: Any) -> Any:
        if isinstance(x, TupleStrategy):
            return tuple(spec(y) for y in x.children)
        return x.strategies[0].output_spec if hasattr(x, "strategies") else x

    def strategy(schema: Any) -> Any:
        found = rule(*(spec(x) for x in schema.args_schema))
        return expand_to_full_mesh_op_strategy(
            schema.get_mesh_from_args(),
            schema,
            [outs + ins for outs, ins in found],
            input_index=len(found[0][0]),
        )

    # cache decisions also by all arguments after the three tensor arguments
    info = RuntimeSchemaInfo(3, needs_pytree=True)
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(op, strategy, info)


__all__ = ["axes", "cuts", "ensure", "homogeneous"]
