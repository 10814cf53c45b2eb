# SPDX-License-Identifier: Apache-2.0
"""The tensor-core kernel of a candidate: all fields that follow from it. Each rule is one function.

Tiles of D are rasterized in panels. A serpentine raster reverses K from wave to wave, and the direction from panel to
panel: when the next wave begins, L2 holds what neighbouring clusters loaded last.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cutegemm.arch.device import Device, Thresholds
from cutegemm.arch.instructions import instruction
from cutegemm.config import KernelConfig, KernelDraft, OperandConfig
from cutegemm.config.invariants import TILE, check
from cutegemm.config.numbers import Number, round_up, where
from cutegemm.errors import PlanError, field_error
from cutegemm.families import of_schedule
from cutegemm.layouts.hardware import CORE_ROWS, SWIZZLE_SPANS
from cutegemm.planning import epilogue_plan as plan_epilogue
from cutegemm.planning.candidates import Candidate, fewest_splits, given
from cutegemm.planning.seen import FEW_STAGES
from cutegemm.planning.ways import Kind, Way, only_depth
from cutegemm.plans import gpcs, subtiles
from cutegemm.problems import Problem
from cutegemm.request.operand_rules import displaces
from cutegemm.spec import AUTO, GemmSpec

# rows of D up to which a box is no higher than D; more rows cost little beside the tile's columns
BOX_ROWS = 64


def box_rows(
    extents: tuple[Number, Number],
    k_major: Number,
    tile: Number,
    sharers: Number,
    depth: Number,
    ring: int = FEW_STAGES,
) -> Number:
    """Rows of the box of A for a tile of `tile` rows; 0 is all of the tile's.

    It is 0 for an MN-major A. It is also 0 if K fills the pipeline only once: zeroing the other rows would cost what it
    saves, and one kernel serves every M.

    Args:
        extents: M and K.
        sharers: CTAs that need the tile; more than one need all of its rows.
        depth: of a stage, times the splits of K.
        ring: stages that K must fill more than once.
    """
    m, k = extents
    there = round_up(m, CORE_ROWS)
    pays = k_major & (there <= BOX_ROWS) & (there < tile) & (sharers == 1) & (k > ring * depth)
    return there * pays


# clusters across a panel of the raster
PANEL = 8


def raster(way: Way, found: Candidate) -> tuple[str, int]:
    """The given raster, else panels along M; the cost model does not rank rasters.

    Without clusters, and for splits by GPC, they are as high as a GPC's block of tiles. Panels of several waves have a
    fixed height if L2 does not hold both operands.
    """
    problem, device = way.problem, way.request.device
    if isinstance(way.spec.raster, tuple):
        return way.spec.raster
    m, n = found.tile[0] * found.cluster[0], found.tile[1] * found.cluster[1]
    tiles = max(1, -(-problem.m // m)), -(-problem.n // n)
    near = found.tiles(problem) <= device.sms or problem.a.bytes + problem.b.bytes <= device.l2_bytes
    if by_gpc(way, found):
        return "m", gpcs.block_height(tiles, (m, n), found.cluster, gpcs.in_one(_gpcs(way, found)))
    if found.cluster == (1, 1) and found.depth == 1 and near:
        return "m", gpcs.block_height(tiles, (m, n), found.cluster, gpcs.CTAS)
    return "m", min(PANEL, tiles[0])


def by_gpc(way: Way, x: Candidate) -> bool:
    """Whether clusters of a GPC take tiles of one split that share operands; without splits, panels let them share."""
    steady = x.splits > x.depth and not takes_numbers(way, x) and way.spec.scheduler in (AUTO, "persistent")
    return steady and given(way.spec.ctas_per_sm, 1) == 1 and bool(_gpcs(way, x))


def _gpcs(way: Way, x: Candidate) -> tuple[int, ...]:
    """GPCs of clusters in the order of a launch; none if those of as many as the GPU holds are not known."""
    device, size = way.request.device, x.cluster[0] * x.cluster[1] * x.depth
    found = device.gpcs.get(size, ())
    return found if len(found) == device.resident_clusters(size) else ()


def turns_back(way: Way, candidate: Candidate) -> bool:
    """Whether the raster is serpentine: L2 does not hold both operands, and there is more than one wave.

    Never under `batch_invariant`: the order of additions along K would depend on a row's place. Never with scales of
    blocks: if K's direction is a number in a register, the producer multiplies 64-bit numbers for each scale's address.
    """
    spec, problem, device = way.spec, way.problem, way.request.device
    steady = spec.scheduler != "stream_k" and candidate.splits == 1
    loads = not way.gathers and of_schedule(candidate.schedule).roles.producers > 0
    less, more = sorted((problem.a.bytes, problem.b.bytes))
    large = less + more > device.l2_bytes and less > device.thresholds.kept * device.l2_bytes
    waves = candidate.tiles(problem) > device.sms
    kept = spec.batch_invariant is True or bool(way.epilogue.scales)
    return steady and loads and large and waves and not kept


def drifts(problem: Problem, candidate: Candidate, device: Device) -> bool:
    """Whether CTAs that each have a list of tiles drift apart, where L2 does not hold all matrices.

    CTAs without a cluster never wait for each other. With many tiles each, the fastest are soon whole tiles ahead. Then
    L2 evicts operands before all have read them. Some device memory is also slower where CTAs write far apart.
    """
    alone = candidate.cluster == (1, 1) and candidate.splits == 1
    ahead = of_schedule(candidate.schedule).roles.producers > 0
    read = (problem.a, problem.b, *(x for _, x in problem.inputs))
    moved = (*read, *(x for _, x in problem.outputs if device.stores_drift))
    large = sum(x.bytes for x in moved) > device.l2_bytes
    many = candidate.tiles(problem) >= device.thresholds.drift_tiles * device.sms
    return alone and ahead and large and many


def takes_numbers(way: Way, candidate: Candidate) -> bool:
    """Whether CTAs take tiles from a counter: as given, or if they would drift apart.

    With a counter, CTAs compute neighbouring tiles at the same time. A launch that loads constant operands early must
    know its first tile. With scales of blocks the rates of these kernels are those of lists.
    """
    spec = way.spec
    if spec.scheduler != AUTO:
        return spec.scheduler == "dynamic"
    able = not (spec.constants or way.gathers or way.epilogue.scales)
    return able and drifts(way.problem, candidate, way.request.device)


def configured(way: Way, candidate: Candidate) -> KernelConfig:
    """The kernel of one candidate; refused where it, or a given field beside it, is not possible."""
    draft = drafted(
        way,
        candidate,
        raster=raster(way, candidate)[0],
        serpentine=turns_back(way, candidate),
        by_gpc=by_gpc(way, candidate),
        dynamic=takes_numbers(way, candidate),
        trigger=trigger(way, candidate),
        early=_early(way, candidate),
        evict_first=_evicted_first(way, candidate),
    )
    if draft.cluster_splits > 1:
        draft = subtiles.sliced(draft, draft.cluster_splits)
    often = way.problem.k > FEW_STAGES * candidate.tile[2] * candidate.splits
    try:
        made = KernelConfig.of(
            plan_epilogue.with_buffers(way.spec, draft, way.most_stages if often else FEW_STAGES)
        )
    except (PlanError, ArithmeticError):
        # refusals that do not depend on buffers come first
        check(draft, TILE)
        _check_given(way, candidate)
        raise
    _check_given(way, candidate)
    return made


def drafted(way: Way, candidate: Candidate, **more: Any) -> KernelDraft:
    """A candidate's kernel with the fewest buffers, for invariants to judge; the tile's extents may be arrays.

    Args:
        more: other fields of `KernelDraft`.
    """
    a, b = way.operands
    if a.load == "tma" and a.k_major and a.halves == 1:
        extents, depth = (way.problem.m, way.problem.k), candidate.tile[2] * candidate.splits
        ring = given(way.spec.stages, FEW_STAGES)
        rows = box_rows(extents, a.k_major, candidate.tile[0], candidate.cluster[1], depth, ring)
        a = dataclasses.replace(a, box_rows=rows)
    return outlined(way, candidate, (a, b), device_scalars=way.problem.device_scalars, **more)


def outlined(
    of: Way | Kind, candidate: Candidate, operands: tuple[OperandConfig, OperandConfig], **more: Any
) -> KernelDraft:
    """The same without what depends on the problem; also for all configs of a table at once."""
    spec, (tile, cluster, schedule, consumers, splits, depth, reduction) = of.spec, candidate
    a, b = operands
    rows, columns = tile[0] // a.halves, tile[1] // b.halves
    stored = tile[2] * instruction(a.dtype, b.dtype, spec.arithmetic).parts
    streamed = spec.scheduler == "stream_k"
    fields: dict[str, Any] = {
        "family": of_schedule(schedule).name,
        "operands": (_swizzled(spec, a, rows, stored), _swizzled(spec, b, columns, stored)),
        "inputs": of.inputs,
        "outputs": of.outputs,
        "limits": of.limits,
        "tile": tile,
        "cluster": cluster,
        "stages": 1,
        "consumers": consumers,
        "pingpong": candidate.pingpong,
        "epi_n": subtiles.subtile_columns(columns, of.outputs, of.inputs),
        "epilogue_stages": given(spec.epilogue_stages, 1),
        "input_stages": given(spec.input_stages, 1),
        "persistent": spec.scheduler != "per_tile",
        "raster": "m",
        "ctas_per_sm": given(spec.ctas_per_sm, 1),
        "evict_first": () if spec.evict_first == AUTO else spec.evict_first,
        "splits": splits,
        "streamed": streamed,
        "dynamic": spec.scheduler == "dynamic",
        "split_reduction": "workspace" if streamed else reduction,
        "cluster_splits": depth,
        "arithmetic": spec.arithmetic,
        "promote": of.promoted,
        "epilogue": of.epilogue,
    }
    return KernelDraft(**fields | more)


def _swizzled(spec: GemmSpec, operand: OperandConfig, rows: Number, depth: Number) -> OperandConfig:
    """An operand with the given swizzle, or the widest whose row divides the tile's contiguous extent."""
    if spec.swizzle != AUTO:
        return dataclasses.replace(operand, swizzle=spec.swizzle)
    contiguous, widest = (depth if operand.k_major else rows) * operand.dtype.bytes, "none"
    for name, span in SWIZZLE_SPANS.items():
        widest = where(contiguous % span == 0, name, widest)
    return dataclasses.replace(operand, swizzle=widest)


