# SPDX-License-Identifier: Apache-2.0
"""The tensor-core kernel of a candidate: everything that follows from it. Each rule is one function.

The raster takes D's tiles in panels. A serpentine one turns back along K from wave to wave, and along a panel from one
to the next: clusters that work beside each other load the same tiles at about the same time, so what they loaded last
is in L2 when their wave ends.
"""

from __future__ import annotations

import dataclasses
import math

from cutegemm.arch.instructions import instruction
from cutegemm.config import KernelConfig, KernelDraft, OperandConfig
from cutegemm.config.invariants import KIND, TILE, check
from cutegemm.config.invariants.tiles import legal_swizzles
from cutegemm.config.numbers import Number
from cutegemm.errors import PlanError, field_error
from cutegemm.families import of_schedule
from cutegemm.layouts.hardware import CORE_ROWS
from cutegemm.planning import epilogue_plan as plan_epilogue
from cutegemm.planning.candidates import Candidate, promotion
from cutegemm.planning.ways import Setting
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, GemmSpec

# rows of D up to which a box has no more than there are: beyond, they cost little beside the tile's columns
BOX_ROWS = 64
# stages that K must fill more than once, where a spec does not say how many a ring has
RING_STAGES = 8


def box_rows(
    extents: tuple[Number, Number],
    k_major: Number,
    tile: Number,
    sharers: Number,
    depth: Number,
    ring: int = RING_STAGES,
) -> Number:
    """Rows of the box of A for a tile of `tile` rows; 0 is all of the tile's.

    All of a tile that is contiguous along its rows. And where K fills a ring but once: there zeroing the rest costs
    what it saves, and one kernel serves every M.

    Args:
        extents: M and K.
        sharers: CTAs that each load a part of the tile, which is then whole.
        depth: of a stage, times the parts of K.
        ring: its stages.
    """
    m, k = extents
    there = round_up(m, CORE_ROWS)
    pays = k_major & (there <= BOX_ROWS) & (there < tile) & (sharers == 1) & (k > ring * depth)
    return there * pays


# clusters across a panel of the raster, and of wide tiles of pingpong kernels
PANEL = 8
TURNS_PANEL = 4
# columns of a tile, and rows of a cluster's, that make it wide
WIDE = 160
PAIR_ROWS = 256
# K up to which panels of kernels without a producer lie along N: their CTAs ask for the same lines of L2 at once, which
# other SMs then share; longer mainloops drift apart
SHORT_K = 2048


def raster_for(problem: Problem, found: Candidate) -> tuple[str, int]:
    """Panels along M of as many clusters as share most of L2's bytes among a wave: of fewer where tiles are wide.

    The cost model does not rank rasters.
    """
    if found.schedule == "multistage" and problem.k <= SHORT_K and problem.batch == 1:
        return "n", max(1, min(PANEL, math.ceil(problem.n / found.tile[1])))
    rows = found.tile[0] * found.cluster[0]
    wide = found.tile[1] >= WIDE and rows >= PAIR_ROWS
    panel = TURNS_PANEL if wide and found.schedule == "pingpong" else PANEL
    return "m", max(1, min(panel, math.ceil(problem.m / rows)))


# of L2: an operand that takes less stays there while the other streams by
SHARE = 0.25


def turns_back(setting: Setting, candidate: Candidate) -> bool:
    """Whether a candidate's raster is serpentine, where L2 does not hold both operands and there is more than one wave.

    Not under `batch_invariant`: the order in which k tiles are added would depend on a row's place.
    """
    spec, problem = setting.spec, setting.problem
    steady = spec.scheduler not in ("stream_k", "dynamic") and candidate.splits == 1
    loads = not setting.loads.gathers and of_schedule(candidate.schedule).roles.producers > 0
    tiles = candidate.tiles(problem)
    sizes = (problem.a.bytes, problem.b.bytes)
    large = sum(sizes) > setting.l2_bytes and min(sizes) > SHARE * setting.l2_bytes and tiles > setting.sms
    return steady and loads and large and spec.batch_invariant is not True


# bytes of a launch up to which it lets the next one start by itself
SHORT_BYTES = 16 << 20
# the same for one that leaves no pair of SMs free
FULL_BYTES = 256 << 20
FULL = 0.95
# shares of the SMs between which two grids neither fit side by side nor follow each other on the same SMs
UNEVEN = (0.5, 0.8)


