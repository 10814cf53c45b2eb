# SPDX-License-Identifier: Apache-2.0
"""The configs of CUDA-core kernels."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.parts import EpilogueConfig

# neighbouring rows, and columns, that a thread owns together where it can, and rows that it loads in a run
FOUR = 4
# of how many rows that are loaded in runs one may be spare
MOST_SPARE = 6
# elements of D's tile up to which elements are loaded and stored one by one
MOST_ALONE = 64 * 64


def run_rows(rows: int, depth: int, threads: int) -> int:
    """Rows of a tile that its threads load in runs of four of one k, neighbours side by side along k.

    What exceeds `rows` is spare of the last pass.
    """
    across = max(1, threads // depth) * FOUR
    return -(-rows // across) * across


def runs_serve(rows: int, depth: int, threads: int) -> bool:
    """Whether such runs bring a tile: whole rows or whole parts of one a warp, and few that are spare."""
    whole = threads % depth == 0 and depth % (2 * FOUR) == 0 and rows % FOUR == 0
    return whole and run_rows(rows, depth, threads) * MOST_SPARE < rows * (MOST_SPARE + 1)


def vectors_serve(rows: int, depth: int, threads: int, vector: int, along_k: bool) -> bool:
    """Whether threads that load `vector` elements at once share a tile that comes through registers evenly."""
    lanes = (depth if along_k else rows) // vector
    whole = rows * depth % (vector * threads) == 0
    return whole and max(lanes, threads) % min(lanes, threads) == 0


@dataclass(frozen=True, kw_only=True)
class SimtTile:
    """What is chosen together of a CUDA-core kernel: its tile, and who computes which part of it."""

    tile: tuple[int, int, int]
    # (M, N) elements of D that one thread owns
    thread_tile: tuple[int, int] = (8, 8)
    # of a warp's lanes, how many lie along M: 2, 4, 8 or 16; the others along N
    lanes_m: int = 8
    # whether tiles come through registers, two in shared memory; else by cp.async into a ring (fp32 only)
    staged: bool = False
    # shared-memory tiles of A and B in a ring
    stages: int = 3
    # warps of the CTA that share an output, each with its part of every tile's K
    slices: int = 1
    # CTAs of a cluster that share an output tile, each with its part of K
    split: int = 1
    # steps of four k that the mainloop unrolls
    unroll: int = 1
    # tiles of K that staged loads are preceded by prefetches into L2; 0 is none, else 2 or more
    ahead: int = 0
    # CTAs per SM that registers are left for
    residents: int = 1

    @property
    def group(self) -> int:
        """Neighbouring rows that a thread owns together: four, as of columns, or two where it does not own fours."""
        return FOUR if self.thread_tile[0] % FOUR == 0 else FOUR // 2

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

    def in_runs(self, rows: int, vector: int, along_k: bool) -> bool:
        """Whether the threads bring `rows` rows of an operand's k tile through registers in runs of four elements.

        1023 x 1023 x 1023 takes 66 us with them in 64 x 128 and 90 without; in 64 x 64 71 and 67 (H200).
        """
        single = self.staged and along_k and vector == 1 and self.tile[0] * self.tile[1] > MOST_ALONE
        return single and runs_serve(rows, self.tile[2], self.threads)

    def brings(self, rows: int, vector: int, along_k: bool) -> bool:
        """Whether the threads can share the loading of `rows` rows of a k tile, `vector` elements at once."""
        if not self.staged or self.in_runs(rows, vector, along_k):
            return True
        return vectors_serve(rows, self.tile[2], self.threads, vector, along_k)


@dataclass(frozen=True, kw_only=True)
class SimtConfig(SimtTile, EpilogueConfig):
    """A CUDA-core kernel: fp32 accumulation by fused multiply-add, any strides.

    `vector` is how many elements of A, B and D one global access moves. More than 1 needs the extent along
    the unit-stride axis, every other stride and the base address to be multiples of that many elements; at
    most 16 bytes for A and B (1 element of 16 bits), and 1 or 4 elements for D.
    """

    vector: tuple[int, int, int] = (1, 1, 1)
    family: str = "simt"

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster: those that share out a tile's K."""
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
        """Whether several threads hold partial sums of an output, which meet in shared memory."""
        return self.slices * self.split > 1

    @property
    def finished(self) -> tuple[int, int]:
        """(M, N) accumulators that a thread takes through the epilogue at once: its own, or a patch of the sums."""
        return (self.group, 4 * self.gates) if self.shares else self.thread_tile

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers: a warp's."""
        rows, columns = self.finished
        return self.lanes[0] * rows, self.lanes[1] * columns // self.gates

    @property
    def partials_per_tile(self) -> int:
        """Partial results that a tile gives to a reduction over everything."""
        rows, columns = self.partial_width
        return self.tile[0] * self.columns // (rows * columns)
