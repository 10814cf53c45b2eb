# SPDX-License-Identifier: Apache-2.0
"""The budget of a tensor-core kernel: shared memory, stages, barriers, TMA boxes, bank conflicts.

Everything here follows from a `KernelConfig`; the kernels allocate in the same order (`kernels/frame.py`).
"""

from __future__ import annotations

import dataclasses
import functools

from cutegemm.arch import sm90 as hw
from cutegemm.config import ROW_ALIGN, WORK_SLOTS, KernelConfig, MatrixConfig, OutputConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.layouts import banks, sm90
from cutegemm.planning.parts import Barrier, Box, Region
from cutegemm.problems import round_up
from cutegemm.spec import AUTO, GemmSpec

COUNT_ALIGN = 16
WORDS_ALIGN = 128  # where TMA may write a box (PTX ISA, cp.async.bulk.tensor)
# of the ring where the spec leaves it open; more where TMA fills but part of each
MOST_STAGES = 8
MOST_NARROW_STAGES = 16
NUMBER_BYTES = 4  # of a work's number
WORD_BARRIERS = 32  # bytes of a stage's mbarriers of words, 8 for each warp that shifts
STAGE_BARRIERS = 16  # bytes of a stage's full and empty mbarriers, 8 each (PTX ISA, mbarrier)


def stage_bytes(config: KernelConfig) -> int:
    """Shared memory of one mainloop stage: A's and B's tiles, and the words of those that are shifted."""
    tiles = (config.tile[0] + config.tile[1]) * config.tile[2] * config.a.dtype.bytes
    return tiles + sum(words_bytes(config)) + WORD_BARRIERS * sum(boxed(config))


def boxed(config: KernelConfig) -> tuple[bool, bool]:
    """Whether TMA brings A's and B's words."""
    a, b = (x.boxed(rows, config.tile[2]) for x, rows in zip(config.operands, config.tile[:2], strict=True))
    return a, b


def words_bytes(config: KernelConfig) -> tuple[int, int]:
    """What a stage keeps of A's and of B's words (`kernels/shifting.py`)."""
    a, b = (
        x.word_bytes(rows, config.tile[2]) for x, rows in zip(config.operands, config.tile[:2], strict=True)
    )
    return a, b


def piece_bytes(config: KernelConfig, bytes_per_element: int) -> int:
    """Shared memory of one piece of a matrix, for every consumer warpgroup."""
    return config.consumers * hw.WGMMA_M * config.epi_n * bytes_per_element


def _staged_bytes(config: KernelConfig, output: OutputConfig) -> int:
    """Shared memory of one staged piece of an output, for every consumer warpgroup."""
    if output.store == "tma" or output.major == "strided":
        return piece_bytes(config, output.dtype.bytes)
    lines = config.epi_n if output.major == "m" else hw.WGMMA_M
    return config.consumers * lines * config.line_pitch(output)


def epilogue_regions(config: KernelConfig) -> tuple[Region, ...]:
    """What the epilogue needs in shared memory, in allocation order; offsets from the first's."""
    if not config.stores:
        return ()
    graph = config.epilogue
    sizes = [
        (f"{result.name} staging", config.epilogue_stages * _staged_bytes(config, x), hw.SMEM_ALIGN)
        for result, x in zip(graph.stores, config.outputs)
        if x.store != "direct"
    ]
    fetched = {name: x for name, x in config.input_of.items() if x.load == "tma"}
    sizes += [
        (f"{name} pieces", config.input_stages * piece_bytes(config, x.dtype.bytes), hw.SMEM_ALIGN)
        for name, x in fetched.items()
    ]
    if fetched:
        sizes.append(("piece barriers", 8 * config.consumers * config.input_stages, 8))
    rows = len(graph.names("row"))
    if rows:
        sizes.append(("rows", 4 * rows * config.stored_columns * config.consumers, ROW_ALIGN))
    return _placed(sizes)


def _placed(sizes: list[tuple[str, int, int]]) -> tuple[Region, ...]:
    """Regions one after another from (name, bytes, alignment)."""
    regions, offset = [], 0
    for name, size, align in sizes:
        offset = round_up(offset, align)
        regions.append(Region(name, offset, size))
        offset += size
    return tuple(regions)


def epilogue_bytes(config: KernelConfig) -> int:
    """Shared memory of the epilogue."""
    return _end(epilogue_regions(config))


def _end(regions: tuple[Region, ...]) -> int:
    """Where what follows some regions may begin."""
    return round_up(regions[-1].end, 8) if regions else 0


