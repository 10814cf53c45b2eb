# SPDX-License-Identifier: Apache-2.0
"""The op `cutegemm::grouped_mm`: what torch's dispatcher, compilers and autograd know of products of groups.

Its program is a product's (`program`); how groups are told is text, "form:name:tail" (`Groups`). The gradient is of
programs without an epilogue (`grouped_epilogue` has the others'), and made of the op itself:

    rows     dA = dD B^T, groups of rows;        dB = A^T dD, groups along K
    depth    dA^T = B dD^T, groups of rows;      dB = A^T dD, groups of rows
    masked   dA = dD B^T, masked;                dB = A^T dD of batches whose other rows are zeroed
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import Graph, Node, Result, linear_combination
from cutegemm.errors import InputError
from cutegemm.ops.entry_points import bmm
from cutegemm.ops.program import Program, decode, kept
from cutegemm.ops.register import NAMESPACE, library
from cutegemm.problems import columns
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.groups import TAILS, Grouping, Groups
from cutegemm.running.numerics.group_reference import bounds
from cutegemm.running.numerics.reference import TORCH_DTYPE
from cutegemm.spec import AUTO, GemmSpec

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor ends, Tensor[] inputs, "
    "float[] numbers, SymInt[] integers, str program, str how"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
library.define(f"grouped_mm({_ARGUMENTS}) -> Tensor", tags=_TAGS)
library.define(f"grouped_mm.many({_ARGUMENTS}) -> Tensor[]", tags=_TAGS)


def _plain(with_c: bool, with_bias: bool) -> Graph:
    graph = linear_combination(with_c)
    if not with_bias:
        return graph
    last, count = graph.outputs[0].node, len(graph.nodes)
    return Graph(
        (*graph.nodes, Node("row", value="bias"), Node("add", (last, count))), (Result("d", count + 1),)
    )


# D = alpha * acc + beta * c + bias: by whether there is a c, and a bias
PLAIN = {(x, y): _plain(x, y) for x in (False, True) for y in (False, True)}


@lru_cache(64)
def grouping(how: str) -> Grouping:
    """How groups are told, of its text."""
    form, name, tail = how.split(":")
    return Grouping(form, name, tail == TAILS[0])


def gemm_of(program: Program) -> GroupedGemm:
    """The kernels of a program."""
    found: GroupedGemm | None = program.plans.get("groups")
    if found is None:
        found = program.plans["groups"] = GroupedGemm(program.spec, program.graph)
    return found


def serve(
    program: Program,
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    inputs: Any,
    numbers: Any,
    integers: Any,
    how: str,
    out: Any,
) -> Any:
    """A call on real tensors: D, or an object with an attribute for each output."""
    named = dict(zip(program.inputs, inputs, strict=True)) | program.named(numbers, integers)
    told = grouping(how)
    groups = Groups(**{told.name: ends}, tail=TAILS[not told.tail])
    if not program.merged:
        return gemm_of(program).run(a, b, groups, named, out, program.backend)
    width = columns(program.graph, b.shape[-1])
    whole = a.new_empty((*a.shape[:-1], width * len(program.merged)))
    parts = dict(zip(program.merged, whole.split(width, -1)))
    found = gemm_of(program).run(a, b, groups, named, parts, program.backend)
    return Outputs(**{x: whole if x in parts else getattr(found, x) for x in program.outputs})


def _one(
    a: Any, b: Any, ends: Any, inputs: Any, numbers: Any, integers: Any, program: str, how: str
) -> Tensor:
    found: Tensor = serve(decode(program), a, b, ends, inputs, numbers, integers, how, None)
    return found


def _many(
    a: Any, b: Any, ends: Any, inputs: Any, numbers: Any, integers: Any, program: str, how: str
) -> list[Tensor]:
    known = decode(program)
    found = serve(known, a, b, ends, inputs, numbers, integers, how, None)
    return [found] if known.alone else [getattr(found, name) for name in known.outputs]


def _shapes(
    a: Any, b: Any, ends: Any, inputs: Any, numbers: Any, integers: Any, program: str, how: str
) -> Any:
    """Outputs of the right shapes and types, from extents alone, which may be symbols."""
    known, told = decode(program), grouping(how)
    torch._check(a.shape[-1] == b.shape[-2], lambda: "b: must have as many rows as a has columns")
    n = columns(known.graph, b.shape[-1])
    lead = (ends.shape[0] - told.lead,) if told.form == "depth" else a.shape[:-2]
    asked = None if known.spec.d_dtype == AUTO else TORCH_DTYPE[known.spec.d_dtype]
    default = a.dtype if a.dtype.itemsize > 1 else torch.bfloat16
    types = [TORCH_DTYPE[as_dtype(x.dtype)] if x.dtype else asked or default for x in known.results]
    widths = [n * max(len(known.merged) * (x in known.merged), 1) for x in known.outputs]
    return [a.new_empty((*lead, a.shape[-2], n), dtype=x) for n, x in zip(widths, types)]


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    """What the gradient reads."""
    a, b, ends, read, numbers, integers, program, how = inputs
    known = decode(program)
    if known.graph not in PLAIN.values():
        rule = "groups have gradients without an epilogue; apply it to what grouped_mm gives"
        raise InputError(rule, field="epilogue")
    ctx.save_for_backward(a, b, ends)
    ctx.call = known, dict(zip(known.numbers, numbers)), how
    ctx.read = [(name, x.shape, x.dtype, x.requires_grad) for name, x in zip(known.inputs, read)]
    ctx.lists = numbers, integers
    ctx.wants = a.requires_grad, b.requires_grad


def _backward(ctx: Any, above: Tensor) -> Any:
    """The gradients of a, b and what the epilogue reads."""
    a, b, ends = ctx.saved_tensors
    program, numbers, how = ctx.call
    form, name, tail = how.split(":")
    alpha = numbers["alpha"]
    above = above.to(a.dtype)

    def product(x: Tensor, y: Tensor, form: str, dtype: torch.dtype, scale: float = alpha) -> Tensor:
        found: Tensor = torch.ops.cutegemm.grouped_mm(
            x, y, ends, [], [scale], [], derived(program.backend, dtype), f"{form}:{name}:zero"
        )
        return found

    da = db = None
    if ctx.wants[0]:
        if form == "depth":
            da = product(b, above.mT, "rows", a.dtype).mT
        else:
            da = product(above, b.mT, form, a.dtype)
    if ctx.wants[1]:
        if form == "masked":
            inside = inside_groups(ends, a.shape[1], form, 0)
            left, right = (torch.where(inside, x, x.new_zeros(())) for x in (a, above))
            db = alpha * bmm(left.mT, right, fallback=program.backend or "reference")
        else:
            # laid out as B is, whose gradient autograd would copy otherwise
            turned = form == "rows" and b.stride(-1) != 1
            left, right = (above, a) if turned else (a, above)
            db = product(left.mT, right, "depth" if form == "rows" else "rows", b.dtype)
            db = db.mT if turned else db
    read = [_of_input(x, numbers, above, ends, how, product) if x[3] else None for x in ctx.read]
    # an empty list counts as one of tensors
    return da, db, None, read, *(None if x else [] for x in ctx.lists), None, None


def _of_input(x: Any, numbers: Any, above: Tensor, ends: Tensor, how: str, product: Any) -> Tensor:
    """The gradient of C or of the bias."""
    name, shape, dtype, _ = x
    form, told, _ = how.split(":")
    inside = (
        None if form == "depth" else inside_groups(ends, above.shape[-2], form, int(told == "cu_seqlens"))
    )
    if inside is not None:
        above = torch.where(inside, above, above.new_zeros(()))
    if name == "c":
        scaled: Tensor = numbers["beta"] * above
        return scaled.to(dtype)
    if form != "rows":
        rows = above.float().sum(-2)
    elif len(shape) == 1:
        rows = above.float().sum(0)
    else:
        # rows of ones: their product with each group's rows is the sum of those
        rows = product(above.new_ones(above.shape[0], 8).mT, above, "depth", torch.float32, 1.0)[:, 0]
    found: Tensor = rows.sum(0) if rows.dim() > len(shape) else rows
    return found.to(dtype)


def inside_groups(ends: Tensor, extent: Any, form: str, lead: int) -> Tensor:
    """Which rows are some group's, on the device: (M, 1), masked (G, C, 1)."""
    rows = torch.arange(extent, device=ends.device)
    if form == "masked":
        return (rows < ends[:, None])[..., None]
    places = bounds(ends, extent, lead)
    return ((rows >= places[0]) & (rows < places[-1]))[:, None]


@lru_cache(64)
def derived(backend: str | None, dtype: torch.dtype) -> str:
    """The program of a gradient's product, as text."""
    spec = GemmSpec(d_dtype=dtype)
    return kept(Program(spec, PLAIN[False, False], "matrix", (), backend)).text


def _register() -> None:
    for name, real in (("grouped_mm", _one), ("grouped_mm.many", _many)):
        for key in ("CPU", "CUDA"):
            library.impl(name, real, key)
    torch.library.register_fake(f"{NAMESPACE}::grouped_mm", lambda *x: _shapes(*x)[0], lib=library)
    torch.library.register_fake(f"{NAMESPACE}::grouped_mm.many", _shapes, lib=library)
    torch.library.register_autograd(f"{NAMESPACE}::grouped_mm", _backward, setup_context=_kept, lib=library)


_register()

__all__ = ["gemm_of", "PLAIN", "grouping", "inside_groups", "serve"]
