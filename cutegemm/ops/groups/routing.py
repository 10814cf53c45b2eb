# SPDX-License-Identifier: Apache-2.0
"""Tokens on their way to groups and back: which rows a group takes, and where a group's rows go. By torch's functions.

An index outside the tensor reads zeros and writes nothing. Whatever is added up is added in a fixed order.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.graph import Graph, Node
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.running.groups import check_index, inside
from cutegemm.running.numerics import group_reference
from cutegemm.running.numerics.reference import round_to

# under which an epilogue reads the weights of its rows
ROW_WEIGHT = "row_weight"


def gathered(a: Tensor, rows: Any) -> Tensor:
    """The rows of a matrix by index, (R, K).

    Raises:
        InputError: `rows` is no tensor of indices on a's device; under CUTEGEMM_CHECK=1 one is outside.
    """
    check_index("rows", rows, a.shape[0], a)
    return group_reference.gathered(a, rows)


def scattered(y: Tensor, scatter: Any, weight: Any, out: Any, dtype: torch.dtype) -> Tensor:
    """The rows of a matrix, each times its weight, added up where they go: fp32 sums, rounded once.

    Args:
        y: (R, N).
        scatter: (R,), or None: where they are.
        weight: (R,), or None.
        out: (T, N), or None for as many rows as y has.
        dtype: of a new result.

    Raises:
        InputError: an argument breaks a rule.
    """
    if weight is not None:
        check_weight(weight, y.shape[0], y)
        y = y.float() * weight.float()[:, None]
    if scatter is None:
        return round_to(y, dtype) if out is None else out.copy_(y)
    count = y.shape[0] if out is None else out.shape[0]
    check_index("scatter", scatter, count, y, y.shape[0])
    index, good = inside(scatter, count)
    # what goes nowhere goes into a row behind the last, which is left out
    target = torch.where(good, index, count)
    sums = torch.zeros(count + 1, y.shape[1], dtype=torch.float32, device=y.device)
    sums = sums.index_put((target,), y.float(), accumulate=True)[:count]
    return round_to(sums, dtype) if out is None else out.copy_(sums)


def check_weight(weight: Any, count: int, like: Tensor) -> None:
    """Refuse what is no weight for each of so many rows on a tensor's device.

    Raises:
        InputError: it is none.
    """
    check_tensor("weight", weight)
    if tuple(weight.shape) != (count,) or weight.device != like.device:
        rule = f"must be ({count},) on {like.device}: a weight for each row"
        raise field_error(InputError, "weight", tuple(weight.shape), rule)


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


__all__ = ["ROW_WEIGHT", "check_weight", "gathered", "scattered", "weighed"]
