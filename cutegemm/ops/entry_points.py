# SPDX-License-Identifier: Apache-2.0
"""`matmul`, `linear` and `bmm`: GEMMs as functions, with gradients, under all of torch's transforms."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scaling import PLAIN as SUM
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.agreement import agree, agree_on_type, check_tensor, torchs
from cutegemm.ops.dispatch import direct, way
from cutegemm.ops.fallback import FALLBACKS, server, torch_linear, torch_matmul
from cutegemm.ops.gradients.main_grad import Main, added, owner_of
from cutegemm.ops.gradients.plain_products import record_plain
from cutegemm.ops.products import BACKENDS, is_compiling, number_of, product, program_of
from cutegemm.ops.program import BIASED, PLAIN, PLAIN_WITH_C, Program, kept
from cutegemm.ops.quantized.operands import NONE, operand_scales
from cutegemm.ops.quantized.quantize import EIGHT_BITS
from cutegemm.ops.quantized.training import fp8_linear
from cutegemm.ops.serve import serve
from cutegemm.ops.shortcuts import remember, remember_scaled, scaled_again, shortened
from cutegemm.running.arguments.blas import PLAIN_READS, PLAIN_RULE
from cutegemm.running.arguments.named import unread
from cutegemm.spec import AUTO, GemmSpec

_DEFAULT = GemmSpec()

# Programs of the fastest paths: no epilogue but a bias.
_PLAIN = kept(Program(_DEFAULT, PLAIN))
_LINEAR, _BIASED = (kept(Program(_DEFAULT, graph, "linear")) for graph in (PLAIN, BIASED))
_NAMES = frozenset(FALLBACKS)
_remembered = lru_cache(maxsize=64)(server)


class _Short(dict[tuple[str, str, str], Program]):
    """(server, form, epilogue) -> the program of a call without other options, created on first use."""

    def __missing__(self, key: tuple[str, str, str]) -> Program:
        who, form, name = key
        graph = PLAIN if name == "plain" else BIASED
        made = self[key] = kept(Program(_DEFAULT, graph, form, (), BACKENDS[who]))
        return made


# the GPU's programs, whose shortcuts are looked up; `kept` may have dropped them
_SHORT = _Short(
    {
        ("gpu", "matrix", "plain"): _PLAIN,
        ("gpu", "linear", "plain"): _LINEAR,
        ("gpu", "linear", "bias"): _BIASED,
    }
)
_ONE = (1.0,)
_NO_NUMBERS = (str, bytes, list, tuple, dict, complex, type(None))
_NO_SCALES: dict[str, Any] = {}
# keywords of a call that are not inputs of an epilogue
_OPTIONS = ("epilogue", "out", "spec", "fallback", "fp8", "accumulate_main_grad")


def server_of(device: torch.device, fallback: str, entry: str) -> str:
    """`fallback.server`, cached by its arguments; a constant under torch.compile."""
    if is_compiling() or type(fallback) is not str:
        return server(device, fallback, entry)
    return _remembered(device, fallback, entry)


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
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N), of a's type; any strides. All batches share a 2-D operand.
            8-bit operands have no gradient; D is then bf16, or int32 for plain integer sums.
        c: None or (M, N), (L, M, N).
        alpha, beta: numbers or 0-d fp32 tensors, which the host does not read; beta None means 1 with c and 0 without.
        epilogue: from `epi.define`, applied to the elements of a @ b; None is the formula above.
        out: the tensor for D, or a mapping from outputs' names to tensors; such a call has no gradient. With c = out
            and beta = 1, the GEMM accumulates into out.
        spec: fields of the kernel; None leaves all to the planner. Its epilogue is used if `epilogue` is None.
        fallback: the behaviour without a Hopper GPU: "torch" (torch's functions, with one warning), "error", or a
            backend of `Gemm.run`, "reference" or "emulator".
        inputs: of the epilogue, by name; `scale_a` and `scale_b` of 8-bit operands. Their kind is that of `spec`,
            or follows from the shape: a number, (M,), (M, K / 128) or (M / 128, K / 128), with N for B.
            `zero_point_a` and `zero_point_b` of int8 and uint8 operands: integers, or (M,) and (N,) of integers.
            `sums_b`, (N,) in int32, saves the pass over B that zero points of A need; `sums_a` saves that over A.

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
        if how == "run" and not alone and (isinstance(alpha, Tensor) or isinstance(beta, Tensor)):
            # a 0-d tensor is read by the kernel's epilogue
            how = "op"
        if how == "run" and (who := _remembered(a.device, fallback, "cutegemm.matmul")) != "torch":
            found = _PLAIN.gemm.run(a, b, c, out=out, alpha=alpha, beta=beta, backend=BACKENDS[who])
            if alone and who == "gpu":
                remember(_PLAIN, (a.shape, b.shape), a, b, None)
            return found
        plain = c is None and out is None and type(alpha) is float
        plain = plain and (beta is None or (type(beta) is float and not beta))
        if how == "record" and plain and a.dtype not in EIGHT_BITS:
            if (who := _remembered(a.device, fallback, "cutegemm.matmul")) != "torch":
                return record_plain((_SHORT[who, "matrix", "plain"], (alpha,), ()), a, b)
    if (
        inputs
        and spec is None
        and epilogue is None
        and c is None
        and out is None
        and _usual(alpha, beta, fallback)
    ):
        if (found := scaled_again("matrix", a, b, inputs)) is not None:
            return found
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x is not None or name != "c":
            check_tensor(name, x)
    who = server_of(a.device, fallback, "cutegemm.matmul")
    kinds, scales = NONE, _NO_SCALES
    if a.dtype in EIGHT_BITS or b.dtype in EIGHT_BITS:
        kinds, scales = operand_scales("matrix", a, b, epilogue, spec, inputs)
        # torch supports few of these types, and no wider results of integers
        who = "reference" if who == "torch" else who
    if _fuses(epilogue, spec):
        inputs = _blas(inputs, c, alpha, beta) | scales
        return product(a, b, epilogue, spec, "matrix", inputs, out, who, kinds)
    if inputs:
        raise unread(next(iter(inputs)), PLAIN_READS, _OPTIONS, PLAIN_RULE)
    alpha, beta = _factor("alpha", alpha, a), None if beta is None else _factor("beta", beta, a)
    if c is None and (isinstance(beta, Tensor) or beta):
        raise field_error(InputError, "beta", beta, "needs c", 0.0)
    if out is not None:
        check_tensor("out", out)
    if who == "torch" and out is None and torchs(spec, a, c):
        _agree(PLAIN if c is None else PLAIN_WITH_C, spec, "matrix", a, b, c)
        return torch_matmul(a, b, c, alpha, 1.0 if beta is None else beta)
    if c is None or (beta is not None and not isinstance(beta, Tensor) and beta == 0):
        if scales and type(alpha) is float and alpha == 1.0:
            return _scaled(a, b, SUM, spec, "matrix", scales, out, who, kinds)
        return product(a, b, PLAIN, spec, "matrix", {"alpha": alpha} | scales, out, who, kinds)
    named = {"alpha": alpha, "beta": 1.0 if beta is None else beta, "c": c}
    return product(a, b, PLAIN_WITH_C, spec, "matrix", named | scales, out, who, kinds)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    epilogue: Graph | None = None,
    out: Any = None,
    spec: GemmSpec | None = None,
    fallback: str = "torch",
    fp8: str | None = None,
    accumulate_main_grad: bool = False,
    **inputs: Any,
) -> Any:
    """x @ weight.T + bias, or an epilogue of x @ weight.T, for x of any leading dimensions; differentiable.

    Args:
        x: (..., K); weight: (N, K), of x's type.
        bias: None or (N,). An epilogue reads it as its input "bias".
        epilogue: applied to the elements of x @ weight.T; None adds the bias.
        out, spec, fallback: as for `matmul`.
        fp8: "row" or "block": x and weight, of 16 or 32 bits, are quantized to e4m3. Their gradients are also fp8
            GEMMs, with the incoming gradient in e5m2. "row" has one scale per row; "block" has one per 1 x 128 of x
            and gradients and per 128 x 128 of weights. Supports only a bias.
        accumulate_main_grad: whether the backward pass adds the weight's gradient to its fp32 `main_grad` in the GEMM,
            if it has one (`docs/pytorch.md`). Supports only a bias.
        inputs: of the epilogue, with x's leading dimensions: rows (N,), columns (...), matrices (..., N). For 8-bit
            operands also `scale_a` (x), `scale_b` (weight) and zero points, as for `matmul`; blocks of 128 x 128 count
            the rows of all leading dimensions.

    Returns:
        D, (..., N), or an object with an attribute per output: matrices (..., N), reductions over columns (...), over
        rows (N,), over all ().

    Raises:
        GemmError: as of `matmul`.
    """
    if accumulate_main_grad is not False:
        check_tensor("weight", weight)
        main = owner_of(weight, accumulate_main_grad)
        if main is not None:
            more = {"epilogue": epilogue, "out": out, "fp8": fp8} | inputs
            return _accumulating(x, weight, bias, main, spec, fallback, more)
    if fp8 is not None:
        check_tensor("x", x)
        check_tensor("weight", weight)
        who = server_of(x.device, fallback, "cutegemm.linear")
        given = {"epilogue": epilogue, "out": out, "spec": spec} | inputs
        return fp8_linear(x, weight, bias, fp8, "reference" if who == "torch" else who, given)
    short = spec is None and epilogue is None and out is None and not inputs and type(fallback) is str
    if short and not is_compiling():
        program = _LINEAR if bias is None else _BIASED
        if fallback in _NAMES and (found := shortened(program, x, weight, bias, 1.0)) is not None:
            return found
        how = way(x, weight, bias)
        if how != "op" and (x.is_nested or weight.is_nested or (how == "record" and x.dtype in EIGHT_BITS)):
            # an error is raised below, with the caller's names
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
    if inputs and spec is None and epilogue is None and out is None and _usual(1.0, None, fallback):
        given = inputs if bias is None else inputs | {"bias": bias}
        if (found := scaled_again("linear", x, weight, given)) is not None:
            return found
    for name, t in (("x", x), ("weight", weight), ("bias", bias)):
        if t is not None or name != "bias":
            check_tensor(name, t)
    who = server_of(x.device, fallback, "cutegemm.linear")
    kinds, scales = NONE, _NO_SCALES
    if x.dtype in EIGHT_BITS or weight.dtype in EIGHT_BITS:
        kinds, scales = operand_scales("linear", x, weight, epilogue, spec, inputs)
        who = "reference" if who == "torch" else who
    if bias is not None:
        inputs["bias"] = bias
    if _fuses(epilogue, spec):
        return product(x, weight, epilogue, spec, "linear", inputs | scales, out, who, kinds)
    if others := [name for name in inputs if name != "bias"]:
        raise unread(others[0], ("bias",), _OPTIONS, "without an epilogue only a bias is read")
    if who == "torch" and out is None and torchs(spec, x, bias):
        _agree(PLAIN if bias is None else BIASED, spec, "linear", x, weight, bias)
        return torch_linear(x, weight, bias)
    if bias is not None:
        return _scaled(x, weight, BIASED, spec, "linear", inputs | scales, out, who, kinds)
    if scales:
        return _scaled(x, weight, SUM, spec, "linear", scales, out, who, kinds)
    return product(x, weight, PLAIN, spec, "linear", {"alpha": 1.0}, out, who)


def _accumulating(
    x: Tensor, weight: Tensor, bias: Any, main: Main, spec: Any, fallback: str, others: dict[str, Any]
) -> Tensor:
    """`linear` whose backward pass adds the weight's gradient to the `main_grad` of its owner.

    Raises:
        InputError: the call has more than a bias.
    """
    if _fuses(None, spec) or any(value is not None for value in others.values()):
        field = next((name for name, value in others.items() if value is not None), "epilogue")
        raise field_error(InputError, field, "...", "accumulate_main_grad=True supports only a bias")
    arithmetic = None if spec is None else GemmSpec(math=spec.math)

    def add(above: Tensor, grad: Tensor, x: Tensor) -> None:
        rows, above = x.reshape(-1, x.shape[-1]).to(above.dtype), above.reshape(-1, above.shape[-1])
        matmul(above.mT, rows, grad, beta=1.0, out=grad, spec=arithmetic, fallback=fallback)

    return added(linear(x, weight.detach(), bias, spec=spec, fallback=fallback), main, add, x)


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


def _factor(name: str, value: Any, a: Tensor) -> Any:
    """Check alpha or beta: a float, or a 0-d tensor, which the host does not read.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(value, Tensor):
        if is_compiling() and not isinstance(value, _NO_NUMBERS):
            # perhaps a symbolic number
            return value
        return number_of(name, "scalar", value)
    strided = is_compiling() or value.layout is torch.strided
    if value.is_nested or value.dim() or value.dtype != torch.float32 or not strided:
        raise field_error(InputError, name, value, "must be a number or a 0-d fp32 tensor")
    if value.device != a.device:
        raise field_error(InputError, f"{name}.device", str(value.device), f"must be a's device, {a.device}")
    return value


