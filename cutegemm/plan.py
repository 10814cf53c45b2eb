# SPDX-License-Identifier: Apache-2.0
"""`plan(spec, problem)`: how a spec serves a problem. Pure Python: no GPU, no tensors, no torch, no DSL.

Chooses every "auto", works out shared memory, barriers, registers, TMA boxes, grid and waves, and refuses
what cannot be. Each constraint lives in one function, here, in `plan_tensor`, in `budget` or in `spec`.
"""

from __future__ import annotations

import math

from cutegemm import hardware as hw
from cutegemm.config import OutputConfig, SimtConfig
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import PlanError, field_error
from cutegemm.plan_parts import check_grid, direct, epilogue_inputs, gated_half, major
from cutegemm.plan_reductions import plan_reductions
from cutegemm.plan_tensor import plan_tensor
from cutegemm.plan_types import GEMM, Barrier, KernelPlan, Region, Step
from cutegemm.problem import Operand, Problem, columns
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, GemmSpec

SIMT_TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 8))  # the first that fills the GPU is taken


def plan(spec: GemmSpec, problem: Problem, device: hw.Device = hw.H200) -> KernelPlan:
    """Choose how to serve `problem` under `spec` on `device`.

    Raises:
        PlanError: a given field contradicts the problem or does not fit the hardware.

    Example:
        >>> from cutegemm.problem import problem
        >>> plan(GemmSpec(), problem(4096, 4096, 4096)).config.family
        'warp_specialized'
    """
    _check_dtypes(spec, problem)
    _check_majors(spec, problem)
    if 0 in (problem.m, problem.n, problem.batch):
        return KernelPlan(spec=spec, problem=problem, steps=(), reasons=("D is empty: nothing is launched",))
    epilogue = linear_combination(problem.c is not None) if spec.epilogue == AUTO else spec.epilogue
    _check_epilogue(epilogue, problem)
    simt = _simt_reason(spec, problem)
    if simt is not None:
        return _plan_simt(spec, problem, epilogue, simt, device)
    return plan_tensor(spec, problem, epilogue, device)


def _check_dtypes(spec: GemmSpec, problem: Problem) -> None:
    for name in ("a", "b", "c", "d"):
        given, operand = getattr(spec, f"{name}_dtype"), getattr(problem, name)
        if operand is not None and given not in (AUTO, operand.dtype):
            rule = f"the problem's {name.upper()} is {operand.dtype.value}"
            raise field_error(PlanError, f"{name}_dtype", given, rule, operand.dtype)
    if problem.a.dtype != problem.b.dtype:
        raise field_error(PlanError, "b_dtype", problem.b.dtype, "A and B have one dtype", problem.a.dtype)
    if problem.a.dtype.bits == 8:
        rule = "operands are fp16, bf16 or fp32"
        raise field_error(PlanError, "a_dtype", problem.a.dtype, rule, DType.BF16)


def _check_majors(spec: GemmSpec, problem: Problem) -> None:
    axes = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n"), "d": ("m", "n")}
    for name, (row, col) in axes.items():
        given, operand = getattr(spec, f"{name}_major"), getattr(problem, name)
        if operand is None or given == AUTO:
            continue
        has = operand.unit_row if given == row else operand.unit_col
        if not has:
            actual = col if operand.unit_col else row if operand.unit_row else None
            rule = f"the problem's {name.upper()} has strides {operand.strides[:2]} (row, column)"
            raise field_error(PlanError, f"{name}_major", given, rule, actual or AUTO)


def _check_epilogue(epilogue: Graph, problem: Problem) -> None:
    """The problem must bring what the epilogue reads and stores, in the right shapes."""
    for what, wanted, given in (
        ("inputs", set(epilogue.tensors), {name for name, _ in problem.inputs}),
        ("outputs", {x.name for x in epilogue.stores}, {name for name, _ in problem.outputs}),
    ):
        if wanted != given:
            listed = ", ".join(sorted(given)) or "none"
            rule = f"the epilogue's {what} are {', '.join(sorted(wanted)) or 'none'}"
            raise field_error(PlanError, what, listed, rule)
    scalars = epilogue.names("scalar")
    for name in problem.device_scalars:
        if name not in scalars:
            rule = f"the epilogue's scalars are {', '.join(scalars) or 'none'}"
            raise field_error(PlanError, "device_scalars", name, rule)
    if epilogue.gated and problem.n % 2:
        raise field_error(
            PlanError, "n", problem.n, "a gated pair needs an even number of columns", problem.n - 1
        )
    width = columns(epilogue, problem.n)
    shapes = {"matrix": (problem.m, width), "row": (1, width), "col": (problem.m, 1)}
    kinds = epilogue.tensors | {x.name: "matrix" for x in epilogue.stores}
    for name, operand in (*problem.inputs, *problem.outputs):
        if (operand.rows, operand.cols) != shapes[kinds[name]]:
            rule = f"must be {shapes[kinds[name]]}, a {kinds[name]} of the epilogue"
            raise field_error(PlanError, name, (operand.rows, operand.cols), rule)


