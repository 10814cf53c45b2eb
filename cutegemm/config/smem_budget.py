# SPDX-License-Identifier: Apache-2.0
"""Shared memory of a tensor-core kernel: what a stage holds, and what is allocated besides the stages.

Each is a list of `Held`, in the order in which kernels allocate (`kernels.mainloop.frame`). Sizes are sums over the
lists, of one config or of a draft of many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cutegemm.config import scale_places
from cutegemm.config.draft import ROW_ALIGN, WORK_SLOTS, KernelDraft
from cutegemm.config.numbers import Number, most, round_up, where
from cutegemm.config.parts import WORD_BYTES, OutputConfig

COUNT_ALIGN = 16
FP32_BYTES = 4
NUMBER_BYTES = 4  # of a tile's number that a dynamic scheduler hands out
BARRIER_BYTES = 8  # PTX ISA, mbarrier
STAGE_BARRIERS = 16  # bytes of a stage's full and empty mbarriers
SUM_VECTOR = 16  # bytes of one access to another warpgroup's sum
LEAST_BESIDE_L1 = 3  # stages; with two, threads that load lose more time than L1 saves


@dataclass(frozen=True)
class Region:
    """A named region of shared memory or workspace: offset, size and alignment in bytes."""

    name: str
    offset: int
    size: int
    align: int = 1

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.size


class Held(NamedTuple):
    """Something that shared memory holds: its role, bytes, and the alignment of its address. It may have no bytes."""

    role: str
    bytes: Number
    align: int


def stage_contents(config: KernelDraft) -> list[Held]:
    """What one stage of the mainloop's pipeline holds beside its barriers."""
    found = []
    for item in config.stage if config.multiplies else ():
        role = item.role.upper()
        found.append(Held(role, item.bytes, config.limits.smem_align))
        found += [Held(f"{role} {name}", size, align) for name, size, align in item.beside]
    if found and config.epilogue.scales:
        found.append(Held("scales", FP32_BYTES * scale_places.staged(config), ROW_ALIGN))
    return found


def stage_bytes(config: KernelDraft) -> Number:
    """Bytes of one stage of the mainloop's pipeline, without its barriers."""
    return sum(x.bytes for x in stage_contents(config))


def subtile_bytes(config: KernelDraft, bytes_per_element: int) -> Number:
    """Bytes of one epilogue subtile of a matrix, for every consumer warpgroup."""
    return config.consumers * config.limits.mma_m * config.epi_n * bytes_per_element


def _staged_bytes(config: KernelDraft, output: OutputConfig) -> Number:
    """Bytes of one staged subtile of an output, for every consumer warpgroup."""
    if output.store == "tma" or output.major == "strided":
        return subtile_bytes(config, output.dtype.bytes)
    lines = config.epi_n if output.major == "m" else config.limits.mma_m
    return config.consumers * lines * config.row_pitch(output)


def epilogue_contents(config: KernelDraft) -> list[Held]:
    """What the epilogue holds; nothing if the next launch runs it."""
    graph, align, here = config.epilogue, config.limits.smem_align, config.stores
    found = [
        Held(f"{result.name} staging", here * config.epilogue_stages * _staged_bytes(config, x), align)
        for result, x in zip(graph.stores, config.outputs)
        if x.store != "direct"
    ]
    fetched = [(name, x) for name, x in config.input_of.items() if x.load == "tma"]
    for name, x in fetched:
        size = here * config.input_stages * subtile_bytes(config, x.dtype.bytes)
        found.append(Held(f"{name} subtiles", size, align))
    if fetched:
        size = here * BARRIER_BYTES * config.consumers * config.input_stages
        found.append(Held("subtile barriers", size, BARRIER_BYTES))
    rows = len(graph.names("row"))
    if rows:
        size = here * FP32_BYTES * rows * config.stored_columns * config.consumers
        found.append(Held("rows", size, ROW_ALIGN))
    if any(x.block > 1 for x in graph.blocks):
        warps = config.consumers * config.limits.warpgroup // config.limits.warp
        found.append(
            Held("block maxima", FP32_BYTES * warps * scale_places.shared_blocks(config), COUNT_ALIGN)
        )
    return found


