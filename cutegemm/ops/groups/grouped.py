# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm`: products of many sizes in one launch, whose sizes lie on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue import element_types
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.entry_points import matmul, server_of
from cutegemm.ops.fallback import HALF, autocast_to, autocast_type
from cutegemm.ops.groups.group_call import SHORTS, Asked, Call, program_of, run, short_key
from cutegemm.ops.groups.group_scales import group_scales, scales_of_rows
from cutegemm.ops.groups.grouped_op import PLAIN, gemm_of
from cutegemm.ops.groups.routing import ROW_WEIGHT, check_weight, gathered, scattered, weighed
from cutegemm.ops.products import BACKENDS, is_compiling
from cutegemm.ops.quantized.quantize import EIGHT_BITS
from cutegemm.planning.grouped import INDEXED_LOAD
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.running.arguments.blas import blas_number
from cutegemm.running.arguments.describe import MULTIPLIED, OPERANDS
from cutegemm.running.arguments.named import unread
from cutegemm.running.groups import Groups, agree, check_index, check_tail
from cutegemm.running.numerics.reference import TORCH_DTYPE
from cutegemm.spec import AUTO, GemmSpec

WORD = 16  # bytes of a copy
_PLAIN_READS = ("c", "alpha", "beta", "bias")
_OPTIONS = (*_PLAIN_READS, "epilogue", "out", "out_dtype", "tail", "spec", "fallback")


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    counts: Tensor | None = None,
    c: Tensor | None = None,
    alpha: Any = 1.0,
    beta: Any = None,
    bias: Tensor | None = None,
    out: Any = None,
    out_dtype: torch.dtype | None = None,
    epilogue: Graph | None = None,
    rows: Tensor | None = None,
    scatter: Tensor | None = None,
    weight: Tensor | None = None,
    tail: str = "zero",
    spec: GemmSpec | None = None,
    fallback: str = "torch",
    **inputs: Any,
) -> Any:
    """alpha * a @ b + beta * c + bias for each of many groups, in one launch; nothing waits for the device.

    Three forms, told by the operands' dimensions:

        a (M, K), b (G, K, N)            rows of a in groups, each times a matrix of its own; D (M, N)
        a (M, K), b (K, N)               groups along K, a product each; D (G, M, N)
        a (G, C, K), b (G, K, N)         with `counts`: of each batch its first rows; D (G, C, N)

    Without offsets two batches of matrices are `bmm`.

    Args:
        a, b: fp16, bf16 or fp8; any strides.
        offs: (G,) int32 or int64: group g ends before offs[g] and begins where the one before it ends. An end counts as
            the nearest place that it may be: inside the axis and not before an earlier group's end.
        cu_seqlens: (G + 1,) instead of `offs`: the first group's begin, then the ends.
        counts: (G,) instead of `offs`: rows of each batch.
        c: as D.
        alpha, beta: numbers; beta None means 1 with c and 0 without.
        bias: (N,), or (G, N), a row for each group.
        out: where D goes; may be `c` itself. Several outputs: a mapping from their names.
        out_dtype: of a new D; None is a's type.
        epilogue: what is done to the elements instead; `inputs` are what it reads: rows (N,) or (G, N), columns and
            matrices as D has rows. Of operands of 8 bits also `scale_a` and `scale_b`, whose kinds follow from their
            shapes: numbers; (M,) and (N,) or (G, N); for rows in groups (M, K / 128) and (G, N / 128, K / 128), where
            A's lie packed as its rows do. Batches have them as they have rows, groups along K (G, M) for A.
        rows: (R,) indices: the rows of `a` that are multiplied, in groups; D has R. One outside reads zeros.
        scatter: (R,) indices: where in D, which has as many rows as `out`, or R, each result is added, in fp32 and in
            order; one outside is dropped.
        weight: (R,): what each result is multiplied by. Rows, scatter and weight are of groups of rows. The kernel
            weighs rows of 16 bits where no gradient is recorded and nothing is compiled; else torch does after it, as
            it scatters. The kernel itself gathers the rows where operands are
            16-bit and 16-byte aligned, `a` is K-major, no gradient is recorded and nothing is compiled; elsewhere torch
            copies them before. A spec with a_load="cp_async" asks for the first under any alignment that it serves,
            one with another a_load for the second.
        tail: what rows of no group become: "zero", or "undefined", which leaves them alone.
        spec: how the kernel is made; None leaves it to the planner.
        fallback: as of `matmul`.

    Returns:
        D, or an object with an attribute for each output. A group without rows has none; along K it gives what the
        epilogue makes of 0.

    Raises:
        InputError: an argument breaks a rule; nothing has been written.
        SpecError, PlanError: the spec has no legal meaning, or no kernel of groups serves the operands.
        HardwareError: no Hopper GPU and fallback="error".
    """
    if scatter is not None or weight is not None:
        return _routed(scatter, weight, a, b, out, {
            "rows": rows, "offs": offs, "cu_seqlens": cu_seqlens, "counts": counts, "c": c, "alpha": alpha,
            "beta": beta, "bias": bias, "out_dtype": out_dtype, "epilogue": epilogue, "tail": tail, "spec": spec,
            "fallback": fallback, **inputs,
        })  # fmt: skip
    if rows is not None:
        _check_of_rows("rows", a, b)
        scales = scales_of_rows(a, rows, epilogue, spec, inputs)
        if scales or not _gathers(a, b, rows, spec, fallback):
            inputs |= scales
            a, rows = gathered(a, rows), None
    key = None
    if (
        rows is None
        and spec is None
        and epilogue is None
        and out is None
        and out_dtype is None
        and not is_compiling()
    ):
        if c is None and bias is None and beta is None and not inputs and type(alpha) is float:
            ends = offs if offs is not None else cu_seqlens if cu_seqlens is not None else counts
            key, addresses = short_key(a, b, ends, offs, cu_seqlens, counts, tail, fallback)
            if (known := SHORTS.recent.get(key)) is not None:
                return known((a, b, None, ends), addresses, (alpha,), None)
    given = {"offs": offs, "cu_seqlens": cu_seqlens, "counts": counts, "c": c, "bias": bias}
    given |= {field: x for field, x in inputs.items() if isinstance(x, Tensor)}
    for field, x in {"a": a, "b": b, **{x: y for x, y in given.items() if y is not None}}.items():
        check_tensor(field, x)
    if out_dtype is not None:
        as_dtype(out_dtype, "out_dtype")
    if spec is not None and not isinstance(spec, GemmSpec):
        raise field_error(SpecError, "spec", spec, "must be a GemmSpec")
    if a.dim() == b.dim() == 3 and offs is None and cu_seqlens is None and counts is None:
        check_tail(tail)
        return _batched(a, b, c, alpha, beta, bias, out, epilogue, spec, fallback, inputs)
    groups = Groups(offs=offs, cu_seqlens=cu_seqlens, counts=counts, rows=rows, tail=tail)
    form, who = groups.how(a, b).form, server_of(a.device, fallback, "cutegemm.grouped_mm")
    backend = "reference" if who == "torch" else BACKENDS[who]
    if torch._C._is_any_autocast_enabled() and (dtype := autocast_type(a.device)) in HALF:
        a, b = autocast_to(dtype, a), autocast_to(dtype, b)
    count = groups.ends.shape[0] - (cu_seqlens is not None)
    kinds, scales = group_scales(form, a, b, count, epilogue, spec, inputs)
    if bias is not None:
        inputs["bias"] = bias
    graph = epilogue if epilogue is not None or spec is None or spec.epilogue == AUTO else spec.epilogue
    program = Asked(_read(graph, inputs, c, alpha, beta), spec, out_dtype, kinds, backend, graph is None)
    return run(Call(a, b, groups, out, inputs | scales, program), key)


