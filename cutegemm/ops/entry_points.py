# SPDX-License-Identifier: Apache-2.0
"""`matmul`, `linear` and `bmm`: products as functions, with gradients, under every transform of torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.agreement import agree, agree_on_type, check_tensor, given_outs, torchs
from cutegemm.ops.dispatch import direct, way
from cutegemm.ops.fallback import (
    FALLBACKS,
    address,
    constant,
    found_at,
    refuse_atomic,
    server,
    torch_linear,
    torch_matmul,
)
from cutegemm.ops.gradients.autograd import record, record_plain
from cutegemm.ops.program import BIASED, PLAIN, PLAIN_WITH_C, Program, check_number, kept
from cutegemm.ops.serve import serve
from cutegemm.ops.shortcuts import remember, shortened
from cutegemm.ops.transforms import sharding
from cutegemm.running.arguments.blas import PLAIN_READS, PLAIN_RULE
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.named import Signature, unread
from cutegemm.running.arguments.results import Outputs
from cutegemm.spec import AUTO, GemmSpec

_DEFAULT = GemmSpec()

# Of the shortest ways: no epilogue but a bias.
_PLAIN = kept(Program(_DEFAULT, PLAIN))
_LINEAR, _BIASED = (kept(Program(_DEFAULT, graph, "linear")) for graph in (PLAIN, BIASED))
_NAMES = frozenset(FALLBACKS)
BACKENDS: dict[str, Any] = {"gpu": None, "reference": "reference", "emulator": "emulator"}
is_compiling = torch.compiler.is_compiling
_remembered = lru_cache(maxsize=64)(server)


class _Short(dict[tuple[str, str, str], Program]):
    """(who serves it, form, epilogue) -> the program of a call that says nothing else, made when first asked for."""

    def __missing__(self, key: tuple[str, str, str]) -> Program:
        who, form, name = key
        graph = PLAIN if name == "plain" else BIASED
        made = self[key] = kept(Program(_DEFAULT, graph, form, (), BACKENDS[who]))
        return made


# those of GPUs are the ones whose shortcuts are looked up: `kept` may have forgotten them
_SHORT = _Short(
    {
        ("gpu", "matrix", "plain"): _PLAIN,
        ("gpu", "linear", "plain"): _LINEAR,
        ("gpu", "linear", "bias"): _BIASED,
    }
)
_ONE = (1.0,)
# what a call says beside its operands and what its epilogue reads
_OPTIONS = ("epilogue", "out", "spec", "fallback")

# The programs of recent calls, by the identities of spec and epilogue, which they keep alive.
_recent: Memo[tuple[Any, Any, Program]] = Memo()


def server_of(device: torch.device, fallback: str, door: str) -> str:
    """`fallback.server`, asked once for equal names; under torch.compile it is a constant."""
    if is_compiling() or type(fallback) is not str:
        return server(device, fallback, door)
    return _remembered(device, fallback, door)


def matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: Any = 1.0,
    beta: Any = None,
    epilogue: Graph | None = None,
    out: Any = None,
    spec: GemmSpec | None = None,
    fallback: str = "torch",
    **inputs: Any,
) -> Any:
    """alpha * a @ b + beta * c, or an epilogue of a @ b; differentiable.

    The first call of its kind plans and compiles the kernel; later calls reuse it.

    Args:
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N), of a's type; any strides. A 2-D operand serves every batch.
        c: None or (M, N), (L, M, N).
        alpha, beta: numbers; beta None means 1 with c and 0 without. Where the epilogue reads them, also 0-d tensors.
        epilogue: from `epi.define`, applied to the elements of a @ b; None is the formula above.
        out: where D goes, or a mapping from outputs' names to tensors; such a call has no gradient. With c = out and
            beta = 1, the GEMM accumulates into out.
        spec: fixes fields of the kernel; None leaves all to the planner. Its epilogue is used if `epilogue` is None.
        fallback: what to do without a Hopper GPU: "torch" (torch's functions, with one warning), "error", or a backend
            of `Gemm.run`, "reference" or "emulator".
        inputs: of the epilogue, by name.

    Returns:
        D, (M, N) or (L, M, N). An epilogue with other outputs gives an object with an attribute per output. Gradients
        flow through stored outputs and sums; other reductions have none. Partial reductions are finished.

    Raises:
        InputError: an argument breaks a rule.
        SpecError, PlanError: the spec is illegal, or does not support the operands.
        HardwareError: no Hopper GPU and fallback="error".
    """
    if spec is None and epilogue is None and not inputs and type(fallback) is str and not is_compiling():
        alone = c is None and out is None and beta is None and type(alpha) is float and fallback in _NAMES
        if alone and (found := shortened(_PLAIN, a, b, None, alpha)) is not None:
            return found
        how = way(a, b, c) if out is None or isinstance(out, Tensor) else "op"
        if how == "run" and (who := _remembered(a.device, fallback, "cutegemm.matmul")) != "torch":
            found = _PLAIN.gemm.run(a, b, c, out=out, alpha=alpha, beta=beta, backend=BACKENDS[who])
            if alone and who == "gpu":
                remember(_PLAIN, (a.shape, b.shape), a, b, None)
            return found
        if how == "record" and c is None and out is None and type(alpha) is float and not beta:
            if (who := _remembered(a.device, fallback, "cutegemm.matmul")) != "torch":
                return record_plain((_SHORT[who, "matrix", "plain"], (alpha,), ()), a, b)
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x is not None or name != "c":
            check_tensor(name, x)
    who = server_of(a.device, fallback, "cutegemm.matmul")
    if _fuses(epilogue, spec):
        inputs = _blas(inputs, c, alpha, beta)
        return _product(a, b, epilogue, spec, "matrix", inputs, out, who)
    if inputs:
        raise unread(next(iter(inputs)), PLAIN_READS, _OPTIONS, PLAIN_RULE)
    if c is None and beta:
        raise field_error(InputError, "beta", beta, "needs c", 0.0)
    if out is not None:
        check_tensor("out", out)
    if who == "torch" and out is None and torchs(spec, a, c):
        numbers: tuple[Any, Any] = alpha, 1.0 if beta is None else beta
        if not is_compiling():
            # torch takes tensors, too, which kernels do not
            numbers = _number("alpha", "scalar", numbers[0]), _number("beta", "scalar", numbers[1])
        _agree(PLAIN if c is None else PLAIN_WITH_C, spec, "matrix", a, b, c)
        return torch_matmul(a, b, c, *numbers)
    if c is None or (beta is not None and beta == 0):
        return _product(a, b, PLAIN, spec, "matrix", {"alpha": alpha}, out, who)
    named = {"alpha": alpha, "beta": 1.0 if beta is None else beta, "c": c}
    return _product(a, b, PLAIN_WITH_C, spec, "matrix", named, out, who)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    epilogue: Graph | None = None,
    out: Any = None,
    spec: GemmSpec | None = None,
    fallback: str = "torch",
    **inputs: Any,
) -> Any:
    """x @ weight.T + bias, or an epilogue of x @ weight.T, for x of any leading dimensions; differentiable.

    Args:
        x: (..., K); weight: (N, K), of x's type.
        bias: None or (N,). An epilogue reads it as its input "bias".
        epilogue: applied to the elements of x @ weight.T; None adds the bias.
        out, spec, fallback: as of `matmul`.
        inputs: of the epilogue, with x's leading dimensions: rows (N,), columns (...), matrices (..., N).

    Returns:
        D, (..., N), or an object with an attribute per output: matrices (..., N), reductions over columns (...), over
        rows (N,), over all ().

    Raises:
        GemmError: as of `matmul`.
    """
    short = spec is None and epilogue is None and out is None and not inputs and type(fallback) is str
    if short and not is_compiling():
        program = _LINEAR if bias is None else _BIASED
        if fallback in _NAMES and (found := shortened(program, x, weight, bias, 1.0)) is not None:
            return found
        how = way(x, weight, bias)
        if how != "op" and (x.is_nested or weight.is_nested):
            # refused below, under the caller's names
            how = "op"
        if how != "op" and (who := _remembered(x.device, fallback, "cutegemm.linear")) != "torch":
            if how == "record" and bias is None:
                return record_plain((_SHORT[who, "linear", "plain"], _ONE, ()), x, weight)
            if how == "record":
                return record_plain((_SHORT[who, "linear", "bias"], (), ()), x, weight, bias)
            if x.dim() > 1:
                program = _SHORT[who, "linear", "plain" if bias is None else "bias"]
                inputs_of, numbers = ((), _ONE) if bias is None else ((bias,), ())
                found = serve(program, x, weight, inputs_of, numbers, ())[0]
                if who == "gpu":
                    remember(program, (x.shape, weight.shape), x, weight, bias)
                return found
    for name, t in (("x", x), ("weight", weight), ("bias", bias)):
        if t is not None or name != "bias":
            check_tensor(name, t)
    who = server_of(x.device, fallback, "cutegemm.linear")
    if bias is not None:
        inputs["bias"] = bias
    if _fuses(epilogue, spec):
        return _product(x, weight, epilogue, spec, "linear", inputs, out, who)
    if others := [name for name in inputs if name != "bias"]:
        raise unread(others[0], ("bias",), _OPTIONS, "without an epilogue only a bias is read")
    if who == "torch" and out is None and torchs(spec, x, bias):
        _agree(PLAIN if bias is None else BIASED, spec, "linear", x, weight, bias)
        return torch_linear(x, weight, bias)
    if bias is None:
        return _product(x, weight, PLAIN, spec, "linear", {"alpha": 1.0}, out, who)
    return _product(x, weight, BIASED, spec, "linear", inputs, out, who)


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    epilogue: Graph | None = None,
    out: Any = None,
    spec: GemmSpec | None = None,
    fallback: str = "torch",
    **inputs: Any,
) -> Any:
    """`matmul` of two batches of matrices, (L, M, K) and (L, K, N).

    Raises:
        InputError: an operand is not a batch of matrices.
        GemmError: as of `matmul`.
    """
    for name, x in (("a", a), ("b", b)):
        check_tensor(name, x)
        if x.dim() != 3:
            rule = "must have 3 dimensions (a batch of matrices)"
            raise field_error(InputError, f"{name}.shape", tuple(x.shape), rule)
    return matmul(a, b, epilogue=epilogue, out=out, spec=spec, fallback=fallback, **inputs)


def _fuses(epilogue: Any, spec: Any) -> bool:
    """Whether the caller gave an epilogue.

    Raises:
        SpecError: `spec` is no GemmSpec.
    """
    if spec is not None and not isinstance(spec, GemmSpec):
        raise field_error(SpecError, "spec", spec, "must be a GemmSpec")
    return epilogue is not None or (spec is not None and spec.epilogue != AUTO)


def _agree(graph: Graph, spec: GemmSpec | None, form: str, a: Tensor, b: Tensor, c: Tensor | None) -> None:
    """Refuse what kernels refuse, of a call that torch's functions serve."""
    if is_compiling():
        agree_on_type(a)
    else:
        agree(form, spec, a, b, c, lambda: _program(graph, spec, form, {}, None))


def _blas(inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> dict[str, Any]:
    """An epilogue's inputs, with c, alpha and beta where they were given."""
    given = {name: x for name, x in (("c", c), ("beta", beta)) if x is not None}
    if type(alpha) is not float or alpha != 1.0:
        given["alpha"] = alpha
    return inputs | given


def _product(
    a: Tensor,
    b: Tensor,
    epilogue: Graph | None,
    spec: GemmSpec | None,
    form: str,
    named: dict[str, Any],
    out: Any,
    who: str,
) -> Any:
    """A product through kernels, or through the op where torch needs to know of it."""
    if spec is not None and spec.split_reduction == "atomic" and torch.are_deterministic_algorithms_enabled():
        refuse_atomic()
    backend = BACKENDS.get(who)
    if is_compiling():
        scalars = tuple([name for name, x in named.items() if isinstance(x, Tensor) and x.dim() == 0])
        text, names, numbers, integers, outputs = _described(
            address(epilogue), address(spec), form, scalars, backend, tuple(named)
        )
        tensors = [named[x] for x in names]
        floats = [named[x] if type(named[x]) is float else float(named[x]) for x in numbers]
        whole = [named[x] for x in integers]
        return _through_the_op(a, b, tensors, floats, whole, text, outputs, out)
    program = _program(epilogue, spec, form, named, backend)
    check_names(program, named)
    tensors = [named[x] for x in program.inputs]
    outs = None if out is None else given_outs(program, out)
    floats = [_number(name, "scalar", named[name]) for name in program.numbers]
    whole = [_number(name, "integer", named[name]) for name in program.integers]
    if direct(a, b, *tensors) and not torch._C._is_any_autocast_enabled():
        recorded = torch.is_grad_enabled() and (
            a.requires_grad or b.requires_grad or any([x.requires_grad for x in tensors])
        )
        if not recorded:
            found = serve(program, a, b, tensors, floats, whole, outs)
            if outs:
                found = tuple([outs.get(name, x) for name, x in zip(program.outputs, found)])
            return found[0] if program.alone else Outputs(**dict(zip(program.outputs, found)))
        if out is None:
            found = record((program, floats, whole), a, b, *tensors)
            return found if program.alone else Outputs(**dict(zip(program.outputs, found)))
    for name, x in zip(program.inputs, tensors):
        check_tensor(name, x)
    return _through_the_op(a, b, tensors, floats, whole, program.text, program.outputs, out)


def _through_the_op(
    a: Tensor, b: Tensor, tensors: Any, numbers: Any, integers: Any, text: str, outputs: Any, out: Any
) -> Any:
    if not is_compiling():
        sharding.ensure()
    op = torch.ops.cutegemm.gemm
    if out is not None:
        outs = {"d": out} if isinstance(out, Tensor) else out
        if len(outs) != len(outputs):
            rule = "must give every output where the call is compiled or transformed"
            raise InputError(f"{rule}: {', '.join(outputs)}", field="out")
        op.out(a, b, tensors, numbers, integers, text, out=[outs[x] for x in outputs])
        return out if isinstance(out, Tensor) else Outputs(**outs)
    if len(outputs) == 1 and outputs[0] == "d":
        return op.default(a, b, tensors, numbers, integers, text)
    return Outputs(**dict(zip(outputs, op.many(a, b, tensors, numbers, integers, text))))


@constant
def _described(
    epilogue: int, spec: int, form: str, scalars: Any, backend: Any, names: Any
) -> tuple[Any, ...]:
    """What a compiler needs to know of a program: its text, and the names of what it takes and gives."""
    sharding.ensure()
    program = made(found_at(epilogue), found_at(spec), form, scalars, backend)
    check_names(program, dict.fromkeys(names, 0))
    return program.text, program.inputs, program.numbers, program.integers, program.outputs


def _program(
    epilogue: Graph | None, spec: GemmSpec | None, form: str, named: Mapping[str, Any], backend: Any
) -> Program:
    """The program of a call: the same object for the same spec and epilogue."""
    scalars = tuple([name for name, x in named.items() if isinstance(x, Tensor) and x.dim() == 0])
    key = id(epilogue), id(spec), form, scalars, backend
    found = _recent.get(key)
    if found is None:
        found = epilogue, spec, made(epilogue, spec, form, scalars, backend)
        _recent.put(key, found)
    return found[2]


def made(epilogue: Any, spec: Any, form: str, tensors: tuple[str, ...], backend: Any) -> Program:
    """A program of what the caller gave.

    Raises:
        SpecError: no epilogue graph, or two of them.
    """
    spec = _DEFAULT if spec is None else spec
    if spec.epilogue != AUTO:
        if epilogue is not None and epilogue != spec.epilogue:
            raise field_error(SpecError, "epilogue", "...", "the spec has an epilogue already")
        epilogue, spec = spec.epilogue, dataclasses.replace(spec, epilogue=AUTO)
    # checks that it is one
    graph = GemmSpec(epilogue=epilogue).epilogue
    if not isinstance(graph, Graph):
        rule = "must be an epilogue graph, or None"
        raise field_error(SpecError, "epilogue", epilogue, rule)
    scalars = tuple(x for x, kind in graph.numbers.items() if kind == "scalar" and x in tensors)
    return kept(Program(spec, graph.finished(), form, scalars, backend))


def check_names(program: Program, named: Mapping[str, Any]) -> None:
    """Refuse a call that names something else than the epilogue reads."""
    if len(named) == len(program.inputs) + len(program.numbers) + len(program.integers):
        if all(
            [x in named and named[x] is not None for x in (*program.graph.tensors, *program.graph.numbers)]
        ):
            return
    # says which
    Signature(program.graph).bind(None, None, named, None)


def _number(name: str, kind: str, value: Any) -> Any:
    return value if type(value) is float and kind == "scalar" else check_number(name, kind, value)


__all__ = ["bmm", "linear", "matmul"]
