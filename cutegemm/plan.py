# SPDX-License-Identifier: Apache-2.0
"""`plan(spec, problem)`: how a spec serves a problem. Pure Python: no GPU, no tensors, no torch, no DSL.

Chooses every "auto", works out shared memory, barriers, registers, TMA boxes, grid and waves, and refuses
what cannot be. Each constraint lives in one function here or in `spec`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from cutegemm import hardware as hw
from cutegemm import heuristics
from cutegemm.config import Config, KernelConfig, MatrixConfig, RelayoutConfig, SimtConfig, setmaxnreg
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import PlanError, field_error
from cutegemm.problem import Operand, Problem, round_up
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, TILE_N_STEP, GemmSpec, Tile

WORKSPACE_ALIGN = 256  # bytes: alignment of torch's allocations, enough for TMA
RESERVED_REGISTERS = 32  # per consumer thread beside the accumulators: addresses, loop state, epilogue
SWIZZLE_SPAN = {"128B": 128, "64B": 64, "32B": 32, "none": 16}  # bytes of one row
STAGING_BYTES = 16 * 1024  # of shared memory per consumer warpgroup for the epilogue's pieces
SIMT_TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 8))  # the first that fills the GPU is taken


@dataclass(frozen=True)
class Region:
    """A named piece of shared memory or workspace: offset and size in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Barrier:
    """A kind of barrier: how many there are, who arrives, how many arrivals complete a phase, who waits."""

    name: str
    count: int
    arrives: str
    arrivals: int
    waits: str


@dataclass(frozen=True)
class Step:
    """One launch of a run: the kernel, and for a re-layout the operand and its workspace copy."""

    name: str
    config: Config
    operand: str | None = None
    source: Operand | None = None
    target: Operand | None = None
    offset: int = 0  # of the copy in the workspace, bytes


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """How one spec serves one problem.

    Attributes:
        spec, problem: what was asked.
        steps: the launches of a run, in order; the last is the GEMM. Empty when D is empty.
        tiles: CTA tiles along (m, n, l), rounded up to whole clusters.
        clusters: clusters launched; waves: tiles over tiles in flight.
        raster: (axis, group).
        smem, smem_bytes: regions of the GEMM kernel's shared memory and their total.
        barriers: its barriers with participants and arrive counts.
        accumulators: fp32 registers per consumer thread; registers: (producer, consumer) after setmaxnreg.
        boxes: TMA boxes as (operand, (rows, depth)) in elements.
        workspace_bytes: device memory a run needs beside its operands.
        reasons: why each choice was made, one line each.
    """

    spec: GemmSpec
    problem: Problem
    steps: tuple[Step, ...]
    tiles: tuple[int, int, int] = (0, 0, 0)
    clusters: int = 0
    waves: float = 0.0
    raster: tuple[str, int] = ("m", 1)
    smem: tuple[Region, ...] = ()
    smem_bytes: int = 0
    barriers: tuple[Barrier, ...] = ()
    accumulators: int = 0
    registers: tuple[int, int] | None = None
    boxes: tuple[tuple[str, tuple[int, int]], ...] = ()
    workspace_bytes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def config(self) -> Config | None:
        """The GEMM kernel's config; None when D is empty."""
        return self.steps[-1].config if self.steps else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain, JSON-serialisable data."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["spec"] = repr(self.spec)
        data["problem"] = _plain(self.problem)
        data["steps"] = [
            {"name": s.name, "config": s.config.to_data(), "offset": s.offset} for s in self.steps
        ]
        for name in ("smem", "barriers"):
            data[name] = [dataclasses.asdict(x) for x in data[name]]
        return _plain(data)

    def __str__(self) -> str:
        from cutegemm.plan_text import describe

        return describe(self)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, DType):
        return value.value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


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
    if spec.epilogue == AUTO:
        epilogue = linear_combination(problem.c is not None)
    else:
        epilogue = spec.epilogue
        _check_epilogue(epilogue, problem)
    simt = _simt_reason(spec, problem)
    if simt is not None:
        return _plan_simt(spec, problem, epilogue, simt, device)
    return _plan_tensor(spec, problem, epilogue, device)


