# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: loads, tile, cluster, roles, store, grid. Each rule is one function."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

from cutegemm import budget, heuristics, plan_epilogue
from cutegemm import hardware as hw
from cutegemm.config import KernelConfig, MatrixConfig, OutputConfig, RelayoutConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.layouts.sm90 import SWIZZLE_SPANS
from cutegemm.plan_parts import WORKSPACE_ALIGN, check_grid, gated_half, major
from cutegemm.plan_reductions import plan_reductions
from cutegemm.plan_types import GEMM, KernelPlan, Step
from cutegemm.problem import Operand, Problem, round_up
from cutegemm.spec import AUTO, PINGPONG_CONSUMERS, TILE_N_STEP, GemmSpec, Tile

# Family -> consumer warpgroups -> most fp32 accumulators per thread that compile without spills, whatever the
# epilogue's types (measured with the DSL's ptxas: fp32 column-major D with C, which needs most registers).
MAX_ACCUMULATORS = {
    "warp_specialized": {1: 144, 2: 128, 3: 96},
    "multistage": {1: 160, 2: 160, 3: 128},
}
PINGPONG_ACCUMULATORS = {
    False: 192,
    True: 128,
}  # by whether the producer gathers, which leaves fewer registers


@dataclass(frozen=True)
class Setting:
    """What is known of a kernel before its tile: operands as the kernel sees them, epilogue, ways in and out."""

    spec: GemmSpec
    problem: Problem  # b is one half of a gated B
    epilogue: Graph
    family: str
    a: MatrixConfig
    b: MatrixConfig
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]

    @property
    def gathers(self) -> bool:
        """Whether the producer's threads load an operand."""
        return "gather" in (self.a.load, self.b.load)

    @property
    def gates(self) -> int:
        """Accumulator columns per output column."""
        return 2 if self.epilogue.gated else 1