def trigger(way: Way, candidate: Candidate) -> str:
    """When a kernel lets the next launch start: as given, else where measurements show a gain.

    A launch of few bytes gains because its end overlaps the next one's prologue; so does one that fills all SMs. Others
    wait for all mainloops: else the next grid takes SMs as they become free, two per TPC or far from neighbours' tiles.
    With a constant operand early stages outweigh that, unless the launch is long or leaves SMs for a part of the next.
    """
    spec, problem = way.spec, way.problem
    if spec.trigger != AUTO:
        return spec.trigger
    known, constant = way.request.device.thresholds, spec.constants
    fill = candidate.tiles(problem) * candidate.splits / way.request.device.sms
    # two such grids neither fit side by side nor follow each other on the same SMs
    uneven = 0.5 < fill < known.in_turn and problem.min_bytes > known.early_bytes
    if constant and not uneven and problem.min_bytes <= known.early_constant:
        return "start"
    if candidate.reduction == "launch":
        return "loads"  # that launch is short, and its prologue overlaps this kernel
    shared = 0
    if candidate.cluster == (1, 1) and candidate.depth == 1 and not takes_numbers(way, candidate):
        loaded = (min(candidate.tile[0], problem.m) + min(candidate.tile[1], problem.n)) * problem.k
        shared = candidate.tiles(problem) * loaded * problem.a.dtype.bytes - problem.a.bytes - problem.b.bytes
    return "loads" if not constant and ends_early(problem.min_bytes, fill, shared, known) else "mainloop"