# ---- what the problem must be ------------------------------------------------------------------


def _check_dtypes(spec: GemmSpec, problem: Problem) -> None:
    for name in ("a", "b", "c", "d"):
        given, operand = getattr(spec, f"{name}_dtype"), getattr(problem, name)
        if operand is not None and given not in (AUTO, operand.dtype):
            rule = f"the problem's {name.upper()} is {operand.dtype.value}"
            raise field_error(PlanError, f"{name}_dtype", given, rule, operand.dtype)
    if problem.a.dtype != problem.b.dtype:
        raise field_error(PlanError, "b_dtype", problem.b.dtype, "A and B have one dtype", problem.a.dtype)


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
    unknown = set(epilogue.names("matrix")) - {"c"} | set(epilogue.names("scalar")) - {"alpha", "beta"}
    if unknown:
        rule = "an epilogue reads the matrix c and the scalars alpha and beta"
        raise field_error(PlanError, "epilogue", ", ".join(sorted(unknown)), rule)
    if ("c" in epilogue.names("matrix")) != (problem.c is not None):
        raise field_error(
            PlanError, "epilogue", str(epilogue), "c must be passed exactly if the epilogue reads it"
        )


# ---- CUDA cores --------------------------------------------------------------------------------


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


def _major(operand: Operand | None, row: str, col: str) -> str:
    """The unit-stride axis of an operand, by the names of its row and column axes."""
    if operand is None:
        return "strided"
    return col if operand.unit_col else row if operand.unit_row else "strided"


def _direct(operand: Operand | None, row: str, col: str) -> MatrixConfig | None:
    return None if operand is None else MatrixConfig(dtype=operand.dtype, major=_major(operand, row, col))


def _plan_simt(
    spec: GemmSpec, problem: Problem, epilogue: Graph, reason: str, device: hw.Device
) -> KernelPlan:
    def tiles_of(tile: tuple[int, int, int]) -> tuple[int, int, int]:
        return math.ceil(problem.m / tile[0]), math.ceil(problem.n / tile[1]), problem.batch

    tile = next((t for t in SIMT_TILES if math.prod(tiles_of(t)) >= device.sms), SIMT_TILES[-1])
    config = SimtConfig(
        a=_direct(problem.a, "m", "k"),
        b=_direct(problem.b, "k", "n"),
        c=_direct(problem.c, "m", "n"),
        d=_direct(problem.d, "m", "n"),
        tile=tile,
        epilogue=epilogue,
        vector=(vector_elements(problem.a), vector_elements(problem.b), vector_elements(problem.d, (4,))),
    )
    tiles = tiles_of(tile)
    count = math.prod(tiles)
    _check_grid(count)
    return KernelPlan(
        spec=spec,
        problem=problem,
        steps=(Step("gemm", config),),
        tiles=tiles,
        clusters=count,
        waves=count / device.sms,
        raster=("m", 8),
        accumulators=config.thread_tile[0] * config.thread_tile[1],
        reasons=(reason,),
    )


def vector_elements(x: Operand, widths: tuple[int, ...] = (4, 2)) -> int:
    """Elements per global access of a CUDA-core kernel: the first of `widths` that every line allows, or 1."""
    if not (x.unit_row or x.unit_col):
        return 1
    extent, leading = (x.cols, x.strides[0]) if x.unit_col else (x.rows, x.strides[1])
    batch = x.strides[2] if x.batch > 1 else 0
    for width in widths:
        if all(v % width == 0 for v in (extent, leading, batch)) and x.align % (width * x.dtype.bytes) == 0:
            return width
    return 1


