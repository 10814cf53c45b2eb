# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm`: GEMMs of different sizes at once; kernels read the sizes on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue import element_types
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.entry_points import server_of
from cutegemm.ops.fallback import HALF, autocast_to, autocast_type
from cutegemm.ops.gradients.main_grad import owner_of
from cutegemm.ops.groups.gathering import check_of_rows, gathered, gathers
from cutegemm.ops.groups.group_call import again, key_of, run
from cutegemm.ops.groups.group_gradient import PLAIN
from cutegemm.ops.groups.group_scales import group_scales, scales_of_rows
from cutegemm.ops.groups.grouped_op import Call, gemm_of, typed
from cutegemm.ops.groups.routing import routed
from cutegemm.ops.products import BACKENDS, is_compiling, product, program_of
from cutegemm.ops.transforms.group_sharding import by_parts, check_unsharded, sharded
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.running.arguments.blas import blas_number
from cutegemm.running.arguments.named import unread
from cutegemm.running.groups import TOLD, Groups, check_tail
from cutegemm.running.numerics.reference import TORCH_DTYPE
from cutegemm.spec import AUTO, GemmSpec

_PLAIN_READS = ("c", "alpha", "beta", "bias")
_TENSORS = (*TOLD, "c", "bias")
_OPTIONS = (
    *_PLAIN_READS, *TOLD, "rows", "scatter", "weight", "epilogue", "out", "out_dtype", "tail", "spec", "fallback",
    "accumulate_main_grad",
)  # fmt: skip


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
    accumulate_main_grad: bool = False,
    **inputs: Any,
) -> Any:
    """alpha * a @ b + beta * c + bias for each group, whose sizes the host neither knows nor waits for.

    The operands' dimensions select one of four forms:

        a (M, K), b (G, K, N)            groups of rows of a, each times its own matrix of b; D (M, N)
        a (G, M, K), b (K, N)            groups of columns of b, likewise; D (M, N)
        a (M, K), b (K, N)               groups along K, one GEMM each; D (G, M, N)
        a (G, C, K), b (G, K, N)         with `counts`: the first rows of each batch; D (G, C, N)

    Without offsets, two batches of matrices are multiplied as by `bmm`.

    Args:
        a, b: fp16, bf16, fp8 or int8, or fp32 under a spec with math="tf32"; any strides.
        offs: (G,) int32 or int64: group g ends before offs[g] and starts at the previous group's end. Ends are clamped
            to the axis and to the largest earlier end.
        cu_seqlens: (G + 1,) instead of `offs`: the first group's start, then the ends.
        counts: (G,) instead of `offs`: rows of each batch.
        c: shaped like D; with `scatter` a row for each result, as have inputs of the epilogue.
        alpha, beta: numbers; beta None means 1 with c and 0 without.
        bias: (N,), or (G, N) with one row per group; for groups of columns only (N,).
        out: the tensor for D; may be `c` itself. With several outputs a mapping from their names.
        out_dtype: of a new D; None is a's type.
        epilogue: replaces the formula. It reads `inputs`: rows (N,) or (G, N); columns and matrices with D's rows. For
            groups of columns it reads columns (M,) or (G, M), and rows and matrices with D's columns; it must not be
            gated. 8-bit operands also have `scale_a` and `scale_b`, whose kinds follow from their shapes
            (`docs/fp8.md`).
        rows: (R,) indices of the rows of `a` to multiply, in groups; D has R rows. An out-of-range index reads zeros.
            The kernel gathers them if operands are 16-bit and 16-byte aligned, `a` is K-major, no gradient is recorded
            and nothing is compiled. Else they are copied first; so are rows for which the cost model predicts that this
            is faster. A spec with a_load="cp_async" requests the kernel's gather for every alignment that it supports;
            another a_load requests the copy.
        scatter: (R,) indices of the rows of D to which the results are added, in fp32 and in order. D has as many rows
            as `out`, or R. An out-of-range index is dropped.
        weight: (R,) factors of the results. The kernel applies them to 16-bit rows if no gradient is recorded and
            nothing is compiled; else torch applies them afterwards. `rows`, `scatter` and `weight` need groups of rows.
        tail: the content of rows outside all groups: "zero", or "undefined", which does not write them.
        spec: specifies fields of the kernel; None leaves all to the planner.
        fallback: as for `matmul`.
        accumulate_main_grad: whether the backward pass adds the gradient of `b` in the kernel to the fp32 `main_grad`
            of `b`, or of the parameter that `b` is the transpose of, if it has one (`docs/pytorch.md`).

    Returns:
        D, or an object with an attribute per output. An empty group has no rows of D; along K its D is the epilogue
        of 0.

    Raises:
        InputError: an argument breaks a rule; nothing has been written.
        SpecError, PlanError: the spec is illegal, or no grouped kernel supports the operands.
        HardwareError: no Hopper GPU and fallback="error".
    """
    key = None
    plain = c is beta is out is out_dtype is None and spec is None and scatter is None
    plain = plain and accumulate_main_grad is False
    usual = plain and type(alpha) is float and (epilogue is None or alpha == 1.0)
    if usual and not is_compiling():
        none = bias is rows is weight is None and not inputs
        others = None if none else {"bias": bias, "rows": rows, "weight": weight, **inputs}
        key = key_of(a, b, (offs, cu_seqlens, counts), others, epilogue, tail, fallback)
        if key is not None and (known := again(key, alpha)) is not None:
            return known
    main = None
    if accumulate_main_grad is not False:
        # before autocast, whose copy of b has no main_grad
        check_tensor("b", b)
        main = owner_of(b, accumulate_main_grad)
    ungrouped = offs is cu_seqlens is counts is None
    ends = {"offs": offs, "cu_seqlens": cu_seqlens, "counts": counts}
    moves = {"rows": rows, "scatter": scatter, "weight": weight}
    split = type(b) is not Tensor and sharded(b)
    if split and not ungrouped:
        return by_parts(grouped_mm, a, b, {
            **moves, **ends, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "out": out, "out_dtype": out_dtype,
            "epilogue": epilogue, "tail": tail, "spec": spec, "fallback": fallback, **inputs,
        })  # fmt: skip
    given = {**ends, "c": c, "bias": bias}
    if not split:
        check_unsharded({"a": a, **given, **moves, **inputs})
    a, rows = _moved(a, b, moves, epilogue, spec, fallback, inputs)
    _check_tensors(a, b, given | inputs)
    if spec is not None and not isinstance(spec, GemmSpec):
        raise field_error(SpecError, "spec", spec, "must be a GemmSpec")
    _check_type(a, out, out_dtype, spec)
    who = server_of(a.device, fallback, "cutegemm.grouped_mm")
    groups = None
    if ungrouped and a.dim() == b.dim() == 3:
        check_tail(tail)
    else:
        groups = Groups(**ends, rows=rows, tail=tail)
    if torch._C._is_any_autocast_enabled() and (dtype := autocast_type(a.device)) in HALF:
        a, b = autocast_to(dtype, a), autocast_to(dtype, b)
    if bias is not None:
        inputs["bias"] = bias
    kinds, scales = group_scales(groups, a, b, epilogue, spec, inputs)
    graph = epilogue if epilogue is not None or spec is None or spec.epilogue == AUTO else spec.epilogue
    read = _read(graph, inputs, c, alpha, beta)
    inputs |= scales
    if groups is None:
        if main is not None:
            rule = "needs groups: offs, cu_seqlens or counts"
            raise field_error(InputError, "accumulate_main_grad", True, rule, False)
        who = "reference" if who == "torch" else who
        return product(a, b, read, spec, "matrix", inputs, out, who, typed(kinds, out_dtype))
    backend = "reference" if who == "torch" else BACKENDS[who]
    call = Call(a, b, groups, out, inputs, read, graph is None, spec, out_dtype, kinds, backend, main)
    return run(call, key) if scatter is None and weight is None else routed(call, scatter, weight, key)


