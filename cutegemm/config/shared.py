# SPDX-License-Identifier: Apache-2.0
"""`SharedPlan`: a tensor-core kernel's shared memory and barriers, each declared here once, by name.

Kernels take slices of shared memory, arrival counts and the numbers of named barriers from it
(`kernels.mainloop.shared_storage`); the plan prints it. Sizes and order are those of `config.smem_budget`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from cutegemm.config import scale_places, smem_budget
from cutegemm.config.draft import WORK_SLOTS, KernelDraft
from cutegemm.config.smem_budget import BARRIER_BYTES, Region
from cutegemm.config.stage import WARPS

FIRST_NAMED = 1  # named barrier of consumer warpgroup 0; barrier 0 is the CTA's
ELECTED = "TMA's elected thread"


@dataclass(frozen=True)
class Barrier:
    """A kind of barrier: how many there are, who arrives, how many arrivals complete a phase, who waits.

    Attributes:
        place: the region of shared memory that holds the mbarriers; empty for named barriers.
        first: index of the first mbarrier in the region; for named barriers the number.
    """

    name: str
    count: int
    arrives: str
    arrivals: int
    waits: str
    place: str = ""
    first: int = 0


@dataclass(frozen=True)
class SharedPlan:
    """The regions of a kernel's shared memory, and its barriers."""

    regions: tuple[Region, ...]
    barriers: tuple[Barrier, ...]

    @staticmethod
    @functools.lru_cache(1024)
    def of(config: KernelDraft) -> SharedPlan:
        """The shared memory of a finished config."""
        parts = (_pipeline, _consumers, _sums, _scheduler, _epilogue)
        return SharedPlan(smem_budget.shared_memory(config), tuple(x for part in parts for x in part(config)))

    @property
    def bytes(self) -> int:
        """Bytes of all regions."""
        return max((x.end for x in self.regions), default=0)

    @property
    def used(self) -> tuple[Barrier, ...]:
        """The barriers that somebody waits for."""
        return tuple(x for x in self.barriers if x.waits)

    def region(self, name: str) -> Region:
        """A region by name."""
        return next(x for x in self.regions if x.name == name)

    def barrier(self, name: str) -> Barrier:
        """A barrier by name."""
        return next(x for x in self.barriers if x.name == name)

    def offset(self, name: str) -> int:
        """The first byte of the mbarriers of a name."""
        found = self.barrier(name)
        return self.region(found.place).offset + BARRIER_BYTES * found.first

    @property
    def named(self) -> tuple[tuple[str, int, int], ...]:
        """(name, first byte, bytes) of every mbarrier, then of every region."""
        barriers = (
            (f"barrier {x.name} {i}", self.offset(x.name) + BARRIER_BYTES * i, BARRIER_BYTES)
            for x in self.barriers
            if x.place
            for i in range(x.count)
        )
        return (*barriers, *((x.name, x.offset, x.size) for x in self.regions))


def _pipeline(x: KernelDraft) -> Iterator[Barrier]:
    """Full and empty stages, and words that producers shift (`mainloop.pipeline`, `load.tma_unaligned_load`)."""
    if not x.multiplies:
        return
    stages, place = x.stages, "barriers"
    readers = x.cluster[0] + x.cluster[1] - 1
    warps = x.limits.warpgroup // x.limits.warp
    if x.producers:
        loaders = scale_places.loaders(x)
        scaled = [f"{loaders} producer threads with scales"] * (loaders > 0)
        who = " and ".join([ELECTED] * x.copies + ["every producer thread"] * x.gathers + scaled)
        arrivals = x.copies + x.limits.warpgroup * x.gathers + loaders
        yield Barrier("full", stages, who, arrivals, "consumers", place)
        who = f"consumer warps of {readers} CTA(s)"
        yield Barrier("empty", stages, who, readers * x.team * warps, "producer", place, stages)
    else:
        yield Barrier("full", stages, ELECTED, 1, "every thread", place)
        # initialised, but the CTA's barrier does its work
        yield Barrier("empty", stages, "", readers * x.consumers * warps, "", place, stages)
    for item in x.stage:
        if item.boxed:
            name = f"{item.role.upper()} word"
            yield Barrier(f"{name}s", WARPS * stages, ELECTED, 1, "the same warp", f"{name} barriers")