def _read(graph: Graph | None, inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> Any:
    """The epilogue, or the plain one of a call without; what it reads joins `inputs`.

    Raises:
        InputError: as of `_plain`.
    """
    if graph is None:
        return _plain(inputs, c, alpha, beta)
    inputs |= {field: x for field, x in (("c", c), ("beta", beta)) if x is not None}
    if type(alpha) is not float or alpha != 1.0:
        inputs["alpha"] = alpha
    return graph


def _plain(inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> Graph:
    """The epilogue of a call without one; what it reads joins `inputs`, which hold a bias or nothing.

    Raises:
        InputError: there is something else to read, or a number is none.
    """
    biased = "bias" in inputs
    if len(inputs) > biased:
        rule = "without an epilogue only c, alpha, beta and bias are read"
        raise unread(next(x for x in inputs if x != "bias"), _PLAIN_READS, _OPTIONS, rule)
    if not is_compiling():
        # a type test is cheaper than the check of everything that may be a number
        alpha = alpha if type(alpha) is float else blas_number("alpha", alpha)
        beta = beta if beta is None or type(beta) is float else blas_number("beta", beta)
    if c is None and beta:
        raise field_error(InputError, "beta", beta, "needs c", 0.0)
    inputs["alpha"] = alpha
    with_c = c is not None and beta != 0
    if with_c:
        inputs["c"], inputs["beta"] = c, 1.0 if beta is None else beta
    return PLAIN[with_c, biased]


def _check_of_rows(name: str, a: Any, b: Any) -> None:
    """Refuse groups that are not of rows.

    Raises:
        InputError: they are not; `name` is what asks for it.
    """
    for field, x in (("a", a), ("b", b)):
        check_tensor(field, x)
        if x.dtype not in MULTIPLIED:
            as_dtype(x.dtype, f"{field}.dtype")
            raise field_error(InputError, f"{field}.dtype", x.dtype, "no kernel multiplies it")
    if (a.dim(), b.dim()) != (2, 3):
        raise InputError("takes groups of rows: a (M, K) and b (G, K, N)", field=name)


def _routed(scatter: Any, weight: Any, a: Any, b: Any, out: Any, rest: dict[str, Any]) -> Any:
    """A call whose results are weighed and scattered by launches after it.

    Raises:
        InputError: groups are not of rows, or there are several outputs.
    """
    name = "rows" if rest["rows"] is not None else "scatter" if scatter is not None else "weight"
    _check_of_rows(name, a, b)
    kind = as_dtype(a.dtype)
    if rest["out_dtype"] is not None:
        kind = as_dtype(rest["out_dtype"], "out_dtype")
        if (fault := element_types.fault(None, "d", kind, not a.is_floating_point())) is not None:
            raise field_error(InputError, "out_dtype", kind, *fault)
    else:
        kind = kind.result
    dtype = TORCH_DTYPE[kind] if out is None else _written(out, a, b)
    fused = None if weight is None else _weighed(scatter, weight, a, b, rest)
    if fused is not None:
        weight, rest = None, fused
        if scatter is None:
            return grouped_mm(a, b, out=out, **rest)
    elif kind.bits == 8 or (a.dtype in EIGHT_BITS and a.is_floating_point()):
        # rounded once, after that
        rest["out_dtype"] = torch.float32
    found = grouped_mm(a, b, **rest)
    if not isinstance(found, Tensor):
        raise InputError("takes an epilogue that gives d alone", field=name)
    return scattered(found, scatter, weight, out, dtype)


def _written(out: Any, a: Tensor, b: Tensor) -> torch.dtype:
    """The type of what weighed and scattered rows are written to.

    Raises:
        InputError: they cannot be.
    """
    check_tensor("out", out)
    shape, width, written = tuple(out.shape), b.shape[-1], torch.is_grad_enabled() and out.requires_grad
    agree("out.shape", shape, len(shape) == 2 and shape[-1] == width, f"must be (T, {width})")
    agree("out.dtype", out.dtype, out.dtype in OPERANDS, "must be float16, bfloat16 or float32")
    agree("out.device", str(out.device), out.device == a.device, f"must be a's device, {a.device}")
    agree("out.requires_grad", True, not written, "what is written to has no gradient")
    found: torch.dtype = out.dtype
    return found


def _weighed(scatter: Any, weight: Any, a: Tensor, b: Tensor, rest: dict[str, Any]) -> dict[str, Any] | None:
    """The call whose epilogue weighs each row, in fp32 and before D is rounded; None where torch has to know of it.

    What is added up afterwards is not rounded before.

    Raises:
        InputError: `weight` is none for each row.
    """
    rows, spec, graph = rest["rows"], rest["spec"], rest["epilogue"]
    if rows is not None:
        check_index("rows", rows, a.shape[0], a)
    check_weight(weight, (a if rows is None else rows).shape[0], a)
    tensors = [x for x in (a, b, weight, *rest.values()) if isinstance(x, Tensor)]
    if is_compiling() or recording(*tensors) or not direct(*tensors) or a.element_size() == 1:
        return None
    if isinstance(spec, GemmSpec) and spec.epilogue != AUTO:
        return None
    c, beta, alpha, more = rest["c"], rest["beta"], rest["alpha"], {ROW_WEIGHT: weight.float()}
    if graph is None:
        alpha, beta = blas_number("alpha", alpha), None if beta is None else blas_number("beta", beta)
        if c is None and beta:
            return None
        with_c = c is not None and beta != 0
        graph = PLAIN[with_c, rest["bias"] is not None]
        # a number that is not the default, which an epilogue would not be given
        more |= {"alpha": 1 if alpha == 1.0 else alpha}
        more |= {"beta": 1.0 if beta is None else beta} if with_c else {"c": None, "beta": None}
    changed = weighed(graph) if isinstance(graph, Graph) else None
    if scatter is not None:
        more["out_dtype"] = torch.float32
    return None if changed is None else rest | more | {"epilogue": changed}


def _gathers(a: Any, b: Any, rows: Any, spec: Any, fallback: str) -> bool:
    """Whether a kernel gathers the rows of A itself, where torch need not know of the call: the spec says so.

    Raises:
        InputError: `rows` is no tensor of indices on a's device; under CUTEGEMM_CHECK=1 one is outside.
    """
    asked = spec.a_load if isinstance(spec, GemmSpec) else AUTO
    if asked not in (AUTO, INDEXED_LOAD) or is_compiling() or not direct(a, b):
        return False
    if asked == AUTO and not (a.stride(1) == 1 and all(x.dtype in HALF and _in_words(x) for x in (a, b))):
        return False
    check_index("rows", rows, a.shape[0], a)
    who = server_of(a.device, fallback, "cutegemm.grouped_mm")
    kernel = who != "torch" and BACKENDS[who] != "reference"
    return kernel and all(x.numel() for x in (a, b, rows))


def _in_words(x: Tensor) -> bool:
    """Whether every line of a matrix begins at a multiple of 16 bytes."""
    strides = [s for s, extent in zip(x.stride(), x.shape) if s != 1 and extent > 1]
    return not any(y % WORD for y in (x.data_ptr(), *(s * x.element_size() for s in strides)))


def planned(
    a: Tensor, b: Tensor, offs: Tensor, spec: GemmSpec | None = None, rows: Tensor | None = None
) -> KernelPlan:
    """How kernels serve a product of groups without an epilogue; of CPU tensors, on an H200.

    Args:
        a, b, offs, spec: as of `grouped_mm`.
        rows: indices of the rows that a kernel gathers itself.

    Raises:
        GemmError: as of `grouped_mm`.
    """
    masked = a.dim() == 3
    groups = Groups(offs=None if masked else offs, counts=offs if masked else None, rows=rows)
    return gemm_of(program_of(PLAIN[False, False], spec)).plan(a, b, groups, {"alpha": 1.0})


def _batched(
    a: Any, b: Any, c: Any, alpha: Any, beta: Any, bias: Any, out: Any, epilogue: Any, spec: Any, fallback: Any,
    inputs: dict[str, Any],
) -> Any:  # fmt: skip
    """The form without groups: a batch of products."""
    if bias is not None:
        if epilogue is None:
            epilogue = PLAIN[c is not None, True]
            # a number that is not the default, which an epilogue would not be given
            inputs = {"alpha": 1 if type(alpha) is float and alpha == 1.0 else alpha}
            if c is not None:
                inputs |= {"c": c, "beta": 1.0 if beta is None else beta}
            return matmul(a, b, epilogue=epilogue, out=out, spec=spec, fallback=fallback, bias=bias, **inputs)
        inputs = inputs | {"bias": bias}
    return matmul(
        a, b, c, alpha=alpha, beta=beta, epilogue=epilogue, out=out, spec=spec, fallback=fallback, **inputs
    )


__all__ = ["grouped_mm", "planned"]
