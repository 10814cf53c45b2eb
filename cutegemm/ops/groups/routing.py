# SPDX-License-Identifier: Apache-2.0
"""`weight=` and `scatter=` of `grouped_mm`: each row's result is scaled, and added to a row of D.

The kernel scales if possible; otherwise torch's functions scale and add after it. Results with an out-of-range index
are dropped. Results are added in a fixed order. Rows outside all groups are never added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import Graph, Node
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.groups.group_call import run
from cutegemm.ops.groups.group_gradient import PLAIN
from cutegemm.ops.groups.grouped_op import Call
from cutegemm.ops.groups.row_sum import added
from cutegemm.ops.products import is_compiling
from cutegemm.ops.register import refuse_mapped_out
from cutegemm.problems import columns
from cutegemm.running.arguments import check
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import OPERANDS, describe
from cutegemm.running.arguments.named import outputs_given
from cutegemm.running.groups import Groups, check_index
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.group_reference import inside_groups
from cutegemm.spec import AUTO, GemmSpec

# the epilogue's name for the weights of rows
ROW_WEIGHT = "row_weight"


def routed(call: Call, scatter: Any, weight: Any, key: Any) -> Any:
    """Run a call of groups of rows, scale its results by `weight` and add them to the rows that `scatter` selects.

    Args:
        call: with a graph, also if the caller gave no epilogue.
        scatter, weight: (R,); None leaves each result at its row, or unscaled.
        key: as for `run`; used if one launch computes everything.

    Raises:
        InputError: there are several outputs, or an argument breaks a rule.
    """
    a, groups, out, tail = call.a, call.groups, call.out, call.groups.tail
    count = (a if groups.rows is None else groups.rows).shape[0]
    if weight is not None:
        check_weight(weight, count, a)
    graph = weighed(call.graph) if weight is not None and _weighs(call, weight) else None
    if graph is not None:
        read = call.inputs | {ROW_WEIGHT: weight.float()}
        call, weight = call._replace(graph=graph, inputs=read, alone=False), None
        if scatter is None:
            return run(call, key)
    if out is not None:
        out = _checked_out(call, None if scatter is not None else count, (scatter, weight))
    if scatter is not None:
        check_index("scatter", scatter, count if out is None else out.shape[0], a, count)
    dtype = _result_type(call) if out is None else out.dtype
    eights = dtype.itemsize == 1 or (a.element_size() == 1 and a.is_floating_point())
    if (graph is not None or eights) and (call.spec is None or call.spec.d_dtype == AUTO):
        # results stay in fp32 until they have been scaled and added
        call = call._replace(dtype=torch.float32)
    zeroed = Groups(**{groups.name: groups.ends}, rows=groups.rows)
    found = run(call._replace(groups=zeroed, out=None), None)
    if not isinstance(found, Tensor):
        raise InputError(
            "needs an epilogue with d as its only output", field="weight" if scatter is None else "scatter"
        )
    if weight is not None:
        # the weight of a row outside all groups may be NaN
        found = found.float() * torch.where(_mine(groups, count), weight.float()[:, None], 0.0)
    if scatter is not None:
        found = added(found, scatter, count if out is None else out.shape[0])
    elif out is not None and tail != "zero":
        found = torch.where(_mine(groups, count), found, out.float())
    found = reference.round_to(found, dtype)
    return found if out is None else out.copy_(found)


def _mine(groups: Groups, count: int) -> Tensor:
    """Which of `count` rows belong to a group, (count, 1)."""
    return inside_groups(groups.ends, count, "rows", int(groups.name == "cu_seqlens"))


# keys are torch types, because torch 2.11's Dynamo cannot hash an Enum member with its own __hash__
_RESULTS = {held: reference.TORCH_DTYPE[kind.result] for kind, held in reference.TORCH_DTYPE.items()}


def _result_type(call: Call) -> torch.dtype:
    """The type of a new D."""
    asked = call.dtype if call.dtype is not None or call.spec is None else call.spec.d_dtype
    if asked is None or asked == AUTO:
        return _RESULTS[call.a.dtype]
    return reference.TORCH_DTYPE[as_dtype(asked, "out_dtype")]


def _checked_out(call: Call, rows: int | None, more: tuple[Any, ...]) -> Any:
    """Check a given D like one that a kernel writes, except under torch.compile.

    Raises:
        InputError: it breaks a rule.
    """
    a, b, out, graph = call.a, call.b, call.out, call.graph
    if isinstance(out, Mapping):
        out = outputs_given(graph, out).get("d")
    if is_compiling():
        return out
    # GemmSpec checks that it is an epilogue
    GemmSpec(epilogue=graph)
    read = {
        name: x
        for name, x in (*call.inputs.items(), *zip(("scatter", "weight"), more))
        if isinstance(x, Tensor)
    }
    if rows is None:
        rows = out.shape[0] if isinstance(out, Tensor) and out.dim() else 0
    # placeholder operands of a GEMM whose D has the same shape
    alike = a.new_empty(rows, 0), a.new_empty(0, columns(graph, b.shape[-1]))
    describe(PLAIN[False, False], Request(*alike, outs={"d": out}))
    if any(is_batchedtensor(x) for x in (a, b, out, *read.values())):
        refuse_mapped_out(out=out)
    if recording(a, b, *read.values()):
        rule = "a call with out= has no gradient; use torch.no_grad(), detach(), or a call without out"
        count = (a if call.groups.rows is None else call.groups.rows).shape[0]
        if more[0] is not None and rows < count:
            rule += f": the first {rows} of its {count} rows are the same sums"
        elif more[0] is not None and rows > count:
            rule += (
                f": it has {count} rows; for {rows} rows leave out scatter and add them by torch.index_add"
            )
        raise field_error(InputError, "out", "...", rule)
    if direct(a, b, out) and not out.is_meta:
        check.overlaps(Request(a, b, read, {"d": out}), graph.tensors)
    return out


def check_weight(weight: Any, count: int, like: Tensor) -> None:
    """Refuse a `weight` that is not a floating-point vector of `count` elements on the device of `like`.

    Raises:
        InputError: it is not.
    """
    check_tensor("weight", weight)
    if weight.dtype not in OPERANDS:
        rule = "must be float16, bfloat16 or float32"
        raise field_error(InputError, "weight.dtype", weight.dtype, rule)
    if tuple(weight.shape) != (count,):
        rule = f"must be ({count},), one weight per row"
        raise field_error(InputError, "weight.shape", tuple(weight.shape), rule)
    if weight.device != like.device:
        raise field_error(
            InputError, "weight.device", str(weight.device), f"must be a's device, {like.device}"
        )


def _weighs(call: Call, weight: Tensor) -> bool:
    """Whether the kernel applies the weights, in fp32 before D is rounded; not under autograd or torch.compile."""
    tensors = [x for x in (call.a, call.b, weight, *call.inputs.values()) if isinstance(x, Tensor)]
    if is_compiling() or recording(*tensors) or not direct(*tensors) or call.a.element_size() == 1:
        return False
    return isinstance(call.graph, Graph) and (call.spec is None or call.spec.epilogue == AUTO)


@lru_cache(64)
def weighed(graph: Graph) -> Graph | None:
    """The epilogue with D multiplied by the column `ROW_WEIGHT`; None if it has outputs besides D."""
    if (
        len(graph.outputs) != 1
        or graph.outputs[0].name != "d"
        or ROW_WEIGHT in {**graph.tensors, **graph.numbers}
    ):
        return None
    (found,), count = graph.outputs, len(graph.nodes)
    nodes = (*graph.nodes, Node("col", value=ROW_WEIGHT), Node("mul", (found.node, count)))
    return dataclasses.replace(graph, nodes=nodes, outputs=(dataclasses.replace(found, node=count + 1),))


__all__ = ["routed"]
