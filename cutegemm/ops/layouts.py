# SPDX-License-Identifier: Apache-2.0
"""Converts a program's operands to the matrices of `Gemm.run`, and describes its outputs, from extents alone.

Extents may be symbolic; nothing here reads their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import SCALE, STORE
from cutegemm.epilogue.scaling import default_type
from cutegemm.errors import InputError, field_error
from cutegemm.ops.program import Program
from cutegemm.problems import columns
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import check_pair
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.eight_bits import EXPONENTS
from cutegemm.running.run import described
from cutegemm.spec import AUTO

_no_view: Callable[..., torch.Tensor] = torch.ops.aten._unsafe_view.default


class Matrices(NamedTuple):
    """A call's tensors in the form of `Gemm.run`.

    Attributes:
        a, b: the operands.
        inputs: of the epilogue, by name.
        lead: the leading dimensions that were folded into rows, or None.
    """

    a: torch.Tensor
    b: torch.Tensor
    inputs: dict[str, torch.Tensor]
    lead: tuple[int, ...] | None

    def request(self) -> Request:
        """The call as a request for `running.arguments.describe`."""
        return Request(self.a, self.b, self.inputs)


def matrices(program: Program, a: torch.Tensor, b: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Matrices:
    """Fold leading dimensions as the program's form requires.

    Raises:
        InputError: an operand has too few or too many dimensions.
    """
    named = dict(zip(program.inputs, inputs, strict=True)) if program.inputs else {}
    if program.form == "matrix":
        return Matrices(a, b, named, None)
    if program.form == "weight":
        return Matrices(folded("a", a).t(), folded("b", b), named, None)
    if b.dim() != 2:
        raise field_error(InputError, "weight.shape", tuple(b.shape), "must have 2 dimensions (N, K)")
    if a.dim() == 2 and program.along_columns:
        # nothing to fold
        return Matrices(a, b.t() if program.form == "linear" else b, named, None)
    lead = tuple(a.shape[:-1])
    for name, kind in program.graph.tensors.items():
        x = named[name]
        if x.is_nested:
            raise field_error(InputError, name, x, "must be a tensor of one shape, not a nested one")
        given = x.shape[:-1] if kind == "matrix" else x.shape
        if kind in ("row", "blocks_n"):
            continue
        if kind == "blocks_m":
            named[name] = folded(name, x)
            continue
        check_lead(name, x.shape, given, lead)
        named[name] = folded(name, x) if kind == "matrix" else x.reshape(-1)
    return Matrices(folded("x", a), b.t() if program.form == "linear" else b, named, lead)


def check_lead(name: str, shape: Sequence[int], given: Sequence[int], lead: Sequence[int]) -> None:
    """Check the leading dimensions of an input against those of x; symbolic extents are checked in the run.

    Raises:
        InputError: they differ, even if both fold into the same number of rows.
    """
    differ = [n != m for n, m in zip(given, lead) if type(n) is int and type(m) is int]
    if len(given) != len(lead) or any(differ):
        rule = f"must begin with the dimensions {_shape(lead)} of x"
        raise field_error(InputError, f"{name}.shape", _shape(shape), rule)


def folded(name: str, x: torch.Tensor) -> torch.Tensor:
    """Fold all dimensions but the last into one.

    Raises:
        InputError: the tensor is 0-d.
    """
    if x.dim() == 2:
        return x
    if x.dim() == 0:
        raise field_error(InputError, f"{name}.shape", (), "must have a dimension")
    rows = 1
    for extent in x.shape[:-1]:
        rows *= extent
    return x.reshape(rows, x.shape[-1])


def unfolded(program: Program, x: torch.Tensor, name: str, lead: tuple[int, ...] | None) -> torch.Tensor:
    """Unfold an output's leading dimensions; not a view to autograd, since no other tensor has its memory."""
    if lead is None or len(lead) == 1:
        return x
    result = next(r for r in program.graph.outputs if r.name == name)
    if result.kind == STORE or result.block == 1:
        return _no_view(x, (*lead, x.shape[-1]))
    return _no_view(x, lead) if result.axis == 1 and not result.block else x


