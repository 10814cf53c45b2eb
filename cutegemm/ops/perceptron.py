# SPDX-License-Identifier: Apache-2.0
"""Two linear layers with an epilogue between them, also per group. Their backward passes share a launch.

With Z = x W1ᵀ, H = f(Z, inputs) and Y = H W2ᵀ + b, the gradient of Z is f'(Z, inputs) * (dY W2): an epilogue of that
GEMM, so that the gradient of H is never written. The forward stores H and Z, which the gradients of W2 and Z read.
The work is split into two autograd functions, so that H and Z are freed before the gradients of x and W1 are computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.epilogue.derivative import SAVED
from cutegemm.epilogue.graph import ACCUMULATORS, Graph
from cutegemm.ops.dispatch import direct
from cutegemm.ops.entry_points import linear, server_of
from cutegemm.ops.fallback import (
    HALF,
    address,
    autocast_to,
    autocast_type,
    constant,
    found_at,
    untouched,
)
from cutegemm.ops.gradients.autograd import plain, summed_rows
from cutegemm.ops.gradients.grad_batches import takes_batches
from cutegemm.ops.gradients.gradient import gradient_name, plan_gradient
from cutegemm.ops.gradients.once import final, sources_of
from cutegemm.ops.gradients.saved import taken
from cutegemm.ops.groups.grouped_op import many
from cutegemm.ops.products import BACKENDS
from cutegemm.ops.program import BIASED, PLAIN, Program, decode, kept
from cutegemm.ops.shortcuts import served
from cutegemm.running.arguments.call import Memo
from cutegemm.spec import GemmSpec


class Texts(NamedTuple):
    """The programs of a perceptron's GEMMs, as text, and the names of their inputs and outputs.

    Attributes:
        hidden: x by W1: H, and Z for the gradients, named `saved`; a gated pair is side by side in one tensor.
        output: H by W2, with or without a bias.
        gradient: dY by W2. It reads `read` and returns `given`: the gradient of Z, in Z's layout, then of the inputs.
        input, weight: the gradients of a layer's x and of its weight.
    """

    hidden: str
    output: str
    gradient: str
    input: str
    weight: str
    saved: tuple[str, ...]
    inputs: tuple[str, ...]
    read: tuple[str, ...]
    given: tuple[str, ...]


@constant
def described(
    epilogue: int, wanted: tuple[str, ...], bias: bool, who: str, invariant: bool = False
) -> Texts | None:
    """The programs of a perceptron; None if the gradient of its epilogue cannot be fused.

    Args:
        epilogue: address of the graph; it must read only tensors and have one output.
        wanted: the inputs that need gradients.
        bias: whether the second layer adds one.
        who: the result of `fallback.server`.
        invariant: whether both layers' GEMMs, but not the gradients, have `batch_invariant`.
    """
    return _texts(found_at(epilogue), wanted, bias, who, invariant)


# Programs of recent perceptrons, by the identity of the graph, which an entry keeps alive.
_recent: Memo[tuple[Graph, Texts | None]] = Memo()


def remembered(
    epilogue: Graph, wanted: tuple[str, ...], bias: bool, who: str, invariant: bool = False
) -> Texts | None:
    """`described` with a cache, because it costs more than the launches of a small perceptron."""
    key = id(epilogue), wanted, bias, who, invariant
    known = _recent.get(key)
    if known is None:
        known = epilogue, _texts(epilogue, wanted, bias, who, invariant)
        _recent.put(key, known)
    return known[1]


def _texts(graph: Graph, wanted: tuple[str, ...], bias: bool, who: str, invariant: bool) -> Texts | None:
    """See `described`."""
    if graph.numbers or [x.name for x in graph.outputs] != ["d"] or graph.gated not in (None, "halves"):
        return None
    spec = GemmSpec(batch_invariant=True) if invariant else GemmSpec()
    first = kept(Program(spec, graph, "linear", (), BACKENDS[who]))
    plan = plan_gradient(first, True, wanted)
    if plan.outputs["d"].factors is not None:
        return None
    parts = ACCUMULATORS if graph.gated else (None,)
    saved = tuple([SAVED[x] for x in parts])
    if set(plan.saved) != set(saved):
        return None
    dz = tuple([gradient_name(x or "acc") for x in parts])
    merged = (saved, dz) if graph.gated else ((), ())
    forward = kept(dataclasses.replace(plan.forward, merged=merged[0]))
    gradient = first.derived(plan.outputs["d"].graph, "input", merged[1])
    second = kept(Program(spec, BIASED if bias else PLAIN, "linear", (), BACKENDS[who]))
    given = (dz[0], *(gradient_name(x) for x in wanted))
    by_weight, by_x = plain(first, "input").text, plain(first, "weight").text
    return Texts(
        forward.text,
        second.text,
        gradient.text,
        by_weight,
        by_x,
        saved,
        tuple(graph.tensors),
        gradient.inputs,
        given,
    )


def perceptron(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    epilogue: Graph,
    last_weight: Tensor,
    last_bias: Tensor | None = None,
    *,
    fallback: str = "torch",
) -> Tensor:
    """linear(linear(x, weight, bias, epilogue=epilogue), last_weight, last_bias), with fused gradients.

    If no gradient is needed, or one of torch's transforms is active, it makes those two calls.

    Args:
        x: (..., K); weight: (N, K), or (2 N, K) in halves for a gated epilogue; bias: of the epilogue, if it has one.
        epilogue: between the layers.
        last_weight: (P, N); last_bias: None or (P,).
        fallback: as for `linear`.

    Returns:
        (..., P).

    Raises:
        GemmError: as for `linear`.
    """
    rows: dict[str, Any] = {} if bias is None else {"bias": bias}
    texts = None
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        compiling = torch.compiler.is_compiling()
        who = server_of(x.device, fallback, "cutegemm.linear")
        fuses = not untouched() if compiling else direct(x, weight, last_weight, *rows.values())
        if fuses and who != "torch":
            wanted = tuple([name for name, t in rows.items() if t.requires_grad])
            biased = last_bias is not None
            if compiling:
                texts = described(address(epilogue), wanted, biased, who)
            else:
                texts = remembered(epilogue, wanted, biased, who)
    if texts is None:
        hidden = linear(x, weight, epilogue=epilogue, fallback=fallback, **rows)
        found: Tensor = linear(hidden, last_weight, last_bias, fallback=fallback)
        return found
    return _recorded(texts, x, weight, list(rows.values()), last_weight, last_bias, None)


def grouped_perceptron(
    x: Tensor,
    weight: Tensor,
    epilogue: Graph,
    last_weight: Tensor,
    bounds: Tensor,
    fallback: str = "torch",
    batch_invariant: bool = False,
    **inputs: Tensor,
) -> Tensor:
    """A perceptron per group with its own weights, (R, P), with fused gradients; rows outside all groups are zero.

    Args:
        x: (R, K), in groups; weight: (G, 2 N, K), in halves.
        epilogue: of a gated pair; last_weight: (G, P, N).
        bounds: (G + 1,): the first group's start, then the ends.
        fallback: as for `linear`.
        batch_invariant: whether a row's bits must not depend on the other rows; its gradient's may.
        **inputs: all that the epilogue reads.
    """
    who = server_of(x.device, fallback, "cutegemm.grouped_mm")
    who = "reference" if who == "torch" else who
    wanted = tuple([name for name, t in inputs.items() if t.requires_grad])
    if torch.compiler.is_compiling():
        texts = described(address(epilogue), wanted, False, who, batch_invariant)
    else:
        texts = remembered(epilogue, wanted, False, who, batch_invariant)
    return _recorded(texts, x, weight, [inputs[name] for name in epilogue.tensors], last_weight, None, bounds)


def _recorded(
    texts: Texts | None, x: Tensor, weight: Tensor, rows: list[Tensor], last_weight: Tensor, last_bias: Any, bounds: Any
) -> Tensor:  # fmt: skip
    """Run a perceptron and store what the gradients read."""
    dtype = autocast_type(x.device)
    if dtype in HALF:
        x, weight, last_weight = [autocast_to(dtype, t) for t in (x, weight, last_weight)]
    # `Output` computes the gradients of the epilogue's inputs, so `Hidden` needs none
    read = [t.detach() for t in rows]
    h, z = Hidden.apply(texts, bounds, x, weight, *read)  # type: ignore[no-untyped-call]
    y: Tensor = Output.apply(texts, bounds, h, last_weight, last_bias, z, *rows)  # type: ignore[no-untyped-call]
    return y


# the form of each GEMM of a perceptron, as in `Program.form`
_FORMS = {"hidden": "linear", "output": "linear", "gradient": "input", "input": "input", "weight": "weight"}


def _launch(
    texts: Texts,
    name: str,
    bounds: Tensor | None,
    a: Tensor,
    b: Tensor,
    inputs: Sequence[Tensor] = (),
    numbers: Sequence[float] = (),
) -> Sequence[Tensor]:
    """All outputs of the GEMM `name`, a field of `texts`; with `bounds`, of one GEMM per group."""
    if torch.is_grad_enabled():
        # a backward pass with create_graph=True: `final` makes its gradients refuse to be differentiated
        with torch.no_grad():
            return _launch(texts, name, bounds, a, b, inputs, numbers)
    text, form = getattr(texts, name), _FORMS[name]
    args: tuple[Any, ...] = list(inputs), list(numbers), [], text
    if bounds is not None:
        told = f"{'depth' if form == 'weight' else 'rows'}:cu_seqlens:zero"
        a, b = (a.mT, b) if form == "weight" else (a, b.mT if form == "linear" else b)
        call = many if direct(a, b, bounds, *inputs) else torch.ops.cutegemm.grouped_mm.many
        return call(a, b, bounds, *args, told)
    if direct(a, b, *inputs):
        return served(decode(text), a, b, inputs, numbers, ())
    found: list[Tensor] = torch.ops.cutegemm.gemm.many(a, b, *args)
    return found


class Hidden(torch.autograd.Function):
    """x by W1: H, which is not differentiable, and Z, through which `Output` passes H's gradient."""

    @staticmethod
    def forward(ctx: Any, texts: Texts, bounds: Any, x: Tensor, weight: Tensor, *inputs: Tensor) -> Any:
        """H, and Z; for a gated pair, Z has gate and up side by side."""
        needs = ctx.needs_input_grad
        ctx.save_for_backward(bounds, x if needs[3] else None, weight if needs[2] else None)
        ctx.texts, ctx.inputs = texts, len(inputs)
        h, z = _launch(texts, "hidden", bounds, x, weight, inputs)
        ctx.mark_non_differentiable(h)
        ctx.set_materialize_grads(False)
        return h, z

    @staticmethod
    @takes_batches
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The gradients of x and W1."""
        _, dz = grads
        bounds, x, weight = taken(ctx)
        sources = sources_of(dz, x, weight)
        dx = dw = None
        if dz is not None:
            if x is not None:
                (dw,) = _launch(ctx.texts, "weight", bounds, dz, x, (), (1.0,))
                x = None
            if weight is not None:
                (dx,) = _launch(ctx.texts, "input", bounds, dz, weight, (), (1.0,))
        return (None, None, *final((dx, dw), sources), *[None] * ctx.inputs)


class Output(torch.autograd.Function):
    """H by W2; its gradient is that of Z."""

    @staticmethod
    def forward(
        ctx: Any, texts: Texts, bounds: Any, h: Tensor, weight: Tensor, bias: Any, z: Tensor, *inputs: Tensor
    ) -> Any:
        """Y; h and z come from `Hidden`, and the inputs are the epilogue's."""
        ctx.save_for_backward(bounds, h if ctx.needs_input_grad[3] else None, weight, z, *inputs)
        ctx.texts, ctx.dtype = texts, None if bias is None else bias.dtype
        if bias is None:
            (y,) = _launch(texts, "output", bounds, h, weight, (), (1.0,))
        else:
            (y,) = _launch(texts, "output", bounds, h, weight, (bias,))
        return y

    @staticmethod
    @takes_batches
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The gradients of W2, its bias, Z and the epilogue's inputs."""
        (dy,) = grads
        texts: Texts = ctx.texts
        bounds, h, weight, z, *inputs = taken(ctx)
        sources = sources_of(dy, weight, z, *inputs)
        needs = ctx.needs_input_grad[3:]
        dw = db = None
        if h is not None:
            (dw,) = _launch(texts, "weight", bounds, dy, h, (), (1.0,))
            # freed before the gradient of Z is computed
            h = None
        if needs[1]:
            db = summed_rows(dy, ctx.dtype)
        parts = (z,) if len(texts.saved) == 1 else z.chunk(len(texts.saved), -1)
        known = dict(zip((*texts.saved, *texts.inputs), (*parts, *inputs)))
        dz, *sums = _launch(texts, "gradient", bounds, dy, weight, [known[name] for name in texts.read])
        by_name = dict(zip(texts.given[1:], sums))
        others = [by_name.get(gradient_name(name)) for name in texts.inputs]
        others = [None if g is None else g.to(x.dtype) for g, x in zip(others, inputs)]
        return (None, None, None, *final((dw, db, dz, *others), sources))


__all__ = ["Hidden", "Output", "Texts", "described", "grouped_perceptron", "perceptron"]
