# SPDX-License-Identifier: Apache-2.0
"""Swapped operands: D^T = B^T A^T, planned as an ordinary GEMM of the transposes.

N then lies along the instruction's 64 rows and M along its columns, in steps of 8. That suits D of few rows, where
weights are read at the speed of memory. This module translates requests to those coordinates, and errors back.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.problems import Problem
from cutegemm.request.requirements import Request
from cutegemm.spec import AUTO, GemmSpec, Tile

OTHER = {"a": "b", "b": "a", "m": "n", "n": "m"}


def transposed(asked: Request) -> Request:
    """The request for D's transpose."""
    return dataclasses.replace(
        asked,
        spec=_transposed_spec(asked.spec),
        problem=transposed_problem(asked.problem),
        epilogue=_transposed_epilogue(asked.epilogue),
        factors=("b", "a"),
        reasons=(*asked.reasons, "operands swapped: D's rows lie along the instruction's columns"),
    )


def transposed_problem(problem: Problem) -> Problem:
    """D^T = B^T A^T, with every matrix and vector of the epilogue transposed as well."""
    return dataclasses.replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=problem.b.transposed,
        b=problem.a.transposed,
        inputs=tuple((name, x.transposed) for name, x in problem.inputs),
        outputs=tuple((name, x.transposed) for name, x in problem.outputs),
    )


def error_in_d(error: PlanError) -> PlanError:
    """An error about a transposed request as one about the request itself."""
    field = error.field or "swap"
    rule = f"with operands swapped: {error.rule}"
    nearest = None if error.nearest is None else _value(field, error.nearest)
    return field_error(PlanError, _field(field), _value(field, error.value), rule, nearest)


@functools.lru_cache(256)
def _transposed_epilogue(epilogue: Graph) -> Graph:
    return epilogue.transposed()


@functools.lru_cache(256)
def _transposed_spec(spec: GemmSpec) -> GemmSpec:
    """The spec of the transposed request; types, majors and epilogue have been checked and are left out."""
    checked = (*(f"{x}_{y}" for x in "abcd" for y in ("dtype", "major")), "scale_a", "scale_b", "epilogue")
    changed: dict[str, Any] = dict.fromkeys(checked, AUTO)
    if isinstance(spec.evict_first, tuple):
        changed["evict_first"] = tuple(sorted(OTHER.get(name, name) for name in spec.evict_first))
    if spec.constants:
        changed["constant"] = tuple(OTHER[name] for name in spec.constants)
    changed |= {name: _value(name, getattr(spec, name)) for name in ("tile", "cluster", "raster")}
    # specs of CUDA cores have no such field
    given = AUTO if spec.schedule == "simt" else False
    return dataclasses.replace(spec, **changed, a_load=spec.b_load, b_load=spec.a_load, swap=given)


def _field(name: str) -> str:
    """The name of a spec's field in the transposed request."""
    if name.startswith("tile."):
        return f"tile.{OTHER.get(name[-1], name[-1])}"
    return f"{OTHER[name[0]]}{name[1:]}" if name in ("a_load", "b_load", "m", "n") else name


def _value(name: str, value: Any) -> Any:
    """A value of a spec's field in the other coordinates."""
    if name == "tile" and isinstance(value, (Tile, tuple)):
        m, n, k = value
        return Tile(n, m, k)
    if name == "cluster" and isinstance(value, tuple):
        return (value[1], value[0], *value[2:])
    if name == "raster" and isinstance(value, tuple):
        return OTHER[value[0]], value[1]
    return value