def staggers(x: KernelDraft) -> bool:
    """Whether warpgroups issue the WGMMAs of a stage in turn, so that one promotes while another multiplies.

    Three that share every tile would else wait for the tensor cores together, and leave them idle together. So would
    two whose threads read and multiply much before they issue: a scale for each column. Where groups end along K they
    all wait for each other inside a stage (`mainloop.ragged_tail`), which one whose turn it is not cannot. With block
    scales they do so before their turns.
    """
    two = x.team == 2 and x.column_scales and x.partial_sets == 1
    return bool(x.in_turn or (two and x.multiplies and x.producers))


def _consumers(x: KernelDraft) -> Iterator[Barrier]:
    """Named barriers of consumer warpgroups; barrier 0 is the CTA's (`mainloop.ordered_issue`, `zero_fill`)."""
    warpgroup, threads = x.limits.warpgroup, x.consumers * x.limits.warpgroup
    if x.pingpong:
        who = "both consumers"
        yield Barrier("turn", x.consumers, who, 2 * warpgroup, "one of them", first=FIRST_NAMED + x.consumers)
    if staggers(x):
        who = "a warpgroup and the one before it"
        first = FIRST_NAMED + 2 * x.consumers + 1
        yield Barrier("issue", x.consumers, who, 2 * warpgroup, "the former", first=first)
    if any(y.box_rows for y in x.operands) or x.grouped == "k":
        who = "every consumer thread"
        yield Barrier("rest", 1, who, threads, "the same", first=FIRST_NAMED + 2 * x.consumers)


def _sums(x: KernelDraft) -> Iterator[Barrier]:
    """Sums of splits (`kernels.split_k`)."""
    warpgroup = x.limits.warpgroup
    if not x.multiplies:
        if x.adders > 1:
            yield Barrier("sums", 1, "every thread", x.threads, "the first warpgroup", first=FIRST_NAMED + 1)
        return
    if x.cluster_splits > 1:
        place = "sum barriers"
        yield Barrier("partials written", 1, "one consumer thread", 1, "consumers", place)
        warps = x.slices * x.consumers * (warpgroup // x.limits.warp)
        yield Barrier(
            "partials read", 1, f"consumer warps of {x.slices} CTA(s)", warps, "consumers", place, 1
        )
    if x.counts:
        threads = x.consumers * warpgroup
        yield Barrier(
            "count", 1, "every consumer thread", threads, "the same", first=FIRST_NAMED + x.consumers
        )


def _scheduler(x: KernelDraft) -> Iterator[Barrier]:
    """Tiles from a counter (`kernels/schedule/dynamic_scheduler.py`)."""
    if x.dynamic:
        place, slots = "work barriers", WORK_SLOTS
        yield Barrier("work", slots, ELECTED, 1, "producer and consumers", place)
        who = f"producer and consumer warps of {x.cluster_size} CTA(s)"
        yield Barrier("work read", slots, who, x.work_readers, "the first CTA's producer", place, slots)


def _epilogue(x: KernelDraft) -> Iterator[Barrier]:
    """Matrices that the epilogue reads, and its buffers (`kernels.epilogue`)."""
    inputs = [y for y in x.inputs if y.load == "tma"]
    if inputs and x.stores:
        count = x.consumers * x.input_stages
        yield Barrier("subtiles", count, ELECTED, 1, "a consumer warpgroup", "subtile barriers")
    if any(y.block > 1 for y in x.epilogue.blocks) and x.stores:
        threads, first = x.consumers * x.limits.warpgroup, FIRST_NAMED + 3 * x.consumers + 1
        yield Barrier("blocks", 1, "every consumer thread", threads, "the same", first=first)
    through = inputs or x.epilogue.names("row") or any(y.store != "direct" for y in x.outputs)
    used = "the same" if x.stores and through else ""
    yield Barrier(
        "epilogue", x.consumers, "a consumer warpgroup", x.limits.warpgroup, used, first=FIRST_NAMED
    )
