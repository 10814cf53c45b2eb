# SPDX-License-Identifier: Apache-2.0
"""vmap: the mapped dimension becomes the GEMM's batch, or one more leading dimension of x."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from cutegemm.epilogue.call_order import ROLES
from cutegemm.epilogue.graph import STORE
from cutegemm.errors import InputError, field_error
from cutegemm.ops.layouts import check_lead
from cutegemm.ops.program import Program, decode, kept

# dimensions of a call's tensors without a batch
_RANKS = {name: min(role.ranks) for name, role in ROLES.items()}


def batched(op: Any) -> Callable[..., Any]:
    """The vmap rule of an overload that returns new tensors."""

    def rule(
        info: Any, in_dims: Any, a: Any, b: Any, inputs: Any, numbers: Any, integers: Any, program: str
    ) -> Any:
        known, (dim_a, dim_b, dims, *_) = decode(program), in_dims
        dims = dims if dims is not None else [None] * len(inputs)
        mapped = [d is not None for d in (dim_a, dim_b, *dims)]
        tensors = [
            x if d is None else x.movedim(d, 0) for x, d in zip((a, b, *inputs), (dim_a, dim_b, *dims))
        ]
        for name, m in zip(known.inputs, mapped[2:]):
            if m and name in known.scalars:
                rule = "a scalar must be the same for the whole batch"
                raise field_error(InputError, "torch.vmap", name, rule)
        size = info.batch_size
        if known.form in ("linear", "input") and not mapped[1] and _rows_only(known, mapped[2:]):
            found, program = _as_rows(known, size, tensors, mapped), known.text
            lead: tuple[int, ...] | None = None
        elif known.form == "matrix":
            found, lead = _as_batch(known, size, tensors, mapped)
        else:
            found, lead = _as_matrices(known, size, tensors, mapped)
            program = kept(dataclasses.replace(known, form="matrix")).text
        outs = op(found[0], found[1], found[2:], numbers, integers, program)
        if isinstance(outs, torch.Tensor):
            return _unfolded(known, known.outputs[0], outs, size, lead), 0
        shaped = [_unfolded(known, name, x, size, lead) for name, x in zip(known.outputs, outs)]
        return shaped, [0] * len(shaped)

    return rule


def _kind(program: Program, name: str) -> str:
    return program.graph.tensors.get(name, "scalar")


def _rows_only(program: Program, mapped: list[bool]) -> bool:
    """Whether every mapped input has a row axis, and no result is reduced over rows."""
    if program.graph.scales or program.graph.blocks:
        # scales and blocks depend on the number of rows
        return False
    along = all(_kind(program, name) in ("matrix", "col") or not m for name, m in zip(program.inputs, mapped))
    return along and all(x.axis == 1 for x in program.graph.reductions)


def _as_rows(program: Program, size: int, tensors: list[Any], mapped: list[bool]) -> list[Any]:
    """Map a linear layer as one with more rows: one more leading dimension."""
    kinds = ["matrix", "scalar", *(_kind(program, name) for name in program.inputs)]
    return [
        x.expand(size, *x.shape) if kind in ("matrix", "col") and not m else x
        for x, kind, m in zip(tensors, kinds, mapped)
    ]


def _as_matrices(
    program: Program, size: int, tensors: list[Any], mapped: list[bool]
) -> tuple[list[Any], tuple[int, ...] | None]:
    """Map as a batch of GEMMs with folded leading dimensions; also returns these, if results have any."""
    lead: tuple[int, ...] | None = tuple(tensors[0].shape[mapped[0] : -1])
    both = {"linear": (True, False), "input": (True, False), "weight": (True, True)}[program.form]
    a, b = (_folded(x, m, 1) if fold else x for x, m, fold in zip(tensors[:2], mapped[:2], both))
    if program.form == "weight":
        a, lead = a.mT, None
    elif program.form == "linear":
        b = b.mT
    if not any(mapped[:2]):
        a = a.expand(size, *a.shape)
    inputs = []
    for name, x, m in zip(program.inputs, tensors[2:], mapped[2:]):
        kind = _kind(program, name)
        if lead is not None and kind in ("matrix", "col"):
            check_lead(name, x.shape[m:], x.shape[m:-1] if kind == "matrix" else x.shape[m:], lead)
        folds = kind in ("matrix", "col", "blocks_m")
        inputs.append(_folded(x, m, kind != "col") if folds else x)
    return [a, b, *inputs], lead


def _folded(x: torch.Tensor, mapped: bool, keep: int) -> torch.Tensor:
    """Fold all dimensions except the mapped one in front and the last `keep`."""
    front, back = x.shape[:mapped], x.shape[x.dim() - keep :]
    return x.reshape(*front, math.prod(x.shape[mapped : x.dim() - keep]), *back)


def _as_batch(
    program: Program, size: int, tensors: list[Any], mapped: list[bool]
) -> tuple[list[Any], tuple[int, ...] | None]:
    """Map as a batch of GEMMs, times the GEMM's own batch, if it has one; also returns that batch."""
    ranks = [2, 2, *(_RANKS[_kind(program, name)] for name in program.inputs)]
    own = max(
        (x.shape[m] for x, m, rank in zip(tensors[:2], mapped, ranks) if x.dim() - m > rank), default=None
    )
    found = []
    for x, m, rank in zip(tensors, mapped, ranks):
        if rank == 0:
            found.append(x)
        elif own is None:
            found.append(x)
        else:
            matrix = x.shape[x.dim() - rank :]
            x = x if m else x.unsqueeze(0)
            x = x if x.dim() - rank == 2 else x.unsqueeze(1)
            found.append(x.expand(size, own, *matrix).reshape(size * own, *matrix))
    if own is None and not any(mapped[:2]):
        found[0] = found[0].expand(size, *found[0].shape)
    return found, None if own is None else (own,)


def _unfolded(
    program: Program, name: str, x: torch.Tensor, size: int, lead: tuple[int, ...] | None
) -> torch.Tensor:
    """Unfold an output's dimensions; none for a vector x, for which the GEMM has one row."""
    if lead is None:
        return x
    result = next(r for r in program.graph.outputs if r.name == name)
    if program.form == "matrix":
        return x.reshape(size, *lead, *x.shape[1:])
    if result.kind == STORE or result.block == 1:
        return x.reshape(size, *lead, x.shape[-1])
    return x.view(size, *lead) if result.axis == 1 and not result.block else x


__all__ = ["batched"]
