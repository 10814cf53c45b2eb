# SPDX-License-Identifier: Apache-2.0
"""The configs of CUDA-core kernels."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.numbers import Number, either, least, most, round_up, where
from cutegemm.config.parts import EpilogueConfig, OperandConfig

# neighbouring rows, or columns, that a thread owns together if it can, and rows that it loads in a run
FOUR = 4
# one of so many rows that are loaded in runs may be spare
MOST_SPARE = 6
# neighbouring threads that copy single elements along k, a sector; chunks of four k that are swizzled
SECTOR = 8
CHUNKS = 8
WARP = LIMITS.warp
# shared-memory tiles of operands that are loaded through registers: one is read while the next is written
STAGED_STAGES = 2
# elements of D's tile up to which loads and stores move single elements
MOST_ALONE = 64 * 64


def run_rows(rows: Number, depth: Number, threads: Number) -> Number:
    """Rows of a tile that threads load in runs of four rows at one k; neighbouring threads have neighbouring k.

    Rows beyond `rows` are spare rows of the last pass.
    """
    return round_up(rows, most(1, threads // depth) * FOUR)


def runs_serve(rows: Number, depth: Number, threads: Number) -> Number:
    """Whether such runs load a tile: each warp has whole rows or a whole fraction of one, and few rows are spare."""
    whole = (threads % depth == 0) & (depth % (2 * FOUR) == 0) & (rows % FOUR == 0)
    return whole & (run_rows(rows, depth, threads) * MOST_SPARE < rows * (MOST_SPARE + 1))


def run_pitch(rows: Number, depth: Number, threads: Number) -> Number:
    """Elements from row to row of such a tile in shared memory: an odd multiple of four."""
    held = run_rows(rows, depth, threads)
    return held + (FOUR - held) % (2 * FOUR)


def vectors_serve(rows: Number, depth: Number, threads: Number, vector: Number, along_k: bool) -> Number:
    """Whether threads that load `vector` elements at once evenly divide a tile that is loaded through registers."""
    lanes = (depth if along_k else rows) // vector
    whole = rows * depth % (vector * threads) == 0
    return whole & (most(lanes, threads) % most(least(lanes, threads), 1) == 0)


def line_pad(depth: Number, vector: Number, along_k: bool) -> Number:
    """Padding elements between the rows of consecutive vectors of a tile that is loaded through registers."""
    return most(FOUR, WARP // most(depth // vector, 1)) if along_k else 0


def lines_serve(depth: Number, vector: Number, slices: Number, along_k: bool) -> Number:
    """Whether padding keeps fragments of four rows aligned, and every slice of a k tile begins at whole vectors."""
    aligned = line_pad(depth, vector, along_k) % FOUR == 0
    return aligned & (depth // slices % vector == 0) if along_k else aligned


def copy_lanes(rows: Number, depth: Number, threads: Number, vector: Number, along_k: bool) -> Number:
    """Neighbouring threads along the unit-stride axis that copy a tile into a pipeline stage."""
    fast, slow = (depth // vector, rows) if along_k else (rows // vector, depth)
    sector = where(vector == 1, SECTOR, fast) if along_k else fast
    return most(least(least(fast, threads), sector), least(fast, threads // slow))


def copies_serve(rows: Number, depth: Number, threads: Number, vector: Number, along_k: bool) -> Number:
    """Whether threads that copy `vector` elements at once evenly divide a pipeline's tile."""
    fast, slow = (depth // vector, rows) if along_k else (rows // vector, depth)
    whole = (depth % FOUR == 0) & (rows % vector == 0) & (depth % vector == 0)
    chunks = depth // FOUR
    if along_k:
        turned = (CHUNKS % most(chunks, 1) == 0) | (chunks % CHUNKS == 0)
        whole = whole & ((vector == 1) | turned)
    lanes = copy_lanes(rows, depth, threads, vector, along_k)
    lanes = most(lanes, 1)
    shared = (threads % lanes == 0) & (fast % lanes == 0)
    shared = shared & (slow % most(threads // lanes, 1) == 0)
    return whole & ((fast * slow < threads) | shared)


def copy_pitch(rows: Number, depth: Number, vector: Number, along_k: bool) -> Number:
    """Elements from row to row of a pipeline's tile."""
    return where(vector > 1, depth, rows + FOUR) if along_k else rows


@dataclass(frozen=True, kw_only=True)
class SimtTile:
    """What the planner chooses of a CUDA-core kernel: its tile, and which threads compute what of it."""

    tile: tuple[int, int, int]
    # (M, N) elements of D that one thread owns
    thread_tile: tuple[int, int] = (8, 8)
    # lanes of a warp along M: 2, 4, 8 or 16; the others lie along N
    lanes_m: int = 8
    # whether tiles are loaded through registers, two in shared memory; else by cp.async into a pipeline (fp32 only)
    staged: bool = False
    # stages of the pipeline of A and B
    stages: int = 3
    # warps of the CTA that share an output, each with a slice of every k tile
    slices: int = 1
    # CTAs of a cluster that share an output tile, each with a split of K
    split: int = 1
    # steps of four k that the mainloop unrolls
    unroll: int = 1
    # k tiles by which prefetches into L2 precede staged loads; 0 is none, else 2 or more
    ahead: int = 0
    # CTAs per SM that share its registers
    residents: int = 1

    @property
    def group(self) -> Number:
        """Neighbouring rows that a thread owns together: four, or two if its rows are not a multiple of four."""
        return where(self.thread_tile[0] % FOUR == 0, FOUR, FOUR // 2)

    @property
    def takes_pairs(self) -> bool:
        """Whether a thread owns neighbouring columns of both halves of gated pairs."""
        return self.thread_tile[1] % (2 * FOUR) == 0

    @property
    def owners(self) -> int:
        """Threads that hold one copy of the tile's accumulators."""
        return self.tile[0] * self.tile[1] // (self.thread_tile[0] * self.thread_tile[1])

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.owners * self.slices

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.threads // LIMITS.warp

    def in_runs(self, rows: Number, vector: Number, along_k: bool) -> Number:
        """Whether the threads load `rows` rows of an operand's k tile through registers in runs of four elements.

        Larger tiles gain by them; smaller ones load single elements in less time.
        """
        single = self.staged & along_k & (vector == 1) & (self.tile[0] * self.tile[1] > MOST_ALONE)
        return either(single, lambda: runs_serve(rows, self.tile[2], self.threads), lambda: False)

    def brings(self, rows: Number, vector: Number, along_k: bool) -> Number:
        """Whether the threads can divide the loads of `rows` rows of a k tile, `vector` elements at once."""
        tile = rows, self.tile[2], self.threads, vector, along_k
        return either(
            self.staged,
            lambda: either(
                self.in_runs(rows, vector, along_k),
                lambda: True,
                lambda: vectors_serve(*tile) & lines_serve(self.tile[2], vector, self.slices, along_k),
            ),
            lambda: copies_serve(*tile),
        )

    def stage_elements(self, rows: Number, vector: Number, along_k: bool) -> Number:
        """fp32 elements of a stage of an operand's tile in shared memory."""
        depth = self.tile[2]
        runs = depth * run_pitch(rows, depth, self.threads)
        lines = depth * rows + depth // vector * line_pad(depth, vector, along_k)
        staged = where(self.in_runs(rows, vector, along_k), runs, lines)
        held_by_rows = (vector > 1) & along_k
        pipeline = copy_pitch(rows, depth, vector, along_k) * where(held_by_rows, rows, depth)
        return where(self.staged, staged, pipeline)


# What the planner has. Ties go to the first tile; of tiles with the same extents the first possible one is used
# (`benchmarks/probes/simt_tiles.py` measures each).
TILES = (
    SimtTile(tile=(128, 128, 8), thread_tile=(16, 8), lanes_m=4, staged=True, residents=2),
    SimtTile(tile=(128, 128, 8), staged=True, residents=2),
    # for M that tiles of 128 rows would pad much
    SimtTile(tile=(112, 128, 8), thread_tile=(14, 8), staged=True, residents=2),
    SimtTile(tile=(64, 128, 16), staged=True, slices=2, residents=2),
    SimtTile(tile=(64, 64, 16), staged=True, slices=4, residents=2),
    SimtTile(tile=(64, 64, 32), thread_tile=(8, 16), staged=True, slices=8, ahead=4),
    SimtTile(tile=(64, 64, 32), staged=True, slices=8),
    SimtTile(tile=(64, 32, 64), staged=True, slices=16, ahead=4),
    SimtTile(tile=(64, 16, 32), thread_tile=(8, 4), slices=8, stages=6, residents=2),
    SimtTile(tile=(16, 64, 32), thread_tile=(4, 8), lanes_m=4, slices=8, stages=6, residents=2),
)
# (m, n, k) of each
EXTENTS = tuple(dict.fromkeys(x.tile for x in TILES))


@dataclass(frozen=True, kw_only=True)
class SimtConfig(SimtTile, EpilogueConfig):
    """A CUDA-core kernel: fp32 accumulation by fused multiply-add, any strides.

    `vector` is how many elements of A, B and D one global access moves. More than 1 needs the extent along
    the unit-stride axis, every other stride and the base address to be multiples of that many elements; at
    most 16 bytes for A and B (1 element of 16 bits), and 1 or 4 elements for D.
    """

    vector: tuple[int, int, int] = (1, 1, 1)
    family: str = "simt"

    def __post_init__(self) -> None:
        # the rules read the fields
        from cutegemm.config.simt_invariants import check

        check(self)

    @property
    def factors(self) -> tuple[tuple[OperandConfig, Number, Number], ...]:
        """Each operand of the mainloop, with the rows of its tile and the elements of one access."""
        return tuple(zip(self.operands, self.tile, self.vector, strict=False))

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster, which split a tile's K."""
        return self.split

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a warp along (M, N)."""
        return self.lanes_m, self.limits.warp // self.lanes_m

    @property
    def columns(self) -> int:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.gates

    @property
    def shares(self) -> bool:
        """Whether several threads hold partial sums of an output, which are reduced in shared memory."""
        return self.slices * self.split > 1

    @property
    def finished(self) -> tuple[int, int]:
        """(M, N) accumulators that a thread passes through the epilogue at once: its own, or a patch of the sums."""
        return (self.group, 4 * self.gates) if self.shares else self.thread_tile

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers: a warp's."""
        rows, columns = self.finished
        return self.lanes[0] * rows, self.lanes[1] * columns // self.gates

    @property
    def partials_per_tile(self) -> int:
        """Partial results of a tile in a reduction over all of D."""
        rows, columns = self.partial_width
        return self.tile[0] * self.columns // (rows * columns)
