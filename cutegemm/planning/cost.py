# SPDX-License-Identifier: Apache-2.0
"""The cost of kernels: what each does, counted, over the rates of a GPU, for all configs at once in NumPy.

`counts` counts what a launch does for the GEMM that its kernel sees (`seen`). `nanoseconds` divides by the rates of a
`CostModel`, which `benchmarks.fit_cost` fits.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutegemm.arch.device import CostModel, Device
from cutegemm.config import L2_LINE, SECTOR
from cutegemm.config.numbers import Number, divides
from cutegemm.config.smem_budget import STAGE_BARRIERS
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.layouts.hardware import CORE_ROWS
from cutegemm.planning.epilogue_plan import STAGING_BYTES
from cutegemm.planning.kernel_fields import BOX_ROWS, PANEL, box_rows, ends_early
from cutegemm.planning.seen import FEW_STAGES, Seen
from cutegemm.plans import group_tiles
from cutegemm.request.operand_rules import subtile
from cutegemm.spec import MAX_STAGES

Column = NDArray[np.float64]

# codes of columns `schedule` and `reduction`, in the order of `candidates.TENSOR_CORE_SCHEDULES` and `REDUCTIONS`
COOPERATIVE, PINGPONG, MULTISTAGE = range(3)
WHOLE, IN_CLUSTER, BY_LAUNCH, IN_WORKSPACE, BY_ATOMICS = range(5)
REDUCTIONS = ("none", "cluster", "launch", "workspace", "atomic")
# bytes of shared memory in a cycle, and bytes along K of an instruction's row (PTX ISA, wgmma)
SMEM_BYTES = 128.0
K_BYTES = 32.0
# columns of an instruction that the tensor cores compute in a cycle (Hopper whitepaper)
CYCLE_COLUMNS = 2.0
# who multiplies: 1 to 3 cooperative warpgroups, two of pingpong, or warpgroups without a producer
TEAMS = ("lone", "two", "three", "turns", "bare")
TURNS, BARE = TEAMS.index("turns"), TEAMS.index("bare")
# clusters that request the same bytes at once, beyond which further ones find them in L2
MOST_DELAYING = 8
# least nanoseconds of any time
LEAST_NS = 1.0


class Rows(NamedTuple):
    """Configs as columns."""

    m: Column  # of a tile, as n and k
    n: Column
    k: Column
    across: Column  # CTAs of a cluster along M
    along: Column  # CTAs of a cluster along N
    schedule: Column
    consumers: Column
    splits: Column  # of K
    held: Column  # splits that a cluster reduces
    reduction: Column
    way: Column  # index of the way
    adds: Column  # whether threads have registers to reduce splits


class Counts(NamedTuple):
    """What launches do."""

    waves: Column  # work tiles of the busiest cluster
    share: Column  # of the SMs' time that has work
    stages: Column  # of a work tile's mainloop
    ring: Column  # stages of the pipeline
    mma: Column  # tensor-core cycles of a stage
    smem: Column  # shared-memory cycles of a stage
    fetched: Column  # bytes of a stage that L2 delivers to an SM
    landed: Column  # bytes of a stage that arrive in an SM
    astride: Column  # bytes of a stage fetched in rows that straddle L2 cache lines
    within: Column  # bytes of a stage fetched in rows that begin within L2 sectors
    slim: Column  # bytes of a stage fetched in boxes whose rows are less than an L2 cache line
    void: Column  # bytes of a CTA's boxes outside the operands, which TMA fills with zeros
    short: Column  # whether a stage has less than two L2 cache lines of each row
    traffic: Column  # bytes that L2 delivers to all SMs
    memory: Column  # bytes from and to memory
    asked: Column  # bytes of the operand that CTAs wait for longer, times its delay by other clusters
    shared: Column  # bytes that CTAs without a cluster load again, at least one, some once for a GPC; 0 in clusters
    copy: Column  # bytes per nanosecond of a copy
    flops: Column  # of all CTAs, padding included
    team: NDArray[np.intp]  # index in `TEAMS` of who multiplies
    pieces: Column  # epilogue subtiles of a warpgroup
    narrow: Column  # those whose rows are less than a sector
    stored: Column  # bytes of a work tile's output
    lines: Column  # bytes of sectors that threads store
    inputs: Column  # matrices that the epilogue reads
    doubled: Column  # log2 of the CTAs of a cluster
    beneath: Column  # whether the next launch may begin early, or operands are constant
    early: Column  # whether constant operands are loaded before the previous launch ends
    parts: Column  # bytes of a tile's fp32 sums
    held: Column  # splits that a cluster reduces
    met: Column  # sums that the last CTA of a tile reads in workspace
    left: Column  # bytes of sums that a launch reduces
    launched: Column  # whether there is such a launch
    full: Column  # whether it finds no free SM
    loaded: Column  # nanoseconds of a stage that threads load
    once: Column  # nanoseconds of copies and the first stage's wait
    scaled: Column  # WGMMAs of a stage whose sums a thread scales
    read: Column  # scales that a thread multiplies by for their columns
    vectors: Column  # positive if the epilogue reads a number for each row or column
    promoted: Column  # columns of partial sums that a warpgroup promotes in a stage, unscaled
    lifted: Column  # all partial sums that are promoted, scaled or not
    size: Column  # bytes of an element


def counts(x: Seen, device: Device, of: Rows) -> Counts:
    """What each config does."""
    m, n, k = of.m, of.n, of.k
    rows, cols = np.ceil(x.m / (m * of.across)), np.ceil(x.n / (n * of.along))
    nonempty: Number = 1.0
    each = np.ones_like(m)
    if x.group_rows:
        rows = np.where(x.adjacent_m, group_tiles.mean_tiles(x.group_rows, m * of.across), rows)
        cols = np.where(x.adjacent_n, group_tiles.mean_tiles(x.group_rows, n * of.along), cols)
        nonempty = group_tiles.share_with_rows(x.group_rows)
    planes, delay = rows * cols * x.batch, functools.partial(_delay, power=device.cost.asked_power)
    cluster, outer = of.across * of.along, of.splits / of.held
    size = (cluster * of.held).astype(np.intp)
    sizes = range(1, int(size.max()) + 1)
    resident = np.array([0, *map(device.resident_clusters, sizes)], dtype=np.float64)[size]
    waves = np.ceil(planes * outer / resident)
    ctas = planes * cluster * of.splits
    fill, known = ctas / device.sms, device.thresholds
    stages = np.ceil(x.k / (k * of.splits))
    here = _box_rows(x, of)
    fetched = (here / of.along + n / of.across) * k * x.size
    instructions = m / device.limits.mma_m * (k * x.size / K_BYTES) * x.products
    landed = (here + n) * k * x.size
    turns, launched = of.schedule == PINGPONG, of.reduction == BY_LAUNCH
    traffic = ctas * stages * fetched
    shared = np.maximum(traffic - x.a.bytes - x.b.bytes, 1.0) * (size == 1)
    team = np.where(turns, 1.0, of.consumers)
    parts, passes = 4 * m * n, m / (device.limits.mma_m * team)
    # every thread reads its scales of columns once a stage
    read = 4 * team * device.limits.warpgroup * n * x.read
    out = _outputs(x, of, waves, team, device.cost.partial)
    beside = np.minimum(out["stored"], of.consumers * STAGING_BYTES) * ~launched + parts * (of.held > 1)
    beside = beside + x.inputs * of.consumers * STAGING_BYTES
    # the words of a shifted operand lie beside its stage
    held = m * (1 + x.a.shifted) + n * (1 + x.b.shifted)
    ring = np.floor((device.limits.smem_bytes - beside) / (held * k * x.size + STAGE_BARRIERS))
    most = np.where((here < m) & (x.stages >= FEW_STAGES), MAX_STAGES, x.stages)
    most = np.where(stages > FEW_STAGES, most, np.minimum(x.stages, FEW_STAGES))
    # if L2 does not hold both operands, each further panel of the raster reads B from memory
    again = np.minimum(np.ceil(rows / PANEL) - 1, PANEL) * (x.a.bytes + x.b.bytes > device.l2_bytes)
    return Counts(
        waves=waves,
        share=np.minimum(1.0, fill / waves),
        stages=stages,
        ring=np.clip(ring, 1, most),
        mma=instructions * n / CYCLE_COLUMNS,
        smem=(instructions * (device.limits.mma_m + n) * K_BYTES + landed + read) / SMEM_BYTES,
        fetched=fetched,
        landed=landed,
        traffic=traffic,
        shared=shared,
        memory=x.bytes * nonempty + again * x.b.bytes,
        asked=np.maximum(x.a.bytes * delay(cols), x.b.bytes * delay(rows)) * nonempty,
        copy=each * device.dram_gbs,
        flops=2 * m * n * k * stages * ctas * x.products,
        team=np.where(of.schedule == COOPERATIVE, of.consumers - 1, of.schedule + 2).astype(np.intp),
        doubled=np.log2([1, *sizes])[size],
        beneath=np.maximum(launched | ends_early(x.bytes, fill, shared, known), float(x.constant)),
        early=each * x.constant,
        parts=parts,
        held=of.held,
        met=np.where(of.reduction > BY_LAUNCH, np.where(of.reduction == BY_ATOMICS, 1.0, outer), 0.0),
        left=np.where(launched, parts * planes * cluster * outer, 0.0),
        launched=launched.astype(float),
        full=(launched & (fill >= known.full)).astype(float),
        short=(k * x.size < 2 * L2_LINE).astype(float),
        loaded=m * k * x.a.ns + n * k * x.b.ns + x.loaded,
        once=each * x.once,
        scaled=passes * x.scaled,
        read=n * x.read,
        vectors=m * x.vectors,
        promoted=passes * n * k * _share_promoted(x) * (1 - np.asarray(x.scaled)),
        lifted=m * n * k * stages * ctas * _share_promoted(x),
        size=each * x.size,
        **out,
        **_boxes(x, of, here),
    )


def _share_promoted(x: Seen) -> Column:
    """Promotions of a partial sum for each element of K; scales of blocks promote after every block."""
    plain = np.where(x.promoted, 1 / np.maximum(x.promoted, 1), 0.0)
    return np.where(x.scaled, 1 / K_BLOCK, plain)


def _delay(clusters: Column, power: float) -> Column:
    """How much clusters that request the same bytes at once delay them."""
    return _delays(power)[np.minimum(np.maximum(clusters, 1), MOST_DELAYING).astype(np.intp) - 1]


@functools.lru_cache(8)
def _delays(power: float) -> Column:
    """The delays by how many clusters request the bytes."""
    found: Column = np.arange(float(MOST_DELAYING)) ** power
    return found


def _box_rows(x: Seen, of: Rows) -> Column:
    """Rows of A in a stage: if D has few rows, only those that exist."""
    if np.min(x.m) > BOX_ROWS:
        return of.m
    narrow = box_rows((x.m, x.k), x.a.k_major, of.m, of.along, of.k * of.splits)
    return np.where((narrow > 0) & np.logical_not(x.adjacent_m), narrow, of.m)


def _outputs(x: Seen, of: Rows, waves: Column, team: Column, partial: float) -> dict[str, Column]:
    """What a work tile's epilogue reads and stores."""
    rows, cols = of.m / x.halves, of.n / x.gates
    columns = np.asarray(subtile(cols.astype(np.intp), x.out_bytes), dtype=np.float64)
    pieces = rows / (64 * team) * cols / columns
    stored = rows * cols * x.out_bytes
    # both ends of an unaligned row are sectors that are partly written
    ends = np.where(x.row_major, rows, cols) * (2 * partial) * SECTOR
    return {
        "pieces": pieces,
        "narrow": pieces * (columns * x.out_bytes < SECTOR) * x.row_major,
        "stored": stored,
        "lines": x.words * (stored + ends) / team * (waves > 1),
        "inputs": np.full_like(of.m, x.inputs),
    }