def _usual(alpha: Any, beta: Any, fallback: Any) -> bool:
    """Whether a call with these arguments may use a shortcut for scaled operands."""
    plain = type(alpha) is float and alpha == 1.0 and beta is None and not is_compiling()
    return plain and type(fallback) is str and fallback in _NAMES


def _scaled(
    a: Tensor,
    b: Tensor,
    graph: Graph,
    spec: Any,
    form: str,
    named: dict[str, Any],
    out: Any,
    who: str,
    kinds: Any,
) -> Any:
    """`product` for operands that may have scales; the next such call may use a shortcut."""
    found = product(a, b, graph, spec, form, named, out, who, kinds)
    if (
        spec is None
        and out is None
        and who == "gpu"
        and kinds != NONE
        and not is_compiling()
        and direct(a, b)
    ):
        remember_scaled(form, program_of(graph, None, form, named, None, kinds), a, b, named)
    return found


def _fuses(epilogue: Any, spec: Any) -> bool:
    """Whether the caller gave an epilogue.

    Raises:
        SpecError: `spec` is not a GemmSpec.
    """
    if spec is not None and not isinstance(spec, GemmSpec):
        raise field_error(SpecError, "spec", spec, "must be a GemmSpec")
    return epilogue is not None or (spec is not None and spec.epilogue != AUTO)


def _agree(graph: Graph, spec: GemmSpec | None, form: str, a: Tensor, b: Tensor, c: Tensor | None) -> None:
    """Apply the kernels' checks to a call that torch's functions run."""
    if is_compiling():
        agree_on_type(a)
    else:
        agree(form, spec, a, b, c, lambda: program_of(graph, spec, form, {}, None))


def _blas(inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> dict[str, Any]:
    """An epilogue's inputs, including c, alpha and beta if they were given."""
    given = {name: x for name, x in (("c", c), ("beta", beta)) if x is not None}
    if type(alpha) is not float or alpha != 1.0:
        given["alpha"] = alpha
    return inputs | given


__all__ = ["bmm", "linear", "matmul"]
