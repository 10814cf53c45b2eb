# SPDX-License-Identifier: Apache-2.0
"""Planning a CUDA-core kernel: tile and splits of K are the fastest predicted of a short list.

A spec may give the extents of a listed tile, the stages of its pipeline, and the splits of K. Splits depend on the
problem and the device alone, so equal calls give equal bits.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

from cutegemm.arch.device import CoreModel, Device
from cutegemm.config import GemvConfig, GemvTile, OperandConfig, SimtConfig, SimtTile
from cutegemm.config.simt import FOUR, STAGED_STAGES, TILES, WARP
from cutegemm.config.spills import simt_spills, with_room
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import gemv_tiles, invariance
from cutegemm.planning.ways import Order
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.launch_limits import check_ctas, check_extents
from cutegemm.plans.steps import Multiply
from cutegemm.plans.workspace import plan_reductions
from cutegemm.problems import Operand, Problem
from cutegemm.request.few_rows import as_rows, refusal
from cutegemm.request.operand_rules import access_bytes, epilogue_inputs, epilogue_outputs, gated_half, major
from cutegemm.request.requirements import Request
from cutegemm.spec import AUTO, MAX_STAGES, GemmSpec, Tile
from cutegemm.spec.rules import unlisted

CoreTile = SimtTile | GemvTile
# elements per global access, widest first; 16-bit elements are loaded one by one
FP32_WIDTHS = (4, 2)
OUTPUT_WIDTHS = (4,)


def vector_elements(x: Operand, widths: tuple[int, ...], gate: int | None = None) -> int:
    """Elements per global access of a CUDA-core kernel: the first of `widths` that every row allows, or 1."""
    size = x.dtype.bytes
    return max(1, access_bytes(x, tuple(width * size for width in widths), gate, whole=True) // size)


def along_k(problem: Problem) -> tuple[bool, bool]:
    """Whether accesses to A and to B lie along k."""
    return major(problem.a, "m", "k") != "m", major(problem.b, "k", "n") != "n"


def loads(tile: SimtTile, problem: Problem, gate: int | None = None) -> tuple[int, int] | None:
    """Elements per load of A and B: the most that their rows allow. None if the tile's threads cannot divide the loads.

    A gated B is one of its halves, and `gate` the elements between the halves.
    """
    widths = FP32_WIDTHS if problem.a.dtype is DType.FP32 else ()
    found = vector_elements(problem.a, widths), vector_elements(problem.b, widths, gate)
    sides = zip(tile.tile, found, along_k(problem), strict=False)
    return found if all(_brings(tile, *x) for x in sides) else None


# plans ask the same of few tiles many times
@functools.lru_cache(1024)
def _brings(tile: SimtTile, rows: int, vector: int, deep: bool) -> bool:
    return bool(tile.brings(rows, vector, deep))


# quarters of an SM, each with an issue slot a clock
QUARTERS = 4
# issue slots of a global load, two of which advance its 64-bit address; further issue slots of a k tile
LOAD_SLOTS, TILE_SLOTS = 3, 16
# cache lines that a load touches per row, on average over alignments
STRADDLE = 1.5
# order of the norm that combines two bounds
SHARPNESS = 6


def tiles_of(problem: Problem, x: SimtTile) -> int:
    """Output tiles."""
    return math.ceil(problem.m / x.tile[0]) * math.ceil(problem.n / x.tile[1]) * problem.batch


def estimate(problem: Problem, x: SimtTile, device: Device) -> float:
    """Nanoseconds for the whole problem."""
    cores = device.cores
    # CTAs of a cluster are on different SMs; an SM holds CTAs of several clusters
    busiest = math.ceil(tiles_of(problem, x) / device.resident_clusters(x.split))
    turns, rest = divmod(busiest, x.residents)
    steps = math.ceil(problem.k / x.split / x.tile[2])
    work = _work(x, problem)
    mainloop = turns * _step(x, work, x.residents, cores) + (_step(x, work, rest, cores) if rest else 0.0)
    mainloop = steps * mainloop + busiest * cores.cta / x.residents
    shared = (cores.meet if x.split * x.slices > 1 else 0.0) + cores.doubling * math.log2(x.split)
    return max(mainloop, problem.min_bytes / device.dram_gbs) + shared + cores.launch


def _work(x: SimtTile, problem: Problem) -> tuple[float, float]:
    """For a CTA's k tile: issue slots of a quarter of its warps, and 128-byte accesses of shared memory."""
    (tile_m, tile_n, depth), (own_m, own_n) = x.tile, x.thread_tile
    own_k = depth / x.slices
    slots = own_k * (own_m * own_n + own_m / x.group + own_n / FOUR) + TILE_SLOTS
    moved = own_k * (own_m + own_n)
    vectors = loads(x, problem) or (1, 1)
    for rows, vector, deep in zip((tile_m, tile_n), vectors, along_k(problem), strict=True):
        each = rows * depth / (x.threads * vector)
        # a prefetch has its own address
        slots += LOAD_SLOTS * each * (2 if x.ahead else 1)
        if not x.staged:
            moved += each * vector
        elif x.in_runs(rows, vector, deep):
            slots += each / FOUR
            moved += each * (1 + STRADDLE * WARP / min(depth, WARP))
        else:
            slots += each * (vector if deep else max(1.0, vector / FOUR))
            moved += 2 * each * vector
    return x.warps / QUARTERS * slots, x.warps * moved