def ends_early(size: Number, fill: Number, shared: Number, known: Thresholds) -> Number:
    """Whether the next launch should begin early: this one moves few bytes, or its CTAs fill all SMs.

    Args:
        size: bytes of the problem's operands.
        fill: CTAs per SM.
        shared: bytes that CTAs without a cluster load again; a GPC requests some once for several CTAs.
    """
    few = size <= where(fill >= known.full, known.early_bytes_full, known.early_bytes)
    return (few | (fill >= 1)) & (shared <= known.early_shared)


def _early(way: Way, candidate: Candidate) -> tuple[str, ...]:
    """The constant operands that a producer warp loads before earlier launches have ended.

    Not a copy of one, which the launch before has written, and nothing beside an operand that threads load. A dynamic
    kernel's first tile is what its counter says, and the launch before may still count with it.
    """
    spec = way.spec
    waits = spec.trigger == "never" or spec.scheduler == "dynamic" or candidate.schedule == "multistage"
    if waits or not spec.constants or way.gathers:
        return ()
    return tuple(x for x, load in zip("ab", way.loads, strict=True) if load == "tma" and x in spec.constants)


def _evicted_first(way: Way, candidate: Candidate) -> tuple[str, ...]:
    """The matrices that L2 evicts first: as given, else large ones that TMA loads for one row or column of tiles."""
    spec, problem, (m, n, _) = way.spec, way.problem, candidate.tile
    if isinstance(spec.evict_first, tuple):
        return spec.evict_first
    once = {"a": problem.n <= n, "b": problem.m <= m}
    found = [x.role for x in way.operands if x.load == "tma" and once[x.role]]
    weights, device = "a" if way.swapped else "b", way.request.device
    return tuple([x for x in found if displaces(problem, x, device, weights=x == weights)])


