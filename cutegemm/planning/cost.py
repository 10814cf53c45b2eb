# SPDX-License-Identifier: Apache-2.0
"""The cost of kernels: what each of them does, counted, over the rates of a GPU. NumPy, all configs at once.

`counts` says what a launch does: cycles of tensor cores and of shared memory, bytes from L2 and from memory, works one
after another, stores, sums of splits. `nanoseconds` divides by the rates of a `CostModel`, which `benchmarks.fit_cost`
fits. Rows are of the GEMM that the kernel sees, which is D's transpose where operands are swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutegemm.arch.device import CostModel, Device, LoadModel
from cutegemm.config import SECTOR
from cutegemm.config.memory import STAGE_BARRIERS
from cutegemm.families import THREAD_LOADS
from cutegemm.planning.epilogue import MOST_NARROW_STAGES, MOST_STAGES, STAGING_BYTES
from cutegemm.planning.kernel import BOX_ROWS, FULL, FULL_BYTES, PANEL, SHORT_BYTES, box_rows
from cutegemm.planning.operands import L2_LINE, widest
from cutegemm.problems import Operand, Problem

Column = NDArray[np.float64]

# codes of columns `schedule` and `reduction`, in the order of `candidates.TENSOR_CORE_SCHEDULES` and `REDUCTIONS`
COOPERATIVE, PINGPONG, MULTISTAGE = range(3)
WHOLE, IN_CLUSTER, BY_LAUNCH, IN_WORKSPACE, BY_ATOMICS = range(5)
REDUCTIONS = ("none", "cluster", "launch", "workspace", "atomic")
# bytes that shared memory moves in a cycle, and of K that an instruction takes of a row (PTX ISA, wgmma)
SMEM_BYTES = 128.0
K_BYTES = 32.0
# columns of an instruction that the tensor cores take in a cycle (Hopper whitepaper)
CYCLE_COLUMNS = 2.0
# elements of the widest row of a box, 128 bytes of 16 bits
BOX_ELEMENTS = 64
# sectors that the two ends of a row of D waste where it begins off their bounds
END_SECTORS = 5
# stages that are free for loads, at least, in a ring whose others are being multiplied
LEAST_FREE = 0.5
# nanoseconds below which nothing is a time
LEAST_NS = 1.0


class Load(NamedTuple):
    """How an operand arrives: its way, bytes of an element, and bytes that are copied first."""

    how: str = "tma"
    bytes: int = 2
    copied: int = 0


class Rows(NamedTuple):
    """Configs as columns: the tile, CTAs of a cluster along N and M, who computes, splits of K and how they meet."""

    m: Column
    n: Column
    k: Column
    across: Column
    along: Column
    schedule: Column
    consumers: Column
    splits: Column
    held: Column
    reduction: Column


class Seen(NamedTuple):
    """What a kernel does beside its config: which operands threads shift, and accumulators per output."""

    shifts: tuple[bool, bool] = (False, False)
    gates: int = 1
    halves: int = 1


PLAIN = Seen()


class Counts(NamedTuple):
    """What launches do.

    Attributes:
        waves: works that the busiest cluster does, one after another; share: of the SMs' time that has work.
        stages: of a work's mainloop; ring: of the pipeline.
        mma: tensor-core cycles of a stage; smem: shared-memory cycles.
        fetched: bytes of a stage that L2 delivers to an SM; landed: that arrive there; astride: of those fetched, in
            rows that straddle lines of L2; thin: those that boxes of less than 128 bytes a row would have had room for;
            void: bytes of a CTA's boxes that lie outside the operands, which TMA fills with zeros; short: whether a
            stage has less than two lines of L2 of each row.
        traffic: bytes that L2 delivers to all; memory: from and to memory; asked: for which several clusters ask at
            once; copy: bytes a nanosecond of a copy.
        flops: of all CTAs, padding included.
        lone: whether one warpgroup of a cooperative kernel computes; three: whether three do; turns: pingpong; bare:
            no producer.
        pieces: epilogue subtiles of a warpgroup; narrow: those whose rows are less than a sector; stored: bytes of a
            work's output; lines: sectors' bytes that threads store; inputs: matrices that the epilogue reads.
        doubled: how often the CTAs of a cluster double; beneath: whether the next launch may begin early.
        parts: bytes of a tile's fp32 sums; held: splits that a cluster adds up; met: sums that the last CTA of a tile
            reads in workspace.
        left: bytes of sums that a launch adds up; readers: CTAs that do; launched: whether there is such a launch;
            full: whether it finds no SM free.
    """

    waves: Column
    share: Column
    stages: Column
    ring: Column
    mma: Column
    smem: Column
    fetched: Column
    landed: Column
    astride: Column
    thin: Column
    void: Column
    short: Column
    traffic: Column
    memory: Column
    asked: Column
    copy: Column
    flops: Column
    lone: Column
    three: Column
    turns: Column
    bare: Column
    pieces: Column
    narrow: Column
    stored: Column
    lines: Column
    inputs: Column
    doubled: Column
    beneath: Column
    parts: Column
    held: Column
    met: Column
    left: Column
    readers: Column
    launched: Column
    full: Column


def counts(problem: Problem, device: Device, of: Rows, seen: Seen = PLAIN) -> Counts:
    """What each config does for a problem, but for what threads load and copies (`arrivals`)."""
    m, n, k = of.m, of.n, of.k
    size = problem.a.dtype.bytes
    rows, cols = np.ceil(problem.m / (m * of.across)), np.ceil(problem.n / (n * of.along))
    planes = rows * cols * problem.batch
    cluster, outer = of.across * of.along, of.splits / of.held
    waves = np.ceil(planes * outer / _resident(device, cluster * of.held))
    ctas = planes * cluster * of.splits
    fill = ctas / device.sms
    stages = np.ceil(problem.k / (k * of.splits))
    here = _box_rows(problem, of)
    fetched = (here / of.along + n / of.across) * k * size
    instructions = m / device.limits.mma_m * (k * size / K_BYTES)
    landed = (here + n) * k * size
    turns, bare = of.schedule == PINGPONG, of.schedule == MULTISTAGE
    launched = of.reduction == BY_LAUNCH
    parts = 4 * m * n
    counted = of.reduction > BY_LAUNCH
    out = _outputs(problem, of, waves, turns, seen)
    beside = np.minimum(out["stored"], of.consumers * STAGING_BYTES) * ~launched + parts * (of.held > 1)
    beside = beside + out["inputs"] * of.consumers * STAGING_BYTES
    # what is shifted lies beside itself
    held = m * (1 + seen.shifts[0]) + n * (1 + seen.shifts[1])
    ring = np.floor((device.limits.smem_bytes - beside) / (held * k * size + STAGE_BARRIERS))
    short = problem.min_bytes <= np.where(fill >= FULL, FULL_BYTES, SHORT_BYTES)
    return Counts(
        waves=waves,
        share=np.minimum(1.0, fill / waves),
        stages=stages,
        ring=np.clip(ring, 1, np.where(here < m, MOST_NARROW_STAGES, MOST_STAGES)),
        mma=instructions * n / CYCLE_COLUMNS,
        smem=(instructions * (device.limits.mma_m + n) * K_BYTES + landed) / SMEM_BYTES,
        fetched=fetched,
        landed=landed,
        traffic=ctas * stages * fetched,
        memory=problem.min_bytes + _again(problem, device, rows),
        asked=problem.a.bytes * (cols > 1) + problem.b.bytes * (rows > 1),
        copy=np.full_like(m, device.dram_gbs),
        flops=2 * m * n * k * stages * ctas,
        lone=_as(~turns & ~bare & (of.consumers == 1)),
        three=_as(of.consumers == 3),
        turns=_as(turns),
        bare=_as(bare),
        doubled=np.log2(cluster * of.held),
        beneath=_as(launched | short | (fill >= 1)),
        parts=parts,
        held=of.held,
        met=_as(counted) * np.where(of.reduction == BY_ATOMICS, 1.0, outer),
        left=np.where(launched, parts * planes * cluster * outer, 0.0),
        readers=np.minimum(device.sms, planes * cluster * (m / 64) * (n / 8)),
        launched=_as(launched),
        full=_as(launched & (fill >= FULL)),
        **out,
        void=_void(problem, of, here),
        short=_as(k * size < 2 * L2_LINE),
        **_rows_in_lines(problem, of, here),
    )


def _as(mask: NDArray[np.bool_]) -> Column:
    return mask.astype(np.float64)


def _resident(device: Device, sizes: Column) -> Column:
    """Clusters of each size that the GPU holds at once."""
    known = [device.resident_clusters(max(x, 1)) for x in range(int(sizes.max()) + 1)]
    return np.array(known, dtype=np.float64)[sizes.astype(np.intp)]


def _box_rows(problem: Problem, of: Rows) -> Column:
    """Rows of A that a stage takes: of few rows of D only those that there are."""
    if problem.m > BOX_ROWS:
        return of.m
    narrow = box_rows(problem, of.m, of.along, of.k * of.splits)
    return np.where(narrow > 0, narrow, of.m)


def _again(problem: Problem, device: Device, rows: Column) -> Column:
    """Bytes of B that every further panel of the raster reads from memory, where L2 does not hold both operands."""
    large = problem.a.bytes + problem.b.bytes > device.l2_bytes
    again: Column = np.minimum(np.ceil(rows / PANEL) - 1, PANEL) * problem.b.bytes * large
    return again


def _outputs(
    problem: Problem, of: Rows, waves: Column, turns: NDArray[np.bool_], seen: Seen
) -> dict[str, Column]:
    """What a work's epilogue reads and stores."""
    rows, cols = of.m / seen.halves, of.n / seen.gates
    d_bytes = max((x.dtype.bytes for _, x in problem.outputs), default=2)
    row_major = any(x.unit_col for _, x in problem.outputs)
    columns = _power_of_two(cols, widest(d_bytes))
    team = np.where(turns, 1.0, of.consumers)
    pieces = rows / (64 * team) * cols / columns
    lines = np.zeros_like(of.m)
    if any(x.tma_reason() is not None for _, x in problem.outputs):
        count, length = (rows, cols) if row_major else (cols, rows)
        lines = count * (length * d_bytes + END_SECTORS * SECTOR) / team * (waves > 1)
    reads = sum(min(x.rows, x.cols) > 1 for _, x in problem.inputs)
    return {
        "pieces": pieces,
        "narrow": pieces * (columns * d_bytes < SECTOR) * row_major,
        "stored": rows * cols * d_bytes,
        "lines": lines,
        "inputs": np.full_like(of.m, float(reads)),
    }


