# SPDX-License-Identifier: Apache-2.0
"""Dynamic scheduling: clusters take work tiles from a counter, so that a late or slow cluster computes fewer of them.

The producer warp of a cluster's first CTA takes the next work tile while the stages of the one before it fill. It sends
the tile's number to every CTA of the cluster, where producers and consumers read it. All work tiles come from the
counter, also the first: a cluster that an occupied GPU starts late finds no tile left. Results have the same bits on
every run, since no result depends on the order of work tiles. The counter is zero before a launch and after it
(`launch_counters`). Every cluster takes one number beyond the last work tile's. If the number of work tiles is known,
the last of these numbers wraps the counter to zero; of groups of rows only the device knows it, and the last cluster to
end stores zero.

Barriers, per slot:
    full    a work tile's number is here. Arrivals: one, the producer's; in a cluster with the byte count that
            st.async delivers -> every warp of the CTA's producer and consumers waits.
    empty   of the cluster's first CTA: the slot may be written again. Arrivals: one per such warp of every CTA -> the
            first CTA's producer waits.
Source: PTX ISA 9.0, st.async.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import WORK_SLOTS, KernelConfig
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.pipeline import advance
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.depth_scheduler import GroupDepthScheduler
from cutegemm.kernels.schedule.group_scheduler import GroupScheduler
from cutegemm.kernels.schedule.launch_counters import count_up
from cutegemm.kernels.schedule.tile_scheduler import State, TileScheduler
from cutegemm.kernels.schedule.work import Work
from cutegemm.launch_layout import WORK_COUNTER

NUMBER_BYTES = 4  # of a work tile's number
ENDED = 1  # the counter of clusters that take no number any more, behind that of numbers (`plans.workspace`)


@dataclass(frozen=True)
class Slots:
    """A pipeline of numbers of work tiles in shared memory, its barriers, and the counter they come from."""

    config: KernelConfig
    place: Place
    counter: Any  # pointer to an Int32 in global memory
    sNumber: Any  # WORK_SLOTS Int32
    shared: Shared
    full: Any
    empty: Any

    @staticmethod
    def create(config: KernelConfig, place: Place, address: Any, shared: Shared) -> Slots:
        """Take the numbers, which lie behind their barriers."""
        counter = cute.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=4)
        full, empty = shared.barriers("work"), shared.barriers("work read")
        numbers = shared.array("works", cutlass.Int32)
        return Slots(config, place, counter, numbers, shared, full, empty)

    def init(self) -> None:
        """Initialise the barriers; from one thread."""
        for slot in range(WORK_SLOTS):
            self.shared.init("work", self.full + slot)
            self.shared.init("work read", self.empty + slot)

    @cute.jit
    def take(self, slot: Any, phase: Any, numbers: Any, first: cutlass.Constexpr = False) -> None:
        """Send the next work tile's number to every CTA's slot. The first producer warp of each CTA calls it.

        Args:
            numbers: how many numbers all clusters of a launch take together.
        """
        if cutlass.const_expr(self.config.cluster_size > 1):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(self.full + slot, NUMBER_BYTES)
        if self.place.rank == 0:
            if cutlass.const_expr(not first):
                # until every warp of the cluster has read it
                cute.arch.mbarrier_wait(self.empty + slot, phase ^ 1)
            lane, number = cute.arch.lane_idx(), cutlass.Int32(0)
            if lane == 0:
                number = count_up(self.counter, numbers - 1, "relaxed")
            if cutlass.const_expr(self.config.cluster_size > 1):
                number = cute.arch.shuffle_sync(number, 0)
                if lane < self.config.cluster_size:
                    cute.arch.store_async_dsmem(self.sNumber + slot, number, self.full + slot, lane)
            elif lane == 0:
                (self.sNumber + slot).store(number)
                cute.arch.mbarrier_arrive(self.full + slot)

    def read(self, slot: Any, phase: Any) -> Any:
        """Wait for a number and read it; the whole warp."""
        cute.arch.mbarrier_wait(self.full + slot, phase)  # until the first CTA's producer has sent it
        return (self.sNumber + slot).load()

    @cute.jit
    def release(self, slot: Any) -> None:
        """Tell the first CTA's producer that this warp has read a slot."""
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            if cutlass.const_expr(self.config.cluster_size > 1):
                cute.arch.mbarrier_arrive(self.empty + slot, 0)
            else:
                cute.arch.mbarrier_arrive(self.empty + slot)

    @cute.jit
    def drain(self, slot: Any, phase: Any) -> None:
        """The first CTA's producer waits until nobody will signal its barriers; `slot` is the next to write."""
        if self.place.rank == 0:
            for _ in cutlass.range(WORK_SLOTS, unroll=1):
                cute.arch.mbarrier_wait(self.empty + slot, phase ^ 1)
                slot, phase = advance(slot, phase, WORK_SLOTS)