def _moved(
    a: Tensor,
    b: Tensor,
    moves: dict[str, Any],
    epilogue: Any,
    spec: Any,
    fallback: str,
    inputs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """A, and the indices of the rows that the kernel gathers; A has been copied by them if it does not.

    Args:
        moves: `rows`, `scatter` and `weight`, which only groups of rows have.
        inputs: the caller's; scales of A's rows among them are copied too.

    Raises:
        InputError: the operands have another form, or `rows` is not a tensor of indices on a's device.
    """
    named = next((name for name, x in moves.items() if x is not None), None)
    if named is not None:
        check_of_rows(named, a, b)
    rows = moves["rows"]
    if rows is not None:
        scales = scales_of_rows(a, rows, epilogue, spec, inputs)
        if scales or not gathers(a, b, rows, spec, fallback):
            inputs |= scales
            return gathered(a, rows), None
    return a, rows


def _check_tensors(a: Any, b: Any, others: dict[str, Any]) -> None:
    """Check that operands, offsets, C and bias are tensors; other inputs may be numbers.

    Raises:
        InputError: one of them is not.
    """
    check_tensor("a", a)
    check_tensor("b", b)
    for field, x in others.items():
        if x is not None and (field in _TENSORS or isinstance(x, Tensor)):
            check_tensor(field, x)


def _check_type(a: Tensor, out: Any, out_dtype: Any, spec: GemmSpec | None) -> None:
    """Check `out_dtype` against the types that D may have, against `out`, and against the spec.

    Raises:
        GemmError: one of them disagrees with it.
    """
    if out_dtype is None:
        return
    kind = as_dtype(out_dtype, "out_dtype")
    if (fault := element_types.fault(None, "d", kind, not a.is_floating_point())) is not None:
        raise field_error(InputError, "out_dtype", kind, *fault)
    asked = TORCH_DTYPE[kind]
    given = out.get("d") if isinstance(out, Mapping) else out
    if isinstance(given, Tensor) and given.dtype != asked:
        raise field_error(InputError, "out.dtype", given.dtype, f"out_dtype is {asked}")
    if spec is not None and spec.d_dtype not in (AUTO, as_dtype(asked)):
        raise field_error(SpecError, "out_dtype", asked, "must equal the spec's d_dtype", spec.d_dtype)


def _read(graph: Graph | None, inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> Any:
    """The epilogue, or alpha * acc + beta * c + bias if there is none. Adds the graph's inputs to `inputs`.

    Raises:
        InputError: as for `_plain`.
    """
    if graph is None:
        return _plain(inputs, c, alpha, beta)
    inputs |= {field: x for field, x in (("c", c), ("beta", beta)) if x is not None}
    if type(alpha) is not float or alpha != 1.0:
        inputs["alpha"] = alpha
    return graph


def _plain(inputs: dict[str, Any], c: Any, alpha: Any, beta: Any) -> Graph:
    """alpha * acc + beta * c + bias as a graph. Adds its inputs to `inputs`, which may only hold a bias.

    Raises:
        InputError: `inputs` has another name, or alpha or beta is not a number.
    """
    biased = "bias" in inputs
    if len(inputs) > biased:
        rule = "without an epilogue only c, alpha, beta and bias are read"
        raise unread(next(x for x in inputs if x != "bias"), _PLAIN_READS, _OPTIONS, rule)
    if not is_compiling():
        # the type test is cheaper than the check of other number types
        alpha = alpha if type(alpha) is float else blas_number("alpha", alpha)
        beta = beta if beta is None or type(beta) is float else blas_number("beta", beta)
    if c is None and beta:
        raise field_error(InputError, "beta", beta, "needs c", 0.0)
    inputs["alpha"] = alpha
    with_c = c is not None and beta != 0
    if with_c:
        inputs["c"], inputs["beta"] = c, 1.0 if beta is None else beta
    return PLAIN[with_c, biased]


def planned(
    a: Tensor, b: Tensor, offs: Tensor, spec: GemmSpec | None = None, rows: Tensor | None = None
) -> KernelPlan:
    """The plan of a grouped GEMM without an epilogue; CPU tensors are planned for an H200.

    Args:
        a, b, offs, spec: as for `grouped_mm`.
        rows: indices of the rows that a kernel gathers itself.

    Raises:
        GemmError: as for `grouped_mm`.
    """
    masked = a.dim() == b.dim() == 3
    groups = Groups(offs=None if masked else offs, counts=offs if masked else None, rows=rows)
    return gemm_of(program_of(PLAIN[False, False], spec, "matrix", {}, None)).plan(
        a, b, groups, {"alpha": 1.0}
    )


__all__ = ["grouped_mm", "planned"]
