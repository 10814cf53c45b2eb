# SPDX-License-Identifier: Apache-2.0
"""Fused epilogues to measure: their formula in torch, their contenders, and the check of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import cutegemm
from benchmarks import contenders, correctness, inputs
from benchmarks.correctness import WrongResult
from benchmarks.inputs import InputSet
from benchmarks.results import Case
from benchmarks.timing import Contender
from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi

FUSED, PLAIN, COMPILED = "cutegemm", "cutegemm_plain", "torch_compile"
BASELINE = PLAIN
E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
SCALE = E4M3_MAX / 8  # acc + bias has variance 2; 8 exceeds the largest of 2**26 draws

# On |D - reference| / |reference| in the Frobenius norm. e4m3 has a unit roundoff of 2**-4. The reference is rounded
# too, so only elements near a rounding boundary differ.
BOUND = correctness.FROBENIUS_BOUND | {E4M3: 2**-5}
ELEMENT_FACTOR = 8  # bound on an element's error, in bounds times (its magnitude + the root mean square)

Outputs = tuple[torch.Tensor, ...]  # D, then reductions
Tensors = dict[str, Any]  # what an epilogue reads, by name
Formula = Callable[..., Any]  # (x, w, **tensors) -> D or (D, reductions...)
Compiler = Callable[[Formula], Formula]


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The plain GEMM; here and below x is (M, K) and w is (N, K), as in a Linear."""
    return F.linear(x, w)


