# SPDX-License-Identifier: Apache-2.0
"""The budget of a tensor-core kernel: shared memory, stages, barriers, TMA boxes, bank conflicts.

Everything here follows from a `KernelConfig`; the kernels allocate in the same order (`kernels/frame.py`).
"""

from __future__ import annotations

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.layouts import banks, sm90
from cutegemm.plan_types import Barrier, Box, Region
from cutegemm.problem import round_up
from cutegemm.spec import AUTO, GemmSpec

STAGE_BARRIERS = 16  # bytes of a stage's full and empty mbarriers, 8 each (PTX ISA, mbarrier)


def stage_bytes(config: KernelConfig) -> int:
    """Shared memory of one mainloop stage: A's and B's tiles."""
    return (config.tile[0] + config.tile[1]) * config.tile[2] * config.a.dtype.bytes


def epilogue_bytes(config: KernelConfig) -> int:
    """Shared memory of the staging buffers."""
    if config.store == "direct":
        return 0
    piece = hw.WGMMA_M * config.epi_n * config.d.dtype.bytes
    return config.consumers * config.epi_stages * piece


def stages(spec: GemmSpec, config: KernelConfig) -> int:
    """As many stages as fit, or the given number if it does."""
    barrier = 16  # bytes of a stage's full and empty mbarriers
    room = (hw.SMEM_BYTES - epilogue_bytes(config)) // (stage_bytes(config) + barrier)
    if room < 1:
        need = stage_bytes(config) + epilogue_bytes(config) + barrier
        rule = f"one stage and the epilogue need {need:,} bytes of shared memory, a CTA has {hw.SMEM_BYTES:,}"
        fits = (
            (hw.SMEM_BYTES - epilogue_bytes(config) - barrier)
            * config.tile[2]
            // stage_bytes(config)
            // 16
            * 16
        )
        if fits <= 0:
            raise field_error(
                PlanError, "epilogue_stages", config.epi_stages, rule, max(1, config.epi_stages // 2)
            )
        raise field_error(PlanError, "tile.k", config.tile[2], rule, fits)
    if spec.stages == AUTO:
        return min(room, 8)
    if spec.stages > room:
        rule = f"each stage takes {stage_bytes(config):,} bytes; {hw.SMEM_BYTES:,} hold {room} beside the epilogue"
        raise field_error(PlanError, "stages", spec.stages, rule, room)
    return spec.stages


def shared_memory(config: KernelConfig) -> tuple[Region, ...]:
    """The kernel's shared memory in allocation order: A, B, epilogue, barriers."""
    element = config.a.dtype.bytes * config.tile[2] * config.stages
    sizes = [("A", config.tile[0] * element, hw.SMEM_ALIGN), ("B", config.tile[1] * element, hw.SMEM_ALIGN)]
    if config.store != "direct":
        sizes.append(("epilogue", epilogue_bytes(config), hw.SMEM_ALIGN))
    sizes.append(("barriers", STAGE_BARRIERS * config.stages, 8))
    regions, offset = [], 0
    for name, size, align in sizes:
        offset = round_up(offset, align)
        regions.append(Region(name, offset, size))
        offset += size
    return tuple(regions)


def barriers(config: KernelConfig) -> tuple[Barrier, ...]:
    """Every barrier of the kernel (`kernels/ring.py`, `kernels/store.py`)."""
    found = []
    if config.family == "warp_specialized":
        gathers = config.gathers
        tma = "tma" in (config.a.load, config.b.load)
        who = " and ".join(["TMA's elected thread"] * tma + ["every producer thread"] * gathers)
        readers = config.cluster[0] + config.cluster[1] - 1
        found.append(Barrier("full", config.stages, who, tma + hw.WARPGROUP * gathers, "consumers"))
        found.append(Barrier("empty", config.stages, f"consumer warps of {readers} CTA(s)",
                             readers * config.consumers * 4, "producer"))  # fmt: skip
    else:
        found.append(Barrier("full", config.stages, "TMA's elected thread", 1, "every thread"))
    if config.store != "direct":
        found.append(Barrier("epilogue", config.consumers, "a consumer warpgroup", hw.WARPGROUP, "the same"))
    return tuple(found)


def boxes(config: KernelConfig) -> tuple[Box, ...]:
    """TMA instructions per tile: A and B in this CTA's share of a multicast, D in a warpgroup's piece.

    The CTAs that share a tile split it along its strided axis, so that a share is whole rows of the swizzle.
    """
    block_m, block_n, block_k = config.tile
    found = []
    for name, matrix, rows, peers, swizzle in (
        ("A", config.a, block_m, config.cluster[1], config.swizzle[0]),
        ("B", config.b, block_n, config.cluster[0], config.swizzle[1]),
    ):
        if matrix.load == "tma":
            along_k = matrix.major not in ("m", "n")
            extents = (block_k, rows // peers) if along_k else (rows, block_k // peers)
            found.append(_box(name, extents, swizzle, matrix.dtype.bits))
    if config.store == "tma":
        extents = (hw.WGMMA_M, config.epi_n) if config.d.major == "m" else (config.epi_n, hw.WGMMA_M)
        found.append(_box("D", extents, epilogue_swizzle(config), config.d.dtype.bits))
    return tuple(found)


def _box(name: str, extents: tuple[int, int], swizzle: str, bits: int) -> Box:
    cut = sm90.tma_box(*extents, swizzle, bits)
    return Box(name, cut.box, cut.count)


def epilogue_swizzle(config: KernelConfig) -> str:
    """The widest swizzle that a staged piece's contiguous extent allows."""
    contiguous = hw.WGMMA_M if config.d.major == "m" else config.epi_n
    return sm90.widest_swizzle(contiguous, config.d.dtype.bits)


def store_conflicts(config: KernelConfig) -> int | None:
    """Extra shared-memory wavefronts of one warp's stmatrix into the staging buffer; None where there is none.

    By the bank model of `layouts.banks`, over the first 16 x 16 block; swizzled pieces have no conflicts.
    """
    if config.store == "direct" or config.d.dtype.bits != 16:
        return None
    column_major = config.d.major == "m"
    shape = (hw.WGMMA_M, config.epi_n)
    layout = sm90.smem_layout(shape, "mn" if column_major else "k", epilogue_swizzle(config))
    rows = sm90.fragment_row_coordinates(4, transposed=column_major)
    return banks.matrix_access(banks.layout_addresses(layout, rows)).conflicts