def stages(spec: GemmSpec, config: KernelConfig, most: int) -> int:
    """As many stages as fit, which are `most` (`room`), at least one, or the given number if it does."""
    if spec.stages == AUTO:
        return min(most, MOST_STAGES if config.a.box_rows == 0 else MOST_NARROW_STAGES)
    if spec.stages > most:
        rule = f"each stage takes {stage_bytes(config):,} bytes; {config.smem_limit:,} hold {most} beside the epilogue"
        raise field_error(PlanError, "stages", spec.stages, rule, most)
    return spec.stages


def bytes_beside(config: KernelConfig) -> int:
    """Shared memory of all but the mainloop's ring."""
    return epilogue_bytes(config) + sum(x.size for x in _last_regions(config, 0))


def room(config: KernelConfig) -> int:
    """Mainloop stages that fit beside the epilogue, with what aligning the regions costs."""
    most = (config.smem_limit - bytes_beside(config)) // (stage_bytes(config) + STAGE_BARRIERS)
    likely = (dataclasses.replace(config, stages=n) for n in (most, most - 1) if n > 0)
    return next((x.stages for x in likely if smem_bytes(x) <= config.smem_limit), 0)


def smem_bytes(config: KernelConfig) -> int:
    """All of the kernel's shared memory."""
    return shared_memory(config)[-1].end


def shared_memory(config: KernelConfig) -> tuple[Region, ...]:
    """The kernel's shared memory in allocation order: A, B, the epilogue's, the ring's barriers."""
    element = config.a.dtype.bytes * config.tile[2] * config.stages
    sizes = []
    for name, rows, words, by_tma in zip("AB", config.tile, words_bytes(config), boxed(config)):
        sizes.append((name, rows * element, hw.SMEM_ALIGN))
        # a buffer for each half
        sizes += [(f"{name} words", words * config.stages, WORDS_ALIGN)] if words else []
        sizes += [(f"{name} word barriers", WORD_BARRIERS * config.stages, 8)] if by_tma else []
    operands, regions = _placed(sizes), epilogue_regions(config)
    start = round_up(operands[-1].end, hw.SMEM_ALIGN)
    epilogue = tuple(Region(x.name, start + x.offset, x.size) for x in regions)
    ring = Region("barriers", round_up(start + _end(regions), 8), STAGE_BARRIERS * config.stages)
    return (*operands, *epilogue, ring, *_last_regions(config, ring.end))


def _last_regions(config: KernelConfig, start: int) -> tuple[Region, ...]:
    """What comes after the ring's barriers, from an offset on."""
    sums = _sum_regions(config, start)
    if not config.dynamic:
        return sums
    end = sums[-1].end if sums else start
    slots = Region("works", round_up(end, 8), WORK_SLOTS * (STAGE_BARRIERS + NUMBER_BYTES))
    return (*sums, slots)


def _sum_regions(config: KernelConfig, start: int) -> tuple[Region, ...]:
    """What adding up parts of K needs, from an offset on (`kernels/cluster_sum.py`, `workspace_sum.py`)."""
    if not config.adds_up:
        return ()
    found, end = [], start
    if config.cluster_parts > 1:
        size = config.cluster_parts * config.consumers * config.limits.warpgroup * config.slice_values * 4
        found.append(Region("parts of K", round_up(start, hw.SMEM_ALIGN), size))
        found.append(Region("sum barriers", found[0].end, STAGE_BARRIERS))
        end = found[1].end
    if config.counts:
        found.append(Region("count", round_up(end, COUNT_ALIGN), 4 * config.counts_kept))
    return tuple(found)