def _rows_in_lines(problem: Problem, of: Rows, here: Column) -> dict[str, Column]:
    """How rows of operands lie in lines of L2 and in boxes."""
    size = problem.a.dtype.bytes
    astride, thin = np.zeros_like(of.m), np.zeros_like(of.m)
    sides = (
        (problem.a, problem.a.unit_col, here, of.along),
        (problem.b, problem.b.unit_row, of.n, of.across),
    )
    for operand, k_major, lines, sharers in sides:
        taken = lines / sharers * of.k * size
        if _straddles(operand):
            astride = astride + taken
        if not k_major:
            thin = thin + taken * (BOX_ELEMENTS / _power_of_two(lines, BOX_ELEMENTS) - 1)
    return {"astride": astride, "thin": thin}


def _power_of_two(of: Column, most: int) -> Column:
    """The greatest power of two that divides each, and `most`, which is one itself; faster than `np.gcd`."""
    whole = of.astype(np.intp)
    found: Column = np.minimum(whole & -whole, most).astype(np.float64)
    return found


def _void(problem: Problem, of: Rows, here: Column) -> Column:
    """Bytes outside the operands in a stage's boxes: those of the last tiles, spread over all tiles."""
    void = np.zeros_like(of.m)
    a = problem.a.unit_col, problem.m, here, of.along
    b = problem.b.unit_row, problem.n, of.n, of.across
    for k_major, extent, lines, sharers in (a, b):
        if k_major:
            tiles = np.ceil(extent / lines)
            # CTAs that share a tile load a slice each, and all wait for the one outside
            outside = np.minimum(tiles * lines - extent, lines / sharers)
            void = void + outside / tiles * of.k * problem.a.dtype.bytes
    return void