def described_outputs(program: Program, call: Matrices) -> list[torch.Tensor]:
    """New tensors without content, one per output, with the shapes, types and strides of a run.

    Numeric extents are checked as in a run; symbolic ones only as far as the GEMM needs.

    Raises:
        InputError: a tensor breaks a rule.
    """
    a, b = call.a, call.b
    if all(numeric(x) for x in (a, b, *call.inputs.values())):
        with torch.no_grad():
            described(program.gemm.spec, program.graph, call.request())
    kind = as_dtype(a.dtype)
    check_pair(a, b)
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"b must have {a.shape[-1]} rows (K)")
    m, n = a.shape[-2], columns(program.graph, b.shape[-1])
    batch = _batch(a, b)
    found = []
    for x in program.results:
        if x.kind == SCALE:
            blocks, _, rows = x.shape(1, m, n, (0, 0, 0))
            held = EXPONENTS if x.exponents else torch.float32
            made = a.new_empty([blocks, *batch, rows], dtype=held).movedim(0, -1)
            found.append(unfolded(program, made, x.name, call.lead))
            continue
        wide = n * len(program.merged) if x.name in program.merged else n
        shape = [*batch, *((m, wide) if x.kind == STORE else x.by_axis((n,), (m,), ()))]
        dtype, major = torch.float32, x.major
        if x.kind == STORE:
            own = x.name == "d"
            dtype, spec = reference.TORCH_DTYPE[default_type(program.graph, kind)], program.spec
            named = x.dtype or (spec.d_dtype if own and spec.d_dtype != AUTO else None)
            if named is not None:
                dtype = reference.TORCH_DTYPE[as_dtype(named)]
            major = x.major or (spec.d_major if own and spec.d_major != AUTO else None)
        columns_first = major == "m" and not _one_line(m, call.lead)
        made = a.new_empty([*batch, n, m] if columns_first else shape, dtype=dtype)
        made = made.mT if columns_first else made
        found.append(unfolded(program, made, x.name, call.lead))
    return found


def _batch(a: torch.Tensor, b: torch.Tensor) -> list[int]:
    """The outputs' batch dimension, if the operands have one."""
    batched = [x.shape[0] for x in (a, b) if x.dim() == 3]
    if len(batched) == 2 and isinstance(batched[0], int) and batched[0] == 1:
        return batched[1:]
    return batched[:1]


def _one_line(rows: Any, lead: tuple[int, ...] | None) -> bool:
    """Whether D is a single row with folded dimensions; it then unfolds as contiguous, whatever its major."""
    return lead is not None and len(lead) > 1 and type(rows) is int and rows == 1


def numeric(x: torch.Tensor) -> bool:
    """Whether all extents and strides are numbers."""
    return all(type(n) is int for n in (*x.shape, *x.stride()))


def _shape(extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(extents)


def as_called(program: Program, error: InputError, a: Any, b: Any) -> InputError:
    """Rename the operands in an error as `linear` calls them: x and weight."""
    if program.form != "linear" or error.field is None:
        return error
    error.rule = error.rule.replace("must be a's ", "must be x's ")
    head, rest = re.match(r"(\w*)(.*)", error.field).groups()  # type: ignore[union-attr]
    if head not in ("a", "b"):
        return error
    error.field = {"a": "x", "b": "weight"}[head] + rest
    if error.field == "weight.shape" and b.dim() == 2:
        # B is the transposed weight
        error.value, error.rule = tuple(b.shape), error.rule.replace("columns", "rows")
        if b.shape[1] != (k := a.shape[-1]):
            error.rule = f"x is {tuple(a.shape)}, so weight must be (N, {k})"
            if b.shape[0] == k:
                error.rule += ", as weight.T is"
    return error


__all__ = [
    "Matrices",
    "as_called",
    "check_lead",
    "described_outputs",
    "folded",
    "matrices",
    "numeric",
    "unfolded",
]