@dataclass(frozen=True)
class Dealt(TileScheduler):
    """Makes a static scheduler take its work tiles from the counter: the first base class of such a scheduler.

    A state is that of the static scheduler, then slot and phase of the next work tile.
    """

    slots: Any = None  # `Slots`, once they are placed

    def placed(self, addresses: dict[str, Any], shared: Shared) -> Dealt:
        """The scheduler with its slots."""
        slots = Slots.create(self.config, self.place, addresses[WORK_COUNTER], shared)
        return dataclasses.replace(super().placed(addresses, shared), slots=slots)

    def init(self) -> None:
        """Initialise the slots' barriers."""
        self.slots.init()

    @property
    def _numbers(self) -> Any:
        """Numbers that the launch's clusters take: one for each work tile, and one beyond the last for each cluster."""
        return self.works + self.clusters

    @cute.jit
    def lead(self, thread: Any) -> None:
        """Take the first work tile."""
        if thread // hw.WARP == 0:
            self.slots.take(cutlass.Int32(0), cutlass.Int32(0), self._numbers, True)

    @cute.jit
    def loaded(self, state: Any, work: cutlass.Constexpr, k: Any, thread: Any) -> None:
        """Take the next work tile once the pipeline is full or the last k tile of this one has been issued.

        So much can be loaded without anyone knowing what comes next, and no load waits for the counter before that.
        """
        if thread // hw.WARP == 0 and k == cutlass.min(work.k_tiles, self.config.stages) - 1:
            self.slots.take(state[-2], state[-1], self._numbers)

    @cute.jit
    def end(self, state: Any, thread: Any) -> None:
        """No CTA of the cluster may end while another still signals it."""
        if cutlass.const_expr(self.config.cluster_size > 1):
            if thread // hw.WARP == 0:
                self.slots.drain(state[-2], state[-1])
        self._ended(thread)

    def _ended(self, thread: Any) -> None:
        """This cluster takes no number any more: nothing, if the counter wraps."""

    def start(self, skip: Any = 0) -> State:
        """The state of the CTA's first work tile, or of the one `skip` work tiles later."""
        return self._after(self._none, skip + 1, True)

    def next(self, state: State, count: int = 1) -> State:
        """The state `count` work tiles later."""
        return self._after(state, count, False)

    def peek_first(self) -> State:
        """The state of the CTA's first work tile; its slot stays unreleased."""
        return self._peeked(self._none, True)

    def peek_next(self, state: State) -> State:
        """The state of the work tile after a state's; its slot stays unreleased."""
        return self._peeked(state, False)

    def work(self, state: State) -> Work:
        """The work tile of a state."""
        return super().work(state[:-2])

    @property
    def _none(self) -> State:
        """The state before any work tile."""
        return (*self.before(), cutlass.Int32(0), cutlass.Int32(0))

    def _peeked(self, state: State, first: bool) -> State:
        """The state of the next work tile; its slot stays unreleased."""
        *reached, slot, phase = state
        return (*self.at(self.slots.read(slot, phase), tuple(reached), first), slot, phase)

    @cute.jit
    def _after(self, state: Any, count: Any, first: cutlass.Constexpr) -> Any:
        """The state `count` work tiles later; after the last work tile it reads no slot."""
        reached, slot, phase = state[:-2], state[-2], state[-1]
        for _ in cutlass.range(count, unroll=1):
            if self.more(reached):
                number = self.slots.read(slot, phase)
                self.slots.release(slot)
                slot, phase = advance(slot, phase, WORK_SLOTS)
                reached = self.at(number, reached, first)
        return (*reached, slot, phase)


@dataclass(frozen=True)
class DynamicScheduler(Dealt, TileScheduler):
    """The tiles of one GEMM, or of a batch."""


@dataclass(frozen=True)
class DynamicDepthScheduler(Dealt, GroupDepthScheduler):
    """The tiles of groups along K: they have unequal numbers of k tiles, so clusters take unequally many tiles.

    A work tile without k tiles is loaded at once: its producer takes the next before it issues anything.
    """

    def follows(self, state: State) -> Any:
        """Whether there is a work tile after a state's. Its number tells, so its group is not searched."""
        return self.more((self.slots.read(*state[-2:]),))


@dataclass(frozen=True)
class DynamicGroupScheduler(Dealt, GroupScheduler):
    """The tiles of groups of rows or columns.

    Only the device knows how many there are, so the counter does not wrap: the last cluster to end makes it zero.
    """

    @property
    def _numbers(self) -> Any:
        return cutlass.Int32(2**31 - 1)  # more than are taken: the counter does not wrap

    @cute.jit
    def _ended(self, thread: Any) -> None:
        """Count this cluster; the last one makes the counter zero, which nobody reads any more."""
        if thread == 0 and self.place.rank == 0:
            if count_up(self.slots.counter + ENDED, self.clusters - 1, "acq_rel") == self.clusters - 1:
                self.slots.counter.store(cutlass.Int32(0))