# ---- tensor cores ------------------------------------------------------------------------------


def _plan_tensor(spec: GemmSpec, problem: Problem, epilogue: Graph, device: hw.Device) -> KernelPlan:
    reasons: list[str] = []
    family = "multistage" if spec.schedule == "multistage" else "warp_specialized"
    loads = {name: _load(spec, problem, name, reasons) for name in ("a", "b")}
    steps, workspace, views = _relayouts(problem, loads)
    tile, cluster, consumers = _tile(spec, problem, family, loads, device, reasons)
    a = MatrixConfig(dtype=problem.a.dtype, major=_major(views["a"], "m", "k"), load=_kernel_load(loads["a"]))
    b = MatrixConfig(dtype=problem.b.dtype, major=_major(views["b"], "k", "n"), load=_kernel_load(loads["b"]))
    store = _store(spec, problem, reasons)
    swizzle = tuple(_swizzle(spec, x, extent, tile[2]) for x, extent in ((a, tile[0]), (b, tile[1])))
    epi_n = heuristics.epilogue_columns(tile[1], problem.d.dtype)
    pieces = tile[0] // (hw.WGMMA_M * consumers) * (tile[1] // epi_n)
    epi_stages = _epilogue_stages(spec, pieces, hw.WGMMA_M * epi_n * problem.d.dtype.bytes, store)
    raster = spec.raster if spec.raster != AUTO else heuristics.raster_for(problem, tile, cluster)
    config = KernelConfig(
        family=family, a=a, b=b, c=_direct(problem.c, "m", "n"), d=_direct(problem.d, "m", "n"), tile=tile,
        cluster=cluster, stages=1, swizzle=swizzle, consumers=consumers, store=store, epi_n=epi_n,
        epi_stages=epi_stages, persistent=spec.scheduler != "per_tile", raster=raster[0], epilogue=epilogue,
    )  # fmt: skip
    config = dataclasses.replace(config, stages=_stages(spec, config))
    smem = shared_memory(config)
    tiles, clusters, waves = _grid(spec, problem, config, device)
    return KernelPlan(
        spec=spec, problem=problem, steps=(*steps, Step("gemm", config)), tiles=tiles, clusters=clusters,
        waves=waves, raster=raster, smem=smem, smem_bytes=smem[-1].offset + smem[-1].size,
        barriers=_barriers(config), accumulators=accumulators(tile, consumers), registers=config.registers,
        boxes=_boxes(config), workspace_bytes=workspace, reasons=tuple(reasons),
    )  # fmt: skip


def _load(spec: GemmSpec, problem: Problem, name: str, reasons: list[str]) -> str:
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
    reasons.append(f"{name.upper()} is copied into aligned workspace first: {why_not}")
    return "relayout"


def _kernel_load(load: str) -> str:
    return "gather" if load == "gather" else "tma"


def _relayouts(problem: Problem, loads: dict[str, str]) -> tuple[list[Step], int, dict[str, Operand]]:
    """The re-layout launches, the workspace they fill, and the operands as the GEMM kernel sees them."""
    steps, offset = [], 0
    views = {"a": problem.a, "b": problem.b}
    for name, load in loads.items():
        if load != "relayout":
            continue
        source = views[name]
        unit = "col" if source.unit_col else "row" if source.unit_row else "none"
        step = hw.TMA_ALIGN // source.dtype.bytes
        if unit == "row":
            leading = round_up(source.rows, step)
            strides, size = (1, leading), leading * source.cols
        else:
            leading = round_up(source.cols, step)
            strides, size = (leading, 1), leading * source.rows
        target = dataclasses.replace(source, strides=(*strides, size), align=hw.TMA_ALIGN)
        config = RelayoutConfig(dtype=source.dtype, unit=unit)
        steps.append(Step(f"relayout {name}", config, name, source, target, offset))
        views[name] = target
        offset += round_up(size * source.batch * source.dtype.bytes, WORKSPACE_ALIGN)
    return steps, offset, views