def _step(x: SimtTile, work: tuple[float, float], together: int, cores: CoreModel) -> float:
    """Nanoseconds of one k tile of each of the `together` CTAs of an SM."""
    warps = together * x.warps
    # other warps of a quarter fill the slots in which a warp waits for its own last instruction
    waits = cores.lone if warps <= QUARTERS else cores.paired if warps <= 2 * QUARTERS else 1.0
    slots, moved = work[0] * waits, work[1] * cores.shared
    time: float = together * cores.slot * (slots**SHARPNESS + moved**SHARPNESS) ** (1 / SHARPNESS)
    if not x.staged:
        return time * cores.ring
    alone = cores.alone_ahead if x.ahead else cores.alone
    return max(time + (alone if together == 1 else 0.0), cores.l2 if x.ahead else cores.dram)


# bytes of the elements of a cp.async pipeline: cp.async does not convert
RING_BYTES = 4
# splits of K: CTAs that share an output tile
SPLITS = (1, 2, 4, 8)
# most accumulators of a thread beside those of a gated pair's other half
PAIRED_VALUES = 64


def plan_simt(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem on the CUDA cores; their tiles have a cost model of their own and ignore `order`."""
    return plan_tile(asked, choose(asked), asked.reasons)


def plan_tile(asked: Request, tile: CoreTile, reasons: tuple[str, ...]) -> KernelPlan:
    """The plan of a problem with one of the tiles that it allows."""
    of, device = asked, asked.device
    config: SimtConfig | GemvConfig
    if isinstance(tile, SimtTile):
        config, half, gate = _configured(asked, tile)
    else:
        of = as_rows(asked) or asked
        config, half, gate = gemv_tiles.configured(of, tile), of.problem.b, None
    problem = of.problem
    tiles = (math.ceil(problem.m / tile.tile[0]), math.ceil(problem.n / tile.tile[1]), problem.batch)
    count = math.prod(tiles) if isinstance(tile, SimtTile) else tile.ctas(problem.n) * problem.batch
    if isinstance(tile, SimtTile):
        check_ctas(asked.spec, problem, count * config.cluster_size, device.limits)
        check_extents(problem, tile.tile)
    reductions = plan_reductions(config, problem, tiles, 0)
    multiply = Multiply.of(
        problem,
        (problem.a, half),
        config=config,
        factors=of.factors,
        gate=gate,
        raster=("m", 8),
        clusters=count,
        parts=reductions.parts,
        in_workspace=reductions.partials,
    )
    return KernelPlan(
        spec=asked.spec,
        problem=asked.problem,
        device=device,
        steps=(multiply, *reductions.steps),
        workspace_bytes=reductions.workspace_bytes,
        tiles=(tiles[1], tiles[0], tiles[2]) if multiply.swapped else tiles,
        waves=count / (device.sms * (1 if isinstance(config, SimtConfig) else config.residents)),
        reasons=reasons,
    )


def _configured(asked: Request, tile: SimtTile) -> tuple[SimtConfig, Operand, int | None]:
    """The kernel of a tile, and B and its gate as the kernel sees them."""
    problem, epilogue = asked.problem, asked.epilogue
    seen, gate = gated_half(problem, epilogue)
    half = seen.b
    stored = min((vector_elements(x, OUTPUT_WIDTHS) for _, x in problem.outputs), default=1)
    vector = (*(loads(tile, seen, gate) or (1, 1)), stored)
    if tile.staged and tile.slices == 1 and min(vector[:2]) == 1:
        # loads of single elements need registers for addresses; if warps share K, a few spills are accepted instead
        tile = dataclasses.replace(tile, residents=max(1, tile.residents // 2))
    halves = 2 if epilogue.gated else 1
    config = SimtConfig(
        operands=(
            OperandConfig(role="a", dtype=problem.a.dtype, major=major(problem.a, "m", "k")),
            OperandConfig(role="b", dtype=half.dtype, major=major(half, "k", "n"), halves=halves),
        ),
        inputs=epilogue_inputs(epilogue, problem),
        outputs=epilogue_outputs(epilogue, problem),
        device_scalars=problem.device_scalars,
        limits=asked.device.limits,
        **dataclasses.asdict(tile),
        epilogue=epilogue,
        vector=vector,
    )
    return config, half, gate


def choose(asked: Request) -> CoreTile:
    """The tile and splits of K with the least predicted time for a request."""
    return min(candidates(asked), key=lambda pair: pair[0])[1]


def candidates(asked: Request) -> list[tuple[float, CoreTile]]:
    """(nanoseconds, tile) of every tile that a request allows, those of few rows among them."""
    rows: list[tuple[float, CoreTile]] = [*gemv_tiles.weighed(asked)]
    if rows and isinstance(asked.spec.tile, Tile):
        return rows
    if (error := refusal(asked)) is not None:
        raise error
    return [*rows, *weighed(asked)]


def weighed(asked: Request) -> list[tuple[float, SimtTile]]:
    """(nanoseconds, tile) of every possible tile and split of K, larger tiles and fewer splits first.

    Each has as many CTAs per SM as registers allow. Tiles that spill are left out if there are others.
    """
    problem, device, epilogue, limits = asked.problem, asked.device, asked.epilogue, asked.device.limits
    # without K there is no mainloop, and a given tile means nothing
    spec = asked.spec if problem.k else GemmSpec()
    # the order of additions must not depend on M: one thread adds all products unless the spec gives splits
    invariant, pairs = asked.spec.batch_invariant is True, epilogue.gated is not None
    # a thread has no registers for a pair's accumulators, single elements in flight and addresses of a shared sum
    alone = pairs and problem.a.dtype.bytes != RING_BYTES
    whole = alone or (invariant and not isinstance(spec.tile, Tile))
    kinds = _named(_kinds(problem, pairs, whole, invariance.along_rows(asked)), spec)
    if alone and spec.split_k not in (AUTO, 1):
        rule = "gated pairs of 16-bit operands leave no registers for a sum that CTAs share"
        raise field_error(PlanError, "split_k", spec.split_k, rule, 1)
    given = (spec.split_k,) if isinstance(spec.split_k, int) else ()
    splits = given or ((1,) if alone or invariant else SPLITS)
    found, clean = [], []
    for kind, split in itertools.product(kinds, splits):
        x = dataclasses.replace(kind, split=split)
        if given or split == 1 or _may_split(problem, x, device):
            singles = min(loads(x, problem) or (1,)) == 1
            x = with_room(x, epilogue, singles, limits)
            found.append((estimate(problem, x, device), x))
            if not simt_spills(x, epilogue, singles, limits):
                clean.append(found[-1])
    return clean if clean and asked.spec.tile == AUTO else found


def fields_of(x: CoreTile, swapped: bool = False) -> tuple[tuple[str, object], ...]:
    """Fields of a `GemmSpec` that ask for a tile."""
    if isinstance(x, GemvTile):
        return ("schedule", "simt"), ("tile", (x.tile[1], x.tile[0], x.tile[2]) if swapped else x.tile)
    stages = STAGED_STAGES if x.staged else x.stages
    return ("schedule", "simt"), ("tile", x.tile), ("stages", stages), ("split_k", x.split)


def has_tile(problem: Problem, tile: Tile) -> bool:
    """Whether a tile of some extents can load a problem's operands."""
    return any(x.tile == tuple(tile) and loads(x, problem) is not None for x in TILES)


def _kinds(problem: Problem, pairs: bool, whole: bool, summed: bool) -> list[SimtTile]:
    """The tiles that can load a problem, one for each extents; `whole` excludes tiles whose warps share K.

    Partial results along rows cover a warp's columns. If those must be the same for every M (`summed`), the last tile
    of each extents is used, which can load every problem; its warps have 32 columns if they do not share K.
    """
    found: dict[tuple[int, int, int], SimtTile] = {}
    for x in reversed(TILES) if summed else TILES:
        room = not pairs or (x.takes_pairs and math.prod(x.thread_tile) <= PAIRED_VALUES)
        taken = x.staged or problem.a.dtype.bytes == RING_BYTES
        if room and taken and not (whole and x.slices > 1) and loads(x, problem) is not None:
            found.setdefault(x.tile, x)
    return list(found.values())


def _named(kinds: list[SimtTile], spec: GemmSpec) -> list[SimtTile]:
    """The tiles that satisfy a spec's tile and stages."""
    if isinstance(spec.tile, Tile):
        given, legal = tuple(spec.tile), [x.tile for x in kinds]
        kinds = [x for x in kinds if x.tile == given]
        if not kinds:
            rule = "tiles of the CUDA cores are {} for these operands and this epilogue"
            raise unlisted(spec.tile, legal, rule)
    if spec.stages == AUTO:
        return kinds
    more = spec.stages > STAGED_STAGES
    found = [x for x in kinds if spec.stages == STAGED_STAGES or (more and not x.staged)]
    if not found:
        rule = f"tiles that come through registers have {STAGED_STAGES}"
        if not all(x.staged for x in kinds):
            rule += f", a ring {STAGED_STAGES} to {MAX_STAGES}"
        raise field_error(PlanError, "stages", spec.stages, rule, STAGED_STAGES)
    return [x if x.staged else dataclasses.replace(x, stages=spec.stages) for x in found]


def _may_split(problem: Problem, x: SimtTile, device: Device) -> bool:
    """Whether half the splits leave SMs idle, and every CTA's split of K fills its pipeline."""
    room = tiles_of(problem, x) * x.split // 2 < device.sms * x.residents
    return room and problem.k >= x.split * x.tile[2] * x.stages
