# SPDX-License-Identifier: Apache-2.0
"""Tokens on their way to groups and back: which rows a group takes, what they weigh, and where they go.

What the kernel does not do itself torch's functions do before and after it. An index outside the tensor reads zeros and
writes nothing. Whatever is added up is added in a fixed order, and rows of no group never count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import Graph, Node
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import HALF, autocast_type
from cutegemm.ops.groups.group_gradient import PLAIN
from cutegemm.ops.products import is_compiling
from cutegemm.problems import columns
from cutegemm.running.arguments import check
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import OPERANDS, check_d
from cutegemm.running.arguments.named import outputs_given
from cutegemm.running.groups import check_index, check_tail, inside
from cutegemm.running.numerics import group_reference, reference
from cutegemm.running.numerics.group_reference import inside_groups
from cutegemm.spec import AUTO, GemmSpec

# under which an epilogue reads the weights of its rows
ROW_WEIGHT = "row_weight"


def gathered(a: Tensor, rows: Any) -> Tensor:
    """The rows of a matrix by index, (R, K).

    Raises:
        InputError: `rows` is no tensor of indices on a's device; under CUTEGEMM_CHECK=1 one is outside.
    """
    check_index("rows", rows, a.shape[0], a)
    return group_reference.gathered(a, rows)


def check_of_rows(name: str, a: Any, b: Any) -> None:
    """Refuse groups that are not of rows.

    Raises:
        InputError: they are not; `name` is what asks for it.
    """
    for field, x in (("a", a), ("b", b)):
        check_tensor(field, x)
    if (a.dim(), b.dim()) != (2, 3):
        raise InputError("takes groups of rows: a (M, K) and b (G, K, N)", field=name)


def routed(
    call: Callable[..., Any], scatter: Any, weight: Any, a: Any, b: Any, out: Any, rest: dict[str, Any]
) -> Any:
    """A call of groups of rows whose results are weighed, and added up where they go.

    Args:
        call: `grouped_mm`.
        scatter, weight: (R,), or None: where results are, or what is 1.
        a, b, out: of the call; rest: its other arguments by name.

    Raises:
        InputError: groups are not of rows, there are several outputs, or an argument breaks a rule.
    """
    rows, tail = rest["rows"], rest["tail"]
    name = "rows" if rows is not None else "scatter" if scatter is not None else "weight"
    check_of_rows(name, a, b)
    check_tail(tail)
    if rows is not None:
        check_index("rows", rows, a.shape[0], a)
    count = (a if rows is None else rows).shape[0]
    if weight is not None:
        check_weight(weight, count, a)
    fused = None if weight is None else _weighed(scatter, weight, a, b, rest)
    if fused is not None and scatter is None:
        return call(a, b, out=out, **fused)
    if out is not None:
        out = _checked_out(out, None if scatter is not None else count, a, b, rest, (scatter, weight))
    if scatter is not None:
        check_index("scatter", scatter, count if out is None else out.shape[0], a, count)
    # what is added up is not rounded before, where the kernel has weighed it
    found = call(a, b, **(rest if fused is None else fused) | {"tail": "zero"})
    if not isinstance(found, Tensor):
        raise InputError("takes an epilogue that gives d alone", field=name)
    if weight is not None and fused is None:
        # a weight of no group may be anything
        found = found.float() * torch.where(_mine(rest, count), weight.float()[:, None], 0.0)
    if scatter is not None:
        found = _added(found, scatter, count if out is None else out.shape[0])
    elif out is not None and tail != "zero":
        found = torch.where(_mine(rest, count), found, out.float())
    found = reference.round_to(found, _result_type(a, rest) if out is None else out.dtype)
    return found if out is None else out.copy_(found)


def _mine(rest: dict[str, Any], count: int) -> Tensor:
    """Which of so many rows are some group's, (count, 1)."""
    starts = rest["cu_seqlens"]
    ends = rest["offs"] if starts is None else starts
    return inside_groups(ends, count, "rows", int(starts is not None))


def _added(y: Tensor, scatter: Tensor, count: int) -> Tensor:
    """The rows of a matrix added up where they go, (count, N): fp32 sums."""
    index, good = inside(scatter, count)
    # what goes nowhere goes into a row behind the last, which is left out
    target = torch.where(good, index, count)
    sums = torch.zeros(count + 1, y.shape[1], dtype=torch.float32, device=y.device)
    return sums.index_put((target,), y.float(), accumulate=True)[:count]


