# SPDX-License-Identifier: Apache-2.0
"""The gradient of `cutegemm::grouped_mm` without an epilogue: calls of the same op with the graphs of `PLAIN`.

    rows     dA = dD B^T, groups of rows;        dB = A^T dD, groups along K
    columns  dA = dD B^T, groups along K;        dB = A^T dD, groups of columns
    depth    dA = dD B^T, groups of columns;     dB = A^T dD, groups of rows
    masked   dA = dD B^T, masked;                dB = A^T dD, batches with other rows zeroed

Autograd records these calls, so they are differentiable, too. `grouped_epilogue` differentiates epilogues.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from cutegemm.epilogue.graph import Graph, Node, Result, linear_combination
from cutegemm.epilogue.scales import KINDS
from cutegemm.epilogue.scaling import scaled
from cutegemm.errors import InputError
from cutegemm.ops.dispatch import below
from cutegemm.ops.fallback import HALF, constant
from cutegemm.ops.gradients.autograd import Product
from cutegemm.ops.gradients.grad_batches import takes_batches
from cutegemm.ops.gradients.main_grad import Main, added
from cutegemm.ops.program import Program, decode, kept
from cutegemm.running.numerics.group_reference import inside_groups
from cutegemm.spec import AUTO, GemmSpec

# how a gradient's GEMM is computed: the spec's `math`, and the backend, as of a program
By = tuple[Any, str | None]


def _plain(with_c: bool, with_bias: bool) -> Graph:
    graph = linear_combination(with_c)
    if not with_bias:
        return graph
    last, count = graph.outputs[0].node, len(graph.nodes)
    return Graph(
        (*graph.nodes, Node("row", value="bias"), Node("add", (last, count))), (Result("d", count + 1),)
    )


# (with c, with bias) -> D = alpha * acc + beta * c + bias
PLAIN = {(x, y): _plain(x, y) for x in (False, True) for y in (False, True)}


@lru_cache(1)
def _plain_or_scaled() -> frozenset[Graph]:
    """The graphs of `PLAIN`, with and without scales of 8-bit operands."""
    kinds = [
        {operand: kind for operand, kind in zip("ab", pair) if kind is not None}
        for pair in itertools.product((None, *KINDS), repeat=2)
    ]
    return frozenset(scaled(graph, pair) for graph in PLAIN.values() for pair in kinds)


# form of a call -> the forms of the GEMMs for the gradients of A and of B
_OF_A = {"rows": "rows", "columns": "depth", "depth": "columns", "masked": "masked"}
_OF_B = {"rows": "depth", "columns": "columns", "depth": "rows"}


class Grouped(_SingleLevelFunction):
    """A call of the op that autograd records; transforms nest as in `gradients.autograd.Product`."""

    _compiled_autograd_key = Product._compiled_autograd_key

    @staticmethod
    def forward(
        ctx: Any, what: tuple[Any, ...], a: Tensor, b: Tensor, ends: Tensor, *inputs: Tensor
    ) -> Tensor:
        """D.

        Args:
            what: numbers, integers, the program and the layout of groups ("form:name:tail"), as the op takes them.
            a, b, ends, inputs: as the op takes them.

        Raises:
            InputError: the program has an epilogue.
        """
        numbers, integers, text, how = what
        program = decode(text)
        if program.graph not in _plain_or_scaled():
            rule = "grouped_mm has no gradient through this epilogue; apply it to the result"
            raise InputError(rule, field="epilogue")
        ctx.save_for_backward(a, b, ends)
        ctx.call = program, dict(zip(program.numbers, numbers)), how
        ctx.read = [(name, x.shape, x.dtype) for name, x in zip(program.inputs, inputs)]
        op = torch.ops.cutegemm.grouped_mm.default
        found: Tensor = below(op, a, b, ends, list(inputs), numbers, integers, text, how)
        return found

    @staticmethod
    @takes_batches
    def backward(ctx: Any, above: Tensor) -> Any:
        """The gradients of a, b and what the epilogue reads."""
        a, b, ends = ctx.saved_tensors
        program, numbers, how = ctx.call
        by, alpha = (program.spec.math, program.backend), numbers["alpha"]
        _, need_a, need_b, _, *need = ctx.needs_input_grad
        read = [
            _of_input(x, numbers, above, ends, how, program.backend) if y else None
            for x, y in zip(ctx.read, need)
        ]
        # 8-bit operands have no gradient, but C and bias have
        above = above.to(a.dtype if a.dtype in HALF or a.dtype == torch.float32 else torch.bfloat16)
        da = _product(above, b.mT, ends, how, _OF_A, alpha, by, a.dtype) if need_a else None
        db = None
        if need_b and how.startswith("rows") and b.stride(-1) != 1:
            # give the gradient the strides of B, or autograd would copy it
            db = _of_weights(a, above, ends, how, alpha, by, b.dtype).mT
        elif need_b:
            db = _of_weights(above, a, ends, how, alpha, by, b.dtype)
        return None, da, db, None, *read


record: Any = Grouped.apply  # type: ignore[attr-defined]


def _product(
    x: Tensor, y: Tensor, ends: Tensor, how: str, forms: Mapping[str, str], alpha: float, by: By, dtype: Any,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A GEMM of the same groups, in the form that `forms` maps the call's form to: new, or added to `out`."""
    form, name, _ = how.split(":")
    op, text = torch.ops.cutegemm.grouped_mm, derived(*by, str(dtype), out is not None)
    if out is None:
        found: Tensor = op.default(x, y, ends, [], [alpha], [], text, f"{forms[form]}:{name}:zero")
        return found
    op.out(x, y, ends, [out], [alpha, 1.0], [], text, f"{forms[form]}:{name}:undefined", out=[out])
    return out


