# SPDX-License-Identifier: Apache-2.0
"""GEMMs of groups in one launch: each group's rows or columns times a matrix of its own, or each group's part of K.

The kernel is that of a batched problem, whose batches are as large as nearly all groups of random sizes. The size is
rounded up to one of a few numbers, so that one kernel serves all numbers of tokens in between, but for averages below
one row, where each power of two may have its own, and at 128 rows (`group_forms.usual_rows`). Only the device knows the
size of each group (`kernels.schedule.group_ends`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import TF32, TF32X3, on_cuda_cores
from cutegemm.config import KernelConfig
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError, SpecError, field_error
from cutegemm.planning.kernel_fields import PANEL, TURNS_PANEL
from cutegemm.planning.launches import group_works, resident_clusters
from cutegemm.planning.planner import REMEMBERED, plan_adjacent
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.launch_limits import check_groups
from cutegemm.plans.steps import Ends, Multiply, Relayout
from cutegemm.plans.workspace import plan_reductions
from cutegemm.problems import Operand, Problem
from cutegemm.request import swap
from cutegemm.request.group_forms import FEW_ROWS, FORMS, Form, average_problem, usual_rows
from cutegemm.request.operand_rules import major
from cutegemm.request.requirements import MATRICES, Batches, requested
from cutegemm.spec import AUTO, GemmSpec, Tile

# rows of average groups from which on most tiles are whole, which TMA stores
WHOLE = 256
INDEXED_LOAD = "cp_async"  # of rows that indices name
# by depth of a stage: the K of an average group up to which the stage is halved
SHALLOW = {64: 256, 32: 32}
# the K of an average group up to which CTAs do not form clusters
ALONE = 128
# tile of groups along K whose time is that of the stores of D, and the least share of such tiles that D fills
STORING, FILLED = Tile(64, 256, 64), 0.8
# loads that begin at any row, in the order in which they are tried where the spec leaves it open
LOADS = (AUTO, "cp_async", "shift", "gather")


class Average(NamedTuple):
    """A spec for groups of a form that are all as large as an average one.

    Attributes:
        indexed: whether indices name rows.
        batches: what the batches of the problem stand for.
    """

    spec: GemmSpec
    problem: Problem
    form: Form
    device: Device
    indexed: bool
    batches: Batches = MATRICES

    def given(self, **fields: Any) -> Average:
        """The same with more fields of the spec given."""
        return self._replace(spec=dataclasses.replace(self.spec, **fields))


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
    _check_fixed(spec, how)
    try:
        made, config = _alike(_of_average(spec, problem, how, ends.indices > 0, device))
    except PlanError as error:
        raise _of_groups(spec, problem, error, ends.indices > 0) from None
    step = made.multiply
    assert step is not None
    m, n = step.extents[:2]
    if how.packed:
        extent = getattr(problem, how.axis)
        m, n = (extent, n) if config.grouped == "m" else (m, extent)
    extents = (m, n, problem.k, 1 if how.packed else problem.batch)
    works = group_works(config, extents, problem.batch if how.packed else 0)
    clusters = max(1, min(works, resident_clusters(spec, config, device)))
    ends = dataclasses.replace(ends, count=problem.batch)
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
    return dataclasses.replace(
        made,
        spec=spec,
        problem=problem,
        steps=(multiply, *reduced.steps),
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
    return _alike(of)[0], of.batches


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
    if min(config.tile["mn".index(config.grouped)], gathering.problem.m) < FEW_ROWS:
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

    made, _ = _alike(of)
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
    return Average(asked, average_problem(spec, problem, form), form, device, indexed, batches)


def _operands(step: Multiply, problem: Problem, kept: set[str]) -> dict[str, Operand]:
    """The operands of all groups as the kernel sees them; those of the average problem where they are its own."""
    whole = {"a": problem.a, "b": problem.b, **dict(problem.inputs), **dict(problem.outputs)}
    called = dict(zip("ab", step.factors, strict=True))
    if step.swapped:
        whole = {name: x.transposed for name, x in whole.items()}
    names = {name: called.get(name, name) for name in step.operands}
    return {x: step.operands[x] if name in kept else whole[name] for x, name in names.items()}


def _raster(spec: GemmSpec, found: tuple[str, int]) -> tuple[str, int]:
    """The panels: those of an average group of few tiles would have larger ones read their weights once a tile."""
    return (found[0], PANEL) if spec.raster == AUTO and found[1] < TURNS_PANEL else found


@functools.lru_cache(REMEMBERED)
def _alike(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """As `_planned`, of the fields that groups need and the first loads that are possible."""
    spec, problem, form, *_ = of
    given: dict[str, Any] = {"scheduler": "persistent", "split_k": 1}
    if form.deep:
        given |= {"swap": False} if spec.swap == AUTO else {}
    elif spec.store == AUTO:
        # TMA is left the choice only where groups are large and D is not contiguous along them
        across = form.packed and any(major(x, "m", "n") in (form.axis, "strided") for _, x in problem.outputs)
        given |= {"store": "staged"} if getattr(problem, form.axis) < WHOLE or across else {}
    # without a producer nobody loads at any row
    schedules = (AUTO, "cooperative") if spec.schedule == AUTO else (spec.schedule,)
    tried: list[dict[str, Any]] = [{"schedule": x} for x in schedules]
    preferred: dict[str, Any] = {}
    storing = _storing(of)
    if storing:
        tried.insert(0, preferred := storing)
    elif 0 < of.batches.rows < 1 and spec.schedule == spec.swap == spec.tile == AUTO:
        # A CTA without a producer passes many empty groups before it loads anything. WGMMA multiplies at least 64 rows,
        # but as few as 8 columns.
        preferred = {"schedule": "cooperative", "swap": form.axis == "m"}
        tried.insert(0, preferred)
    refusals: list[PlanError] = []
    ways = itertools.product(*(LOADS if x == AUTO else (x,) for x in (spec.a_load, spec.b_load)))
    # few operands that threads load come first
    ordered = sorted(ways, key=lambda pair: sum(LOADS.index(x) for x in pair if x in LOADS))
    for (a_load, b_load), how in itertools.product(ordered, tried):
        try:
            asked = of.given(**given, **how | {"a_load": a_load, "b_load": b_load})
            found = _narrowed(asked)
            if how is storing and (spills(found[1]) or not _apart(found[1])):
                continue
        except SpecError as error:
            refused = field_error(PlanError, error.field or "", error.value, error.rule, error.nearest)
            if error.field in ("a_load", "b_load") and getattr(spec, error.field) == AUTO:
                # the given schedule has no such load
                refused = field_error(PlanError, "schedule", spec.schedule, error.rule, "cooperative")
        except PlanError as error:
            refused = error
        else:
            return _shallow(asked, found) if form.deep and spec.tile == AUTO else found
        # a preference that is not possible explains nothing
        if how is not preferred:
            refusals.append(refused)
    # an error about a field of the caller's says more than one about a way that was tried
    given_by_caller = (x for x in refusals if any(map(x.concerns, spec.given())))
    raise next(given_by_caller, refusals[0])


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


def _check_fixed(spec: GemmSpec, form: Form) -> None:
    """Refuse fields that no kernel of groups has."""
    if spec.schedule == "simt":
        raise _without_tensor_cores()
    whole = "groups take persistent kernels without splits"
    if (spec.depth or 1) > 1:
        raise field_error(PlanError, "cluster", spec.cluster, whole, spec.plane)
    for name in ("a_load", "b_load"):
        if getattr(spec, name) == "relayout":
            raise _copied(name)
    if spec.arithmetic == TF32X3:
        rule = "a copy before cuts elements into parts, and groups take one launch"
        raise field_error(PlanError, "math", spec.math, rule, TF32)
    early = "where operands are loaded is known when earlier launches have written the groups' ends"
    fixed = [("scheduler", "persistent", whole), ("split_k", 1, whole), ("constant", AUTO, early)]
    if not form.deep:
        fixed.append(("input_stages", 1, "threads read what the epilogue of groups of rows reads"))
    for name, legal, rule in fixed:
        if getattr(spec, name) not in (AUTO, legal):
            raise field_error(PlanError, name, getattr(spec, name), rule, legal)


def _without_tensor_cores() -> PlanError:
    return field_error(PlanError, "schedule", "simt", "groups are multiplied by tensor cores", AUTO)


def _copied(name: str) -> PlanError:
    """The error of an operand that would be copied before the launch; `name` is that of its load."""
    return field_error(PlanError, name, "relayout", "groups take one launch, without copies", AUTO)


def _shallow(of: Average, found: tuple[KernelPlan, KernelConfig]) -> tuple[KernelPlan, KernelConfig]:
    """A plan of groups along K with shallower stages, where groups have few of them and rows of K lie apart.

    What a group's last stage holds behind its end is loaded for nothing: half a stage a group on average. Loads share
    L2's and the SM's bandwidth with the stores of D, which bound groups of few stages. An operand that is contiguous
    along K keeps its rows of 128 bytes, and threads load as deep stages as before.
    """
    made, config = found
    (m, n, k), (across, along) = config.tile, config.cluster
    if not _apart(config) or of.problem.k > SHALLOW.get(k, 0):
        return found
    if made.swapped:
        m, n, across, along = n, m, along, across
    half = Tile(m, n, k // 2)
    try:
        return _shallow(of, _narrowed(of.given(tile=half, schedule=config.schedule, cluster=(across, along))))
    except (PlanError, SpecError):
        return found


def _apart(config: KernelConfig) -> bool:
    """Whether TMA loads operands whose rows of K lie apart."""
    return all(x.load == "tma" and not x.k_major for x in config.operands)


def _storing(of: Average) -> dict[str, Any]:
    """Fields of a kernel whose warpgroups take turns to store long rows of D; {} where another may be faster.

    Groups of few rows along K store more than they load. The tiles must keep both warpgroups of all SMs busy.
    """
    spec, problem = of.spec, of.problem
    wanted = {"schedule": "pingpong", "cluster": (1, 1), "tile": STORING}
    left = all(getattr(spec, name) in (AUTO, value) for name, value in wanted.items())
    tiles = math.ceil(problem.m / STORING.m) * math.ceil(problem.n / STORING.n)
    filled = problem.m * problem.n >= FILLED * tiles * STORING.m * STORING.n
    long = spec.swap is not True and all(major(x, "m", "n") == "n" for _, x in problem.outputs)
    few = of.form.deep and problem.k <= SHALLOW[32] and tiles * problem.batch >= 2 * of.device.sms
    return wanted if few and left and filled and long else {}


def _narrowed(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """As `_planned`, without clusters that do not pay where the spec leaves them open.

    A cluster along a group's rows would end in two tiles. Groups of few rows along K load less than they store, so
    their CTAs save little by sharing loads, and wait for each other.
    """
    deep, axis = of.form.deep, of.form.axis
    if of.spec.cluster != AUTO:
        return _planned(of)
    if deep and of.problem.k <= ALONE:
        return _planned(of.given(cluster=(1, 1)))
    found = _planned(of)
    config = found[1]
    if deep or config.cluster["mn".index(config.grouped)] == 1:
        return found
    return _planned(of.given(cluster=(2, 1) if axis == "n" else (1, 2)))


def _planned(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """The plan of the average problem, and its kernel as one of groups; refused where it cannot be one."""
    made = plan_adjacent(of.spec, of.problem, of.device, of.batches)
    found = made.config
    if not isinstance(found, KernelConfig):
        raise _without_tensor_cores()
    before = next((x for x in made.steps if isinstance(x, Relayout)), None)
    if before is not None:
        raise _copied(f"{before.copies[0].operand}_load")
    axis = of.form.swapped if made.swapped else of.form.axis
    changed: dict[str, Any] = {"grouped": axis, "masked": not (of.form.packed or of.form.deep)}
    # a group may have more rows than the average
    changed["operands"] = tuple(
        dataclasses.replace(x, box_rows=0, indexed=of.indexed and x.axes[0] == axis) for x in found.operands
    )
    if not of.form.deep:
        changed["inputs"] = tuple(dataclasses.replace(x, load="direct") for x in found.inputs)
        changed["input_stages"] = 1
    try:
        return made, KernelConfig.of(dataclasses.replace(found.draft, serpentine=False, early=(), **changed))
    except PlanError as error:
        raise (swap.error_in_d(error) if made.swapped else error) from None