def configured(setting: Setting, candidate: Candidate) -> KernelConfig:
    """The kernel of one candidate.

    Raises:
        PlanError: the candidate, or a given field beside it, cannot be.
    """
    spec = setting.spec
    draft = drafted(
        setting,
        candidate,
        raster=raster(setting, candidate)[0],
        serpentine=turns_back(setting, candidate),
        trigger=trigger(spec, setting.problem, candidate, setting.sms),
        early=_early(setting, candidate),
        read_once=_read_once(setting, candidate),
    )
    if draft.cluster_splits > 1:
        draft = plan_epilogue.sliced(draft, draft.cluster_splits)
    try:
        made = KernelConfig.of(plan_epilogue.with_buffers(spec, draft))
    except (PlanError, ArithmeticError):
        # what no buffers can fix comes before what they cannot
        check(draft, TILE)
        _check_problem(setting, candidate)
        raise
    _check_problem(setting, candidate)
    return made


def _check_problem(setting: Setting, candidate: Candidate) -> None:
    """What is given besides the kernel allows it, and so does the problem."""
    _check_left(setting, candidate)
    _check_splits(setting, candidate)


def drafted(
    setting: Setting,
    candidate: Candidate,
    *,
    raster: str = "m",
    serpentine: bool = False,
    trigger: str = "never",
    early: tuple[str, ...] = (),
    read_once: tuple[str, ...] = (),
) -> KernelDraft:
    """A candidate's kernel with one buffer of everything, for invariants to judge.

    Args:
        raster, serpentine, trigger, early: as `KernelDraft`'s; read_once: operands whose lines L2 gives up first.
    """
    spec, (tile, cluster, schedule, consumers, *_) = setting.spec, candidate
    a, b = setting.loads.operands
    rows = (tile[0] // a.halves, tile[1] // b.halves)
    return KernelDraft(
        family=of_schedule(schedule).name,
        operands=(
            dataclasses.replace(
                a, swizzle=_swizzle(spec, a, rows[0], tile[2]), box_rows=_box_rows(setting, candidate, a)
            ),
            dataclasses.replace(b, swizzle=_swizzle(spec, b, rows[1], tile[2])),
        ),
        inputs=setting.inputs,
        outputs=setting.outputs,
        device_scalars=setting.problem.device_scalars,
        limits=setting.limits,
        tile=tile,
        cluster=cluster,
        stages=1,
        consumers=consumers,
        pingpong=candidate.pingpong,
        epi_n=plan_epilogue.subtile_columns(rows[1], setting.outputs, setting.inputs),
        epilogue_stages=1,
        input_stages=1,
        persistent=spec.scheduler != "per_tile",
        raster=raster,
        serpentine=serpentine,
        ctas_per_sm=spec.ctas_per_sm if isinstance(spec.ctas_per_sm, int) else 1,
        trigger=trigger,
        early=early,
        evict_first=_hinted(spec, "evict_first") or read_once,
        evict_last=_hinted(spec, "evict_last"),
        splits=candidate.splits,
        streamed=spec.scheduler == "stream_k",
        dynamic=spec.scheduler == "dynamic",
        split_reduction="workspace" if spec.scheduler == "stream_k" else candidate.reduction,
        cluster_splits=candidate.depth,
        promote=promotion(spec, a.dtype, b.dtype, setting.epilogue),
        epilogue=setting.epilogue,
    )


def raster(setting: Setting, candidate: Candidate) -> tuple[str, int]:
    """The given raster, or the model's."""
    given = setting.spec.raster
    if isinstance(given, tuple):
        return given
    return raster_for(setting.problem, candidate)


def _box_rows(setting: Setting, candidate: Candidate, a: OperandConfig) -> int:
    """Rows that TMA loads of A's tile where the matrix has fewer (`box_rows`); 0 is all.

    All of a gated pair's, whose halves lie side by side.
    """
    spec, depth = setting.spec, candidate.tile[2] * candidate.splits
    extents = setting.problem.m, setting.problem.k
    ring = spec.stages if isinstance(spec.stages, int) else RING_STAGES
    if a.load != "tma" or not a.k_major or a.halves == 2:
        return 0
    found: int = box_rows(extents, a.k_major, candidate.tile[0], candidate.cluster[1], depth, ring)
    return found


def trigger(spec: GemmSpec, problem: Problem, candidate: Candidate, sms: int) -> str:
    """When a kernel lets the next launch start: as given, else where it was measured to pay.

    A launch of few bytes gains what its end and the next one's beginning share, and so does one that fills all SMs. A
    long one that does not loses: the next grid's CTAs take the SMs that are free, two to a TPC, and stream at half its
    port's rate. With a constant operand the next grid's first stages are worth that where both grids fit the SMs side
    by side, or where the second takes the SMs of the first one by one.
    """
    if spec.trigger != AUTO:
        return spec.trigger
    if candidate.reduction == "launch":
        # the next launch is short and has its set-up done when this one ends
        return "loads"
    fill = candidate.tiles(problem) * candidate.splits / sms
    if isinstance(spec.constant, tuple):
        if UNEVEN[0] < fill < UNEVEN[1] and problem.min_bytes > SHORT_BYTES:
            return "never"
        return "start" if fill <= 1 else "loads"
    short = problem.min_bytes <= (FULL_BYTES if fill >= FULL else SHORT_BYTES)
    return "loads" if short or fill >= 1 else "never"


def _early(setting: Setting, candidate: Candidate) -> tuple[str, ...]:
    """The constant operands that a producer warp loads before earlier launches have ended.

    Not a copy of one, which the launch before has written, and nothing beside an operand that threads gather. What a
    dynamic kernel's first work is, its counter says, with which the launch before may still count.
    """
    spec, loads = setting.spec, setting.loads
    takes_part = (
        spec.trigger != "never"
        and spec.scheduler != "dynamic"
        and candidate.schedule != "multistage"
        and not loads.gathers
    )
    if not isinstance(spec.constant, tuple) or not takes_part:
        return ()
    return tuple(
        x for x, load in zip("ab", loads.chosen, strict=True) if load == "tma" and x in spec.constant
    )


def _hinted(spec: GemmSpec, field: str) -> tuple[str, ...]:
    """The matrices that a spec gives a cache hint."""
    given = getattr(spec, field)
    return given if isinstance(given, tuple) else ()


def _read_once(setting: Setting, candidate: Candidate) -> tuple[str, ...]:
    """Operands that one row or column of tiles reads and that L2 could hardly keep: weights where D has few rows.

    L2 evicts their lines first, unless hints are given.
    """
    spec, problem, (m, n, _) = setting.spec, setting.problem, candidate.tile
    if spec.evict_first != AUTO or spec.evict_last != AUTO:
        return ()
    tiles = {"a": math.ceil(problem.n / n), "b": math.ceil(problem.m / m)}
    sizes = {"a": problem.a.bytes, "b": problem.b.bytes}
    return tuple(
        x.role
        for x in setting.loads.operands
        if x.load == "tma" and tiles[x.role] == 1 and 2 * sizes[x.role] > setting.l2_bytes
    )


def kind_of(setting: Setting, candidate: Candidate) -> KernelDraft:
    """The draft of a kind of candidate, whose tile does not matter to the invariants that it keeps.

    Raises:
        PlanError: it breaks one, and does with every tile.
    """
    draft = drafted(setting, candidate)
    check(draft, KIND)
    _check_left(setting, candidate)
    return draft


def _check_splits(setting: Setting, candidate: Candidate) -> None:
    """K has as many tiles as splits."""
    parts = candidate.splits
    if parts == 1:
        return
    spec, step = setting.spec, candidate.tile[2]
    k_tiles = -(-setting.problem.k // step)
    if parts <= k_tiles:
        return
    rule = f"K is {k_tiles} tiles of {step}; each part needs one"
    if spec.tile == AUTO and spec.batch_invariant is not True:
        # a tile may be as deep as one instruction
        least = instruction(setting.problem.a.dtype, setting.problem.b.dtype).k
        most = -(-setting.problem.k // least)
        if parts <= most:
            raise field_error(PlanError, "tile.k", step, rule, least)
        k_tiles, rule = most, f"K is {most} tiles of {least} at most; each part needs one"
    depth = spec.depth or 1
    if spec.split_k == AUTO and depth < parts:
        # a launch adds the sums of several clusters
        deepest = k_tiles // (parts // depth)
        nearest = (*candidate.cluster, deepest) if deepest > 1 else candidate.cluster
        raise field_error(PlanError, "cluster", spec.cluster, rule, nearest)
    if depth > k_tiles:
        raise field_error(PlanError, "cluster", spec.cluster, rule, candidate.cluster)
    raise field_error(PlanError, "split_k", parts, rule, k_tiles // depth * depth)


def _check_left(setting: Setting, candidate: Candidate) -> None:
    """What a kernel that leaves its sums to the next launch has no use for."""
    if candidate.reduction != "launch":
        return
    for field in ("epilogue_stages", "input_stages"):
        if getattr(setting.spec, field) != AUTO:
            rule = 'the launch that adds up the parts of split_reduction="launch" sizes its own buffers'
            raise field_error(PlanError, field, getattr(setting.spec, field), rule, AUTO)


def _swizzle(spec: GemmSpec, matrix: OperandConfig, extent: int, depth: int) -> str:
    """The given swizzle, or the widest whose row divides the tile's contiguous extent."""
    return spec.swizzle if spec.swizzle != AUTO else next(iter(legal_swizzles(matrix, extent, depth)), "none")
