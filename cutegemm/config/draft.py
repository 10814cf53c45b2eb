# SPDX-License-Identifier: Apache-2.0
"""`KernelDraft`: the fields of a tensor-core kernel's config, and what follows from them.

The planner fills a draft in steps; `KernelConfig` is a draft whose invariants hold. Numeric fields of a draft may be
NumPy arrays with one element per candidate. `invariants`, `smem_budget` and `registers` work on numbers and on arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.arch.instructions import EXACT, Instruction, instruction
from cutegemm.config import scale_places
from cutegemm.config.numbers import Number, least, most, where
from cutegemm.config.parts import EpilogueConfig, MatrixConfig, OutputConfig
from cutegemm.config.registers import most_accumulators, set_registers
from cutegemm.config.stage import StageItem
from cutegemm.dtypes import DType
from cutegemm.epilogue.scales import K_BLOCK, BlockScale
from cutegemm.families import FAMILIES
from cutegemm.families.family import Family, Roles
from cutegemm.layouts.hardware import widest_swizzle

PARTIAL_ROWS = 16  # rows of D that one warp of a warpgroup holds, PTX wgmma D fragment
ROW_ALIGN = 16  # bytes: alignment of the row inputs in shared memory
WIDEST_OF_FOUR = 192  # columns of a wgmma that ptxas accepts in a kernel of four warpgroups
SECTOR, L2_LINE = 32, 128  # bytes of the smallest access of L2, and of its cache lines
CHUNK = 16  # bytes of a row of an 8 x 8 matrix of 16-bit elements (PTX ISA, stmatrix)
MAX_STAGES = 16  # of a pipeline, and buffers of an epilogue
MOST_COLUMNS = 64  # of an epilogue subtile
MOST_BYTES = 128  # of a subtile's row in shared memory
WORK_SLOTS = 4  # work tiles by which a dynamic kernel's producer may be ahead of the slowest consumer


@dataclass(frozen=True, kw_only=True)
class KernelDraft(EpilogueConfig):
    """A tensor-core kernel: the tile, the pipelines, the roles and the epilogue.

    In a draft of many candidates numbers, elements of tuples, truth values and `split_reduction` may be arrays. All
    candidates share family, operands, inputs and outputs; only an operand's `swizzle` and `box_rows` may differ.
    """

    family: str
    tile: tuple[int, int, int]  # (BLK_M, BLK_N, BLK_K), elements; BLK_N counts accumulators
    cluster: tuple[int, int]  # CTAs along (M, N)
    stages: int
    consumers: int  # warpgroups that compute
    pingpong: bool  # each consumer has tiles of its own, one's epilogue overlaps the other's mainloop; else all share
    epi_n: int  # columns a warpgroup stores at once
    epilogue_stages: int  # staging buffers of each output
    input_stages: int  # subtiles of the matrix inputs that TMA holds ready
    persistent: bool
    raster: str  # axis along which consecutive tiles of a panel lie
    serpentine: bool = False  # panels, and K of a cluster's work tiles, run forwards and backwards in turn
    by_gpc: bool = False  # clusters of a GPC compute neighbouring tiles of one split (`plans.gpcs`)
    ctas_per_sm: int = 1  # CTAs that share an SM's registers and shared memory
    # when the next launch may begin: "never" early, at this one's "start", after its last "loads" or its "mainloop"
    trigger: str = "never"
    early: tuple[str, ...] = ()  # roles of operands that are loaded before earlier launches end
    evict_first: tuple[str, ...] = ()  # the matrices, of "a", "b" and "d" (all outputs), that L2 evicts first
    splits: int = 1  # splits of K
    streamed: bool = False  # Stream-K: clusters split tiles along K so that all have equally many k tiles
    dynamic: bool = False  # clusters take work tiles from a counter
    grouped: str = ""  # axis along which a launch computes groups, whose ends lie in memory; "" is none
    masked: bool = False  # each group is the first rows of a batch of its own
    # splits are reduced by a "cluster", a tile's last CTA in "workspace", the next "launch", or "atomic" adds
    split_reduction: str = "none"
    cluster_splits: int = 1  # CTAs of a cluster along K, which reduce their splits first
    slices: int = 1  # CTAs that store a tile, each a share of its columns
    arithmetic: str = EXACT  # of the instruction (`arch.instructions`)
    promote: int = 0  # elements of K after which partial sums are added to fp32 accumulators; 0 is never
    adders: int = 1  # warpgroups of a CTA of the reduction launch, each with a share of the splits
    most_on_sm: int = 0  # CTAs of the reduction launch that an SM holds; 0 is as many as fit

    @property
    def instruction(self) -> Instruction:
        """The tensor cores' instruction for the operands' types."""
        return instruction(self.a.dtype, self.b.dtype, self.arithmetic)

    @property
    def cluster_size(self) -> Number:
        """CTAs per cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster_splits

    @property
    def described(self) -> Family:
        """The kernel's row in the table of families."""
        return FAMILIES[self.family]

    @property
    def schedule(self) -> Number:
        """The key of its family's abilities."""
        first, *rest = self.described.abilities
        return where(self.pingpong, rest[0], first) if rest else first

    @property
    def scheduler(self) -> Number:
        """The tile scheduler, by the spec's name."""
        still = where(self.persistent, "persistent", "per_tile")
        return where(self.streamed, "stream_k", where(self.dynamic, "dynamic", still))

    @functools.cached_property
    def stage(self) -> tuple[StageItem, ...]:
        """What one stage of the pipeline holds: a tile of every operand of the mainloop."""
        extents = dict(zip("mnk", (*self.tile[:2], self.tile[2] * self.instruction.parts), strict=True))
        # CTAs that are neighbours along N need the same tile of A, those along M the same of B
        peers = dict(zip("nm", self.cluster, strict=True))
        return tuple(
            StageItem(x, (extents[x.axes[0]], extents[x.axes[1]]), peers[x.axes[0]]) for x in self.operands
        )

    @property
    def tile_scheduler(self) -> str:
        """The kernel's tile scheduler (`kernels.mainloop.frame.SCHEDULERS`)."""
        listed = {"": "static", "k": "depth"}.get(self.grouped, "grouped")
        counted = f"dynamic_{listed}" if self.grouped else "dynamic"
        return "stream_k" if self.streamed else counted if self.dynamic else listed

    @property
    def work_readers(self) -> Number:
        """Warps of a cluster that read work tiles of a dynamic scheduler."""
        loading = self.producing_warps
        return self.cluster_size * (self.consumers * self.limits.warpgroup // self.limits.warp + loading)

    @property
    def producing_warps(self) -> int:
        """Warps of the producer warpgroup that load: the first alone, unless threads load operands or scales."""
        every = self.gathers or scale_places.loaders(self) > 0
        return int(self.limits.warpgroup // self.limits.warp) if every else 1

    @property
    def adds_up(self) -> Number:
        """Whether a tile may be the sum of several CTAs' splits."""
        return (self.splits > 1) | self.streamed

    @property
    def outer_splits(self) -> Number:
        """Partial sums of a tile after its clusters have reduced their splits."""
        return self.splits // self.cluster_splits

    @property
    def kept_splits(self) -> Number:
        """Partial sums of a tile that workspace holds."""
        return where(self.split_reduction == "atomic", 1, self.outer_splits)

    @property
    def counts(self) -> Number:
        """Whether CTAs count arrivals to find out which is last."""
        return (self.split_reduction == "workspace") | (self.split_reduction == "atomic")

    @property
    def counts_kept(self) -> Number:
        """Counters of a tile's slice: CTAs whose partial sum is written, and with atomics all CTAs as well."""
        return (1 + (self.split_reduction == "atomic")) * self.counts

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies; a kernel that does not reduces the partial sums that another left in workspace."""
        return self.roles.multiplies

    @property
    def stores(self) -> Number:
        """Whether this kernel runs the epilogue; else it leaves partial sums for the next launch."""
        return (self.split_reduction != "launch") | (not self.multiplies)

    @property
    def stored_columns(self) -> Number:
        """Output columns of the CTA tile that one CTA stores."""
        return self.columns // self.slices

    @property
    def slice_values(self) -> Number:
        """fp32 accumulators of a thread that belong to one slice."""
        return self.tile[0] * self.tile[1] // (self.slices * self.team * self.limits.warpgroup)

    @property
    def tile_values(self) -> Number:
        """fp32 accumulators of a thread."""
        return self.slice_values * self.slices

    @property
    def held_values(self) -> Number:
        """Accumulators that a thread holds in the mainloop: sums, partial sums promoted to them, and scales."""
        # warpgroups that issue in turn add the sums of a row before they issue the next row's WGMMAs
        rows = where(self.team > 1, self.wgmma_rows, 1) if self.crossed_scales else 1
        return self.tile_values * (rows + self.partial_sets) // rows + self.scale_values

    @property
    def partial_sets(self) -> Number:
        """Sets of partial sums: with two, a stage is multiplied while the sums of the one before are promoted."""
        if not self.promote:
            return 0
        # a product of two scales for each sum, if they differ by row and column
        held = most(self.scale_values, self.tile_values) if self.crossed_scales else self.scale_values
        room = 3 * self.tile_values + held <= most_accumulators(self)
        # both sets are of a whole tile; a stage is read while the next is multiplied
        two = room & (self.wgmma_rows == 1) & (self.stages > 1)
        if not self.epilogue.scales:
            # several warpgroups hide each other's promotions
            alone = (self.team == 1) & (self.promote == self.tile[2]) & (self.instruction.parts == 1)
            two = two & alone & (self.grouped != "k")
        elif self.column_scales:
            # a scale for each column is read before the WGMMAs; several warpgroups issue in turn (`shared.staggers`)
            two = two & (self.team == 1)
        return where(two, 2, 1)

    @property
    def scale_values(self) -> Number:
        """Registers that a thread's scales of a stage take."""
        return scale_places.registers(self)

    @property
    def crossed_scales(self) -> bool:
        """Whether every row and every column of a tile has a scale of its own."""
        return len(x := self.epilogue.scales) == 2 and x[0].extent == x[1].extent == 1

    @property
    def column_scales(self) -> bool:
        """Whether every column of a tile has a scale of its own, of which a thread reads many."""
        return any(x.axis == "n" and x.extent == 1 for x in self.epilogue.scales)

    def scales_read(self, scale: BlockScale) -> Number:
        """Scales of an operand for a thread's accumulators of one wgmma: two rows, two of every eight columns."""
        if scale.axis == "m":
            return 2 if scale.extent == 1 else 1
        return self.tile[1] // 4 if scale.extent == 1 else self.scales_of(scale)

    def scale_step(self, scale: BlockScale) -> Number:
        """Columns that have one scale wherever the tile begins: aligned groups of so many columns lie in one block."""
        return least(self.tile[1] & -self.tile[1], scale.extent)

    def scales_of(self, scale: BlockScale) -> Number:
        """Scales of an operand's tile in a stage: of its rows or groups of 64 of them, or of the tile's columns."""
        if scale.axis == "m":
            return self.tile[0] // (1 if scale.extent == 1 else self.limits.mma_m)
        return self.tile[1] // self.scale_step(scale)

    @property
    def sums(self) -> DType:
        """The type of a tile's sums."""
        return DType.FP32 if self.promote else self.instruction.accumulator

    def slice_index(self, value: int) -> tuple[int, int]:
        """The index among a thread's accumulators of a slice's value-th accumulator.

        Returns:
            The index for the first slice, and the step from slice to slice. A gated pair along N has its columns in
            each half of a pass.
        """
        step, whole = self.stored_columns // 2, self.columns // 2
        block, within = divmod(value, step)
        return block * whole + within, step

    @property
    def roles(self) -> Roles:
        """What the family's warpgroups do."""
        return self.described.roles

    @property
    def producers(self) -> int:
        """Warpgroups that only load."""
        return self.roles.producers

    @property
    def threads(self) -> Number:
        """Threads per CTA; one of the reduction launch has the rows of one warpgroup of the GEMM."""
        if not self.multiplies:
            return self.adders * self.limits.warpgroup
        return (self.producers + self.consumers) * self.limits.warpgroup

    @property
    def team(self) -> Number:
        """Consumer warpgroups that share a tile."""
        return where(self.pingpong, 1, self.consumers)

    @property
    def mma_columns(self) -> Number:
        """Columns of one wgmma: the tile's, or half of them if four warpgroups have too few registers at launch.

        Each of 512 threads is launched with 128 registers, and ptxas wants an instruction's operands within that.
        """
        four = self.multiplies & (self.threads > 3 * self.limits.warpgroup)
        narrow = four & (self.tile[1] > WIDEST_OF_FOUR)
        return where(narrow, self.tile[1] // 2, self.tile[1])

    @property
    def rows_per_pass(self) -> Number:
        """Rows of the CTA tile that a team's warpgroups cover with one wgmma each."""
        return self.limits.mma_m * self.team

    @property
    def passes(self) -> Number:
        """Passes over the CTA tile's output rows; a pair of halves along M takes two WGMMAs each."""
        return self.rows // self.rows_per_pass

    @property
    def wgmma_rows(self) -> Number:
        """Passes over the CTA tile's rows of A, those of both halves of a pair along M."""
        return self.tile[0] // self.rows_per_pass

    @property
    def rows(self) -> Number:
        """Output rows of the CTA tile."""
        return self.tile[0] // self.a.halves

    @property
    def columns(self) -> Number:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.b.halves

    @property
    def subtiles_n(self) -> Number:
        """Subtiles of EPI_N columns along N that a CTA stores."""
        return self.stored_columns // self.epi_n

    @property
    def subtiles(self) -> Number:
        """Subtiles that each consumer warpgroup stores per tile."""
        return self.passes * self.subtiles_n

    def subtile_swizzle(self, matrix: MatrixConfig | OutputConfig) -> str:
        """The widest swizzle that the contiguous extent of a subtile of `matrix` allows."""
        contiguous = self.limits.mma_m if matrix.major == "m" else self.epi_n
        return widest_swizzle(contiguous, matrix.dtype.bits)

    def row_pitch(self, output: OutputConfig) -> int:
        """Bytes from row to row of a staged subtile of `output` in shared memory, along its contiguous axis.

        Room for less than a sector, which the subtile before left, precedes each row. The pitch is an odd number of
        chunks, so that the eight chunks of one stmatrix lie in different banks.
        """
        chunks = (
            SECTOR + (self.limits.mma_m if output.major == "m" else self.epi_n) * output.dtype.bytes
        ) // CHUNK
        return CHUNK * (chunks | 1)

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers."""
        return PARTIAL_ROWS, self.stored_columns

    @property
    def partials_per_slice(self) -> Number:
        """Partial results of a slice in a reduction over all of D: one per warp that shares it."""
        return self.team * self.limits.warpgroup // self.limits.warp

    @property
    def partials_per_tile(self) -> Number:
        """Partial results of a tile in a reduction over all of D."""
        return self.partials_per_slice * self.slices

    @property
    def smem_limit(self) -> Number:
        """Bytes of shared memory of a CTA: its share of an SM's, less 1 KiB that each CTA reserves (CG, table 28)."""
        return self.limits.smem_sm_bytes // self.ctas_per_sm - self.limits.smem_reserved

    @property
    def gathers(self) -> bool:
        """Whether an operand is loaded by the producer warpgroup's threads."""
        return any(x.load != "tma" for x in self.operands)

    @property
    def copies_async(self) -> bool:
        """Whether the producer's threads load by cp.async."""
        shifted = any(x.load == "shift" and not x.boxed for x in self.stage)
        return shifted or any(x.load == "cp_async" for x in self.operands)

    @property
    def ahead(self) -> Number:
        """Tiles in flight before threads finish one: a stage is released when the next is full, or those of a turn."""
        asynchronous = any(x.load in ("shift", "cp_async") for x in self.operands)
        full = most(2, self.in_turn * (self.promote // self.tile[2]))
        return most(0, self.stages - full) if asynchronous else 0

    @property
    def in_turn(self) -> Number:
        """Whether three warpgroups issue the WGMMAs between two promotions in order (`mainloop.ordered_issue`)."""
        able = self.grouped != "k" or scale_places.aligned(self)  # `shared.staggers`
        return (self.team == 3) & bool(self.promote and self.multiplies and self.producers and able)

    @property
    def copies(self) -> bool:
        """Whether an operand is loaded by TMA."""
        return any(x.load == "tma" for x in self.operands)

    @property
    def registers(self) -> tuple[int, int] | None:
        """(producer, consumer) registers per thread set by setmaxnreg; None keeps the launch's allocation."""
        producer, consumer = set_registers(self)
        return (producer, consumer) if consumer else None

    @property
    def columns_step(self) -> int:
        """The step of a slice's or a tile's output columns: the instruction's, and whole chunks in each row."""
        staged: list[MatrixConfig | OutputConfig] = [x for x in self.outputs if x.store != "direct"]
        staged += [x for x in self.inputs if x.load == "tma"]
        chunks = (CHUNK // x.dtype.bytes for x in staged if x.major != "m")
        return max([self.instruction.n_step, K_BLOCK if self.epilogue.blocks else 0, *chunks])