def _straddles(operand: Operand) -> bool:
    """Whether 128-byte rows of a box lie across two lines of L2; a copy's rows begin at whole lines."""
    leading = operand.strides[0] if operand.unit_col else operand.strides[1]
    return operand.tma_reason() is None and leading * operand.dtype.bytes % L2_LINE != 0


class Arrivals(NamedTuple):
    """What operands that TMA cannot address take: of a stage for the threads that load it, and once for copies."""

    stage: Column
    once: Column


def arrivals(
    of: Rows, loads: Sequence[Load], x: LoadModel, device: Device, *, constant: bool = False
) -> Arrivals:
    """That of each config, whose A and B arrive as `loads` say; `constant`: some before earlier launches have ended."""
    stage, once = np.zeros_like(of.m), np.zeros_like(of.m)
    if constant:
        # a cluster begins when SMs for all of it are free; without a producer nothing is loaded early
        once = x.early * np.log2(of.across * of.along * of.held) + x.early_bare * (of.schedule == MULTISTAGE)
    for load, lines in zip(loads, (of.m, of.n), strict=True):
        taken = lines * of.k * load.bytes
        if load.how in THREAD_LOADS:
            rate = {"gather": x.gather * load.bytes, "shift": x.shift, "cp_async": x.copy}
            # threads wait for each operand's bytes, and hand them over, once a stage
            stage = stage + taken / rate[load.how] + x.stage
    copied = sum(x.copied for x in loads)
    if copied:
        # copied bytes are read and written
        once = once + x.relayout + 2 * copied / device.dram_gbs
    if any(y.how in THREAD_LOADS for y in loads):
        once = once + x.first
    return Arrivals(stage, once)


