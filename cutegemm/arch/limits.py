# SPDX-License-Identifier: Apache-2.0
"""`Limits`: what an architecture allows and how its instructions are shaped, as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """One architecture. Two are equal when their names are.

    Attributes:
        name: what the compiler is asked for, such as "sm_90a".
        capability: the compute capability that runs it, (major, minor).
        smem_bytes: shared memory that a CTA may use, bytes.
        smem_sm_bytes, smem_reserved: shared memory of an SM, and what each resident CTA takes of it beside its own.
        smem_align: alignment of a tile in shared memory, bytes.
        registers_per_sm, registers_per_thread: 32-bit registers; the second is the most that a thread may have.
        register_step: `setmaxnreg` takes multiples of it.
        register_unit: registers are given to a warp in multiples of it.
        sm_threads, sm_ctas: resident on an SM at once, at most.
        warp, warpgroup: threads that run together; that issue one matrix instruction together.
        max_threads: per CTA.
        max_cluster: CTAs per cluster.
        mma_m, mma_max_n: rows, and most columns, of one matrix instruction.
        tma_align: of base address and every non-unit stride of a tensor map, bytes.
        tma_max_stride: exclusive bound of a stride of a tensor map, bytes.
        max_extent: elements of one dimension.
        max_grid: CTAs along x.
    """

    name: str
    capability: tuple[int, int]
    smem_bytes: int
    smem_sm_bytes: int
    smem_reserved: int
    smem_align: int
    registers_per_sm: int
    registers_per_thread: int
    register_step: int
    register_unit: int
    sm_threads: int
    sm_ctas: int
    warp: int
    warpgroup: int
    max_threads: int
    max_cluster: int
    mma_m: int
    mma_max_n: int
    tma_align: int
    tma_max_stride: int
    max_extent: int
    max_grid: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)
