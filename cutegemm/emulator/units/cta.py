# SPDX-License-Identifier: Apache-2.0
"""Thread blocks and clusters: their shared memory, barriers and warps.

Source: PTX ISA 9.0, 2.2 (thread hierarchy), 9.7.13.4 (barrier.cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.emulator.state.addresses import RANK_SHIFT, SHARED_BASE
from cutegemm.emulator.state.group import Group
from cutegemm.emulator.state.memory import Fault, Region
from cutegemm.emulator.units.barriers import NamedBarrier
from cutegemm.emulator.units.bulk import bulk_commit, bulk_wait
from cutegemm.emulator.units.registers import Pool

if TYPE_CHECKING:
    from cutegemm.emulator.machine import Device
    from cutegemm.emulator.units.barriers import MBarrier
    from cutegemm.emulator.units.warpgroup import Warpgroup
    from cutegemm.emulator.watch.shadow import Known

SM_THREADS, SM_CTAS, SM_SHARED = 2048, 32, 233_472  # per SM of sm_90, CUDA programming guide, table 28
SPLIT = -3  # a branch has parted the group; its parts go on in its place


def occupancy(threads: int, shared_bytes: int) -> int:
    """CTAs an SM holds, by threads and shared memory; PTX does not say how many registers a thread takes."""
    warps = -(-threads // 32) * 32
    return max(1, min(SM_CTAS, SM_THREADS // warps, SM_SHARED // (shared_bytes + SHARED_BASE)))


class CTA:
    """One thread block: shared memory, barriers, warps."""

    def __init__(self, device: Device, cluster: Cluster, index: tuple[int, int, int], rank: int) -> None:
        self.device, self.cluster, self.index, self.rank = device, cluster, index, rank
        self.peers: list[CTA] = cluster.ctas
        self.window = rank << RANK_SHIFT
        size = SHARED_BASE + device.geometry.shared_bytes
        self.shared = Region(
            np.full(-(-size // 16) * 16, 0xAB, np.uint8), 0, f"shared memory of CTA {index}", size
        )
        self.shared.first = SHARED_BASE
        self.barriers: dict[int, NamedBarrier] = {}
        self.pool = None if device.registers is None else Pool(device.registers, device.warps)
        self.mbarriers: dict[int, MBarrier] = {}
        self.warpgroups: dict[int, Warpgroup] = {}  # number -> its wgmmas
        self.live_warps = device.warps
        self.pace = device.completion.pace()
        self.special = device.geometry.special(index, rank) | device.environment
        self.groups: list[Group] = []

    def start(self) -> None:
        """Create the warps, grouped as the device says."""
        step = self.device.options.warps_per_group or self.device.warps
        self.groups = [
            Group(self, list(range(w, min(w + step, self.device.warps))))
            for w in range(0, self.device.warps, step)
        ]
        for group in self.groups:
            self.device.watch.warp_started(group)

    def barrier(self, number: int) -> NamedBarrier:
        """Named barrier `number`."""
        if not 0 <= number < 16:
            raise Fault(f"barrier {number} is outside 0..15")
        bar = self.barriers.get(number)
        if bar is None:
            bar = self.barriers[number] = NamedBarrier(number)
        return bar

    def must_live(self, what: str) -> None:
        """Shared memory is gone once every warp of its CTA has ended.

        Raises:
            Fault: it is.
        """
        if not self.live_warps:
            raise Fault(f"{what} in CTA {self.index}, which has ended")

    def replace(self, old: Group, new: list[Group]) -> int:
        """Put the parts of a split group in its place; the branch goes on as SPLIT."""
        self.device.counts.add(old)
        at = self.groups.index(old)
        self.groups[at : at + 1] = new
        old.done = True
        return SPLIT

    def ended(self, group: Group) -> None:
        """A group has reached its end."""
        self.device.watch.warp_ended(group)
        bulk_commit(group, None)
        bulk_wait(group, None, 0, False)
        group.done = True
        self.device.events += 1
        self.device.counts.add(group)
        self.live_warps -= len(group.warps)
        self.cluster.live_warps -= len(group.warps)
        for bar in self.barriers.values():
            if self.live_warps:
                bar.release(self)
        self.cluster.release()


class Cluster:
    """The CTAs of one cluster and its barrier."""

    def __init__(self, device: Device, first: tuple[int, int, int]) -> None:
        self.device = device
        self.ctas: list[CTA] = []
        self.arrived = self.generation = 0
        self.knowledge: Known | None = None  # of the race detector
        self.released: Known | None = None
        cx, cy, cz = device.geometry.cluster
        self.live_warps = cx * cy * cz * device.warps
        x, y, z = first
        for rank in range(cx * cy * cz):
            index = (x + rank % cx, y + rank // cx % cy, z + rank // (cx * cy))
            self.ctas.append(CTA(device, self, index, rank))
        for cta in self.ctas:
            cta.start()

    def release(self) -> None:
        """Open the cluster barrier if every live warp has arrived."""
        if self.arrived and self.arrived >= self.live_warps:
            self.arrived = 0
            self.generation += 1
            self.released = self.knowledge
            self.device.events += 1

    @property
    def live(self) -> list[Group]:
        """Groups that have not ended."""
        return [g for cta in self.ctas for g in cta.groups if not g.done]
