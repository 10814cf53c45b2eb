# SPDX-License-Identifier: Apache-2.0
"""GEMMs of groups: the rows or columns of each times a matrix of its own, or the part of K of each.

The kernel is that of a batched problem, whose batches are as large as nearly all groups of random sizes. The size is
rounded up to one of a few numbers, so that one kernel serves all numbers of tokens in between, but for averages below
one row, where each power of two may have its own, and at 128 rows (`group_forms.usual_rows`). Only the device knows the
size of each group (`kernels.schedule.group_ends`).
"""

from __future__ import annotations

import dataclasses
import math

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import on_cuda_cores
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, SpecError, field_error
from cutegemm.planning.group_kernels import INDEXED_LOAD, Average, alike
from cutegemm.planning.kernel_fields import PANEL
from cutegemm.plans.group_sizes import by_size, group_works
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.launch_limits import check_groups
from cutegemm.plans.launches import resident_clusters
from cutegemm.plans.steps import Ends, Multiply
from cutegemm.plans.workspace import plan_reductions
from cutegemm.problems import Operand, Problem
from cutegemm.request.group_forms import (
    FEW_ROWS,
    FORMS,
    Form,
    average_problem,
    check_fixed,
    few_groups,
    usual_rows,
)
from cutegemm.request.operand_rules import major
from cutegemm.request.requirements import MATRICES, Batches, requested
from cutegemm.spec import AUTO, GemmSpec

# rows above which multiplying a group takes longer than reading its weights: about FLOP/s over bytes/s
LARGE_ROWS = 256
LEAST_GROUPS, LEAST_ROWS = 4, 4 * LARGE_ROWS  # of all groups; fewer have one launch
IDLE = 0.01  # most share of the time to move all operands that a launch without work may take
# fields that choose the kernel; where one is given, it is that of all groups
LEFT = {"tile", "cluster", "schedule", "consumers", "swap", "stages", "raster", "scheduler"}


def plan_groups(spec: GemmSpec, problem: Problem, form: str, ends: Ends, device: Device) -> KernelPlan:
    """How a spec serves groups.

    Args:
        spec: what is asked.
        problem: of `batch` groups. By form: "rows": `m` rows of all groups, one A and one D; "columns": `n` columns of
            all groups, one B and one D; "masked": a batch of `m` rows for each; "depth": `k` of all groups, one A and
            one B, a batch of D for each.
        form: one of `FORMS`.
        ends: how they are told. Of groups whose rows indices name, `problem.a` has a row for each index.
        device: the GPU.

    Raises:
        PlanError: no kernel of groups serves these operands under the spec.
    """
    if on_cuda_cores(problem.a.dtype, spec.arithmetic):
        rule = "groups are multiplied by tensor cores, which take fp32 operands as tf32"
        raise field_error(PlanError, "math", spec.math, rule, "tf32")
    how = FORMS[form]
    check_fixed(spec, how)
    ends, indexed = dataclasses.replace(ends, count=problem.batch), ends.indices > 0
    try:
        made, config = alike(_of_average(spec, problem, how, indexed, device))
    except PlanError as error:
        raise _of_groups(spec, problem, error, indexed) from None
    found = _launched(spec, problem, how, ends, made, config)
    if not _may_vary(spec, problem, how, made, config):
        return found
    try:
        few = alike(_of_average(spec, few_groups(spec, problem, how), how, indexed, device))
        large = _launched(spec, problem, how, dataclasses.replace(ends, tail=False), *few)
    except PlanError:
        return found
    # only a tile of more rows reads a large group's weights less often
    return by_size(found, large, LARGE_ROWS) if few[1].group_rows > config.group_rows else found


def _may_vary(spec: GemmSpec, problem: Problem, how: Form, made: KernelPlan, config: KernelConfig) -> bool:
    """Whether a launch of their own is worth planning for groups of more than `LARGE_ROWS` rows.

    Small tiles read the weights of a large group many times. But where groups are alike, a launch for large ones finds
    none, so the memory that all groups move must take much longer than a launch.
    """
    # a row's bits must not depend on its group's size; parts of a row's sum lie in workspace, as many for every row
    fixed = spec.batch_invariant is True or LEFT & spec.given().keys() or config.epilogue.reductions
    if fixed or not how.packed or problem.batch < LEAST_GROUPS or made.device.cost is None:
        return False
    small = config.group_rows < FEW_ROWS and getattr(problem, how.axis) >= LEAST_ROWS
    moved = problem.a.bytes + problem.b.bytes + sum(x.bytes for _, x in problem.outputs)
    return small and moved / made.device.dram_gbs >= made.device.cost.launch / IDLE


def _launched(
    spec: GemmSpec, problem: Problem, how: Form, ends: Ends, made: KernelPlan, config: KernelConfig
) -> KernelPlan:
    """The plan of a launch over groups by the kernel of average ones."""
    step, device = made.multiply, made.device
    assert step is not None
    m, n = step.extents[:2]
    if how.packed:
        extent = getattr(problem, how.axis)
        m, n = (extent, n) if config.grouped == "m" else (m, extent)
    extents = (m, n, problem.k, 1 if how.packed else problem.batch)
    works = group_works(config, extents, problem.batch if how.packed else 0)
    clusters = max(1, min(works, resident_clusters(spec, config, device)))
    check_groups(spec, problem, ends, made.swapped, (config, works, clusters))
    # parts along a row are those of the average group's
    seen_m, seen_n = (problem.n, problem.m) if made.swapped else (problem.m, problem.n)
    every = dataclasses.replace(problem, m=seen_m, n=seen_n, batch=extents[3])
    reduced = plan_reductions(config, every, (1, 1, 1), 0)
    multiply = dataclasses.replace(
        step,
        config=config,
        extents=extents,
        raster=_raster(spec, step.raster),
        operands=_operands(step, problem, how.kept(spec, problem)),
        clusters=clusters,
        parts=reduced.parts,
        in_workspace=reduced.partials,
        groups=ends,
    )
    reasons = made.reasons
    if config.dynamic and spec.scheduler == AUTO and not any("from a counter" in x for x in reasons):
        reasons += (
            f"CTAs take tiles from a counter: {'groups have unequal K' if how.deep else 'CTAs drift apart'}",
        )
    return dataclasses.replace(
        made,
        spec=spec,
        problem=problem,
        steps=(multiply, *reduced.steps),
        reasons=reasons,
        workspace_bytes=reduced.workspace_bytes,
    )