class Shape(NamedTuple):
    """A kernel's tile and who computes it."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    pingpong: bool


def plan_tensor(spec: GemmSpec, problem: Problem, epilogue: Graph, device: hw.Device) -> KernelPlan:
    """The plan of a problem that runs on the tensor cores.

    Raises:
        PlanError: a given field contradicts the problem or does not fit.
    """
    reasons: list[str] = []
    half, gate = gated_half(problem.b, epilogue)
    seen = dataclasses.replace(problem, b=half)
    loads = {name: _load(spec, seen, name, device, reasons) for name in ("a", "b")}
    steps, workspace, views, gate = _relayouts(seen, loads, gate)
    setting = Setting(
        spec=spec,
        problem=seen,
        epilogue=epilogue,
        family="multistage" if spec.schedule == "multistage" else "warp_specialized",
        a=MatrixConfig(
            dtype=problem.a.dtype, major=major(views["a"], "m", "k"), load=_kernel_load(loads["a"])
        ),
        b=MatrixConfig(
            dtype=problem.b.dtype, major=major(views["b"], "k", "n"), load=_kernel_load(loads["b"])
        ),
        inputs=plan_epilogue.fetched(problem, epilogue, reasons),
        outputs=plan_epilogue.stored(spec, problem, epilogue, reasons),
    )
    config = _given_tile(setting) if spec.tile != AUTO else _best_tile(setting, device, reasons)
    tiles, clusters, waves = _grid(spec, problem, config, device)
    reductions = plan_reductions(config, problem, tiles, workspace)
    return KernelPlan(
        spec=spec, problem=problem, steps=(*steps, Step(GEMM, config), *reductions.steps), tiles=tiles,
        views=(views["a"], views["b"]), gate=gate, parts=reductions.parts, partials=reductions.partials,
        clusters=clusters, waves=waves, raster=_raster(setting, config.tile, config.cluster),
        smem=budget.shared_memory(config), smem_bytes=budget.smem_bytes(config), barriers=budget.barriers(config),
        accumulators=accumulators(config.tile, config.team), registers=config.registers, boxes=budget.boxes(config),
        store_conflicts=budget.store_conflicts(config), workspace_bytes=reductions.workspace_bytes,
        reasons=tuple(reasons),
    )  # fmt: skip


def _configured(setting: Setting, shape: Shape) -> KernelConfig:
    """The kernel of one shape, with everything that follows from it.

    Raises:
        PlanError: the shape, or a given field beside it, cannot be.
    """
    spec, (tile, cluster, pingpong) = setting.spec, shape
    rows_b = tile[1] // setting.gates
    consumers = _consumers(setting, shape)
    _check_multicast((tile[0], rows_b, tile[2]), cluster, (setting.a, setting.b))
    swizzle = tuple(
        _swizzle(spec, x, extent, tile[2]) for x, extent in ((setting.a, tile[0]), (setting.b, rows_b))
    )
    config = KernelConfig(
        family=setting.family, a=setting.a, b=setting.b, inputs=setting.inputs, outputs=setting.outputs,
        device_scalars=setting.problem.device_scalars, tile=tile, cluster=cluster, stages=1, swizzle=swizzle,
        consumers=consumers, pingpong=pingpong,
        epi_n=plan_epilogue.piece_columns(rows_b, setting.outputs, setting.inputs), epi_stages=1, input_stages=1,
        persistent=spec.scheduler != "per_tile", raster=_raster(setting, tile, cluster)[0],
        epilogue=setting.epilogue,
    )  # fmt: skip
    return plan_epilogue.with_buffers(spec, config)


def _raster(setting: Setting, tile: tuple[int, int, int], cluster: tuple[int, int]) -> tuple[str, int]:
    given = setting.spec.raster
    return given if given != AUTO else heuristics.raster_for(setting.problem, tile, cluster)


def _load(spec: GemmSpec, problem: Problem, name: str, device: hw.Device, reasons: list[str]) -> str:
    """How operand `name` reaches shared memory: the given way if it can, else the cheapest that can."""
    given, operand = getattr(spec, f"{name}_load"), getattr(problem, name)
    why_not = operand.tma_reason()
    if given == "tma" and why_not:
        rule = f"TMA cannot address {name.upper()}: {why_not}"
        raise field_error(PlanError, f"{name}_load", given, rule, "relayout")
    if given != AUTO:
        return given
    if why_not is None:
        return "tma"
    chosen = heuristics.cheaper_load(problem, name, device)
    if spec.schedule == "multistage" or spec.cluster not in (AUTO, (1, 1)):
        chosen = "relayout"  # neither leaves room for a gathering producer
    how = (
        "copied into aligned workspace first"
        if chosen == "relayout"
        else "gathered by the producer's threads"
    )
    reasons.append(f"{name.upper()} is {how}: {why_not}")
    return chosen


def _kernel_load(load: str) -> str:
    return "gather" if load == "gather" else "tma"


def _relayouts(
    problem: Problem, loads: dict[str, str], gate: int | None
) -> tuple[list[Step], int, dict[str, Operand], int | None]:
    """The re-layout launches, the workspace they fill, and the operands and gate as the GEMM kernel sees them."""
    steps, offset = [], 0
    views = {"a": problem.a, "b": problem.b}
    for name, load in loads.items():
        if load != "relayout":
            continue
        source = views[name]
        unit = "col" if source.unit_col else "row" if source.unit_row else "none"
        target, size = _aligned_copy(source, unit)
        views[name] = target
        halves = (0,) if name == "a" or gate is None else (0, gate)
        for half in halves:
            config = RelayoutConfig(dtype=source.dtype, unit=unit)
            start = half * source.dtype.bytes
            steps.append(
                Step(f"relayout {name}", config, name, source, target, source_offset=start, offset=offset)
            )
            offset += round_up(size, WORKSPACE_ALIGN)
        if len(halves) == 2:
            gate = round_up(size, WORKSPACE_ALIGN) // source.dtype.bytes
    return steps, offset, views, gate


def _aligned_copy(source: Operand, unit: str) -> tuple[Operand, int]:
    """A matrix like `source` that TMA can address, contiguous along the same axis, and its bytes."""
    step = hw.TMA_ALIGN // source.dtype.bytes
    if unit == "row":
        leading = round_up(source.rows, step)
        strides, size = (1, leading), leading * source.cols
    else:
        leading = round_up(source.cols, step)
        strides, size = (leading, 1), leading * source.rows
    target = dataclasses.replace(source, strides=(*strides, size), align=hw.TMA_ALIGN)
    return target, size * source.batch * source.dtype.bytes


def _given_tile(setting: Setting) -> KernelConfig:
    """The kernel of the spec's tile."""
    spec, step = setting.spec, TILE_N_STEP * setting.gates
    _check_gathered_cluster(setting)
    tile = tuple(spec.tile)
    if tile[1] % step:
        rule = f"each half of a gated tile must be a multiple of {TILE_N_STEP} columns"
        raise field_error(PlanError, "tile.n", tile[1], rule, round_up(tile[1], step))
    cluster = spec.cluster if spec.cluster != AUTO else (1, 1)
    return _configured(setting, Shape(tile, cluster, spec.schedule == "pingpong"))


