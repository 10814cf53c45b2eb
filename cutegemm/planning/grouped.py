# SPDX-License-Identifier: Apache-2.0
"""GEMMs of groups in one launch: each group's rows or columns times a matrix of its own, or each group's part of K.

The kernel is that of the batched problem whose batches are as large as nearly all groups of random sizes, rounded up
to the next of a few numbers: one kernel serves all numbers of tokens in between. How large each group really is, only
the device knows (`kernels.schedule.group_ends`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import TF32, TF32X3, on_cuda_cores
from cutegemm.config import KernelConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.kernel_fields import PANEL, TURNS_PANEL
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.launches import Reductions, plan_reductions, resident_clusters
from cutegemm.planning.operand_rules import major
from cutegemm.planning.planner import plan
from cutegemm.planning.steps import Ends, Finish, Multiply
from cutegemm.problems import Operand, Problem
from cutegemm.spec import AUTO, GemmSpec, Tile

# launches that are kept: the same arguments give the same one
REMEMBERED = 1024
# how groups lie: along M of one A and D; along N of one B and D; the first rows of a batch each; along K, with a batch
# of D each
FORMS = ("rows", "columns", "masked", "depth")


class Packed(NamedTuple):
    """A form whose groups lie in one matrix of D.

    Attributes:
        axis: of D, along which they lie; swapped: the kernel's where operands are swapped.
        operand: what lies so; weights: the one that has a matrix for each group.
        own: kinds of the epilogue's inputs that may have a part for each group.
    """

    axis: str
    swapped: str
    operand: str
    weights: str
    own: tuple[str, str]


PACKED = {
    "rows": Packed("m", "n", "a", "b", ("row", "blocks_n")),
    "columns": Packed("n", "m", "b", "a", ("col", "blocks_m")),
}
# standard deviations of a group's rows, were they drawn one by one, that its tile has room for beyond the average
SPREAD = 2.0
# rows up to which the series of buckets has several of each power of two
FINE = 512
# rows of average groups from which on most tiles are whole, which TMA stores
WHOLE = 256
INDEXED_LOAD = "cp_async"  # of rows that indices name
# stages of an average group along K up to which they are half as deep
FEW_STAGES = 4
# loads that begin at any row, in the order in which they are tried where the spec leaves it open
LOADS = (AUTO, "cp_async", "shift", "gather")


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
    indexed = ends.indices > 0
    asked = spec
    if indexed:
        if spec.a_load not in (AUTO, INDEXED_LOAD):
            rule = "threads copy rows that indices name"
            raise field_error(PlanError, "a_load", spec.a_load, rule, INDEXED_LOAD)
        asked = dataclasses.replace(spec, a_load=INDEXED_LOAD)
    made, config = _alike(asked, _average(spec, problem, form), form, device, indexed)
    step = made.multiply
    assert step is not None
    swapped = step.factors == ("b", "a")
    whole = {"a": problem.a, "b": problem.b, **dict(problem.inputs), **dict(problem.outputs)}
    kept = _weights(spec, problem, form)
    operands: dict[str, Operand] = {}
    for name, seen in step.operands.items():
        given = step.factors["ab".index(name)] if name in ("a", "b") else name
        real = whole[given].transposed if swapped else whole[given]
        operands[name] = seen if given in kept else real
    m, n = step.extents[:2]
    if form in PACKED:
        whole_axis = getattr(problem, PACKED[form].axis)
        m, n = (whole_axis, n) if config.grouped == "m" else (m, whole_axis)
    extents = (m, n, problem.k, 1 if form in PACKED else problem.batch)
    reduced = _reductions(config, problem, swapped, extents[3])
    multiply = dataclasses.replace(
        step,
        config=config,
        extents=extents,
        raster=_raster(spec, step.raster),
        operands=operands,
        clusters=_clusters(spec, config, problem, form, extents, device),
        parts=reduced.parts,
        in_workspace=reduced.partials,
        groups=dataclasses.replace(ends, count=problem.batch),
    )
    return dataclasses.replace(
        made,
        spec=spec,
        problem=problem,
        steps=(multiply, *reduced.steps),
        workspace_bytes=reduced.workspace_bytes,
    )


def _reductions(config: KernelConfig, problem: Problem, swapped: bool, batch: int) -> Reductions:
    """The reductions of all groups, as the kernel sees them: parts along a row are those of the average group's."""
    m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    return plan_reductions(config, dataclasses.replace(problem, m=m, n=n, batch=batch), (1, 1, 1), 0)