def _simt_reason(spec: GemmSpec, problem: Problem) -> str | None:
    """Why the problem runs on the CUDA cores, or None."""
    if problem.k == 0:
        return "K is 0: there is no mainloop, only the epilogue"
    if problem.a.dtype is DType.FP32:
        for name in TENSOR_CORE_FIELDS:
            if getattr(spec, name) != AUTO:
                rule = "has no meaning for fp32 operands, which run on the CUDA cores"
                raise field_error(PlanError, name, getattr(spec, name), rule, AUTO)
        if spec.schedule not in (AUTO, "simt"):
            rule = "fp32 operands run on the CUDA cores"
            raise field_error(PlanError, "schedule", spec.schedule, rule, "simt")
        return "fp32 operands: exact fp32 on the CUDA cores, no tf32"
    return 'schedule="simt" was asked for' if spec.schedule == "simt" else None


def _plan_simt(
    spec: GemmSpec, problem: Problem, epilogue: Graph, reason: str, device: hw.Device
) -> KernelPlan:
    def tiles_of(tile: tuple[int, int, int]) -> tuple[int, int, int]:
        return math.ceil(problem.m / tile[0]), math.ceil(problem.n / tile[1]), problem.batch

    tile = next((t for t in SIMT_TILES if math.prod(tiles_of(t)) >= device.sms), SIMT_TILES[-1])
    load = (4, 2) if problem.a.dtype is DType.FP32 else ()  # 16-bit elements go one by one: wider ones spill
    d = dict(problem.outputs)
    half, gate = gated_half(problem.b, epilogue)
    config = SimtConfig(
        a=direct(problem.a, "m", "k"),
        b=direct(half, "k", "n"),
        inputs=epilogue_inputs(epilogue, problem),
        outputs=tuple(
            OutputConfig(dtype=d[x.name].dtype, major=major(d[x.name], "m", "n")) for x in epilogue.stores
        ),
        device_scalars=problem.device_scalars,
        tile=tile,
        epilogue=epilogue,
        vector=(
            vector_elements(problem.a, load),
            vector_elements(half, load, gate),
            min((vector_elements(x, (4,)) for x in d.values()), default=1),
        ),
    )
    tiles = tiles_of(tile)
    count = math.prod(tiles)
    check_grid(count)
    reductions = plan_reductions(config, problem, tiles, 0)
    return KernelPlan(
        spec=spec,
        problem=problem,
        steps=(Step(GEMM, config), *reductions.steps),
        views=(problem.a, half),
        gate=gate,
        parts=reductions.parts,
        partials=reductions.partials,
        workspace_bytes=reductions.workspace_bytes,
        tiles=tiles,
        clusters=count,
        waves=count / device.sms,
        raster=("m", 8),
        accumulators=config.thread_tile[0] * config.thread_tile[1],
        reasons=(reason,),
    )


def vector_elements(x: Operand, widths: tuple[int, ...], gate: int | None = None) -> int:
    """Elements per global access of a CUDA-core kernel: the first of `widths` that every line allows, or 1."""
    if not (x.unit_row or x.unit_col):
        return 1
    extent, leading = (x.cols, x.strides[0]) if x.unit_col else (x.rows, x.strides[1])
    batch = x.strides[2] if x.batch > 1 else 0
    for width in widths:
        if (
            all(v % width == 0 for v in (extent, leading, batch, gate or 0))
            and x.align % (width * x.dtype.bytes) == 0
        ):
            return width
    return 1


__all__ = ["Barrier", "KernelPlan", "Region", "Step", "plan"]