def _best_tile(setting: Setting, device: hw.Device, reasons: list[str]) -> KernelConfig:
    """The kernel of the first tile, as the model ranks them, that serves every given field."""
    spec = setting.spec
    _check_gathered_cluster(setting)
    first = None  # why the fastest candidate does not serve
    for choice in heuristics.rank_tiles(setting.problem, device, setting.gates):
        cluster = choice.cluster if spec.cluster == AUTO else spec.cluster
        shape = Shape(choice.tile, cluster, choice.pingpong)
        if not _serves(setting, shape):
            continue
        try:
            config = _configured(setting, shape)
        except PlanError as error:
            first = first or _about_given(error)
            continue
        if config.stages < 2 and spec.stages == AUTO:
            continue  # load and multiply would alternate
        how = ", pingpong" if choice.pingpong else ""
        reasons.append(
            f"tile {choice.tile}, cluster {cluster}{how}: the model's fastest, {choice.ns / 1e3:,.1f} us"
        )
        return config
    raise _no_candidate(setting, first)


def _check_gathered_cluster(setting: Setting) -> None:
    cluster = setting.spec.cluster
    if cluster not in (AUTO, (1, 1)) and setting.gathers:
        rule = "a gathered operand cannot be multicast"
        raise field_error(PlanError, "cluster", cluster, rule, (1, 1))


def _serves(setting: Setting, shape: Shape) -> bool:
    """Whether the planner may choose a shape beside the given fields."""
    spec = setting.spec
    if shape.cluster != (1, 1) and (setting.family == "multistage" or setting.gathers):
        return False
    if shape.pingpong:
        free = spec.consumers in (AUTO, PINGPONG_CONSUMERS) and spec.scheduler != "per_tile"
        return spec.schedule == "pingpong" or (spec.schedule == AUTO and free and not setting.gathers)
    whole = spec.consumers == AUTO or shape.tile[0] % (hw.WGMMA_M * spec.consumers) == 0
    return spec.schedule != "pingpong" and whole


def _about_given(error: PlanError) -> PlanError | None:
    """The error, if it is about a field that may have been given: the tile was not."""
    return None if str(error).startswith("tile") else error


def _no_candidate(setting: Setting, first: PlanError | None) -> PlanError:
    """No tile the planner ranks serves the given fields: name one that does, or what hinders the first."""
    spec = setting.spec
    consumers = 1 if spec.consumers == AUTO or spec.schedule == "pingpong" else spec.consumers
    cluster = spec.cluster if spec.cluster != AUTO else (1, 1)
    for k in (64, 48, 32, 16):
        for n in (x for x in heuristics.WIDTHS if x % (TILE_N_STEP * setting.gates) == 0):
            tile = (hw.WGMMA_M * consumers, n, k)
            try:
                _configured(setting, Shape(tile, cluster, spec.schedule == "pingpong"))
            except PlanError as error:
                first = first or _about_given(error)
                continue
            rule = "no tile that the planner chooses by itself serves the other given fields"
            return field_error(PlanError, "tile", AUTO, rule, Tile(*tile))
    return first or field_error(PlanError, "tile", AUTO, "no tile serves the other given fields")