def _tile(spec: GemmSpec, problem: Problem, family: str, loads: dict[str, str], device: hw.Device,
          reasons: list[str]) -> tuple[tuple[int, int, int], tuple[int, int], int]:  # fmt: skip
    """The CTA tile, the cluster and the consumer warpgroups."""
    no_multicast = family == "multistage" or "gather" in loads.values()
    if spec.cluster not in (AUTO, (1, 1)) and "gather" in loads.values():
        rule = "a gathered operand cannot be multicast"
        raise field_error(PlanError, "cluster", spec.cluster, rule, (1, 1))
    if spec.tile != AUTO:
        tile = tuple(spec.tile)
        cluster = spec.cluster if spec.cluster != AUTO else (1, 1)
        consumers = _consumers(spec, tile, family, "gather" in loads.values())
        return tile, cluster, consumers
    for choice in heuristics.rank_tiles(problem, device):
        cluster = choice.cluster if spec.cluster == AUTO else spec.cluster
        if no_multicast and cluster != (1, 1):
            continue
        if spec.consumers != AUTO and choice.tile[0] % (hw.WGMMA_M * spec.consumers):
            continue
        try:
            consumers = _consumers(spec, choice.tile, family, "gather" in loads.values())
            _check_tile_fits(spec, problem, choice.tile)
        except PlanError:
            continue
        reasons.append(
            f"tile {choice.tile}, cluster {cluster}: the model's fastest, {choice.ns / 1e3:,.1f} us"
        )
        return choice.tile, cluster, consumers
    raise _no_candidate(spec, problem, family, "gather" in loads.values())


