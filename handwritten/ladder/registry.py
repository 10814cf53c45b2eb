# SPDX-License-Identifier: Apache-2.0
"""The stages in order: the idea of each, its limits, and an instruction that shows the idea in SASS."""

from __future__ import annotations

from cutegemm.errors import GemmError
from handwritten.ladder.plans import plan_persistent, plan_split_k_atomic, plan_split_k_workspace, plan_tma
from handwritten.ladder.problem import Limits
from handwritten.ladder.stage import Stage

FP32 = ("fp32",)
HALVES = ("bf16", "fp16")
ANY = Limits()
VECTORS = Limits(n=4, k=4, align=16, col_major=False)
ALIGNED = Limits(align=16)

_STAGES = (
    Stage(
        file="01_naive.cu",
        idea="one thread per element, the threads of a warp along a column",
        dtypes=FP32,
        limits=ANY,
        instruction="FFMA",
        reuse=(1, 1),
    ),
    Stage(
        file="02_coalesced.cu",
        idea="the threads of a warp along a row: coalesced loads",
        dtypes=FP32,
        limits=ANY,
        instruction="FFMA",
        reuse=(1, 1),
    ),
    Stage(
        file="03_smem_tile.cu",
        idea="a CTA stages tiles of A and B in shared memory",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="04_register_tile_1d.cu",
        idea="a thread owns TM rows of a column (thread coarsening)",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="05_register_tile_2d.cu",
        idea="a thread owns TM x TN elements, an outer product per k",
        dtypes=FP32,
        limits=ANY,
        instruction=r"LDS",
    ),
    Stage(
        file="06_vectorised.cu",
        idea="128-bit loads everywhere, A transposed into padded shared memory",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"LDG\.E\.128",
    ),
    Stage(
        file="07_warp_tile.cu",
        idea="warps own 64 x 64 of the tile, threads 16 x 8 in groups of four",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"LDS\.128",
    ),
    Stage(
        file="08_pipelined.cu",
        idea="TMA fills one buffer while threads only multiply from the other",
        dtypes=FP32,
        limits=VECTORS,
        instruction=r"UTMALDG",
        planner=plan_tma,
    ),
    Stage(
        file="09_wmma_global.cu",
        idea="a warp owns 16 x 16: tensor cores fed from global memory",
        dtypes=HALVES,
        limits=Limits(m=16, n=16, k=16, align=32),
        instruction=r"HMMA",
        reuse=(16, 16),
    ),
    Stage(
        file="10_wmma_smem.cu",
        idea="four warps share a 64 x 64 tile in shared memory",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=16, align=16),
        instruction=r"LDSM",
    ),
    Stage(
        file="11_wmma_double_buffer.cu",
        idea="cp.async loads the next tile meanwhile; the result is stored by rows",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=16, align=16),
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="12_wmma_swizzled.cu",
        idea="CTAs in panels for L2, padded rows for the banks, BK 32",
        dtypes=HALVES,
        limits=Limits(m=64, n=64, k=32, align=16),
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="13_wmma_any_shape.cu",
        idea="zero-filled edges, guarded stores: any M, N, K and pitch",
        dtypes=HALVES,
        limits=ANY,
        instruction=r"LDGSTS\.E.*\.128",
    ),
    Stage(
        file="14_mma_sync.cu",
        idea="ldmatrix and mma.sync from an XOR-swizzled pipeline of cp.async tiles",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"LDSM\.16\.M",
    ),
    Stage(
        file="15_mma_tma.cu",
        idea="TMA and a producer feed mma.sync; barriers per stage, none per CTA",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"UTMALDG",
        planner=plan_tma,
    ),
    Stage(
        file="16_wgmma_serial.cu",
        idea="TMA fills swizzled shared memory, wgmma multiplies from it, one after the other",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"HGMMA\.64x64x16",
        planner=plan_tma,
    ),
    *(
        Stage(
            file="17_wgmma_shapes.cu",
            variant=f"n{n}",
            macros={"WGMMA_N": n},
            idea=f"128 rows in two m-steps, instruction m64n{n}k16",
            dtypes=HALVES,
            limits=ALIGNED,
            instruction=rf"HGMMA\.64x{n}x16",
            planner=plan_tma,
        )
        for n in (32, 64, 128, 256)
    ),
    Stage(
        file="18_producer_consumer.cu",
        idea="one warpgroup loads ahead into a pipeline, two multiply",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"USETMAXREG",
        planner=plan_tma,
    ),
    Stage(
        file="19_staged_epilogue.cu",
        idea="accumulators go through shared memory, so C and D are accessed by rows",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"STG\.E\.128",
        planner=plan_tma,
    ),
    Stage(
        file="20_persistent_cluster.cu",
        idea="resident CTAs in pairs multicast B; C and D by TMA under the next tile",
        dtypes=HALVES,
        limits=Limits(align=16, n=8),  # a TMA store writes whole 16-byte chunks of D's rows
        instruction=r"UTMALDG\.2D\.MULTICAST",
        planner=plan_persistent,
    ),
    Stage(
        file="21_split_k_atomic.cu",
        idea="each CTA of a tile has a split of K; all add into one workspace tile",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"REDG\.E\.ADD\.F32x4",
        planner=plan_split_k_atomic,
    ),
    Stage(
        file="22_split_k_workspace.cu",
        idea="each split stores its sums, and a second kernel adds them in order",
        dtypes=HALVES,
        limits=ALIGNED,
        instruction=r"STG\.E\.128",
        planner=plan_split_k_workspace,
    ),
)


def stages() -> tuple[Stage, ...]:
    """Return every stage, in the order of the ladder."""
    return _STAGES


def stage(key: str | int) -> Stage:
    """Return one stage by its key ("03_smem_tile"), its name without the number, or its number.

    Raises:
        GemmError: there is no such stage.
    """
    for candidate in _STAGES:
        if candidate.called(key):
            return candidate
    names = ", ".join(candidate.key for candidate in _STAGES)
    raise GemmError(f"stage={key!r}: must be one of {names}")
