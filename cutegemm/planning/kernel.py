# SPDX-License-Identifier: Apache-2.0
"""The tensor-core kernel of a candidate: everything that follows from it. Each rule is one function."""

from __future__ import annotations

import dataclasses
import math

from cutegemm.config import WIDEST_OF_FOUR, KernelConfig, MatrixConfig, OperandConfig, OutputConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.families import of_schedule
from cutegemm.layouts.sm90 import SWIZZLE_SPANS
from cutegemm.planning import boxes
from cutegemm.planning import epilogue as plan_epilogue
from cutegemm.planning.accumulators import (
    check_accumulators,
    ctas_per_sm,
    most_accumulators,
    split_reduction,
)
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.model import raster_for
from cutegemm.planning.serpentine import turns_back
from cutegemm.planning.setting import Setting
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, THREAD_LOADS, TILE_K_STEP, TILE_N_STEP, GemmSpec

# bytes of a launch up to which it lets the next one start by itself
SHORT_BYTES = 16 << 20
# the same for one that leaves no pair of SMs free: 168 MB take 40.3 us for 40.6 at 1 x 10240 x 8192, 470 MB half a
# percent longer at 1 x 8192 x 28672 (H200)
FULL_BYTES = 256 << 20
FULL = 0.95
# shares of the SMs between which two grids neither fit side by side nor follow each other on the same SMs
UNEVEN = (0.5, 0.8)