def _check_given(way: Way, candidate: Candidate) -> None:
    """Refuse buffers of a kernel that stores no output, and more splits than K has tiles."""
    spec, parts, step = way.spec, candidate.splits, candidate.tile[2]
    check_reduction(spec, candidate)
    k_tiles = -(-way.problem.k // step)
    if parts <= k_tiles:
        return
    rule = f"K has {k_tiles} tile{'s' * (k_tiles != 1)} of {step}, and each split needs one"
    if spec.tile == AUTO and spec.batch_invariant is not True:
        # a tile may be as deep as one instruction
        least = only_depth(way) or way.request.instruction.k
        most = -(-way.problem.k // least)
        if parts <= most:
            raise field_error(PlanError, "tile.k", step, rule, least)
        k_tiles = most
        rule = f"K has at most {most} tile{'s' * (most != 1)} of {least}, and each split needs one"
    depth = spec.depth or 1
    if spec.split_k == AUTO or fewest_splits(spec) > k_tiles:
        # given splits must be a multiple of the cluster's
        deepest = k_tiles // (parts // depth) if spec.split_k == AUTO else 1
        nearest = (*candidate.cluster, deepest) if deepest > 1 else candidate.cluster
        raise field_error(PlanError, "cluster", spec.cluster, rule, nearest)
    raise field_error(PlanError, "split_k", parts, rule, k_tiles // depth * depth)


def check_reduction(spec: GemmSpec, candidate: Candidate) -> None:
    """Refuse buffers of a kernel that leaves its sums to the next launch."""
    if candidate.reduction != "launch":
        return
    for field in ("epilogue_stages", "input_stages"):
        if getattr(spec, field) != AUTO:
            rule = 'the launch that adds up the parts of split_reduction="launch" sizes its own buffers'
            raise field_error(PlanError, field, getattr(spec, field), rule, AUTO)
