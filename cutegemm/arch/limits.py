# SPDX-License-Identifier: Apache-2.0
"""`Limits`: the limits of an architecture and the shapes of its instructions, as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """The limits of one architecture. Two are equal if their names are."""

    name: str  # the compiler's target, such as "sm_90a"
    capability: tuple[int, int]  # compute capability that runs it, (major, minor)
    smem_bytes: int  # shared memory that a CTA may use
    smem_sm_bytes: int  # shared memory of an SM
    smem_l1_bytes: int  # shared memory of an SM up to which L1 keeps room for copies by threads
    smem_reserved: int  # bytes of it that each resident CTA takes besides its allocation
    smem_align: int  # alignment of a tile in shared memory, bytes
    registers_per_sm: int  # 32-bit registers
    registers_per_thread: int  # the most that a thread may have
    register_step: int  # `setmaxnreg` takes multiples of this
    register_unit: int  # a warp's registers are allocated in multiples of this
    sm_threads: int  # most resident threads of an SM
    sm_ctas: int  # most resident CTAs of an SM
    warp: int  # threads
    warpgroup: int  # threads that issue one matrix instruction together
    max_threads: int  # per CTA
    max_cluster: int  # CTAs per cluster
    mma_m: int  # rows of one matrix instruction
    mma_max_n: int  # most columns of one matrix instruction
    tma_align: int  # alignment of base address and of every non-unit stride of a tensor map, bytes
    tma_max_stride: int  # exclusive bound of a stride of a tensor map, bytes
    max_extent: int  # elements along one dimension
    max_grid: int  # CTAs along x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)
