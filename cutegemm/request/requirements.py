# SPDX-License-Identifier: Apache-2.0
"""Rules on which spec and problem must agree, each one function, and the `Request` that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import (
    Instruction,
    arithmetic_fault,
    exact_depth,
    instruction,
    on_cuda_cores,
    types_fault,
)
from cutegemm.epilogue import element_types
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import InputError, PlanError, field_error
from cutegemm.families import Family, of_schedule
from cutegemm.problems import Problem, columns
from cutegemm.request.operand_rules import AXES
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, GemmSpec, checked_spec


def epilogue_of(spec: GemmSpec, problem: Problem) -> Graph:
    """The spec's epilogue, or the plain one by default."""
    return spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(problem.c is not None)


def check_arguments(spec: object, problem: object, device: object, order: object) -> None:
    """Raise a `SpecError` or an `InputError` for an argument of `plan` that has another type."""
    checked_spec(spec)
    if not isinstance(problem, Problem):
        rule = "must be a Problem; cutegemm.problem(m, n, k) makes one"
        raise field_error(InputError, "problem", problem, rule)
    if not isinstance(device, Device):
        raise field_error(InputError, "device", device, "must be a Device; cutegemm.arch.records has some")
    if not callable(order) or getattr(order, "__hash__", None) is None:
        rule = "must be a hashable function that puts options in order (cutegemm.planning.ways.Order)"
        raise field_error(InputError, "order", order, rule)


def check_extents(problem: Problem) -> None:
    """Check that A is M x K, B is K x N, and that every operand has one matrix for all batches or one for each."""
    read = {"a": problem.a, "b": problem.b, **dict(problem.inputs)}
    for name, shape in (("a", (problem.m, problem.k)), ("b", (problem.k, problem.n))):
        if (found := (read[name].rows, read[name].cols)) != shape:
            raise field_error(PlanError, name, found, f"must be {shape}, as the problem's m, n and k say")
    for name, operand in (*read.items(), *problem.outputs):
        legal = (1, problem.batch) if name in read else (problem.batch,)
        if operand.batch not in legal:
            rule = f"must be {' or '.join(str(x) for x in dict.fromkeys(legal))}, as the problem's batch says"
            raise field_error(PlanError, f"{name}.batch", operand.batch, rule)


def check_dtypes(spec: GemmSpec, problem: Problem) -> None:
    """Check that given types are the problem's, and that all types are legal beside those of the operands."""
    for name in "abcd":
        given, operand = getattr(spec, f"{name}_dtype"), getattr(problem, name)
        if operand is not None and given not in (AUTO, operand.dtype):
            rule = f"the problem's {name.upper()} is {operand.dtype.value}"
            raise field_error(PlanError, f"{name}_dtype", given, rule, operand.dtype)
    types = problem.a.dtype, problem.b.dtype
    if (fault := types_fault(*types) or arithmetic_fault(types[0], spec.arithmetic)) is not None:
        raise field_error(PlanError, *fault)
    if problem.a.dtype.bits == 8 and spec.schedule == "simt" and problem.k:
        rule = f"{problem.a.dtype.value} operands run on tensor cores"
        raise field_error(PlanError, "schedule", "simt", rule, AUTO)
    whole = problem.a.dtype.whole
    if spec.acc_dtype != AUTO and (found := element_types.sums_fault(spec.acc_dtype, whole)) is not None:
        raise field_error(PlanError, "acc_dtype", spec.acc_dtype, *found)
    for x, kind in zip("ab", spec.zero_points):
        if kind and not whole:
            rule = f"zero points are those of int8 and uint8 operands, and A is {problem.a.dtype.value}"
            raise field_error(PlanError, f"zero_point_{x}", kind, rule, AUTO)
    epilogue = epilogue_of(spec, problem)
    for name, operand in (*problem.inputs, *problem.outputs):
        if (found := element_types.fault(epilogue, name, operand.dtype, whole)) is not None:
            raise field_error(PlanError, f"{name}.dtype", operand.dtype, *found)


