# SPDX-License-Identifier: Apache-2.0
"""Limits of sm_90, each with its unit and source.

Code for sm_90 alone (kernels and layouts) uses the constants. Code for any architecture uses `LIMITS`, which a
device and a config carry.

Sources: "CG" is the CUDA C++ Programming Guide 13.0, table of technical specifications per compute capability; "PTX" is
PTX ISA 9.0.
"""

from __future__ import annotations

from cutegemm.arch.limits import Limits

ARCH = "sm_90a"

# bytes that a CTA may use: 227 KiB, CG
SMEM_BYTES = 232_448
# bytes of an SM: 228 KiB; every resident CTA takes 1 KiB besides its allocation, CG
SMEM_SM_BYTES = 233_472
SMEM_CTA_RESERVED = 1_024
# bytes: 196 KiB, the second largest share of an SM's 256 KiB. L1 has the rest: 60 KiB, beside the largest 28, CG
SMEM_L1_BYTES = 200_704
# bytes: the 128-byte swizzle repeats every 8 rows x 128 bytes, PTX wgmma smem layout
SMEM_ALIGN = 1_024
# 32-bit registers, CG
REGISTERS_PER_SM = 65_536
# threads
WARP = 32
# threads that issue one wgmma together, PTX wgmma
WARPGROUP = 128

# rows of one wgmma, PTX wgmma.mma_async
WGMMA_M = 64
# columns of one wgmma, PTX wgmma.mma_async
WGMMA_MAX_N = 256

# bytes: base address and every non-unit stride of a tensor map, PTX tensor maps
TMA_ALIGN = 16
# elements per box dimension, PTX tensor maps
TMA_MAX_BOX = 256

# banks of shared memory, 4 bytes wide, CG
BANKS = 32

LIMITS = Limits(
    name=ARCH,
    capability=(9, 0),
    smem_bytes=SMEM_BYTES,
    smem_sm_bytes=SMEM_SM_BYTES,
    smem_l1_bytes=SMEM_L1_BYTES,
    smem_reserved=SMEM_CTA_RESERVED,
    smem_align=SMEM_ALIGN,
    registers_per_sm=REGISTERS_PER_SM,
    # CG
    registers_per_thread=255,
    # in [24, 256], PTX setmaxnreg
    register_step=8,
    # of a warp: CUDA occupancy calculator, register allocation unit size
    register_unit=256,
    # CG
    sm_threads=2_048,
    sm_ctas=32,
    warp=WARP,
    warpgroup=WARPGROUP,
    # CG
    max_threads=1_024,
    # without opting in to non-portable sizes, CG
    max_cluster=8,
    mma_m=WGMMA_M,
    mma_max_n=WGMMA_MAX_N,
    tma_align=TMA_ALIGN,
    # CUDA driver, cuTensorMapEncodeTiled
    tma_max_stride=1 << 40,
    # coordinates are signed 32-bit, PTX cp.async.bulk.tensor
    max_extent=(1 << 31) - 1,
    # CG
    max_grid=(1 << 31) - 1,
)
