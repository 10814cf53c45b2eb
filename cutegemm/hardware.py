# SPDX-License-Identifier: Apache-2.0
"""Limits of sm_90 that planning relies on, each with its unit and source.

Sources: "CG" is the CUDA C++ Programming Guide 13.0, table of technical specifications per compute
capability; "PTX" is PTX ISA 9.0; "measured" was read off an H200 (SXM, 132 SMs).
"""

from __future__ import annotations

from dataclasses import dataclass

ARCH = "sm_90a"

SMEM_BYTES = 232_448  # bytes a block may use: 227 KiB, CG
SMEM_ALIGN = 1_024  # bytes: a 128-byte-swizzled tile repeats every 8 rows x 128 bytes, PTX wgmma smem layout
REGISTERS_PER_SM = 65_536  # 32-bit registers, CG
MAX_REGISTERS = 255  # per thread, CG
REGISTER_STEP = 8  # setmaxnreg takes multiples of 8 in [24, 256], PTX setmaxnreg
WARP = 32  # threads
WARPGROUP = 128  # threads that issue one wgmma together, PTX wgmma
MAX_THREADS = 1_024  # per block, CG
MAX_CLUSTER = 8  # CTAs per cluster without opting in to non-portable sizes, CG

WGMMA_M = 64  # rows of one wgmma, PTX wgmma.mma_async
WGMMA_K_BYTES = 32  # bytes of K of one wgmma: 16 elements of 16 bits, PTX wgmma.mma_async
WGMMA_MAX_N = 256  # columns of one wgmma, PTX wgmma.mma_async

TMA_ALIGN = 16  # bytes: base address and every non-unit stride of a tensor map, PTX tensor maps
TMA_MAX_BOX = 256  # elements per box dimension, PTX tensor maps
TMA_MAX_STRIDE = 1 << 40  # bytes: exclusive bound of a tensor-map stride, CUDA driver cuTensorMapEncodeTiled
MAX_EXTENT = (
    1 << 31
) - 1  # elements of one dimension: coordinates are signed 32-bit, PTX cp.async.bulk.tensor
MAX_GRID = (1 << 31) - 1  # CTAs along x, CG

BANKS = 32  # of shared memory, 4 bytes wide each, CG


@dataclass(frozen=True)
class Device:
    """The figures of one GPU that the planner's cost model uses."""

    name: str
    sms: int  # streaming multiprocessors
    clusters: tuple[tuple[int, int], ...]  # (CTAs per cluster, clusters resident at once with one CTA an SM)
    dram_gbs: float  # GB/s, read plus write
    l2_bytes: int  # bytes

    def resident_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that the GPU holds at once (one CTA an SM).

        A persistent grid larger than this runs in two waves. Graphics processing clusters have
        unequal SM counts, so the number is below `sms // size` for clusters of four and more.
        """
        return dict(self.clusters).get(size, self.sms // size * 9 // 10 or 1)


H200 = Device(
    name="NVIDIA H200",
    sms=132,
    clusters=((1, 132), (2, 66), (4, 30), (8, 15)),  # measured with cudaOccupancyMaxActiveClusters
    dram_gbs=4_260.0,  # measured, device-to-device copy
    l2_bytes=50 * 2**20,  # CG
)