def _raster(spec: GemmSpec, found: tuple[str, int]) -> tuple[str, int]:
    """The panels: those of an average group of few tiles would have larger ones read their weights once a tile."""
    if spec.raster != AUTO:
        return found
    return found[0], max(found[1], PANEL) if found[1] < TURNS_PANEL else found[1]


def _weights(spec: GemmSpec, problem: Problem, form: str) -> set[str]:
    """The operands and inputs that the average problem has as they are."""
    others = {name for name, _ in (*problem.inputs, *problem.outputs)}
    if form not in PACKED:
        # masked groups are the batches that were planned
        return others if form == "depth" else {"a", "b", *others}
    kinds = spec.epilogue.tensors if isinstance(spec.epilogue, Graph) else {}
    packed = PACKED[form]
    return {packed.weights, *(name for name, kind in kinds.items() if kind in packed.own)}


def _clusters(
    spec: GemmSpec,
    config: KernelConfig,
    problem: Problem,
    form: str,
    extents: tuple[int, ...],
    device: Device,
) -> int:
    """Clusters that can have a tile, of those that the device holds."""
    each = (config.rows * config.cluster[0], config.columns * config.cluster[1])
    tiles = [math.ceil(x / y) for x, y in zip(extents, each, strict=False)]
    if form in PACKED:
        # a group begins with a tile of its own, so that each may have one more than its rows fill
        axis = "mn".index(config.grouped)
        tiles[axis] = extents[axis] // each[axis] + min(problem.batch, extents[axis])
    count: int = tiles[0] * tiles[1] * (1 if form in PACKED else problem.batch)
    return max(1, min(count, resident_clusters(spec, config, device)))


def _average(spec: GemmSpec, problem: Problem, form: str) -> Problem:
    """The problem of batches that are all as large as an average group."""
    groups = problem.batch
    if form == "masked":
        return problem
    if form == "depth":
        depth = 1 << max(math.ceil(problem.k / groups) - 1, 0).bit_length()
        a, b = problem.a, problem.b
        a = dataclasses.replace(a, cols=depth, batch=groups, strides=(*a.strides[:2], depth * a.strides[1]))
        b = dataclasses.replace(b, rows=depth, batch=groups, strides=(*b.strides[:2], depth * b.strides[0]))
        return dataclasses.replace(problem, k=depth, a=a, b=b)
    axis, _, operand, *_ = PACKED[form]
    rows = _rows(getattr(problem, axis) / groups)
    kept, side = _weights(spec, problem, form), "rows" if axis == "m" else "cols"

    def batched(*found: tuple[str, Operand]) -> Iterator[tuple[str, Operand]]:
        for name, x in found:
            each: dict[str, Any] = {
                side: rows,
                "strides": (*x.strides[:2], rows * x.strides["mn".index(axis)]),
            }
            yield name, x if name in kept else dataclasses.replace(x, batch=groups, **each)

    ((_, whole),) = batched((operand, getattr(problem, operand)))
    inputs, outputs = tuple(batched(*problem.inputs)), tuple(batched(*problem.outputs))
    changed: dict[str, Any] = {axis: rows, operand: whole, "inputs": inputs, "outputs": outputs}
    return dataclasses.replace(problem, **changed)


def _rows(average: float) -> int:
    """Rows of a tile's worth of a group: of sizes that scatter as those of random routing do, nearly all."""
    return _bucket(math.ceil(average + SPREAD * math.sqrt(average)))