def check_majors(spec: GemmSpec, problem: Problem) -> None:
    """Check that given majors are the problem's."""
    for name in "abcd":
        row, col = AXES.get(name, ("m", "n"))
        given, operand = getattr(spec, f"{name}_major"), getattr(problem, name)
        if operand is None or given == AUTO:
            continue
        unit, count = (operand.unit_row, operand.rows) if given == row else (operand.unit_col, operand.cols)
        # a single row or column lies either way
        if not unit and count > 1:
            actual = col if operand.unit_col else row if operand.unit_row else AUTO
            rule = f"the problem's {name.upper()} has strides {operand.strides[:2]} (row, column)"
            raise field_error(PlanError, f"{name}_major", given, rule, actual)


def check_epilogue(epilogue: Graph, problem: Problem) -> None:
    """Check that the problem has what the epilogue reads and stores, in the right shapes."""
    for what, wanted, given in (
        ("inputs", set(epilogue.tensors), {name for name, _ in problem.inputs}),
        ("outputs", {x.name for x in epilogue.stores}, {name for name, _ in problem.outputs}),
    ):
        if wanted != given:
            listed = ", ".join(sorted(given)) or "none"
            rule = f"the epilogue's {what} are {', '.join(sorted(wanted)) or 'none'}"
            if not given:
                rule += "; describe them by problem(..., epilogue=spec.epilogue)"
            raise field_error(PlanError, what, listed, rule)
    scalars = epilogue.names("scalar")
    for name in problem.device_scalars:
        if name not in scalars:
            rule = f"the epilogue's scalars are {', '.join(scalars) or 'none'}"
            raise field_error(PlanError, "device_scalars", name, rule)
    if epilogue.gated and problem.n % 2:
        rule = "a gated pair needs an even number of columns"
        raise field_error(PlanError, "n", problem.n, rule, problem.n - 1)
    width = columns(epilogue, problem.n)
    shapes = {"matrix": (problem.m, width), "row": (1, width), "col": (problem.m, 1)}
    kinds = epilogue.tensors | {x.name: "matrix" for x in epilogue.stores}
    for x in epilogue.scales:
        operand = dict(problem.inputs)[x.name]
        lies = operand if x.axis == "m" else operand.transposed
        blocks = x.shape(problem.m, problem.n, problem.k)
        if not x.fits((lies.rows, lies.cols), blocks):
            rule = f"must be {blocks}: blocks of {'rows' if x.axis == 'm' else 'columns'}, blocks of K"
            raise field_error(PlanError, x.name, (lies.rows, lies.cols), rule)
        kinds.pop(x.name)
    for name, operand in (*problem.inputs, *problem.outputs):
        if name in kinds and (operand.rows, operand.cols) != shapes[kinds[name]]:
            rule = f"must be {shapes[kinds[name]]}, a {kinds[name]} of the epilogue"
            raise field_error(PlanError, name, (operand.rows, operand.cols), rule)


def cuda_cores_reason(spec: GemmSpec, problem: Problem) -> str | None:
    """Why the problem runs on the CUDA cores, or None."""
    if problem.k == 0:
        return "K is 0: there is no mainloop, only the epilogue"
    if on_cuda_cores(problem.a.dtype, spec.arithmetic):
        for name in TENSOR_CORE_FIELDS:
            if getattr(spec, name) != AUTO:
                rule = "has no meaning for fp32 operands, which run on the CUDA cores"
                raise field_error(PlanError, name, getattr(spec, name), rule, AUTO)
        if spec.schedule not in (AUTO, "simt"):
            rule = "fp32 operands run on the CUDA cores"
            raise field_error(PlanError, "schedule", spec.schedule, rule, "simt")
        return "fp32 operands: exact fp32 on the CUDA cores, no tf32"
    return 'schedule="simt" was asked for' if spec.schedule == "simt" else None