def bias_gelu_residual(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """gelu(x w^T + bias) + residual, gelu by tanh."""
    h: torch.Tensor = F.gelu(F.linear(x, w, bias), approximate="tanh")
    return h + residual


def linear_combination(x: torch.Tensor, w: torch.Tensor, *, c: torch.Tensor, beta: float) -> torch.Tensor:
    """x w^T + beta c; torch copies c to D, to which cuBLAS adds."""
    return torch.addmm(c, x, w.T, beta=beta)


def swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [gate | up] = x w^T."""
    gate, up = F.linear(x, w).chunk(2, dim=-1)
    return F.silu(gate) * up


def bias_quantize_fp8(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor, scale: torch.Tensor
) -> Outputs:
    """e4m3(h * scale) with saturation, and the largest magnitude of h = x w^T + bias."""
    h = F.linear(x, w, bias)
    return (h.float() * scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3), h.abs().amax()


def _cublaslt(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """`bias_gelu_residual` by cuBLASLt, which fuses bias and gelu, and a second launch for the residual."""
    h: torch.Tensor = torch._addmm_activation(bias, x, w.T, use_gelu=True)
    return h + residual


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """One epilogue.

    Attributes:
        formula: (x, w, **tensors) -> D or (D, reductions...).
        graph: cutegemm's epilogue; None is the plain spec, which reads c and beta.
        reads: kinds of its input tensors by name: "row", "matrix" or "scalar".
        outputs: dtypes by name, D first; None is A's dtype.
        gated: whether D has half of B's columns.
        peers: the other contenders, (x, w, **tensors) -> outputs; names in `WITHOUT` get no tensors.
        roundings: per contender, the number of values per element that it may round to A's type, including D;
            default 1.
    """

    formula: Formula
    graph: Callable[[], epi.Graph] | None = None
    reads: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, torch.dtype | None] = field(default_factory=lambda: {"d": None})
    gated: bool = False
    peers: dict[str, Formula] = field(default_factory=dict)
    roundings: dict[str, int] = field(default_factory=dict)


WITHOUT = (PLAIN, "cublas_plain")  # contenders that only multiply
FUSIONS = {
    "bias_gelu_residual": Fusion(
        formula=bias_gelu_residual,
        graph=lambda: epi.bias_act_residual("gelu_tanh"),
        reads={"bias": "row", "residual": "matrix"},
        peers={
            COMPILED: bias_gelu_residual,
            "eager": bias_gelu_residual,
            "cublaslt": _cublaslt,
            "cublas_plain": product,
        },
        # sum with the bias, gelu, D; torch.compile may use cuBLAS for the GEMM; cublaslt fuses gelu
        roundings={"eager": 3, COMPILED: 2, "cublaslt": 2},
    ),
    "linear_combination": Fusion(
        formula=linear_combination,
        reads={"c": "matrix"},
        peers={"cublas": linear_combination, "cublas_plain": product},
    ),
    "swiglu": Fusion(
        formula=swiglu,
        graph=lambda: epi.swiglu(layout="halves"),
        gated=True,
        peers={COMPILED: swiglu, "eager": swiglu},
        # gate, up, silu of the gate, D
        roundings={"eager": 4, COMPILED: 3},
    ),
    "bias_quantize_fp8": Fusion(
        formula=bias_quantize_fp8,
        graph=lambda: epi.bias_quantize_fp8(),
        reads={"bias": "row", "scale": "scalar"},
        outputs={"d": E4M3, "amax": torch.float32},
        peers={COMPILED: bias_quantize_fp8, "eager": bias_quantize_fp8},
        # sum with the bias, D
        roundings={COMPILED: 2, "eager": 2},
    ),
}


@dataclass(frozen=True)
class Operands:
    """One input set.

    Attributes:
        plain: A, B and the (M, N) output of the plain product.
        tensors: what the epilogue reads.
        out: where cutegemm's fused run writes.
        results: outputs of each contender's last call on this set. They are kept so that outputs allocated by torch
            rotate with the sets too.
    """

    plain: InputSet
    tensors: Tensors
    out: dict[str, torch.Tensor]
    results: dict[str, Outputs] = field(default_factory=dict)


def make_sets(case: Case, device: str, count: int) -> list[Operands]:
    """Draw operands from normal distributions of variance 1, and B of variance 1 / K, so A @ B has variance 1."""
    fusion = FUSIONS[case.epilogue]
    cols = case.n // 2 if fusion.gated else case.n
    shapes = {"matrix": (case.m, cols), "row": (cols,)}
    dtype = inputs.DTYPES[case.dtype]
    generator = torch.Generator(device).manual_seed(1)

    def draw(kind: str) -> torch.Tensor:
        if kind == "scalar":
            return torch.tensor(SCALE, device=device)
        return torch.randn(shapes[kind], generator=generator, device=device, dtype=dtype)

    def output(name: str, kind: torch.dtype | None) -> torch.Tensor:
        return torch.empty(shapes["matrix"] if name == "d" else (), dtype=kind or dtype, device=device)

    sets = []
    for plain in inputs.make_sets(case, device, count):
        plain.b.mul_(case.k**-0.5)
        tensors: Tensors = {name: draw(kind) for name, kind in fusion.reads.items()}
        if case.beta:
            tensors["beta"] = case.beta
        sets.append(Operands(plain, tensors, {k: output(k, v) for k, v in fusion.outputs.items()}))
    return sets


def names(case: Case) -> tuple[str, ...]:
    """The contenders of a case."""
    return (FUSED, PLAIN, *FUSIONS[case.epilogue].peers)


def make(name: str, case: Case, compiler: Compiler | None = None) -> Contender:
    """A contender that stores its outputs in `Operands.results`; `compiler` compiles torch_compile's function.

    Raises:
        GemmError: cutegemm refuses the problem.
    """
    plan = None
    if name in (FUSED, PLAIN):
        gemm = _gemm(case, fused=name == FUSED)
        plan, solve = contenders.plan_label(gemm.plan), _ours(gemm, case, name)
    else:
        solve = _theirs(FUSIONS[case.epilogue].peers[name], name, compiler)

    def call(x: Operands) -> None:
        outputs = solve(x)
        x.results[name] = outputs if isinstance(outputs, tuple) else (outputs,)

    return Contender(name, call, plan)


def _gemm(case: Case, *, fused: bool) -> Gemm:
    """cutegemm's kernels for a case, chosen by the planner."""
    make_graph = FUSIONS[case.epilogue].graph if fused else None
    graph = make_graph() if make_graph else None
    reads_c = fused and graph is None
    problem = cutegemm.problem(
        case.m,
        case.n,
        case.k,
        dtype=case.dtype,
        majors=case.majors,
        epilogue=graph,
        c_dtype=case.dtype if reads_c else None,
    )
    return Gemm(GemmSpec() if graph is None else GemmSpec(epilogue=graph), problem)


def _ours(gemm: Gemm, case: Case, name: str) -> Callable[[Operands], Any]:
    if name == PLAIN:
        return lambda x: gemm.run(x.plain.a, x.plain.b, out=x.plain.out)
    several = FUSIONS[case.epilogue].graph is not None

    def solve(x: Operands) -> Outputs:
        gemm.run(x.plain.a, x.plain.b, out=x.out if several else x.out["d"], **x.tensors)
        return tuple(x.out.values())

    return solve


def _theirs(function: Formula, name: str, compiler: Compiler | None) -> Callable[[Operands], Any]:
    if name == COMPILED and compiler is not None:
        function = compiler(function)
    if name in WITHOUT:
        return lambda x: function(x.plain.a, x.plain.b.T)
    return lambda x: function(x.plain.a, x.plain.b.T, **x.tensors)


def check(contender: Contender, case: Case, x: Operands) -> None:
    """Fill outputs with NaN, run once, compare sampled rows and columns with fp64, reductions with fp32.

    Raises:
        WrongResult: an element is not finite or an error exceeds its bound.
    """
    for out in (x.plain.out, *x.out.values()):
        out.copy_(torch.full_like(out, float("nan"), dtype=torch.float32))
    x.results.clear()
    contender.call(x)
    d, *reductions = x.results[contender.name]
    fusion = FUSIONS[case.epilogue]
    formula, tensors = (product, {}) if contender.name in WITHOUT else (fusion.formula, x.tensors)
    dtype, d = d.dtype, d.float()
    if not bool(torch.isfinite(d).all()):
        raise WrongResult("elements of D are not finite (before the call all are NaN)")
    a, w = x.plain.a, x.plain.b.T
    rows, cols = (torch.linspace(0, size - 1, correctness.SAMPLES).long().to(d.device) for size in d.shape)
    halves = torch.cat([cols, cols + d.shape[1]]) if d.shape[1] < w.shape[0] else cols
    by_rows = formula(a[rows].double(), w.double(), **_slice(tensors, rows=rows))
    by_cols = formula(a.double(), w[halves].double(), **_slice(tensors, cols=cols))
    operand = inputs.DTYPES[case.dtype]
    roundings = fusion.roundings.get(contender.name, 1)
    bound = _bound(dtype, operand, roundings)
    _compare("rows of D", d[rows], _first(by_rows), bound)
    _compare("columns of D", d[:, cols], _first(by_cols), bound)
    if reductions:
        whole = formula(a.float(), w.float(), **_slice(tensors, to=torch.float32))
        for name, got, want in zip(list(fusion.outputs)[1:], reductions, whole[1:], strict=True):
            _compare(name, got, want, _bound(operand, operand, roundings))


def _slice(
    tensors: Tensors,
    rows: torch.Tensor | slice = slice(None),
    cols: torch.Tensor | slice = slice(None),
    to: torch.dtype = torch.float64,
) -> Tensors:
    """The inputs of sampled rows or columns of D, in a wider type; scalars are unchanged."""

    def take(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.ndim:
            return x
        return (x[cols] if x.ndim == 1 else x[rows][:, cols]).to(to)

    return {name: take(x) for name, x in tensors.items()}


def _first(outputs: Any) -> torch.Tensor:
    first: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return first


def _bound(out: torch.dtype, operand: torch.dtype, roundings: int) -> float:
    """The bound of an output of type `out` after this number of roundings.

    Roundings are independent, so their squared errors add. All but the last round to the operands' type.
    """
    return math.hypot(BOUND[out], math.sqrt(roundings - 1) * BOUND[operand])


def _compare(what: str, got: torch.Tensor, want: torch.Tensor, bound: float) -> None:
    """Check the relative Frobenius error and the error of every element."""
    got, want = got.double(), want.double()
    difference = got - want
    error = float(difference.norm() / want.norm())
    if not error <= bound:
        raise WrongResult(f"relative Frobenius error {error:.2e} of {what}: must be at most {bound:.2e}")
    element = float((difference.abs() / (want.abs() + want.square().mean().sqrt())).max())
    if not element <= ELEMENT_FACTOR * bound:
        raise WrongResult(
            f"an element of {what} errs by {element:.2e} of its magnitude and the root mean square: must be at "
            f"most {ELEMENT_FACTOR * bound:.2e}"
        )