def last_contents(config: KernelDraft) -> list[Held]:
    """What follows the pipeline's barriers: partial sums of split-K (`kernels.split_k`) and a scheduler's tiles."""
    if not config.multiplies:
        size = SUM_VECTOR * config.limits.warpgroup * (config.slice_values // 4) * most(config.adders - 1, 1)
        return [Held("sums", size, SUM_VECTOR)]
    inner = config.cluster_splits > 1
    parts = config.cluster_splits * config.consumers * config.limits.warpgroup * config.slice_values
    return [
        Held("partial sums", inner * config.sums.bytes * parts, config.limits.smem_align),
        Held("sum barriers", inner * STAGE_BARRIERS, BARRIER_BYTES),
        Held("count", FP32_BYTES * config.counts_kept, COUNT_ALIGN),
        Held("work barriers", config.dynamic * WORK_SLOTS * STAGE_BARRIERS, BARRIER_BYTES),
        Held("works", config.dynamic * WORK_SLOTS * NUMBER_BYTES, NUMBER_BYTES),
    ]


def _placed(
    contents: Iterable[Held], offset: Number, times: Number = 1
) -> tuple[list[tuple[str, Number, Number, int]], Number]:
    """`Region`s of consecutive contents, each repeated so many times, as tuples, and the first byte after them."""
    found = []
    for role, size, align in contents:
        offset = where(size > 0, round_up(offset, align), offset)
        found.append((role, offset, size * times, align))
        offset = offset + size * times
    return found, offset


class Contents(NamedTuple):
    """Everything that a kernel holds in shared memory: of one stage, of the epilogue, and what comes last."""

    stage: list[Held]
    epilogue: list[Held]
    last: list[Held]
    align: int

    @staticmethod
    def of(config: KernelDraft) -> Contents:
        """The contents of a config."""
        stage = stage_contents(config)
        return Contents(
            stage, epilogue_contents(config), last_contents(config), config.limits.smem_align if stage else 1
        )

    def placed(self, stages: Number) -> tuple[list[tuple[str, Number, Number, int]], Number]:
        """`Region`s of everything with so many stages, as tuples in allocation order, and the total size."""
        operands, end = _placed(self.stage, 0, stages)
        epilogue, end = _placed(self.epilogue, round_up(end, self.align))
        mbarriers = [Held("barriers", STAGE_BARRIERS * stages, BARRIER_BYTES)] if self.stage else []
        end = round_up(end, BARRIER_BYTES)
        last, end = _placed((*mbarriers, *self.last), end)
        return operands + epilogue + last, end

    @property
    def beside(self) -> Number:
        """Bytes besides the stages."""
        _, epilogue = _placed(self.epilogue, 0)
        return round_up(epilogue, BARRIER_BYTES) + sum(x.bytes for x in self.last)


def shared_memory(config: KernelDraft) -> tuple[Region, ...]:
    """The kernel's shared memory in allocation order."""
    return tuple(Region(*x) for x in Contents.of(config).placed(config.stages)[0] if x[2])


def smem_bytes(config: KernelDraft, stages: Number | None = None) -> Number:
    """Bytes of all of the kernel's shared memory, with the given number of stages if there is one."""
    return Contents.of(config).placed(config.stages if stages is None else stages)[1]


def room(config: KernelDraft, limit: Number | None = None) -> Number:
    """Mainloop stages that fit beside the epilogue, alignment of the regions included; 0 if none fits.

    Args:
        config: of the kernel; its stages do not count.
        limit: bytes of shared memory; by default what a CTA may use.
    """
    limit, contents = config.smem_limit if limit is None else limit, Contents.of(config)
    each = sum(x.bytes for x in contents.stage) + STAGE_BARRIERS
    most_stages = (limit - contents.beside) // each
    # one less if alignment takes the room of one
    fits = where(contents.placed(most_stages)[1] <= limit, most_stages, most_stages - 1)
    return where((fits > 0) & (contents.placed(fits)[1] <= limit), fits, 0)


def room_beside_l1(config: KernelDraft, most_stages: int) -> int:
    """Mainloop stages: `most_stages`, or as many as leave L1 60 KiB if cp.async copies 4 or 8 bytes.

    Such copies pass through L1; those of 16 bytes bypass it (PTX ISA, cp.async.cg). Kernels whose threads load run one
    CTA on an SM.
    """
    if all(x.load != "cp_async" or x.width == WORD_BYTES for x in (config.a, config.b)):
        return most_stages
    fewer: int = room(config, config.limits.smem_l1_bytes - config.limits.smem_reserved)
    return fewer if LEAST_BESIDE_L1 <= fewer < most_stages else most_stages