def may_saturate(epilogue: Graph, problem: Problem) -> bool:
    """Whether sums of integers may leave int32. K is then not split: wgmma saturates each partial sum by itself."""
    # scales of blocks multiply short sums
    most = exact_depth(problem.a.dtype, problem.b.dtype)
    return most is not None and problem.k > most and not epilogue.scales


def check_saturation(spec: GemmSpec, problem: Problem) -> None:
    """Refuse splits of K of sums that may leave int32."""
    rule = f"sums of {problem.k:,} products may exceed int32, where they saturate; those of splits saturate apart"
    for name, wrong, legal in (
        ("split_k", spec.split_k not in (AUTO, 1), 1),
        ("scheduler", spec.scheduler == "stream_k", "persistent"),
        ("cluster", (spec.depth or 1) > 1, spec.plane),
    ):
        if wrong:
            raise field_error(PlanError, name, getattr(spec, name), rule, legal)


def check_blocks(spec: GemmSpec, problem: Problem, epilogue: Graph, cuda_cores: str | None) -> None:
    """Refuse scales and values of blocks where no kernel reads or makes them."""
    if cuda_cores and epilogue.scales and problem.k:
        scale = epilogue.scales[0]
        rule = f"scales of blocks multiply partial sums of the tensor cores: {cuda_cores}"
        raise field_error(PlanError, scale.name, ("block", scale.extent, K_BLOCK), rule, "row")
    if cuda_cores and epilogue.blocks:
        x = epilogue.blocks[0]
        rule = f"kernels of the tensor cores quantise blocks: {cuda_cores}"
        raise field_error(PlanError, f"epilogue.{x.name}", ("block", x.block, K_BLOCK), rule)
    if epilogue.blocks and spec.swap is True:
        rule = "D's transpose has blocks of 128 rows, not of columns"
        raise field_error(PlanError, "swap", True, rule, False)


class Batches(NamedTuple):
    """How the batches of a problem stand for groups.

    Attributes:
        adjacent: the caller's axis along which they are groups of one matrix, or may be longer than the problem says,
            so that a tile that reaches beyond one loads what lies there; "" if neither.
        rows: of a group along that axis on average; 0 if all are as long as the problem says.
    """

    adjacent: str = ""
    rows: float = 0.0


MATRICES = Batches()  # no groups


@dataclass(frozen=True, kw_only=True)
class Request:
    """A spec for a problem on a device."""

    spec: GemmSpec
    problem: Problem
    epilogue: Graph  # the spec's, or the plain one by default
    device: Device
    reasons: tuple[str, ...] = ()  # of the choices so far, one line each
    # columns and depth that every tile must have (`invariance`)
    pinned: tuple[int | None, int | None] = (None, None)
    # the caller's operands that are a and b; ("b", "a") of D's transpose
    factors: tuple[str, str] = ("a", "b")
    batches: Batches = MATRICES

    @property
    def instruction(self) -> Instruction:
        """The tensor cores' instruction for the operands."""
        return instruction(self.problem.a.dtype, self.problem.b.dtype, self.spec.arithmetic)

    def called(self, name: str) -> str:
        """The caller's name of operand "a" or "b"."""
        return self.factors["ab".index(name)]


def requested(
    spec: GemmSpec, problem: Problem, device: Device, batches: Batches = MATRICES
) -> tuple[Request, Family]:
    """The request of a spec and a problem, and the family of kernels for it."""
    epilogue = epilogue_of(spec, problem)
    check_epilogue(epilogue, problem)
    cuda_cores = cuda_cores_reason(spec, problem)
    check_blocks(spec, problem, epilogue, cuda_cores)
    whole = None
    if may_saturate(epilogue, problem):
        check_saturation(spec, problem)
        whole = f"K={problem.k:,} is not split: sums that exceed int32 saturate, those of splits would apart"
    reasons = tuple(x for x in (device.note, cuda_cores, whole) if x)
    asked = Request(
        spec=spec, problem=problem, epilogue=epilogue, device=device, reasons=reasons, batches=batches
    )
    return asked, of_schedule(spec.schedule if cuda_cores is None else "simt")