def configured(setting: Setting, candidate: Candidate) -> KernelConfig:
    """The kernel of one candidate.

    Raises:
        PlanError: the candidate, or a given field beside it, cannot be.
    """
    spec, (tile, cluster, schedule, consumers, *_) = setting.spec, candidate
    _check_gated_tile(setting, candidate)
    _check_gathered_cluster(setting, cluster)
    _check_producer(setting, candidate)
    check_accumulators(setting, candidate)
    _check_splits(setting, candidate)
    a, b = setting.loads.operands
    rows = (tile[0] // a.halves, tile[1] // b.halves)
    _check_multicast((*rows, tile[2]), cluster, (a, b))
    config = KernelConfig(
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
        epi_n=plan_epilogue.piece_columns(rows[1], setting.outputs, setting.inputs),
        epilogue_stages=1,
        input_stages=1,
        persistent=spec.scheduler != "per_tile",
        raster=raster(setting, candidate)[0],
        serpentine=turns_back(setting, candidate),
        ctas_per_sm=ctas_per_sm(spec),
        trigger=trigger(spec, setting.problem, candidate, setting.sms),
        early=_early(setting, candidate),
        evict_first=_hinted(setting, "evict_first") or _read_once(setting, candidate),
        evict_last=_hinted(setting, "evict_last"),
        splits=candidate.splits,
        streamed=_streamed(setting, candidate),
        dynamic=_dynamic(setting, candidate),
        split_reduction=split_reduction(setting, candidate),
        cluster_parts=candidate.depth,
        epilogue=setting.epilogue,
    )
    if config.cluster_parts > 1:
        config = plan_epilogue.sliced(config, config.cluster_parts)
    _check_halves(config)
    _check_pieces(config)
    return plan_epilogue.with_buffers(spec, config)


def raster(setting: Setting, candidate: Candidate) -> tuple[str, int]:
    """The given walk over the tiles, or the model's."""
    given = setting.spec.raster
    if isinstance(given, tuple):
        return given
    return raster_for(setting.problem, candidate)


def _check_gated_tile(setting: Setting, candidate: Candidate) -> None:
    """Each half of a gated tile is made of whole instructions."""
    tile, (a, b) = candidate.tile, setting.loads.operands
    step = TILE_N_STEP * b.halves
    if tile[1] % step:
        rule = f"each half of a gated tile must be a multiple of {TILE_N_STEP} columns"
        raise field_error(PlanError, "tile.n", tile[1], rule, round_up(tile[1], step))
    step = setting.limits.mma_m * candidate.team * a.halves
    if a.halves == 2 and tile[0] % step:
        rule = f"{candidate.team} warpgroups take a multiple of {step} rows of a gated tile"
        raise field_error(PlanError, "tile.m", tile[0], rule, round_up(tile[0], step))


def _box_rows(setting: Setting, candidate: Candidate, a: OperandConfig) -> int:
    """Rows that TMA loads of A's tile where the matrix has fewer (`boxes`); 0 is all.

    All of a gated pair's, whose halves lie side by side.
    """
    spec, depth = setting.spec, candidate.tile[2] * candidate.splits
    ring = spec.stages if isinstance(spec.stages, int) else boxes.RING_STAGES
    if a.load != "tma" or not a.k_major or a.halves == 2:
        return 0
    return boxes.box_rows(setting.problem, candidate.tile[0], candidate.cluster[1], depth, ring)


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


def _hinted(setting: Setting, field: str) -> tuple[str, ...]:
    """The matrices that TMA moves with a hint, which only TMA gives."""
    given: tuple[str, ...] | str = getattr(setting.spec, field)
    if not isinstance(given, tuple):
        return ()
    ways = {x.role: x.load == "tma" for x in setting.loads.operands}
    ways["d"] = all(x.store == "tma" for x in setting.outputs)
    without = [name for name in given if not ways[name]]
    if without:
        left = tuple(name for name in given if ways[name]) or AUTO
        raise field_error(PlanError, field, given, f"TMA does not move {' and '.join(without)}", left)
    return given


def _read_once(setting: Setting, candidate: Candidate) -> tuple[str, ...]:
    """Operands that one row or column of tiles reads and that L2 could hardly keep: weights where D has few rows.

    Their lines go first, unless hints are given: 0.2 to 2.3 % at decode (H200).
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


def _streamed(setting: Setting, candidate: Candidate) -> bool:
    if setting.spec.scheduler != "stream_k":
        return False
    if candidate.schedule != "cooperative":
        rule = 'parts of K are added by the consumers of schedule="cooperative"'
        raise field_error(PlanError, "scheduler", "stream_k", rule, "persistent")
    return True


def _dynamic(setting: Setting, candidate: Candidate) -> bool:
    if setting.spec.scheduler != "dynamic":
        return False
    if not of_schedule(candidate.schedule).roles.producers:
        rule = 'works are taken by the producer warp of schedule="cooperative" or "pingpong"'
        raise field_error(PlanError, "scheduler", "dynamic", rule, "persistent")
    if setting.loads.gathers:
        rule = "works are taken by a producer warp that loads by TMA, not by threads that load A or B"
        raise field_error(PlanError, "scheduler", "dynamic", rule, "persistent")
    return True


def check_kind(setting: Setting, candidate: Candidate) -> None:
    """The rules for which a candidate's tile does not matter: what breaks one of them serves with no tile.

    Raises:
        PlanError: one is broken.
    """
    _check_gathered_cluster(setting, candidate.cluster)
    _check_producer(setting, candidate)
    most_accumulators(setting, candidate)
    _check_meeting(setting, candidate)
    for field in ("evict_first", "evict_last"):
        _hinted(setting, field)
    _streamed(setting, candidate)
    _dynamic(setting, candidate)


def _check_meeting(setting: Setting, candidate: Candidate) -> None:
    """A cluster holds as many parts of K as it adds up, and there is who adds them."""
    parts, limits = candidate.splits, setting.limits
    if parts == 1:
        return
    if candidate.schedule != "cooperative":
        rule = 'parts of K are added by the consumers of schedule="cooperative"'
        raise field_error(PlanError, "split_k", parts, rule, 1)
    plane = candidate.cluster[0] * candidate.cluster[1]
    if plane * candidate.depth > limits.max_cluster:
        rule = f"a cluster has at most {limits.max_cluster} CTAs, {plane} of them along M and N"
        raise field_error(PlanError, "split_k", parts, rule, limits.max_cluster // plane)
    if candidate.reduction == "launch" and parts == candidate.depth:
        rule = f"a cluster adds up all {parts} splits and leaves the launch nothing to add"
        raise field_error(PlanError, "split_k", parts, rule, 2 * parts)
    _check_left(setting, candidate)


def _check_splits(setting: Setting, candidate: Candidate) -> None:
    """K holds as many parts as it is cut into, and they can be added up."""
    parts = candidate.splits
    if parts == 1:
        return
    _check_meeting(setting, candidate)
    spec, step = setting.spec, candidate.tile[2]
    k_tiles = -(-setting.problem.k // step)
    if parts <= k_tiles:
        return
    rule = f"K is {k_tiles} tiles of {step}; each part needs one"
    if spec.tile == AUTO and spec.batch_invariant is not True:
        # a tile may be as deep as one instruction
        most = -(-setting.problem.k // TILE_K_STEP)
        if parts <= most:
            raise field_error(PlanError, "tile.k", step, rule, TILE_K_STEP)
        k_tiles, rule = most, f"K is {most} tiles of {TILE_K_STEP} at most; each part needs one"
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


def _check_pieces(config: KernelConfig) -> None:
    """A row of a piece in shared memory is whole 16-byte chunks, as stmatrix, TMA and the swizzles want it."""
    staged: list[MatrixConfig | OutputConfig] = [x for x in config.outputs if x.store != "direct"]
    for matrix in (*staged, *(x for x in config.inputs if x.load == "tma")):
        if matrix.major != "m" and config.epi_n * matrix.dtype.bytes % plan_epilogue.CHUNK_BYTES:
            step = config.b.halves * plan_epilogue.CHUNK_BYTES // matrix.dtype.bytes
            whole = f"must be a multiple of {plan_epilogue.CHUNK_BYTES} bytes"
            rule = f"a row of a staged {matrix.dtype.value} tile {whole}"
            raise field_error(PlanError, "tile.n", config.tile[1], rule, round_up(config.tile[1], step))


def _check_gathered_cluster(setting: Setting, cluster: tuple[int, int]) -> None:
    if cluster != (1, 1) and setting.loads.gathers:
        rule = "an operand that threads load cannot be multicast"
        raise field_error(PlanError, "cluster", cluster, rule, (1, 1))


def _check_producer(setting: Setting, candidate: Candidate) -> None:
    """Loads by threads need a producer warpgroup."""
    if of_schedule(candidate.schedule).roles.producers:
        return
    for role, load in zip("ab", setting.loads.chosen, strict=True):
        if load in THREAD_LOADS:
            rule = 'threads that load are the producer warpgroup of schedule="cooperative"'
            raise field_error(PlanError, f"{role}_load", load, rule, "relayout")


def _check_multicast(
    tile: tuple[int, int, int], cluster: tuple[int, int], operands: tuple[OperandConfig, OperandConfig]
) -> None:
    """Each CTA's share of a multicast tile must be whole 8-row groups of the swizzle (`budget.boxes`)."""
    for matrix, rows, peers, name in zip(operands, tile, reversed(cluster), "AB"):
        shared = rows if matrix.k_major else tile[2]
        if matrix.load == "tma" and shared % (8 * peers):
            whole = f"must be a multiple of {8 * peers}"
            rule = f"{peers} CTAs share {shared} lines of {name}'s tile, which {whole}"
            raise field_error(PlanError, "cluster", cluster, rule, (1, 1))


def _check_halves(config: KernelConfig) -> None:
    """Where a wgmma takes half of a tile's columns, a half is whole rows of every swizzle."""
    columns, widest = config.tile[1], config.limits.mma_max_n
    if config.mma_columns < columns < widest:
        rule = f"three consumer warpgroups take up to {WIDEST_OF_FOUR} columns, or {widest} in two halves"
        raise field_error(PlanError, "tile.n", columns, rule, WIDEST_OF_FOUR)


def _swizzle(spec: GemmSpec, matrix: OperandConfig, extent: int, depth: int) -> str:
    """The widest swizzle whose row divides the tile's contiguous extent, or the given one if it does."""
    contiguous, legal = swizzles(matrix, extent, depth)
    if spec.swizzle == AUTO:
        return legal[0]
    if spec.swizzle not in legal:
        rule = f"the tile is contiguous over {contiguous} bytes, no multiple of {SWIZZLE_SPANS[spec.swizzle]}"
        raise field_error(PlanError, "swizzle", spec.swizzle, rule, legal[0])
    return spec.swizzle


def swizzles(matrix: OperandConfig, extent: int, depth: int) -> tuple[int, list[str]]:
    """The bytes over which a tile is contiguous, and the swizzles that divide them, widest first."""
    contiguous = (depth if matrix.k_major else extent) * matrix.dtype.bytes
    return contiguous, [name for name, span in reversed(SWIZZLE_SPANS.items()) if contiguous % span == 0]