def _boxes(x: Seen, of: Rows, here: Column) -> dict[str, Column]:
    """What a stage's boxes cost by their place in the operands and in L2 cache lines."""
    astride, within, slim, void = np.zeros((4, len(of.m)))
    sides = (
        (x.a, x.m, here, of.across, of.along, x.adjacent_m, x.halves),
        (x.b, x.n, of.n, of.along, of.across, x.adjacent_n, x.gates),
    )
    for operand, extent, lines, others, sharers, adjacent, halves in sides:
        along_k = of.k * x.size
        brought = lines / sharers * along_k
        astride, within = astride + operand.astride * brought, within + operand.within * brought
        uneven = divides(L2_LINE, lines / halves * x.size) ^ True
        slim = slim + brought * uneven * (1 - operand.k_major) * (operand.ns == 0)
        # the parts of the last clusters' tiles that are outside, averaged over all tiles
        tiles = np.ceil(extent / (lines * others)) * others
        outside = tiles * lines - extent
        # CTAs that share a tile load a slice each or all of it in turn, and all wait for what is outside
        each = lines / (1 + (sharers - 1) * divides(CORE_ROWS * sharers, lines))
        whole = np.floor(outside / lines)
        outside = whole * each + np.minimum(outside - whole * lines, each)
        void = void + operand.k_major * outside / tiles * along_k * np.logical_not(adjacent)
    return {"astride": astride, "within": within, "slim": slim, "void": void}


