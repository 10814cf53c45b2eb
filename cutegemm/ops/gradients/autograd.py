# SPDX-License-Identifier: Apache-2.0
"""The op's gradient: an autograd function over programs; its GEMMs run on our kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from cutegemm.epilogue.graph import STORE
from cutegemm.errors import InputError
from cutegemm.ops.dispatch import below, call
from cutegemm.ops.fallback import constant
from cutegemm.ops.gradients.grad_batches import takes_batches
from cutegemm.ops.gradients.gradient import OutputGradient, Plan, gradient_name, plan_gradient
from cutegemm.ops.gradients.once import TWICE, final, sources_of
from cutegemm.ops.gradients.saved import taken
from cutegemm.ops.program import PLAIN, Program, kept
from cutegemm.ops.serve import serve
from cutegemm.problems import columns
from cutegemm.spec import AUTO, GemmSpec

_compiling = torch.compiler.is_compiling
_transforming = torch._C._are_functorch_transforms_active
# a program, and the numbers and integers of a call
What = tuple[Program, Sequence[float], Sequence[int]]


def _forward(solve: Any) -> Any:
    """The forward of an autograd function; `solve` computes its outputs."""

    def forward(ctx: Any, what: What, a: torch.Tensor, b: torch.Tensor, *inputs: torch.Tensor) -> Any:
        """Compute the outputs, and save what the gradient needs."""
        plan = plan_of(what[0], ctx.needs_input_grad)
        return _kept(ctx, plan, solve(plan.forward, a, b, inputs, *what[1:]), what, a, b, inputs)

    return staticmethod(forward)


class Product(_SingleLevelFunction):
    """A GEMM with gradients that are GEMMs.

    It skips the functorch handling of `torch.autograd.Function`: the dispatcher calls it level by level, as it calls
    torch's own gradients.
    """

    forward = _forward(functools.partial(below, call))

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """The key of our nodes in compiled autograd, as in `torch.autograd.Function`."""
        return (ctx._autograd_function_id,)

    @staticmethod
    @takes_batches
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradients of a, b and inputs."""
        names = ("a", "b", *ctx.call[0].keeps)
        saved = dict(zip(names, taken(ctx), strict=True))
        if _by_levels():
            return (None, *_gradients(ctx, saved, grads))
        sources = sources_of(*grads, *saved.values(), getattr(ctx, "token", None))
        with torch.no_grad():
            found = _gradients(ctx, saved, grads)
        return (None, *final(found, sources))


class Direct(Product):
    """`Product` for a call that `direct` allows to bypass the dispatcher."""

    forward = _forward(serve)


record: Any = Direct.apply  # type: ignore[attr-defined]


def plan_of(program: Program, needs: tuple[bool, ...]) -> Plan:
    """The gradient plan of a program; `needs` is autograd's `needs_input_grad` of `Product`."""
    plan: Plan | None = program.plans.get(needs)
    if plan is None:
        wanted = tuple(name for name, x in zip(program.inputs, needs[3:]) if x)
        plan = program.plans[needs] = plan_gradient(program, needs[1] or needs[2], wanted)
    return plan


def _kept(
    ctx: Any,
    plan: Plan,
    found: Sequence[torch.Tensor],
    what: What,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Sequence[torch.Tensor],
) -> Any:
    """Save what the gradient reads, and return what the caller gets."""
    needs, program = ctx.needs_input_grad, plan.program
    keep_a, keep_b = a if needs[2] else None, b if needs[1] else None
    if plan.keeps:
        known = dict(zip(program.inputs, inputs)) | dict(zip(plan.forward.outputs, found))
        ctx.save_for_backward(keep_a, keep_b, *[known[name] for name in plan.keeps])
    else:
        ctx.save_for_backward(keep_a, keep_b)
    if plan.saved and needs[1] != needs[2] and not _compiling() and not _transforming():
        # no other saved tensor depends on the operand that has a gradient
        ctx.token = _token(a if needs[1] else b)
    shapes = (a.shape, b.shape) if program.form == "matrix" or program.graph.reductions else None
    ctx.call = plan, what, a.dtype, shapes, [(x.shape, x.dtype) for x in inputs] if inputs else ()
    if program.alone:
        return found[0]
    ctx.set_materialize_grads(False)
    results = tuple(found[: len(program.outputs)])
    ctx.mark_non_differentiable(*(x for x, name in zip(results, program.outputs) if name not in plan.outputs))
    return results


def _by_levels() -> bool:
    """Whether levels of torch.func differentiate; each of them records, and refuses, for itself."""
    top = torch._C._functorch.peek_interpreter_stack() if _transforming() else None
    return top is not None and top.key() != torch._C._functorch.TransformType.Vmap