def _result_type(a: Tensor, rest: dict[str, Any]) -> torch.dtype:
    """The type of a new D."""
    asked, spec = rest["out_dtype"], rest["spec"]
    if asked is not None:
        return reference.TORCH_DTYPE[as_dtype(asked, "out_dtype")]
    if isinstance(spec, GemmSpec) and spec.d_dtype != AUTO:
        return reference.TORCH_DTYPE[spec.d_dtype]
    cast = autocast_type(a.device)
    return cast if cast in HALF else a.dtype if a.element_size() > 1 else torch.bfloat16


def _checked_out(
    out: Any, rows: int | None, a: Tensor, b: Tensor, rest: dict[str, Any], more: tuple[Any, ...]
) -> Any:
    """The tensor that is given for D; checked as one that a kernel writes, but where a compiler traces the call.

    Raises:
        InputError: it breaks a rule.
    """
    graph = _epilogue(rest)
    if isinstance(out, Mapping):
        out = outputs_given(graph or PLAIN[False, False], out).get("d")
    if is_compiling():
        return out
    read = {
        name: x for name, x in (*rest.items(), *zip(("scatter", "weight"), more)) if isinstance(x, Tensor)
    }
    check_d(out, rows, b.shape[-1] if graph is None else columns(graph, b.shape[-1]), a)
    if recording(a, b, *read.values()):
        rule = "a call with out= has no gradient; use torch.no_grad(), detach(), or a call without out"
        raise field_error(InputError, "out", "...", rule)
    if direct(a, b, out) and not out.is_meta:
        kinds = {"c": "matrix"} if graph is None else graph.tensors
        check.overlaps(Request(a, b, read, {"d": out}), kinds)
    return out


def check_weight(weight: Any, count: int, like: Tensor) -> None:
    """Refuse what is no weight for each of so many rows on a tensor's device.

    Raises:
        InputError: it is none.
    """
    check_tensor("weight", weight)
    if weight.dtype not in OPERANDS:
        rule = "must be float16, bfloat16 or float32"
        raise field_error(InputError, "weight.dtype", weight.dtype, rule)
    if tuple(weight.shape) != (count,) or weight.device != like.device:
        rule = f"must be ({count},) on {like.device}: a weight for each row"
        raise field_error(InputError, "weight", tuple(weight.shape), rule)


def _epilogue(rest: dict[str, Any]) -> Graph | None:
    """The epilogue of a call, or of its spec; None where it has none."""
    spec, graph = rest["spec"], rest["epilogue"]
    if graph is None and isinstance(spec, GemmSpec):
        graph = spec.epilogue
    return graph if isinstance(graph, Graph) else None


def _weighed(scatter: Any, weight: Any, a: Tensor, b: Tensor, rest: dict[str, Any]) -> dict[str, Any] | None:
    """The call whose epilogue weighs each row, in fp32 and before D is rounded; None where torch has to know of it."""
    spec, graph = rest["spec"], rest["epilogue"]
    tensors = [x for x in (a, b, weight, *rest.values()) if isinstance(x, Tensor)]
    if is_compiling() or recording(*tensors) or not direct(*tensors) or a.element_size() == 1:
        return None
    if isinstance(spec, GemmSpec) and spec.epilogue != AUTO:
        return None
    more = {ROW_WEIGHT: weight.float()}
    if graph is None:
        if rest["c"] is None and rest["beta"]:
            return None
        graph, plain = _explicit(rest)
        more |= plain
    changed = weighed(graph) if isinstance(graph, Graph) else None
    if scatter is not None:
        more["out_dtype"] = torch.float32
    return None if changed is None else rest | more | {"epilogue": changed}


def _explicit(rest: dict[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """The plain epilogue of a call without one, and the arguments of a call that gives it."""
    c, beta = rest["c"], rest["beta"]
    with_c = c is not None and beta != 0
    # a number that is not the default, which an epilogue would not be given
    more = {"alpha": 1 if rest["alpha"] == 1.0 else rest["alpha"]}
    more |= {"beta": 1.0 if beta is None else beta} if with_c else {"c": None, "beta": None}
    return PLAIN[with_c, rest["bias"] is not None], more


@lru_cache(64)
def weighed(graph: Graph) -> Graph | None:
    """The epilogue whose D is times a column, `ROW_WEIGHT`; None of one that gives something else or more."""
    if (
        len(graph.outputs) != 1
        or graph.outputs[0].name != "d"
        or ROW_WEIGHT in {**graph.tensors, **graph.numbers}
    ):
        return None
    (found,), count = graph.outputs, len(graph.nodes)
    nodes = (*graph.nodes, Node("col", value=ROW_WEIGHT), Node("mul", (found.node, count)))
    return dataclasses.replace(graph, nodes=nodes, outputs=(dataclasses.replace(found, node=count + 1),))


__all__ = ["check_of_rows", "gathered", "routed"]