def _bucket(value: int) -> int:
    """The number that stands for one: the next of a series that grows by a quarter to a half, later by doubling."""
    whole = 1 << max(value - 1, 0).bit_length()
    parts = 1 if whole <= 16 or whole > FINE else 2 if whole <= 64 else 4
    step = max(whole // 2 // parts, 1)
    return -(-value // step) * step


@functools.lru_cache(REMEMBERED)
def _alike(
    spec: GemmSpec, problem: Problem, form: str, device: Device, indexed: bool
) -> tuple[KernelPlan, KernelConfig]:
    """The plan of the average problem, and its kernel made one of groups, whose rows indices may name.

    Raises:
        PlanError: there is none.
    """
    fixed: tuple[tuple[str, Any, str], ...] = (
        ("scheduler", "persistent", "groups take persistent kernels without splits"),
        ("split_k", 1, "groups take persistent kernels without splits"),
        (
            "constant",
            AUTO,
            "where operands are loaded is known when earlier launches have written the groups' ends",
        ),
    )
    if form != "depth":
        fixed += (("input_stages", 1, "threads read what the epilogue of groups of rows reads"),)
    if spec.arithmetic == TF32X3:
        rule = "a copy before cuts elements into parts, and groups take one launch"
        raise field_error(PlanError, "math", spec.math, rule, TF32)
    for name, legal, rule in fixed:
        if getattr(spec, name) not in (AUTO, legal):
            raise field_error(PlanError, name, getattr(spec, name), rule, legal)
    given: dict[str, Any] = {"scheduler": "persistent", "split_k": 1}
    axis = PACKED[form].axis if form in PACKED else "m"
    across = form in PACKED and any(major(x, "m", "n") in (axis, "strided") for _, x in problem.outputs)
    if form != "depth" and spec.store == AUTO and (getattr(problem, axis) < WHOLE or across):
        given["store"] = "staged"
    if form == "depth" and spec.swap == AUTO:
        given["swap"] = False
    # without a producer nobody loads at any row
    schedules = (AUTO, "cooperative") if spec.schedule == AUTO else (spec.schedule,)
    first: PlanError | None = None
    for loads, schedule in itertools.product(_loads(spec), schedules):
        asked = dataclasses.replace(spec, **given, **loads, schedule=schedule)
        try:
            found = _narrowed(asked, problem, form, device, indexed)
        except PlanError as error:
            first = first or error
            continue
        if form != "depth" or spec.tile != AUTO:
            return found
        return _shallow(asked, problem, found, device)
    assert first is not None
    raise first


def _shallow(
    spec: GemmSpec, problem: Problem, found: tuple[KernelPlan, KernelConfig], device: Device
) -> tuple[KernelPlan, KernelConfig]:
    """A plan of groups along K with stages half as deep, where groups have few of them and rows of K lie apart.

    What a group's last stage holds behind its end is loaded for nothing: half a stage a group on average. Loads share
    L2's and the SM's bandwidth with the stores of D, which bound groups of few stages. An operand that is contiguous
    along K keeps its rows of 128 bytes, and threads load as deep stages as before.
    """
    _, config = found
    tile = config.tile
    if any(x.k_major or x.load != "tma" for x in config.operands) or problem.k > FEW_STAGES * tile[2]:
        return found
    asked = dataclasses.replace(
        spec, tile=Tile(*tile[:2], tile[2] // 2), schedule=config.schedule, cluster=config.cluster
    )
    try:
        return _narrowed(asked, problem, "depth", device, False)
    except PlanError:
        return found


def _narrowed(
    spec: GemmSpec, problem: Problem, form: str, device: Device, indexed: bool
) -> tuple[KernelPlan, KernelConfig]:
    """As `_alike`, of one way in; a chosen cluster is not one along a group's rows, which would end in two tiles.

    Raises:
        PlanError: there is none.
    """
    made = plan(spec, problem, device)
    config = _config(made, form, indexed)
    if form == "depth" or spec.cluster != AUTO or config.cluster["mn".index(config.grouped)] == 1:
        return made, config
    made = plan(dataclasses.replace(spec, cluster=(2, 1) if form == "columns" else (1, 2)), problem, device)
    return made, _config(made, form, indexed)


def _loads(spec: GemmSpec) -> Iterator[dict[str, Any]]:
    """Ways in to try."""
    ways = [LOADS if getattr(spec, name) == AUTO else (getattr(spec, name),) for name in ("a_load", "b_load")]
    for a, b in sorted(
        itertools.product(*ways), key=lambda x: sum(map(LOADS.index, x)) if set(x) <= set(LOADS) else 0
    ):
        yield {"a_load": a, "b_load": b}


def _config(made: KernelPlan, form: str, indexed: bool) -> KernelConfig:
    """The kernel of a plan as one of groups.

    Raises:
        PlanError: it cannot be one.
    """
    step = made.multiply
    if step is None or not isinstance(step.config, KernelConfig):
        raise PlanError("groups are multiplied by tensor-core kernels only, of fp16, bf16, fp8 or tf32")
    if not all(isinstance(x, Multiply | Finish) for x in made.steps):
        raise PlanError("groups take one launch, and the operands need copies first")
    found = step.config
    swapped = step.factors == ("b", "a")
    axis = "k" if form == "depth" else PACKED.get(form, PACKED["rows"])[int(swapped)]
    changed: dict[str, Any] = {"serpentine": False, "early": (), "grouped": axis, "masked": form == "masked"}
    # a group may have more rows than the average
    changed["operands"] = tuple(
        dataclasses.replace(x, box_rows=0, indexed=indexed and x.axes[0] == axis) for x in found.operands
    )
    if form != "depth":
        changed["inputs"] = tuple(dataclasses.replace(x, load="direct") for x in found.inputs)
        changed["input_stages"] = 1
    return KernelConfig.of(dataclasses.replace(found.draft, **changed))


__all__ = ["FORMS", "INDEXED_LOAD", "PACKED", "Ends", "plan_groups"]
