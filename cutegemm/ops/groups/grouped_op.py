# SPDX-License-Identifier: Apache-2.0
"""The op `cutegemm::grouped_mm`, as which torch's dispatcher, compilers and autograd see grouped GEMMs.

Its programs are those of `cutegemm::gemm` (`program`). The form of groups is text, "form:name:tail" (`Grouping.text`).
As in `register`, one overload returns D, `many` returns all outputs, and `out` writes them into given tensors.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import STORE
from cutegemm.errors import InputError, field_error
from cutegemm.ops.compiled import TAGS, described
from cutegemm.ops.dispatch import DEVICES
from cutegemm.ops.gradients.main_grad import Main
from cutegemm.ops.groups.group_gradient import By, record
from cutegemm.ops.groups.group_shortcuts import again, remember
from cutegemm.ops.program import Program, decode
from cutegemm.ops.quantized.operands import Kinds
from cutegemm.ops.register import (
    NAMESPACE,
    autograd_of,
    autograd_out_of,
    check_fake_out,
    library,
    refuse_mapped_out,
    writing,
)
from cutegemm.problems import columns
from cutegemm.running.arguments.describe import shown
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.groups import TAILS, Grouping, Groups
from cutegemm.running.numerics.reference import TORCH_DTYPE
from cutegemm.spec import AUTO, GemmSpec

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor ends, Tensor[] inputs, "
    "float[] numbers, SymInt[] integers, str program, str how"
)
library.define(f"grouped_mm({_ARGUMENTS}) -> Tensor", tags=TAGS)
library.define(f"grouped_mm.many({_ARGUMENTS}) -> Tensor[]", tags=TAGS)
library.define(f"grouped_mm.out({_ARGUMENTS}, *, Tensor(a!)[] out) -> ()", tags=TAGS)
_OP = torch.ops.cutegemm.grouped_mm


class Call(NamedTuple):
    """A parsed call of `grouped_mm`.

    Attributes:
        a, b: the operands; groups: their groups, including row indices that the kernel gathers.
        out: as for `grouped_mm`; inputs: of the epilogue.
        graph: the epilogue, without the operands' scales; alone: whether the caller gave no epilogue.
        spec: as the caller gave it; dtype: of a new D.
        kinds: of scales that the spec does not specify.
        backend: as for `Gemm.run`.
        main: the weight and the parameter to whose `main_grad` the gradient of b is added, or None.
    """

    a: Tensor
    b: Tensor
    groups: Groups
    out: Any
    inputs: dict[str, Any]
    graph: Any
    alone: bool
    spec: GemmSpec | None
    dtype: Any
    kinds: Kinds
    backend: str | None
    main: Main | None

    @property
    def fields(self) -> Kinds:
        """The spec's fields that follow from the call: the kinds of scales, and D's type."""
        return typed(self.kinds, self.dtype)

    @property
    def by(self) -> By:
        """How the gradients' GEMMs are computed."""
        return AUTO if self.spec is None else self.spec.math, self.backend


def typed(kinds: Kinds, dtype: Any) -> Kinds:
    """The kinds of scales, and the type of a new D."""
    return kinds if dtype is None else (*kinds, str(dtype).removeprefix("torch."))


@lru_cache(64)
def grouping(how: str) -> Grouping:
    """The form of groups from its text."""
    form, name, tail = how.split(":")
    return Grouping(form, name, tail == TAILS[0])


def gemm_of(program: Program) -> GroupedGemm:
    """The kernels of a program."""
    found: GroupedGemm | None = program.plans.get("groups")
    if found is None:
        found = program.plans["groups"] = GroupedGemm(program.spec, program.graph)
    return found


@uncompiled
def _served(
    a: Any,
    b: Any,
    ends: Any,
    inputs: Any,
    numbers: Any,
    integers: Any,
    text: str,
    how: str,
    *,
    out: Any = None,
) -> Any:
    """Run a call on real tensors: a sequence of all outputs."""
    program, tensors = decode(text), (a, b, ends, *inputs)
    if out is None:
        found = again(program, how, tensors, numbers)
        if found is not None:
            return found
    told = grouping(how)
    named = dict(zip(program.inputs, inputs, strict=True)) | program.named(numbers, integers)
    groups = Groups(**{told.name: ends}, tail=told.after)
    parts = {} if out is None else dict(zip(program.outputs, out, strict=True))
    whole = None
    if program.merged:
        width = columns(program.graph, b.shape[-1])
        whole = a.new_empty((*a.shape[:-1], width * len(program.merged)))
        parts = dict(zip(program.merged, whole.split(width, -1)))
    prepared = gemm_of(program).prepared(a, b, groups, named, parts or None, program.backend)
    made = prepared[0](*prepared[1:], None)
    if out is None:
        remember(program, how, tensors, *prepared[:2])
    if program.alone:
        return (made,)
    return [whole if name in program.merged else getattr(made, name) for name in program.outputs]