def nanoseconds(of: Counts, x: CostModel, beside: Arrivals | None = None) -> Column:
    """Nanoseconds of each config, its launches included, and what its operands take `beside`, if not TMA alone."""
    fetched = of.fetched + (x.straddle - 1) * of.astride + x.thin * of.thin
    stage = _stage(of, x, fetched)
    if beside is not None:
        stage = _longest(stage, beside.stage)
    mainloop = of.stages * stage
    busy = _busy(of, x, mainloop)
    # all SMs together
    l2 = of.traffic * fetched / np.maximum(of.fetched, 1) / x.l2
    bent = np.where(of.beneath > 0, x.fill_beneath, x.fill)
    asked = of.asked * np.where(of.bare > 0, x.asked_bare, x.asked)
    # a stage of short rows, and warps that multiply before they ask for more, leave memory idle at times
    idle = 1 + x.short_rows * of.short + x.bare_dram * of.bare
    memory = (of.memory + asked) / (x.dram * of.copy * of.share**bent) * idle
    # a lower clock needs a lower voltage, so that time at the cap goes by a power of both
    energy = (x.flop * of.flops + x.l2_energy * of.traffic + x.dram_energy * of.memory) / (1e3 * x.watts)
    theta = x.slows / (1 + x.slows)
    capped = np.exp(
        theta * np.log(np.maximum(busy, LEAST_NS)) + (1 - theta) * np.log(np.maximum(energy, LEAST_NS))
    )
    total = _longest(busy, l2, memory, capped)
    added = x.add + x.full * of.full + of.left / np.minimum(x.add_rate, of.readers * x.part_rate)
    start = x.launch + x.cluster * of.doubled + x.apart * (of.beneath == 0) + of.landed / x.first_rate
    first = np.where(of.bare > 0, x.first_bare, x.first)
    found: Column = start + first + total + of.launched * added
    return found if beside is None else found + beside.once


def _stage(of: Counts, x: CostModel, fetched: Column) -> Column:
    """A mainloop stage: whichever of an SM's units takes longest hides the others."""
    gap = np.where(
        of.turns > 0, x.turn, np.where(of.lone > 0, x.lone, np.where(of.bare > 0, x.bare, x.stage))
    )
    slower = np.where(of.turns > 0, x.mma_turn, np.where(of.three > 0, x.mma_three, 1.0))
    alone = (of.waves == 1) * of.turns
    mma = of.mma * x.mma * slower * (1 + x.turn_lone * alone) * (1 + x.bare_mma * of.bare)
    late = x.latency / np.maximum(of.ring - x.in_use, LEAST_FREE) + of.void / x.void
    return (
        _longest(mma + gap, of.smem * x.smem + x.thin_smem * of.thin, fetched / x.port, late)
        + x.bare_stage * of.bare
    )


def _busy(of: Counts, x: CostModel, mainloop: Column) -> Column:
    """The works of the busiest SM, one after another."""
    stored = of.pieces * np.where(of.turns > 0, x.piece_turn, x.piece) + of.narrow * x.narrow
    stored = stored + of.stored / x.store + of.lines * x.line
    stored = stored + of.inputs * (x.inputs + of.pieces * x.input_piece)
    # sums are stored as they lie in registers, and of a cluster's each CTA has a slice
    stored = np.where(of.launched > 0, of.parts / x.part_store, stored / of.held)
    sums = (of.held > 1) * (x.sum + of.parts / x.sum_rate)
    sums = sums + (of.met > 0) * (x.sum + of.parts / x.part_store + of.met * of.parts / x.part_rate)
    # without a producer nobody loads a tile's first stages while the tile before is stored
    refills = of.bare * np.maximum(of.waves - 1, 0.0) * x.refill
    together = of.waves * (mainloop + x.tile + stored + sums) + refills
    turned = of.waves * np.maximum(mainloop + x.tile_turn, (mainloop + stored) / 2) + stored
    found: Column = np.where(of.turns > 0, turned, together)
    return found


def _longest(*terms: Column) -> Column:
    """A maximum with rounded corners: units that take about as long as each other hide less of one another.

    The root of the sum of fourth powers, which needs no logarithm.
    """
    most = np.maximum.reduce(terms)
    total = np.zeros_like(most)
    for x in terms:
        square = (x / most) ** 2
        total += square * square
    found: Column = most * np.sqrt(np.sqrt(total))
    return found