def _no_candidate(spec: GemmSpec, problem: Problem, family: str, gathers: bool) -> PlanError:
    """No tile the planner ranks serves the given fields: name one that does, or fewer stages."""
    consumers = 1 if spec.consumers == AUTO else spec.consumers
    for k in (64, 48, 32, 16):
        for n in heuristics.WIDTHS:
            tile = (hw.WGMMA_M * consumers, n, k)
            try:
                _consumers(spec, tile, family, gathers)
                _check_tile_fits(spec, problem, tile)
            except PlanError:
                continue
            rule = "no tile that the planner chooses by itself serves the other given fields"
            return field_error(PlanError, "tile", AUTO, rule, Tile(*tile))
    return field_error(PlanError, "stages", spec.stages, "no tile leaves room for so many", spec.stages // 2)


def _check_tile_fits(spec: GemmSpec, problem: Problem, tile: tuple[int, int, int]) -> None:
    """A given swizzle or stage count must fit the candidate."""
    extents = {
        "a": tile[2] if problem.a.unit_col else tile[0],
        "b": tile[1] if problem.b.unit_col else tile[2],
    }
    for extent in extents.values():
        if spec.swizzle != AUTO and extent * problem.a.dtype.bytes % SWIZZLE_SPAN[spec.swizzle]:
            raise field_error(PlanError, "swizzle", spec.swizzle, "does not divide the tile")
    stages = 2 if spec.stages == AUTO else spec.stages
    if stages * (tile[0] + tile[1]) * tile[2] * problem.a.dtype.bytes > hw.SMEM_BYTES - 48 * 1024:
        raise field_error(PlanError, "stages", stages, "does not fit beside the tile")


def _consumers(spec: GemmSpec, tile: tuple[int, int, int], family: str, gathers: bool) -> int:
    """Warpgroups that share the tile; refuses accumulators that do not fit their registers."""
    blocks = tile[0] // hw.WGMMA_M
    if spec.consumers != AUTO:
        chosen = spec.consumers
    else:
        chosen = next((c for c in (2, 3, 1) if blocks % c == 0), 1)
    limit = register_budget(family, chosen, gathers) - RESERVED_REGISTERS
    if accumulators(tile, chosen) > limit:
        rule = (f"{chosen} consumer warpgroups hold {accumulators(tile, chosen)} accumulators per thread, "
                f"more than {limit}")  # fmt: skip
        columns = limit * 2 * chosen // blocks // TILE_N_STEP * TILE_N_STEP
        if columns == 0:
            rows = hw.WGMMA_M * chosen
            raise field_error(
                PlanError, "tile.m", tile[0], rule, limit * 2 * chosen // tile[1] // chosen * rows
            )
        raise field_error(PlanError, "tile.n", tile[1], rule, columns)
    return chosen


def accumulators(tile: tuple[int, int, int], consumers: int) -> int:
    """fp32 registers per thread: its warpgroup's share of BLK_M x BLK_N."""
    return tile[0] * tile[1] // (consumers * hw.WARPGROUP)


def register_budget(family: str, consumers: int, gathers: bool = False) -> int:
    """Registers a consumer thread may use."""
    table = setmaxnreg(family, gathers)
    if consumers in table:
        return table[consumers][1]
    threads = (consumers + (family == "warp_specialized")) * hw.WARPGROUP
    return min(hw.MAX_REGISTERS, hw.REGISTERS_PER_SM // threads)


def _store(spec: GemmSpec, problem: Problem, reasons: list[str]) -> str:
    why_not = problem.d.tma_reason()
    if spec.store == "tma" and why_not:
        rule = f"TMA cannot address D: {why_not}"
        raise field_error(PlanError, "store", "tma", rule, "staged")
    if spec.store != AUTO:
        return spec.store
    if why_not is None:
        return "tma"
    reasons.append(f"D is stored element by element through shared memory: {why_not}")
    return "staged"


def _swizzle(spec: GemmSpec, matrix: MatrixConfig, extent: int, depth: int) -> str:
    """The widest swizzle whose row divides the tile's contiguous extent, or the given one if it does."""
    contiguous = (depth if matrix.major not in ("m", "n") else extent) * matrix.dtype.bytes
    legal = [name for name, span in SWIZZLE_SPAN.items() if contiguous % span == 0]
    if spec.swizzle == AUTO:
        return legal[0]
    if spec.swizzle not in legal:
        rule = f"the tile is contiguous over {contiguous} bytes, no multiple of {SWIZZLE_SPAN[spec.swizzle]}"
        raise field_error(PlanError, "swizzle", spec.swizzle, rule, legal[0])
    return spec.swizzle


def _epilogue_stages(spec: GemmSpec, pieces: int, piece_bytes: int, store: str) -> int:
    """Staging buffers per warpgroup: TMA reads some while the next is written.

    16 KiB a warpgroup is two buffers of the widest pieces; narrow pieces get more, as each takes TMA as long.
    """
    if spec.epilogue_stages == AUTO:
        return min(STAGING_BYTES // piece_bytes, pieces) if store == "tma" else 1
    if spec.epilogue_stages > pieces:
        rule = f"a warpgroup stores {pieces} pieces a tile; more buffers than that are never filled"
        raise field_error(PlanError, "epilogue_stages", spec.epilogue_stages, rule, pieces)
    return spec.epilogue_stages


def stage_bytes(config: KernelConfig) -> int:
    """Shared memory of one mainloop stage: A's and B's tiles."""
    return (config.tile[0] + config.tile[1]) * config.tile[2] * config.a.dtype.bytes


def epilogue_bytes(config: KernelConfig) -> int:
    """Shared memory of the staging buffers."""
    if config.store == "direct":
        return 0
    piece = hw.WGMMA_M * config.epi_n * config.d.dtype.bytes
    return config.consumers * config.epi_stages * piece


def _stages(spec: GemmSpec, config: KernelConfig) -> int:
    """As many stages as fit, or the given number if it does."""
    barrier = 16  # bytes of a stage's full and empty mbarriers
    room = (hw.SMEM_BYTES - epilogue_bytes(config)) // (stage_bytes(config) + barrier)
    if room < 1:
        need = stage_bytes(config) + epilogue_bytes(config) + barrier
        rule = f"one stage and the epilogue need {need:,} bytes of shared memory, a CTA has {hw.SMEM_BYTES:,}"
        fits = (
            (hw.SMEM_BYTES - epilogue_bytes(config) - barrier)
            * config.tile[2]
            // stage_bytes(config)
            // 16
            * 16
        )
        if fits <= 0:
            raise field_error(
                PlanError, "epilogue_stages", config.epi_stages, rule, max(1, config.epi_stages // 2)
            )
        raise field_error(PlanError, "tile.k", config.tile[2], rule, fits)
    if spec.stages == AUTO:
        return min(room, 8)
    if spec.stages > room:
        rule = f"each stage takes {stage_bytes(config):,} bytes; {hw.SMEM_BYTES:,} hold {room} beside the epilogue"
        raise field_error(PlanError, "stages", spec.stages, rule, room)
    return spec.stages


def shared_memory(config: KernelConfig) -> tuple[Region, ...]:
    """The kernel's shared memory in allocation order: A, B, epilogue, barriers."""
    element = config.a.dtype.bytes * config.tile[2] * config.stages
    sizes = [("A", config.tile[0] * element, hw.SMEM_ALIGN), ("B", config.tile[1] * element, hw.SMEM_ALIGN)]
    if config.store != "direct":
        sizes.append(("epilogue", epilogue_bytes(config), hw.SMEM_ALIGN))
    sizes.append(("barriers", 16 * config.stages, 8))
    regions, offset = [], 0
    for name, size, align in sizes:
        offset = round_up(offset, align)
        regions.append(Region(name, offset, size))
        offset += size
    return tuple(regions)


def _barriers(config: KernelConfig) -> tuple[Barrier, ...]:
    """Every barrier of the kernel (`kernels/ring.py`, `kernels/store.py`)."""
    found = []
    if config.family == "warp_specialized":
        gathers = config.gathers
        tma = "tma" in (config.a.load, config.b.load)
        who = " and ".join(["TMA's elected thread"] * tma + ["every producer thread"] * gathers)
        readers = config.cluster[0] + config.cluster[1] - 1
        found.append(Barrier("full", config.stages, who, tma + hw.WARPGROUP * gathers, "consumers"))
        found.append(Barrier("empty", config.stages, f"consumer warps of {readers} CTA(s)",
                             readers * config.consumers * 4, "producer"))  # fmt: skip
    else:
        found.append(Barrier("full", config.stages, "TMA's elected thread", 1, "every thread"))
    if config.store != "direct":
        found.append(Barrier("epilogue", config.consumers, "a consumer warpgroup", hw.WARPGROUP, "the same"))
    return tuple(found)


def _boxes(config: KernelConfig) -> tuple[tuple[str, tuple[int, int]], ...]:
    """The tile each TMA instruction group moves: A and B per CTA of a multicast, D per warpgroup piece."""
    boxes = []
    if config.a.load == "tma":
        boxes.append(("A", (config.tile[0] // config.cluster[1], config.tile[2])))
    if config.b.load == "tma":
        boxes.append(("B", (config.tile[1] // config.cluster[0], config.tile[2])))
    if config.store == "tma":
        boxes.append(("D", (hw.WGMMA_M, config.epi_n)))
    return tuple(boxes)


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
    _check_grid(clusters * config.cluster_size)
    tiles = (across_m * cluster_m, across_n * cluster_n, problem.batch)
    return tiles, clusters, count / resident


def _check_grid(ctas: int) -> None:
    if ctas > hw.MAX_GRID:
        raise field_error(PlanError, "grid", ctas, f"a launch has at most {hw.MAX_GRID} CTAs", hw.MAX_GRID)