def _of_weights(
    above: Tensor,
    a: Tensor,
    ends: Tensor,
    how: str,
    alpha: float,
    by: By,
    dtype: Any,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of B: a new tensor, or added to `out`."""
    if not how.startswith("masked"):
        return _product(a.mT, above, ends, how, _OF_B, alpha, by, dtype, out)
    inside = inside_groups(ends, a.shape[1], "masked", 0)
    left, right = (torch.where(inside, x, x.new_zeros(())) for x in (a, above))
    op, text = torch.ops.cutegemm.gemm, derived(*by, str(dtype), out is not None)
    if out is None:
        found: Tensor = op.default(left.mT, right, [], [alpha], [], text)
        return found
    op.out(left.mT, right, [out], [alpha, 1.0], [], text, out=[out])
    return out


def added_to_main_grad(
    d: Tensor, a: Tensor, ends: Tensor, how: str, alpha: float, by: By, main: Main
) -> Tensor:
    """Attach to D, computed from `b.detach()`, a backward pass that adds the gradient of b to its owner's `main_grad`.

    Args:
        d, a, ends, how: of the call; alpha: its factor.
        by: how the gradient is computed; main: from `main_grad.owner_of`.
    """

    def add(above: Tensor, grad: Tensor, a: Tensor, ends: Tensor) -> None:
        _of_weights(above.to(a.dtype), a, ends, how, alpha, by, torch.float32, grad)

    return added(d, main, add, a, ends)


def _of_input(x: Any, numbers: Any, above: Tensor, ends: Tensor, how: str, backend: Any) -> Tensor:
    """The gradient of C or of the bias, from that of D in D's type."""
    name, shape, dtype = x
    form, told, _ = how.split(":")
    if form != "depth":
        extent = above.shape[-1 if form == "columns" else -2]
        inside = inside_groups(ends, extent, form, int(told == "cu_seqlens"))
        above = torch.where(inside, above, above.new_zeros(()))
    if name == "c":
        scaled: Tensor = numbers["beta"] * above
        return scaled.to(dtype)
    if form == "rows" and len(shape) == 2:
        # a GEMM along K with rows of ones sums the rows of each group; two summands in bf16 are nearly fp32
        high = above if above.dtype in HALF else above.to(torch.bfloat16)
        parts = [high] if above.dtype in HALF else [high, (above - high).to(torch.bfloat16)]
        ones = high.new_ones(above.shape[0], 8).mT
        sums = [_product(ones, y, ends, how, _OF_B, 1.0, (AUTO, backend), torch.float32)[:, 0] for y in parts]
        return sum(sums[1:], sums[0]).to(dtype)
    rows = above.float().sum(-2)
    return (rows.sum(0) if rows.dim() > len(shape) else rows).to(dtype)


@constant
def derived(math: Any, backend: str | None, dtype: str, with_c: bool) -> str:
    """The program of a gradient's GEMM, as text. Compiled autograd does not trace it: the cache has a lock."""
    return _derived(math, backend, dtype, with_c)


@lru_cache(64)
def _derived(math: Any, backend: str | None, dtype: str, with_c: bool) -> str:
    spec = GemmSpec(d_dtype=dtype, math=math)
    return kept(Program(spec, PLAIN[with_c, False], "matrix", (), backend)).text


__all__ = ["PLAIN", "By", "added_to_main_grad", "record"]