def average_plan(plan: KernelPlan) -> tuple[KernelPlan, Batches]:
    """The plan that a plan of groups comes from: of a batch of GEMMs that are all as large as an average group.

    Its cost is what the planner compared. Also what its batches stand for. Any other plan is returned unchanged.
    """
    step = plan.multiply
    if step is None or step.groups is None:
        return plan, MATRICES
    of = _of_average(plan.spec, plan.problem, FORMS[plan.form], step.groups.indices > 0, plan.device)
    return alike(of)[0], of.batches


def copy_pays(plan: KernelPlan, moved: int) -> bool:
    """Whether copying the rows of A before the launch is predicted to be faster than a plan that gathers them.

    Args:
        plan: of groups of rows that indices name.
        moved: bytes that the copy reads and writes in device memory.
    """
    config, problem, device = plan.config, plan.problem, plan.device
    if not isinstance(config, KernelConfig):
        return False
    form, size = FORMS["rows"], problem.k
    a = dataclasses.replace(problem.a, strides=(size, 1, *problem.a.strides[2:]))
    gathering = _of_average(plan.spec, problem, form, True, device)
    if min(config.group_rows, gathering.problem.m) < FEW_ROWS:
        # the cost model cannot tell two kernels apart that both wait for weights
        return False
    plain = _of_average(plan.spec, dataclasses.replace(problem, a=a), form, False, device)
    more = _predicted(gathering) - _predicted(plain)
    # the prediction is for groups of the usual rows, not of these
    real = problem.m / (problem.batch * (gathering.batches.rows or gathering.problem.m))
    return more * real > device.loads.relayout + moved / device.dram_gbs


def _predicted(of: Average) -> float:
    """Nanoseconds that the cost model predicts for the average problem; NaN where it ranks no config."""
    # imports NumPy
    from cutegemm.planning.ranking import options

    made, _ = alike(of)
    asked, _ = requested(made.spec, made.problem, of.device, of.batches)
    return next((x.ns for x in options(asked)), math.nan)


def _of_average(spec: GemmSpec, problem: Problem, form: Form, indexed: bool, device: Device) -> Average:
    """The spec and problem that stand for groups in planning: a batch of GEMMs of average size."""
    asked = spec
    if indexed:
        if spec.a_load not in (AUTO, INDEXED_LOAD):
            rule = "threads copy rows that indices name"
            raise field_error(PlanError, "a_load", spec.a_load, rule, INDEXED_LOAD)
        if (lies := major(problem.a, "m", "k")) != "k":
            rule = "threads copy rows that indices name, whose elements are adjacent along K"
            raise field_error(PlanError, "a_major", lies, rule, "k")
        try:
            asked = dataclasses.replace(spec, a_load=INDEXED_LOAD)
        except SpecError as error:
            raise field_error(PlanError, "schedule", spec.schedule, error.rule, "cooperative") from None
    average = getattr(problem, form.axis) / problem.batch if form.packed else 0.0
    batches = Batches(form.axis, usual_rows(average))
    return Average(asked, average_problem(spec, problem, form, indexed), form, device, indexed, batches)


def _operands(step: Multiply, problem: Problem, kept: set[str]) -> dict[str, Operand]:
    """The operands of all groups as the kernel sees them; if kept, the average problem's with all groups' parts."""
    whole = {"a": problem.a, "b": problem.b, **dict(problem.inputs), **dict(problem.outputs)}
    called = dict(zip("ab", step.factors, strict=True))
    if step.swapped:
        whole = {name: x.transposed for name, x in whole.items()}
    names = {name: called.get(name, name) for name in step.operands}
    own = {x: dataclasses.replace(step.operands[x], batch=whole[names[x]].batch) for x in names}
    return {x: own[x] if name in kept else whole[name] for x, name in names.items()}


def _raster(spec: GemmSpec, found: tuple[str, int]) -> tuple[str, int]:
    """The panels: those of an average group of few tiles would have larger ones read their weights once a tile."""
    return (found[0], PANEL) if spec.raster == AUTO and found[1] < PANEL // 2 else found


def _of_groups(spec: GemmSpec, problem: Problem, error: PlanError, indexed: bool) -> PlanError:
    """An error about the batch that stands for groups, as one about the groups."""
    if error.field == "batch":
        return field_error(PlanError, "groups", problem.batch, error.rule.replace("batch", "groups"))
    gathers = indexed and error.field == "a_load"
    if gathers and spec.a_load == AUTO:
        return PlanError(f"cannot be gathered by the kernel: {error.rule}; give a[rows] instead", "rows")
    if gathers or error.nearest == "relayout":
        return field_error(PlanError, error.field or "", error.value, error.rule, AUTO)
    return error