def _one(*args: Any) -> Tensor:
    """D of a call on real tensors."""
    found: Tensor = _served(*args)[0]
    return found


def many(*args: Any) -> list[Tensor]:
    """All outputs of a call on real tensors."""
    return list(_served(*args))


def _out(*args: Any, out: Any) -> None:
    _served(*args, out=out)


def _shapes(
    a: Any, b: Any, ends: Any, inputs: Any, numbers: Any, integers: Any, program: str, how: str
) -> list[Tensor]:
    """Outputs of the right shapes and types, from extents alone, which may be symbolic."""
    known, told = decode(program), grouping(how)
    k, rows = a.shape[-1], b.shape[-2]
    if type(k) is int and type(rows) is int and k != rows:
        raise field_error(InputError, "b.shape", tuple(b.shape), f"must have {k} rows (K)")
    torch._check(k == rows, lambda: "b: must have as many rows as a has columns")
    n = columns(known.graph, b.shape[-1])
    lead = (
        (ends.shape[0] - told.lead,) if told.form == "depth" else a.shape[:1] if told.form == "masked" else ()
    )
    asked = None if known.spec.d_dtype == AUTO else TORCH_DTYPE[known.spec.d_dtype]
    default = a.dtype if a.dtype.itemsize > 1 else torch.bfloat16
    found = []
    for x in known.results:
        if x.kind == STORE:
            dtype = TORCH_DTYPE[as_dtype(x.dtype)] if x.dtype else asked or default
            width = n * max(len(known.merged) * (x.name in known.merged), 1)
            found.append(a.new_empty((*lead, a.shape[-2], width), dtype=dtype))
        else:
            found.append(a.new_empty((*lead, *x.by_axis((n,), (a.shape[-2],), ())), dtype=torch.float32))
    return found


def _fake_out(*args: Any, out: Any) -> None:
    for name, given, wanted in zip(decode(args[6]).outputs, out, _shapes(*args), strict=True):
        check_fake_out(shown(name), given, wanted)


def _recorded(
    a: Any, b: Any, ends: Any, inputs: Any, numbers: Any, integers: Any, program: str, how: str
) -> Any:
    return record((numbers, integers, program, how), a, b, ends, *inputs)


def _mapped(op: Any) -> Any:
    """The vmap rule of an overload that returns new tensors: one launch per element of the batch.

    One launch cannot cover the batch, because rows outside all groups may lie between the groups of two elements.
    """

    def rule(info: Any, in_dims: Any, a: Any, b: Any, ends: Any, inputs: Any, *others: Any) -> Any:
        size, found = info.batch_size, []
        tensors = list(zip((a, b, ends, *inputs), (*in_dims[:3], *(in_dims[3] or [None] * len(inputs)))))
        for i in range(max(size, 1)):
            x, y, z, *read = (_element(*one, i) for one in tensors)
            # a slice of a batch of ends may be strided; the op takes contiguous ends
            outs = op(x, y, z.clone(), read, *others)
            found.append([outs] if isinstance(outs, Tensor) else outs)
        stacked = [torch.stack(x)[:size] for x in zip(*found, strict=True)]
        return (stacked[0], 0) if op is _OP.default else (stacked, [0] * len(stacked))

    return rule


def _element(x: Tensor, dim: int | None, place: int) -> Tensor:
    """An element of a mapped tensor, or the unmapped tensor itself; zeros if the batch is empty."""
    if dim is None:
        return x
    return x.select(dim, place) if x.shape[dim] else x.new_zeros(x.movedim(dim, 0).shape[1:])


def _register() -> None:
    one, every = (
        described(op, real, fake)
        for op, real, fake in ((_OP.default, _one, lambda *x: _shapes(*x)[0]), (_OP.many, many, _shapes))
    )
    kernels = {
        "grouped_mm": (_one, one, autograd_of(_OP.default, _recorded, _one)),
        "grouped_mm.many": (many, every, autograd_of(_OP.many, lambda *x: [_recorded(*x)], many)),
        "grouped_mm.out": (_out, _fake_out, autograd_out_of(_OP.out)),
    }
    for name, (real, fake, recorded) in kernels.items():
        for device in DEVICES:
            library.impl(name, real, device.upper())
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
        library.impl(name, recorded, "Autograd", with_keyset=True)
    for name, op in (("grouped_mm", _OP.default), ("grouped_mm.many", _OP.many)):
        torch.library.register_vmap(f"{NAMESPACE}::{name}", _mapped(op), lib=library)
    library.impl("grouped_mm.out", writing(_OP.out), "ADInplaceOrView", with_keyset=True)
    library.impl("grouped_mm.out", refuse_mapped_out, "FuncTorchBatched")


_register()

__all__ = ["Call", "gemm_of", "grouping", "many", "typed"]