def barriers(config: KernelConfig) -> tuple[Barrier, ...]:
    """Every barrier of the kernel (`kernels/ring.py`, `frame.py`, `turns.py`, `piece_loads.py`, `pieces.py`)."""
    found = []
    if config.producers:
        gathers = config.gathers
        tma = config.copies
        who = " and ".join(["TMA's elected thread"] * tma + ["every producer thread"] * gathers)
        readers = config.cluster[0] + config.cluster[1] - 1
        found.append(Barrier("full", config.stages, who, tma + hw.WARPGROUP * gathers, "consumers"))
        found.append(
            Barrier(
                "empty",
                config.stages,
                f"consumer warps of {readers} CTA(s)",
                readers * config.team * 4,
                "producer",
            )
        )
        count = sum(boxed(config)) * hw.WARPGROUP // hw.WARP * config.stages
        if count:
            found.append(Barrier("words", count, "TMA's elected thread", 1, "the same warp"))
    else:
        found.append(Barrier("full", config.stages, "TMA's elected thread", 1, "every thread"))
    if config.pingpong:
        found.append(Barrier("turn", config.consumers, "both consumers", 2 * hw.WARPGROUP, "one of them"))
    threads = config.consumers * hw.WARPGROUP
    if config.a.box_rows:
        found.append(Barrier("rest", 1, "every consumer thread", threads, "the same"))
    if config.cluster_parts > 1:
        found.append(Barrier("parts here", 1, "one consumer thread", 1, "consumers"))
        warps = config.slices * config.consumers * 4
        found.append(
            Barrier("parts read", 1, f"consumer warps of {config.slices} CTA(s)", warps, "consumers")
        )
    if config.counts:
        found.append(Barrier("count", 1, "every consumer thread", threads, "the same"))
    if config.dynamic:
        found.append(Barrier("work", WORK_SLOTS, "TMA's elected thread", 1, "producer and consumers"))
        who = f"producer and consumer warps of {config.cluster_size} CTA(s)"
        found.append(Barrier("work read", WORK_SLOTS, who, config.work_readers, "the first CTA's producer"))
    if not config.stores:
        return tuple(found)
    inputs = [x for x in config.inputs if x.load == "tma"]
    if inputs:
        found.append(
            Barrier(
                "pieces",
                config.consumers * config.input_stages,
                "TMA's elected thread",
                1,
                "a consumer warpgroup",
            )
        )
    if inputs or config.epilogue.names("row") or any(x.store != "direct" for x in config.outputs):
        found.append(Barrier("epilogue", config.consumers, "a consumer warpgroup", hw.WARPGROUP, "the same"))
    return tuple(found)


def boxes(config: KernelConfig) -> tuple[Box, ...]:
    """TMA instructions per tile: A and B in this CTA's share of a multicast, other matrices per piece of a warpgroup.

    The CTAs that share a tile split it along its strided axis, so that a share is whole rows of the swizzle.
    """
    block_k = config.tile[2]
    found = []
    for operand, rows, peers in zip(config.operands, (config.rows, config.columns), reversed(config.cluster)):
        if operand.load == "tma":
            rows = operand.box_rows or rows
            extents = (block_k, rows // peers) if operand.k_major else (rows, block_k // peers)
            found.append(
                _box(operand.role.upper(), extents, operand.swizzle, operand.dtype.bits, operand.halves)
            )
        elif operand.boxed(rows, block_k):
            words = operand.words(rows, block_k)
            row = words.pitch // words.size
            found.append(Box(f"{operand.role.upper()} words", (row, words.per_class), words.classes))
    matrices: list[tuple[str, MatrixConfig | OutputConfig, str]] = []
    if not config.stores:
        return tuple(found)
    matrices += [(x.name, y, y.store) for x, y in zip(config.epilogue.stores, config.outputs)]
    matrices += [(name, x, x.load) for name, x in config.input_of.items()]
    for name, matrix, how in matrices:
        if how == "tma":
            extents = (hw.WGMMA_M, config.epi_n) if matrix.major == "m" else (config.epi_n, hw.WGMMA_M)
            shown = name.upper() if name in ("c", "d") else name
            found.append(_box(shown, extents, config.piece_swizzle(matrix), matrix.dtype.bits, 1))
    return tuple(found)


@functools.lru_cache(1024)
def _box(name: str, extents: tuple[int, int], swizzle: str, bits: int, copies: int) -> Box:
    cut = sm90.tma_box(*extents, swizzle, bits)
    return Box(name, cut.box, cut.count * copies)


def store_conflicts(config: KernelConfig) -> int | None:
    """Extra shared-memory wavefronts of one warp's stmatrix into the staging buffer; None where there is none.

    By the bank model of `layouts.banks`, over the first block that one stmatrix writes; swizzled pieces have none.
    """
    staged = [x for x in config.outputs if x.store != "direct" and x.dtype.bits == 16]
    if not staged or not config.stores:
        return None
    return _store_conflicts(staged[0].major == "m", config.epi_n, config.piece_swizzle(staged[0]))


@functools.lru_cache(256)
def _store_conflicts(column_major: bool, epi_n: int, swizzle: str) -> int:
    layout = sm90.smem_layout((hw.WGMMA_M, epi_n), "mn" if column_major else "k", swizzle)
    rows = sm90.fragment_row_coordinates(4 if epi_n % 16 == 0 else 2, transposed=column_major)
    return banks.matrix_access(banks.layout_addresses(layout, rows)).conflicts
