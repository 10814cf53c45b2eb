# SPDX-License-Identifier: Apache-2.0
"""`Device`: the figures of one GPU that planning uses, and the constants of its model of time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from cutegemm.arch.limits import Limits


@dataclass(frozen=True, kw_only=True)
class TimeModel:
    """Sustained rates of one GPU, which `cli.facts` shows. Times in ns, rates in bytes per ns and SM.

    Attributes:
        mma: of one mainloop stage of 64 along K, per element of the tile.
        narrow: factor on `mma` where one warpgroup of 64 rows computes alone.
        traffic: of `mma` per extra byte per element that a stage loads: moving data costs power, and so clock.
        l2: delivered to an SM by TMA while every SM loads, in a kernel of many waves.
        l2_lone: the same in a kernel whose CTAs have a tile each: short, so that the clock stays high.
        straddle: factor on what L2 delivers of rows that straddle its lines.
        tile: per tile: the ring's first fill and the accumulators' turn.
        piece: per piece of the epilogue's store: its barriers.
        store: of the epilogue, where the mainloop does not hide it.
        launch: per kernel.
        turn: per tile of a pingpong kernel: one mainloop follows the other, the epilogue runs beside it.
        turn_lone: factor on its mainloop where every CTA has one tile: its second consumer idles.
        turn_deep: slowdown of its mainloop for every doubling of K beyond 4096, where epilogues are rare.
        multistage_lone: factor on a stage of a multistage kernel whose CTAs have a tile each.
        inputs: per tile of a pingpong kernel that reads matrices: what the other's mainloop does not hide.
        input_piece: the same per piece.
        narrow_piece: the same per piece of less than 32 bytes a row, without inputs.
        shared: factor on what inputs cost where the consumers share a tile, so that nothing hides an epilogue.
        relayout: per re-layout launch, beside its bytes.
        gather: per element that a producer warpgroup gathers into a stage.
        shift: bytes per ns that it shifts into stages; copy: that it copies by cp.async, per byte of a copy.
    """

    mma: float
    narrow: float
    traffic: float
    l2: float
    l2_lone: float
    straddle: float
    tile: float
    piece: float
    store: float
    launch: float
    turn: float
    turn_lone: float
    turn_deep: float
    multistage_lone: float
    inputs: float
    input_piece: float
    narrow_piece: float
    shared: float
    relayout: float
    gather: float
    shift: float
    copy: float


@dataclass(frozen=True, kw_only=True)
class CoreModel:
    """The constants of `planning.simt_tiles` for one GPU. Times in ns.

    Attributes:
        slot: of an issue slot of a quarter of an SM.
        shared: slots that 128 bytes of shared memory take.
        lone, paired: factor on slots where a quarter has one warp, or two: what they wait for nobody fills.
        ring: factor on a k tile that comes by cp.async.
        dram, l2: least time of a k tile that comes through registers, one tile ahead: until DRAM answers, or L2 after a
            prefetch.
        alone, alone_ahead: of such a k tile between its last product and the next one's first, where no other CTA
            fills them; the same after a prefetch.
        cta: of a CTA's first tile and its store, which the SM's other CTAs hide in part.
        launch: of a launch outside its mainloop.
        meet: of the meeting of shared sums; doubling: more for every doubling of the CTAs that share a tile.
    """

    slot: float
    shared: float
    lone: float
    paired: float
    ring: float
    dram: float
    l2: float
    alone: float
    alone_ahead: float
    cta: float
    launch: float
    meet: float
    doubling: float


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """The rates that `planning.cost` divides by, of one GPU. Times in ns, rates in bytes per ns, energies in pJ.

    Attributes:
        mma, smem: of a cycle of the tensor cores, of shared memory.
        port: that arrives at an SM; l2: that L2 delivers to all, a cluster's shared bytes once; dram: share of a
            copy's rate that memory delivers.
        straddle: factor on bytes in rows that straddle lines of L2.
        stage, lone, turn, bare: of a stage beside its instructions, of two or three warpgroups, one, pingpong, and no
            producer; mma_turn: factor on `mma` of pingpong.
        scaled: more of a stage whose products are scaled; scale_read: for each scale that a thread reads for columns.
        latency: from asking for a stage to having it; in_use: stages of a ring that do not load meanwhile; void: rate
            of the zeros that TMA fills in outside an operand.
        tile, tile_turn: of a work outside its mainloop, cooperative and pingpong; refill: more of a work after the
            first without a producer.
        piece, piece_turn: of an epilogue subtile; narrow: more where its rows are less than a sector; store: rate of an
            SM's stores; line: of a byte of sectors that threads store.
        inputs, input_piece: of matrices that the epilogue reads, a work and a subtile.
        sum, sum_rate: of a cluster's sum of splits, and the rate of its bytes.
        part_store: rate at which an SM stores sums for others, and reads them; add: of a launch that adds them up,
            add_rate: of its bytes; full: more where it finds no SM free.
        fill, fill_beneath: memory's rate falls by this power of the share of SMs that stream, the second where the next
            launch begins early.
        short_rows, bare_dram: more that memory takes for stages of short rows, and of kernels without a producer.
        asked: share of bytes that memory delivers again where two clusters request them at once; more for more.
        flop, l2_energy, dram_energy: of an operation, of a byte from L2, of a byte of memory; watts: of the cap; slows:
            by which power of the clock energy grows.
        launch: of a launch; apart: more where the next one does not begin early; cluster: for each doubling of its
            CTAs; first, first_bare: until the first stage, with and without a producer.
        early_full, early_cluster, early_sum, early_bare: of kernels that load constant operands while the launch before
            runs, by the share of SMs that it keeps busy, for each doubling of a cluster's CTAs, whose SMs must all be
            free, if that launch adds up splits, and without a producer, since those load nothing early; early_fill:
            added to the power, as the next kernel streams little more.
    """

    mma: float
    smem: float
    port: float
    l2: float
    dram: float
    straddle: float
    stage: float
    lone: float
    turn: float
    bare: float
    mma_turn: float
    scaled: float
    scale_read: float
    latency: float
    in_use: float
    void: float
    tile: float
    tile_turn: float
    refill: float
    piece: float
    piece_turn: float
    narrow: float
    store: float
    line: float
    inputs: float
    input_piece: float
    sum: float
    sum_rate: float
    part_store: float
    add: float
    add_rate: float
    full: float
    fill: float
    fill_beneath: float
    short_rows: float
    bare_dram: float
    asked: float
    flop: float
    l2_energy: float
    dram_energy: float
    watts: float
    slows: float
    launch: float
    apart: float
    cluster: float
    first: float
    first_bare: float
    early_full: float
    early_cluster: float
    early_sum: float
    early_bare: float
    early_fill: float


@dataclass(frozen=True, kw_only=True)
class LoadModel:
    """What operands take that TMA cannot address, of one GPU. Times in ns, rates in bytes per ns and SM.

    Attributes:
        shift: that a producer warpgroup shifts into a stage; gather: elements per ns that it loads one by one; copy:
            that it copies by cp.async.
        stage: of an operand of a stage, beside its bytes; first: until the first stage, more than TMA takes.
        relayout: of a launch that copies operands, beside its bytes.
    """

    shift: float
    gather: float
    copy: float
    stage: float
    first: float
    relayout: float


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU.

    Attributes:
        name: as the driver gives it.
        limits: of its architecture.
        sms: streaming multiprocessors.
        clusters: (CTAs per cluster, clusters resident at once with one CTA an SM).
        dram_gbs: GB/s of a device-to-device copy, read plus write.
        l2_bytes: of the L2 cache.
        time: sustained rates; cores: those of the CUDA cores' kernels.
        cost: rates of `planning.cost`; None where they are not fitted; loads: those of operands that TMA cannot
            address.
        kernels: what single kernels take over what `cost` says (`planning.known_kernels`).
        note: what in this record is not measured on this GPU; empty when nothing is.
    """

    name: str
    limits: Limits
    sms: int
    clusters: tuple[tuple[int, int], ...]
    dram_gbs: float
    l2_bytes: int
    time: TimeModel
    cores: CoreModel
    loads: LoadModel
    cost: CostModel | None = None
    kernels: Mapping[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""

    def __hash__(self) -> int:
        """Of what tells GPUs apart: a device is part of the key of every plan that is remembered."""
        return hash((self.name, self.sms))

    def resident_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that the GPU holds at once (one CTA an SM).

        A persistent grid larger than this runs in two waves. Graphics processing clusters have
        unequal SM counts, so the number is below `sms // size` for clusters of four and more; where it
        is not known, a tenth below.
        """
        known = self._resident.get(size)
        if known is None:
            # the two SMs of a TPC are never apart
            known = self.sms // size * (10 if size <= 2 else 9) // 10 or 1
        return known

    @functools.cached_property
    def _resident(self) -> dict[int, int]:
        return dict(self.clusters)