def _token(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor that depends on x in autograd but does not hold its memory."""
    with torch.enable_grad():
        return torch.slice_copy(x, 0, 0, 0)


class Final(_SingleLevelFunction):
    """A GEMM of a gradient; it refuses to be differentiated."""

    _compiled_autograd_key = Product._compiled_autograd_key

    @staticmethod
    def forward(
        ctx: Any,
        what: What,
        a: torch.Tensor,
        b: torch.Tensor,
        *inputs: torch.Tensor,
    ) -> Any:
        """D, or all outputs."""
        program = what[0]
        found: Any = below(call, program, a, b, inputs, *what[1:])
        return found[0] if program.alone else found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Refuse.

        Raises:
            InputError: always.
        """
        raise InputError(TWICE)


def asked(ctx: Any) -> tuple[bool, ...]:
    """Whether a backward pass needs the gradients of a, b and each input; `autograd.grad` may request only some."""
    needs: tuple[bool, ...] = ctx.needs_input_grad[1:]
    if _compiling() or sum(needs) < 2:
        return needs
    return tuple([x and _goes_on(node) for x, (node, _) in zip(needs, ctx.next_functions, strict=True)])


def _goes_on(node: Any) -> bool:
    """Whether the current backward pass needs a gradient at a node."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # unknown for a requested leaf, and for a backward that is not called by the engine
        return True


def _gradients(
    ctx: Any, saved: dict[str, torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients of a, b and every input; None if one is not needed or has no incoming gradient."""
    plan, (_, values, integers), dtype, _, kinds = ctx.call
    program = plan.forward
    need_a, need_b, *need = asked(ctx)
    numbers = program.named(values, integers) if values or integers else {}
    totals: dict[str, torch.Tensor] = {}
    factor = 1.0
    single = sum(x is not None for x in grads) == 1
    for output, g in zip(program.outputs, grads):
        if g is None or output not in plan.outputs:
            continue
        own = plan.outputs[output]
        if own.factors is None:
            parts = _launched(own, saved, g, numbers, ctx)
        else:
            factors = {name: x.of(numbers) for name, x in own.factors.items()}
            if single and "acc" in factors:
                # the factor is applied in the GEMMs
                factor, factors["acc"] = factors["acc"], 1.0
            parts = {name: _scaled(program, name, g, factors[name], ctx) for name in factors}
        for name, x in parts.items():
            totals[name] = totals[name] + x if name in totals else x
    # the GEMMs read only A and B
    for name in plan.keeps:
        del saved[name]
    found: list[torch.Tensor | None] = [None, None]
    if plan.accumulators and (need_a or need_b) and all(x in totals for x in plan.accumulators):
        acc = _joined(program, [totals[x] for x in plan.accumulators]).to(dtype)
        found = operands(ctx, program, saved, acc, factor, (need_a, need_b))
    for name, needed, (shape, kind) in zip(program.inputs, need, kinds):
        if needed and name in totals:
            found.append(summed_to(totals[name], shape).to(kind))
        else:
            found.append(None)
    return found


def _shape_of_d(ctx: Any) -> tuple[Any, ...]:
    """The extents of D, from the operands of the forward call."""
    program, (a, b) = ctx.call[0].program, ctx.call[3]
    if program.form == "linear":
        return (*a[:-1], columns(program.graph, b[0]))
    batch = next((x[0] for x in (a, b) if len(x) == 3 and x[0] != 1), 1)
    lead = (batch,) if len(a) == 3 or len(b) == 3 else ()
    return (*lead, a[-2], columns(program.graph, b[-1]))


def _launched(
    own: OutputGradient,
    saved: dict[str, torch.Tensor],
    g: torch.Tensor,
    numbers: dict[str, Any],
    ctx: Any,
) -> dict[str, torch.Tensor]:
    """All gradients of one output by one launch without a mainloop."""
    program = own.program
    dtype = ctx.call[2]
    *lead, width = g.shape if own.result.kind == STORE else _shape_of_d(ctx)
    if own.result.kind != STORE and own.result.axis is None:
        # the gradient of a sum is the same for every row
        g = (g.unsqueeze(-1) if g.dim() else g).expand(lead)
    tensors = saved | {own.upstream: g}
    a = g.new_empty((*lead, 0), dtype=dtype)
    b = g.new_empty((width, 0) if program.form == "linear" else (0, width), dtype=dtype)
    outs = call(
        program, a, b, [tensors[x] for x in program.inputs],
        [numbers[x] for x in program.numbers], [numbers[x] for x in program.integers],
    )  # fmt: skip
    found = dict(zip(program.outputs, outs, strict=True))
    plan = ctx.call[0]
    wanted = (*plan.accumulators, *plan.inputs)
    return {name: found[gradient_name(name)] for name in wanted}


def _scaled(program: Program, name: str, g: torch.Tensor, factor: float, ctx: Any) -> torch.Tensor:
    """A gradient that is G times a number, reduced to the input's shape: for a row summed over rows, and so on."""
    kind = program.graph.tensors.get(name, "scalar" if name in program.graph.numbers else "matrix")
    if kind == "matrix":
        return g if factor == 1.0 else g * factor
    folds = program.form != "matrix"
    rows = tuple(range(g.dim() - 1)) if folds else (-2,)
    dims = {"row": rows, "col": (-1,), "scalar": (*rows, -1)}[kind]
    x = summed_along(g, dims)
    return x if factor == 1.0 else x * factor


def _joined(program: Program, parts: list[torch.Tensor]) -> torch.Tensor:
    """The accumulator's gradient; a gated pair's parts are placed as in B's columns."""
    if len(parts) == 1:
        return parts[0]
    if program.graph.gated == "halves":
        return torch.cat(parts, -1)
    return torch.stack(parts, -1).flatten(-2)


def plain(program: Program, form: str) -> Program:
    """The program of alpha * A B in a form, with another program's `math` and backend."""
    return _plain(form, None, program.spec.math, program.backend)


@constant
def _plain_text(form: str, dtype: str | None, math: str, backend: Any) -> str:
    return _plain(form, dtype, math, backend).text


@functools.lru_cache(64)
def _plain(form: str, dtype: str | None, math: str, backend: Any) -> Program:
    """Cached, because creating a program in every backward pass costs more than the launch."""
    spec = GemmSpec(d_dtype=dtype or AUTO, math=math)
    return kept(Program(spec, PLAIN, form, (), backend, final=True))


def _product(
    program: Program, form: str, a: torch.Tensor, b: torch.Tensor, factor: float, dtype: str | None = None
) -> torch.Tensor:
    """factor * A B in a form, with a program's `math` and backend; torch.compile sees only the op."""
    how = program.spec.math, program.backend
    if _compiling():
        text = _plain_text(form, dtype, *how)
        found: torch.Tensor = torch.ops.cutegemm.gemm.default(a, b, [], [factor], [], text)
        return found
    return call(_plain(form, dtype, *how), a, b, (), (factor,))[0]


def operands(
    ctx: Any,
    program: Program,
    saved: dict[str, torch.Tensor],
    acc: torch.Tensor,
    factor: float,
    needs: tuple[bool, bool],
) -> list[torch.Tensor | None]:
    """The gradients of A and B from the accumulator's; B's first, so that A can be freed before the second GEMM."""
    need_a, need_b = needs
    da = db = None
    # None if nothing is batched
    a_shape, b_shape = ctx.call[3] or (None, None)
    a, b = saved.pop("a"), saved.pop("b")
    if need_b and program.form == "linear":
        db = _product(program, "weight", acc, a, factor)
    elif need_b:
        if (
            b_shape is not None
            and len(b_shape) == 2
            and acc.dim() == 3
            and a.dim() == 3
            and a.shape[0] == acc.shape[0]
        ):
            # all batches share B, so one GEMM over all rows sums their gradients
            db = _product(program, "weight", a, acc, factor)
        else:
            db = _batched(program, a.mT, acc, factor, b_shape)
    del a
    if need_a and program.form == "linear":
        da = _product(program, "input", acc, b, factor)
    elif need_a:
        da = _batched(program, acc, b.mT, factor, a_shape)
    return [da, db]


def _batched(
    program: Program, a: torch.Tensor, b: torch.Tensor, factor: float, shape: torch.Size | None
) -> torch.Tensor:
    """A GEMM whose result is summed over batches that share the operand."""
    if shape is None:
        return _product(program, "matrix", a, b, factor)
    batch = next((x.shape[0] for x in (a, b) if x.dim() == 3 and x.shape[0] != 1), 1)
    shared = batch != 1 and (len(shape) == 2 or shape[0] == 1)
    # sum fp32 results and round once
    found = _product(program, "matrix", a, b, factor, "fp32" if shared else None)
    return summed_to(found, shape).to(a.dtype)


def summed_along(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """A gradient summed in fp32 along `dims`. Empty `dims` sum nothing; torch.sum would sum over all dimensions."""
    return x.sum(dims, dtype=torch.float32) if dims else x.float()


def summed_rows(g: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum all rows in fp32 and round once. Of 16-bit rows `torch.sum` does so itself, without a result in fp32."""
    rows = tuple(range(g.dim() - 1))
    return g.sum(rows) if rows and g.dtype is dtype else summed_along(g, rows).to(dtype)


def summed_to(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A gradient summed over the axes along which its tensor was broadcast."""
    while x.dim() > len(shape):
        x = x.sum(0)
    axes = [i for i, (n, wanted) in enumerate(zip(x.shape, shape)) if wanted == 1 and n != 1]
    return x.sum(axes, keepdim=True) if axes else x


__all__ = [
    "Direct",
    "Final",
    "Product",
    "What",
    "asked",
    "operands",
    "plain",
    "plan_of",
    "record",
    "summed_along",
    "summed_rows",
    "summed_to",
]
