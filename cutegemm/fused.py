# SPDX-License-Identifier: Apache-2.0
"""The named arguments of a fused run, sorted into what the epilogue's graph takes; no torch."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Mapping
from typing import Any

from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error


def split_inputs(graph: Graph, named: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[float, ...]]:
    """(tensors and tensor scalars by name, numbers passed by value in the graph's order).

    Raises:
        InputError: a name is missing or unknown, or a number is not one.
    """
    wanted = {**graph.tensors, **graph.numbers}
    for name in named:
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, 1)
            listed = ", ".join(wanted) or "nothing"
            raise field_error(
                InputError, name, "...", f"the epilogue reads {listed}", near[0] if near else None
            )
    for name, kind in wanted.items():
        if named.get(name) is None:
            article = "an" if kind == "integer" else "a"
            raise InputError(f"{name}: missing; the epilogue reads it as {article} {kind}")
    inputs = {name: named[name] for name in graph.tensors}
    values = []
    for name, kind in graph.numbers.items():
        value = named[name]
        if kind == "scalar" and hasattr(value, "data_ptr"):
            inputs[name] = value
        else:
            values.append(_number(name, kind, value))
    return inputs, tuple(values)


def blas_names(graph: Graph, c: Any, alpha: float, beta: float | None) -> dict[str, Any]:
    """`run`'s arguments c, alpha and beta, by name, as far as the epilogue reads them or the caller gave them."""
    given = {name: value for name, value in (("c", c), ("beta", beta)) if value is not None}
    read = "alpha" in graph.tensors or "alpha" in graph.numbers
    return given | {"alpha": alpha} if read or alpha != 1.0 else given


def check_scalars(alpha: Any, beta: Any) -> None:
    """alpha and beta of the plain epilogue are numbers.

    Raises:
        InputError: one is not.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not isinstance(value, numbers.Real) and not (name == "beta" and value is None):
            rule = "must be a number; an epilogue of your own may take 0-d tensors (epi.Scalar)"
            raise field_error(InputError, name, value, rule)


def _number(name: str, kind: str, value: Any) -> float:
    if kind == "integer":
        if not isinstance(value, numbers.Integral) or not -(1 << 31) <= value < 1 << 32:
            raise field_error(InputError, name, value, "must be an integer of 32 bits")
        return int(value) - (1 << 32) if value >= 1 << 31 else int(value)
    if not isinstance(value, numbers.Real):
        raise field_error(InputError, name, value, "must be a number or a 0-d fp32 tensor")
    return float(value)


def order(graph: Graph, scalars: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the tensors of a call travel: the names of its operands and inputs, then of its outputs and of the scalars
    that are tensors; outputs come stored ones first."""
    outs = tuple(x.name for x in (*graph.stores, *graph.reductions))
    return ("a", "b", *graph.tensors), (*outs, *scalars)


def outputs_given(graph: Graph, out: Any) -> dict[str, Any]:
    """The outputs that the caller gives, by name.

    Raises:
        InputError: the epilogue has no such output.
    """
    if out is None:
        return {}
    outs = dict(out) if isinstance(out, Mapping) else {"d": out}
    names = [x.name for x in graph.outputs]
    for name in outs:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise field_error(
                InputError,
                "out",
                name,
                f"the epilogue's outputs are {', '.join(names)}",
                near[0] if near else None,
            )
    return {name: tensor for name, tensor in outs.items() if tensor is not None}


__all__ = ["blas_names", "check_scalars", "order", "outputs_given", "split_inputs"]