def nanoseconds(of: Counts, x: CostModel) -> Column:
    """Nanoseconds of each config, its launches included."""
    fetched = of.fetched + (x.straddle - 1) * of.astride + x.within * of.within + x.slim * of.slim
    stage = _stage(of, x, fetched)
    if of.loaded.any():
        # threads write shared memory between WGMMA's reads of it; two stages hide nothing: threads fill one when the
        # other is full, and request its bytes when it is free
        stored = of.loaded + (of.loaded > 0) * of.smem * x.smem
        stage = np.where(of.ring > 2, _longest(stage, stored), stage + of.loaded)
    busy, last = _busy(of, x, of.stages * stage)
    # limits of all SMs together
    l2 = of.traffic * fetched / np.maximum(of.fetched, 1) / x.l2
    bent = np.where(of.beneath > 0, x.fill_beneath, x.fill) + x.early_fill * of.early
    # memory idles at times if rows of a stage are short, or if warps multiply before they request more
    idle = _each(of, 1.0, bare=1 + x.bare_dram) + x.short_rows * of.short
    asked = np.where(of.shared > 0, x.asked_alone, x.asked) * of.asked
    memory = (of.memory + asked) / (x.dram * of.copy * np.exp(bent * np.log(of.share))) * idle
    # a lower clock needs a lower voltage, so time at the power cap is a power of both; 8-bit products need less
    flop = np.where(of.size == 1, x.flop_eight, x.flop)
    energy = flop * of.flops + x.lift * of.lifted + x.l2_energy * of.traffic + x.dram_energy * of.memory
    energy, theta = np.maximum(energy / (1e3 * x.watts), LEAST_NS), x.slows / (1 + x.slows)
    capped = energy * np.exp(theta * np.log(np.maximum(busy, LEAST_NS) / energy))
    added = of.launched * (x.add + x.full * of.full + of.left / x.add_rate)
    total = _longest(busy, l2, memory, capped) + last + added
    start = x.launch + x.cluster * of.doubled + x.apart * (of.beneath == 0)
    # SMs that the launch before keeps busy load constant operands late
    late = x.early_sum * of.launched + x.early_full * of.share + x.early_cluster * of.doubled
    start = start + of.early * (late + (of.team == BARE) * x.early_bare)
    more = _each(of, 0.0, two=x.first_two, three=x.first_three, turns=x.first_turn)
    return np.asarray(start + _each(of, x.first, bare=x.first_bare) + more + total + of.once)


