# SPDX-License-Identifier: Apache-2.0
"""The kernel of groups: that of a batch of average GEMMs, with the tile, clusters and scheduler that groups need."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.config.spills import spills
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import PlanError, SpecError, field_error
from cutegemm.planning.planner import REMEMBERED, plan_adjacent
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Relayout
from cutegemm.problems import Problem
from cutegemm.request import swap
from cutegemm.request.group_forms import Form, copied, without_tensor_cores
from cutegemm.request.operand_rules import major
from cutegemm.request.requirements import MATRICES, Batches, epilogue_of
from cutegemm.spec import AUTO, GemmSpec, Tile

INDEXED_LOAD = "cp_async"  # of rows that indices name
# kernels of groups along K whose stores of D take most of the time: up to `quartered_k`, `wide_k`, `halved_k` elements
STORING = (
    ("cooperative", Tile(128, 256, 16)), ("cooperative", Tile(256, 192, 16)), ("pingpong", Tile(128, 192, 64))
)  # fmt: skip
# kernels of groups of many rows with scales of blocks and few k tiles
SCALED: dict[str, Any] = {
    "schedule": "cooperative", "cluster": (1, 1), "tile": Tile(128, 192, 128), "swap": False, "scheduler": "dynamic",
}  # fmt: skip
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


@functools.lru_cache(REMEMBERED)
def alike(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """The plan of the average problem and the kernel of groups, with the first loads that are possible."""
    spec, problem, form, *_ = of
    given: dict[str, Any] = {"split_k": 1}
    if form.deep:
        given |= {"swap": False} if spec.swap == AUTO else {}
    elif spec.store == AUTO:
        # TMA is left the choice only where groups are large and D is not contiguous along them
        across = form.packed and any(major(x, "m", "n") in (form.axis, "strided") for _, x in problem.outputs)
        few = getattr(problem, form.axis) < of.device.thresholds.whole_rows
        given |= {"store": "staged"} if few or across else {}
    # without a producer nobody loads at any row
    schedules = (AUTO, "cooperative") if spec.schedule == AUTO else (spec.schedule,)
    tried = [*(preferred := _preferred(of)), *({"schedule": x} for x in schedules)]
    refusals: list[PlanError] = []
    ways = itertools.product(*(LOADS if x == AUTO else (x,) for x in (spec.a_load, spec.b_load)))
    # few operands that threads load come first
    ordered = sorted(ways, key=lambda pair: sum(LOADS.index(x) for x in pair if x in LOADS))
    for (a_load, b_load), how in itertools.product(ordered, tried):
        try:
            asked = of.given(**given, **how | {"a_load": a_load, "b_load": b_load})
            found = _narrowed(asked)
            if how in preferred and not _pays(how, found[1]):
                continue
            if _counted(asked, *found):
                found = _narrowed(asked := asked.given(scheduler="dynamic"))
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
        if how not in preferred:
            refusals.append(refused)
    # an error about a field of the caller's says more than one about a way that was tried
    given_by_caller = (x for x in refusals if any(map(x.concerns, spec.given())))
    raise next(given_by_caller, refusals[0])


def _shallow(of: Average, found: tuple[KernelPlan, KernelConfig]) -> tuple[KernelPlan, KernelConfig]:
    """A plan of groups along K with shallower stages, where groups have few of them and rows of K lie apart.

    What a group's last stage holds behind its end is loaded for nothing: half a stage a group on average. Loads share
    L2's and the SM's bandwidth with the stores of D, which bound groups of few stages. An operand that is contiguous
    along K keeps its rows of 128 bytes, and threads load as deep stages as before.
    """
    made, config = found
    (m, n, k), (across, along) = config.tile, config.cluster
    known = of.device.thresholds
    if not _apart(config) or of.problem.k > {64: known.halved_k, 32: known.quartered_k}.get(k, 0):
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


def _preferred(of: Average) -> list[dict[str, Any]]:
    """Fields of kernels that are faster for groups than for a batch, the best first; none where there are none."""
    spec, problem, rows = of.spec, of.problem, getattr(of.problem, of.form.axis)
    free, known = spec.batch_invariant is not True, of.device.thresholds
    if of.form.deep:
        # Few rows along K store more than they load. Wide tiles write long rows of D and take fewer numbers. With tiles
        # from a counter CTAs write side by side, which device memory is faster at.
        long = spec.swap is not True and all(major(x, "m", "n") == "n" for _, x in problem.outputs)
        limits = (known.quartered_k, known.wide_k, known.halved_k)
        ways = (way for most, way in zip(limits, STORING, strict=True) if rows <= most and long and free)
        counted = {"cluster": (1, 1), "scheduler": "dynamic"}
        return [x for y, z in ways if _fills(of, x := {"schedule": y, "tile": z} | counted, 2)]
    left = not of.indexed and spec.schedule == spec.cluster == spec.scheduler == AUTO
    if rows >= known.whole_rows and left:
        # A pair of CTAs waits for each other at a group's end. With a counter CTAs compute neighbouring tiles, and find
        # in L2 what a pair would share, if it holds a group's matrices. 8-bit tiles load too much without pairs.
        held = problem.a.bytes + problem.b.bytes <= of.device.l2_bytes * problem.batch
        if held and problem.a.dtype.bits >= 16:
            return [{"schedule": "pingpong", "cluster": (1, 1)}]
        # with few k tiles a tile's stores and first loads take much of the time, so wide tiles are faster
        scaled = {x.extent for x in epilogue_of(spec, problem).scales} == {1, K_BLOCK}
        if scaled and problem.k <= known.scaled_k and free and _fills(of, SCALED, known.drift_tiles):
            return [SCALED]
    # A CTA without a producer passes many empty groups before it loads anything. WGMMA multiplies at least 64 rows, but
    # as few as 8 columns.
    few = 0 < of.batches.rows < 1 and spec.schedule == spec.swap == spec.tile == AUTO
    return [{"schedule": "cooperative", "swap": of.form.axis == "m"}] if few and free else []


def _fills(of: Average, fields: dict[str, Any], waves: int) -> bool:
    """Whether the spec leaves these fields open, and D fills the tiles, so many for each SM."""
    problem, tile = of.problem, fields["tile"]
    left = all(getattr(of.spec, name) in (AUTO, value) for name, value in fields.items())
    tiles = math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n)
    filled = problem.m * problem.n >= of.device.thresholds.filled * tiles * tile.m * tile.n
    return left and filled and tiles * problem.batch >= waves * of.device.sms


def _pays(preferred: dict[str, Any], config: KernelConfig) -> bool:
    """Whether a preferred kernel has what makes it fast: TMA and no spills along K, else a counter."""
    if config.grouped == "k":
        return _apart(config) and not spills(config)
    return config.dynamic or "cluster" not in preferred


def _counted(of: Average, made: KernelPlan, config: KernelConfig) -> bool:
    """Whether clusters of groups along K take tiles from a counter: where each has several, and TMA loads.

    Groups have unequally many k tiles. With lists the cluster with the most of them would end last.
    """
    several = made.waves >= of.device.thresholds.drift_tiles and not config.gathers
    return of.form.deep and several and of.spec.scheduler == AUTO and not config.dynamic


def _narrowed(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """As `_planned`, without clusters that do not pay where the spec leaves them open.

    A cluster along a group's rows would end in two tiles. Groups of few rows along K load less than they store, so
    their CTAs save little by sharing loads, and wait for each other.
    """
    deep, axis = of.form.deep, of.form.axis
    if of.spec.cluster != AUTO:
        return _planned(of)
    if deep and of.problem.k <= of.device.thresholds.halved_k:
        return _planned(of.given(cluster=(1, 1)))
    found = made, config = _planned(of)
    if deep or config.cluster["mn".index(config.grouped)] == 1:
        return found
    return _planned(of.given(cluster=(2, 1) if axis == "n" else (1, 2)))


def _planned(of: Average) -> tuple[KernelPlan, KernelConfig]:
    """The plan of the average problem, and its kernel as one of groups; refused where it cannot be one."""
    made = plan_adjacent(of.spec, of.problem, of.device, of.batches)
    found = made.config
    if not isinstance(found, KernelConfig):
        raise without_tensor_cores()
    before = next((x for x in made.steps if isinstance(x, Relayout)), None)
    if before is not None:
        raise copied(f"{before.copies[0].operand}_load")
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