def _check_multicast(
    tile: tuple[int, int, int], cluster: tuple[int, int], operands: tuple[MatrixConfig, MatrixConfig]
) -> None:
    """Each CTA's share of a multicast tile must be whole 8-row groups of the swizzle (`budget.boxes`)."""
    for matrix, rows, peers, name in zip(operands, tile, reversed(cluster), "AB"):
        shared = tile[2] if matrix.major in ("m", "n") else rows
        if matrix.load == "tma" and shared % (8 * peers):
            rule = (
                f"{peers} CTAs share {shared} lines of {name}'s tile, which must be a multiple of {8 * peers}"
            )
            raise field_error(PlanError, "cluster", cluster, rule, (1, 1))


def _consumers(setting: Setting, shape: Shape) -> int:
    """Warpgroups that compute; refuses accumulators that do not fit their registers."""
    spec, tile = setting.spec, shape.tile
    blocks = tile[0] // hw.WGMMA_M
    if shape.pingpong:
        chosen, team, most = PINGPONG_CONSUMERS, 1, PINGPONG_ACCUMULATORS[setting.gathers]
    else:
        fitting = next((c for c in (2, 3, 1) if blocks % c == 0), 1)
        chosen = team = fitting if spec.consumers == AUTO else spec.consumers
        most = MAX_ACCUMULATORS[setting.family][chosen]
    held = accumulators(tile, team)
    if held > most:
        who = (
            "a warpgroup of a pingpong kernel holds"
            if shape.pingpong
            else f"{chosen} consumer warpgroups hold"
        )
        rule = f"{who} {held} accumulators per thread, more than {most}"
        step = TILE_N_STEP * setting.gates
        columns = most * 2 * team // blocks // step * step
        if columns == 0:
            rows = most * 2 * team // tile[1] // team * hw.WGMMA_M * team
            raise field_error(PlanError, "tile.m", tile[0], rule, max(rows, hw.WGMMA_M * team))
        raise field_error(PlanError, "tile.n", tile[1], rule, columns)
    return chosen


def accumulators(tile: tuple[int, int, int], consumers: int) -> int:
    """fp32 registers per thread: its warpgroup's share of BLK_M x BLK_N."""
    return tile[0] * tile[1] // (consumers * hw.WARPGROUP)


def _swizzle(spec: GemmSpec, matrix: MatrixConfig, extent: int, depth: int) -> str:
    """The widest swizzle whose row divides the tile's contiguous extent, or the given one if it does."""
    contiguous = (depth if matrix.major not in ("m", "n") else extent) * matrix.dtype.bytes
    legal = [name for name, span in reversed(SWIZZLE_SPANS.items()) if contiguous % span == 0]
    if spec.swizzle == AUTO:
        return legal[0]
    if spec.swizzle not in legal:
        rule = f"the tile is contiguous over {contiguous} bytes, no multiple of {SWIZZLE_SPANS[spec.swizzle]}"
        raise field_error(PlanError, "swizzle", spec.swizzle, rule, legal[0])
    return spec.swizzle


def _grid(spec: GemmSpec, problem: Problem, config: KernelConfig, device: hw.Device):
    """Tiles, clusters to launch and waves."""
    cluster_m, cluster_n = config.cluster
    across_m = math.ceil(problem.m / (config.tile[0] * cluster_m))
    across_n = math.ceil(problem.n / (config.tile[1] * cluster_n))
    count = across_m * across_n * problem.batch
    if spec.sms != AUTO and not config.persistent:
        raise field_error(PlanError, "sms", spec.sms, 'an SM limit needs scheduler="persistent"', AUTO)
    resident = device.resident_clusters(config.cluster_size)
    if spec.sms != AUTO:
        if spec.sms < config.cluster_size:
            rule = f"a cluster occupies {config.cluster_size} SMs"
            raise field_error(PlanError, "sms", spec.sms, rule, config.cluster_size)
        resident = min(resident, spec.sms // config.cluster_size)
    clusters = min(count, resident) if config.persistent else count
    check_grid(clusters * config.cluster_size)
    tiles = (across_m * cluster_m, across_n * cluster_n, problem.batch)
    return tiles, clusters, count / resident
