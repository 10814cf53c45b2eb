# SPDX-License-Identifier: Apache-2.0
"""`Device`: the figures of one GPU that planning uses, and the fitted rates of its cost models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from cutegemm.arch.limits import Limits


@dataclass(frozen=True, kw_only=True)
class CoreModel:
    """Rates of one GPU for `planning.simt_tiles`. Times in ns."""

    slot: float  # time of an issue slot of an SM sub-partition
    shared: float  # issue slots per 128 bytes of shared memory
    lone: float  # factor on issue slots if a sub-partition has one warp and so cannot hide its stalls
    paired: float  # the same for two warps
    ring: float  # factor on a k tile that is loaded by cp.async
    # least time of a k tile loaded through registers one tile ahead: the latency of DRAM, or of L2 if prefetched
    dram: float
    l2: float
    # gap between two such k tiles if the SM has no other CTA: without a prefetch, and with one
    alone: float
    alone_ahead: float
    cta: float  # a CTA's first k tile and its stores, which other CTAs of the SM hide in part
    launch: float  # a launch outside its mainloop
    meet: float  # the reduction of splits
    doubling: float  # extra for each doubling of the CTAs that share a tile


@dataclass(frozen=True, kw_only=True)
class FewRowModel:
    """Rates of one GPU for `planning.gemv_tiles`, a few rows or columns of D on the CUDA cores. Times in ns.

    A word is 16 bytes of each of a warp's lanes; its times are those of an SM that all warps share.
    """

    launch: float  # a launch outside its mainloop
    latency: float  # from a warp's loads until they arrive
    alone: float  # factor on the time of a warp's instructions that no other warp hides
    word: float  # to load a word of B
    row: float  # to load the word of a row of A that it meets
    shift: float  # added if words of A are shifted
    product: float  # to multiply a word of B by that of a row
    cta: float  # a CTA of an SM
    sum: float  # of each sum of a warp, which its lanes add up
    dram: float  # bandwidth of device memory over that of a copy


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Rates of one GPU for `planning.cost`. Times in ns, rates in bytes per ns, energies in pJ.

    "Pingpong" is the schedule; "bare" means kernels without a producer warp.
    """

    mma: float  # a cycle of the tensor cores
    smem: float  # a cycle of shared memory
    port: float  # bytes that arrive at an SM
    l2: float  # bytes that L2 delivers to all SMs; multicast bytes count once per cluster
    dram: float  # bandwidth of device memory over that of a copy
    straddle: float  # factor on bytes of rows that straddle L2 cache lines
    within: float  # added to it for rows that begin within L2 sectors
    slim: float  # added to it for boxes whose rows are less than an L2 cache line
    # time of a stage besides its instructions: two or three consumer warpgroups, one, pingpong, bare
    stage: float
    lone: float
    turn: float
    bare: float
    mma_turn: float  # factor on `mma` for pingpong
    scaled: float  # extra per stage with block scales
    scale_read: float  # for each column scale that a thread reads
    promoted: float  # for each column of partial sums that a warpgroup promotes without scales
    latency: float  # from the request of a stage to its arrival
    in_use: float  # stages of the pipeline that are not being loaded during that time
    least_free: float  # least stages that are free for loads, however short the pipeline
    void: float  # zeros that TMA fills in for out-of-bounds elements
    tile: float  # a work tile besides its mainloop
    tile_turn: float  # the same for pingpong
    refill: float  # extra for each work tile after the first, bare
    piece: float  # an epilogue subtile
    piece_turn: float  # the same for pingpong
    narrow: float  # extra if a subtile's rows are shorter than a sector
    store: float  # rate at which an SM stores
    line: float  # ns per byte of the sectors that direct stores touch
    partial: float  # factor on sectors that they write partly
    inputs: float  # per work tile and matrix that the epilogue reads
    input_piece: float  # per epilogue subtile and such matrix
    sum: float  # the reduction of a cluster's splits
    sum_rate: float  # its rate
    part_store: float  # rate of partial sums that an SM stores for others, or reads
    add: float  # a launch that reduces splits
    add_rate: float  # its rate
    full: float  # extra if no SM is free for it
    # DRAM bandwidth scales with this power of the share of SMs that stream; the second applies if the next
    # launch starts early
    fill: float
    fill_beneath: float
    short_rows: float  # relative extra memory time if the rows of a stage are short
    bare_dram: float  # the same, bare
    asked: float  # share of bytes that DRAM delivers twice if two clusters request them at the same time
    asked_alone: float  # the same of CTAs without a cluster, whose neighbours are in one GPC
    asked_power: float  # of the clusters beside the first: each further one more likely finds the bytes in L2
    flop: float  # energy of a floating-point operation
    lift: float  # energy of a partial sum that is promoted
    flop_eight: float  # the same of 8-bit operands
    l2_energy: float  # energy of a byte from L2
    dram_energy: float  # energy of a byte of device memory
    watts: float  # power cap
    slows: float  # energy grows with this power of the clock
    launch: float  # a launch
    apart: float  # extra if the next launch does not start early
    cluster: float  # extra for each doubling of a cluster's CTAs
    first: float  # until the first stage arrives
    first_bare: float  # the same, bare
    first_two: float  # added for two cooperative warpgroups, whose warps and registers start later
    first_three: float  # added for three
    first_turn: float  # added for two that take turns
    # delays of kernels that load constant operands while the launch before still runs
    early_full: float  # times the share of SMs that it keeps busy
    early_cluster: float  # for each doubling of a cluster's CTAs, since all of them need free SMs
    early_sum: float  # if it reduces splits
    early_bare: float  # without a producer, which could load early
    early_fill: float  # added to `fill`, since the next kernel adds little streaming


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Where one of two kernels becomes the faster one on a GPU, for `planning`; measured, not fitted."""

    early_bytes: int  # that a launch moves, up to which the next launch should begin early
    early_bytes_full: int  # the same of a launch whose share of the SMs is at least `full`
    early_constant: int  # bytes of a launch with constant operands, up to which the next one begins at once
    early_few_rows: int  # the same of a launch for a few rows on the CUDA cores, without early loads
    early_blocks: int  # blocks of K of such a launch for one row, up to which it loads a constant B early
    constant_few_rows: (
        float  # factor on its predicted time with constant operands, beside tensor-core kernels
    )
    full: float  # share of the SMs that leaves no pair of them free
    in_turn: float  # share of the SMs from which on the CTAs of a next grid as large take the SMs one by one
    kept: float  # share of L2 below which an operand stays there while the other streams through
    early_shared: int  # bytes that CTAs without a cluster load again, up to which the next one begins early
    displaced: float  # share of L2 beyond which weights that each product reads once are evicted first
    drift_tiles: int  # tiles per SM from which on CTAs without a cluster drift apart
    # of groups (`planning.group_kernels`)
    whole_rows: int  # rows of an average group from which on most tiles are whole
    halved_k: int  # average K of groups along K up to which stages are half as deep
    quartered_k: int  # and a quarter
    wide_k: int  # and up to which the widest tiles pay, whose accumulators take most registers
    scaled_k: int  # K up to which stores and first loads take much of the time of tiles with scales of blocks
    filled: float  # share of tiles that D must fill so that a preferred tile pays


# bytes of the narrowest and of the widest cp.async (PTX ISA)
NARROW, WIDE = 4, 16


@dataclass(frozen=True, kw_only=True)
class LoadModel:
    """Rates of one GPU for operands that TMA cannot address. Times in ns, rates in bytes per ns and SM."""

    shift: float  # by a producer warpgroup with unaligned loads ("shift")
    gather: float  # single elements per ns that it loads ("gather")
    copy_wide: float  # with cp.async of 16 bytes
    copy: float  # of 8 bytes
    copy_narrow: float  # of 4 bytes
    stage: float  # an operand of a stage, besides its bytes
    first: float  # extra time until the first stage, compared with TMA
    relayout: float  # a launch that copies operands, besides the time for its bytes

    def rate(self, load: str, width: int, size: int) -> float:
        """Bytes per ns that an SM's threads load of elements of `size` bytes; `width` is that of copies."""
        copied = {WIDE: self.copy_wide, NARROW: self.copy_narrow}.get(width, self.copy)
        return {"shift": self.shift, "cp_async": copied}.get(load, self.gather * size)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU."""

    name: str  # as the driver reports it
    limits: Limits  # of its architecture
    sms: int  # streaming multiprocessors
    clusters: tuple[tuple[int, int], ...]  # (CTAs per cluster, clusters resident at once with one CTA per SM)
    dram_gbs: float  # GB/s of a device-to-device copy, read plus write
    l2_bytes: int  # size of the L2 cache
    cores: CoreModel  # rates of CUDA-core kernels
    few_rows: FewRowModel  # rates of those of a few rows or columns of D
    loads: LoadModel  # rates of operands that TMA cannot address
    cost: CostModel  # rates of tensor-core kernels
    thresholds: Thresholds
    # factors of single kernels on the time that `cost` predicts (`planning.known_kernels`)
    kernels: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # GPC of each cluster in the order of a launch, by CTAs per cluster; clusters of other sizes have no known GPC
    gpcs: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # whether device memory takes longer to write where CTAs drift apart
    stores_drift: bool = False
    note: str = ""  # figures that were not measured on this GPU; empty if all were

    def __hash__(self) -> int:
        """Fast, because every cached plan has a device in its key."""
        return hash((self.name, self.sms))

    def resident_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that are resident at once, with one CTA per SM.

        A larger persistent grid would run in two waves. GPCs differ in SM count, so clusters of four or more do not
        fill the GPU. If the number is unknown, it is assumed to be a tenth below `sms // size`.
        """
        known = self._resident.get(size)
        if known is None:
            # the two SMs of a TPC are in one GPC
            known = self.sms // size * (10 if size <= 2 else 9) // 10 or 1
        return known

    @functools.cached_property
    def _resident(self) -> dict[int, int]:
        return dict(self.clusters)