def _each(of: Counts, usual: float, **other: float) -> Column:
    """A number for each config by who multiplies: the usual one except for the given teams."""
    return np.array([other.get(x, usual) for x in TEAMS])[of.team]


def _stage(of: Counts, x: CostModel, fetched: Column) -> Column:
    """A mainloop stage: the slowest of an SM's units hides the others."""
    gap = _each(of, x.stage, lone=x.lone, turns=x.turn, bare=x.bare)
    mma = of.mma * x.mma * _each(of, 1.0, turns=x.mma_turn)
    # the more SMs have work, the longer TMA takes to fill rows outside an operand
    void = of.void * of.share / x.void
    late = x.latency / np.maximum(of.ring - x.in_use, x.least_free) + void
    port = (of.landed + fetched - of.fetched) / x.port
    scaled = of.scaled * x.scaled + of.read * x.scale_read + of.promoted * x.promoted
    return _longest(mma + gap + scaled, of.smem * x.smem, port, late)


def _busy(of: Counts, x: CostModel, mainloop: Column) -> tuple[Column, Column]:
    """The work tiles of the busiest SM, and the last one's sum of splits, which no other SM's loads hide."""
    stored = of.pieces * _each(of, x.piece, turns=x.piece_turn) + of.narrow * x.narrow
    stored = stored + of.stored / x.store + of.lines * x.line
    stored = stored + of.inputs * (x.inputs + of.pieces * x.input_piece)
    # partial sums are stored in register order; each CTA of a cluster stores a slice of the sum
    stored = np.where(of.launched > 0, of.parts / x.part_store, stored / of.held)
    sums = (of.held > 1) * (x.sum + of.parts / x.sum_rate)
    sums = sums + (of.met > 0) * (x.sum + (1 + of.met) * of.parts / x.part_store)
    # without a producer a tile's first stages are not loaded while the previous tile is stored
    refills = _each(of, 0.0, bare=x.refill) * np.maximum(of.waves - 1, 0.0)
    together = of.waves * (mainloop + x.tile + stored + sums) - sums + refills
    turned = of.waves * np.maximum(mainloop + x.tile_turn, (mainloop + stored) / 2) + stored
    return np.where(of.team == TURNS, turned, together), sums


def _longest(*terms: Column) -> Column:
    """A smooth maximum, the 4-norm: units that take similar times hide less of each other."""
    each = np.array(terms)
    most = each.max(axis=0)
    each /= most
    each *= each
    each *= each
    found: Column = most * np.sqrt(np.sqrt(each.sum(axis=0)))
    return found
