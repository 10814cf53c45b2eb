# SPDX-License-Identifier: Apache-2.0
"""The emulated device: clusters and CTAs with their shared memory, barriers and registers.

Source: PTX ISA 9.0, 2.2 (thread hierarchy), 9.7.13.1 (bar, barrier.cta), 9.7.13.4 (barrier.cluster), 9.7.13.15
(mbarrier), 9.7.20.5 (setmaxnreg).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.state.completion import Completion
from cutegemm.emulator.state.geometry import SHARED_BASE, WARP, Geometry, Triple
from cutegemm.emulator.state.hooks import Observers
from cutegemm.emulator.state.memory import RANK_SHIFT, Fault, GlobalMemory, MemoryRegion
from cutegemm.emulator.state.pending import Warpgroup
from cutegemm.emulator.state.tensors import Tensor


@dataclass(eq=False)
class EmulatedDevice:
    """The device as one launch sees it: program, geometry, memory, completion policy, observers."""

    program: Translation
    geometry: Geometry
    memory: GlobalMemory
    params: MemoryRegion
    completion: Completion
    symbols: dict[str, int]  # addresses of the module's variables
    environment: dict[str, int]  # special registers of a cooperative launch
    registers: int | None  # per thread at launch; None if the kernel does not tell
    watch: Observers = field(default_factory=Observers)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    events: int = 0  # counts all that may unblock a warp
    timed_out: bool = False  # no warp makes progress, so try_wait returns false

    def submit(self, action: Callable[[], None]) -> None:
        """Issue a copy to shared memory; the completion policy decides when it completes."""
        self.events += 1
        self.completion.submit(action)


class Gate:
    """A barrier. The race detector adds to `knowledge` on arrival; waiting warps get `released`."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.phase = 0  # completed phases
        self.knowledge: Any = None
        self.released: Any = None

    def open(self) -> None:
        """Complete the phase."""
        self.released = self.knowledge
        self.phase += 1
        self.device.events += 1


class NamedBarrier(Gate):
    """One of the 16 barriers of a CTA."""

    def __init__(self, cta: CTA, number: int) -> None:
        super().__init__(cta.device)
        self.cta, self.number, self.arrived = cta, number, 0
        self.expected: int | None = None
        self.value: int | None = None  # of bar.red, in this phase
        self.result: int | None = None

    def __str__(self) -> str:
        expected = self.expected or self.cta.live_warps * WARP
        return f"barrier {self.number}, where {self.arrived} of {expected} threads have arrived"

    def arrive(self, warps: int, count: int | None) -> None:
        """Some warps arrive; all must give the same thread count."""
        if count is not None and (count % WARP or count == 0):
            raise Fault(f"barrier {self.number}: thread count {count} is not a positive multiple of {WARP}")
        if self.arrived and count != self.expected:
            raise Fault(
                f"barrier {self.number}: this warp expects {count or 'all'} threads, "
                f"an earlier one {self.expected or 'all'}"
            )
        self.expected = count
        self.arrived += warps * WARP
        self.release()

    def release(self) -> None:
        """Complete the barrier if all threads have arrived."""
        need = self.cta.live_warps * WARP if self.expected is None else self.expected
        if self.arrived and self.arrived >= need:
            if self.arrived > need:
                raise Fault(f"barrier {self.number}: {self.arrived} threads arrived, {need} expected")
            self.arrived = 0
            self.result, self.value = self.value, None
            self.open()


class MBarrier(Gate):
    """An mbarrier: expected and pending arrivals, tx-count, and the number of completed phases."""

    def __init__(self, cta: CTA, offset: int, count: int) -> None:
        super().__init__(cta.device)
        self.cta, self.offset = cta, offset
        self.count = self.next_count = self.pending = count
        self.tx = 0
        self.announced = self.brought = 0  # bytes in all phases: by expect_tx, by copies
        # for the race detector: who arrived last, at which instruction (None without it); the segment of mbarrier.init,
        # and whether the async proxy sees it
        self.last: tuple[str, PtxInstruction | None] | None = None
        self.init: int | None = None
        self.fenced = False

    @property
    def name(self) -> str:
        """Where it is."""
        return f"mbarrier at shared offset {self.offset:#x}{self.cta.shared.part(self.offset)} of CTA {self.cta.index}"

    def advance(self) -> None:
        """Complete the phase when nothing is pending."""
        if self.pending < 0:
            text = f"{self}: more arrivals than the {self.count} it was initialised for{self.mismatch()}"
            if not self.device.watch.hears("overrun"):
                raise Fault(text)
            self.device.watch.overrun(text)
            self.pending = 0
        if self.pending == 0 and self.tx == 0:
            self.open()
            self.count = self.pending = self.next_count

    def expect(self, amount: int) -> None:
        """expect_tx; complete_tx for a negative amount."""
        self.tx += amount
        if amount > 0:
            self.announced += amount
        else:
            self.brought -= amount

    def mismatch(self) -> str:
        """Text about the bytes announced and copied, if they differ."""
        text = (
            f"; wrong expect_tx: {self.announced} bytes were announced in all, copies brought {self.brought}"
        )
        return text if self.tx else ""

    @property
    def arrival(self) -> str:
        """Text about the last arrival, as far as the race detector knows it."""
        if self.last is None:
            return "" if self.init is None else "; no thread has arrived"
        who, ins = self.last
        return f"; the last arrival was by {who}{'' if ins is None else f' at {ins.place}'}"

    def awaited(self, state: int) -> str:
        """Text about a wait for a phase or for its parity."""
        note = self.mismatch() if self.pending == 0 or self.tx < 0 else ""
        return f"{self}, to complete phase {'parity ' if state < 2 else ''}{state}{note}{self.arrival}"

    def __str__(self) -> str:
        return (
            f"{self.name} "
            f"(phase {self.phase}, {self.pending} of {self.count} arrivals and {self.tx} bytes pending)"
        )


class Pool:
    """The register pool of a CTA: registers per thread that each warp holds (setmaxnreg)."""

    def __init__(self, launched: int, warps: int) -> None:
        self.launched, self.held = launched, [launched] * warps

    @property
    def free(self) -> int:
        """Registers per thread that a warp could still get."""
        return self.launched * len(self.held) - sum(self.held)

    def __str__(self) -> str:
        return (
            f"registers: the CTA was launched with {self.launched} a thread, {self.free} of one warp are free"
        )


class CTA:
    """One CTA: shared memory, barriers, registers."""

    def __init__(self, device: EmulatedDevice, cluster: Cluster, index: Triple, rank: int) -> None:
        self.device, self.cluster, self.index, self.rank = device, cluster, index, rank
        self.peers: list[CTA] = cluster.ctas
        self.window = rank << RANK_SHIFT
        size = SHARED_BASE + device.geometry.shared_bytes
        data = np.full(-(-size // 16) * 16, 0xAB, np.uint8)
        self.shared = MemoryRegion(data, 0, f"shared memory of CTA {index}", size)
        self.shared.first = SHARED_BASE
        self.shared.parts = tuple((x, SHARED_BASE + at, n) for x, at, n in device.geometry.shared_parts)
        self.barriers: dict[int, NamedBarrier] = {}
        warps = device.geometry.warps
        self.pool = None if device.registers is None else Pool(device.registers, warps)
        self.mbarriers: dict[int, MBarrier] = {}
        self.warpgroups: dict[int, Warpgroup] = {}  # number -> its pending wgmmas
        self.live_warps = warps
        self.pace = device.completion.pace()
        self.special = device.geometry.special(index, rank) | device.environment

    def barrier(self, number: int) -> NamedBarrier:
        if not 0 <= number < 16:
            raise Fault(f"barrier {number} is outside 0..15")
        if number not in self.barriers:
            self.barriers[number] = NamedBarrier(self, number)
        return self.barriers[number]

    def must_live(self, what: str) -> None:
        """Refuse an access to the CTA after all of its warps have ended."""
        if not self.live_warps:
            raise Fault(f"{what} CTA {self.index}, which has ended")

    def ended(self, warps: int) -> None:
        """Some warps have ended; barriers no longer wait for them."""
        self.live_warps -= warps
        self.cluster.live_warps -= warps
        for bar in self.barriers.values():
            if self.live_warps:
                bar.release()
        self.cluster.release()


class Cluster(Gate):
    """The CTAs of one cluster and its barrier."""

    def __init__(self, device: EmulatedDevice, first: Triple) -> None:
        super().__init__(device)
        self.ctas: list[CTA] = []
        self.arrived = 0
        cx, cy, _ = device.geometry.cluster
        size = device.geometry.cluster_ctas
        self.live_warps = size * device.geometry.warps
        x, y, z = first
        for rank in range(size):
            index = (x + rank % cx, y + rank // cx % cy, z + rank // (cx * cy))
            self.ctas.append(CTA(device, self, index, rank))

    def __str__(self) -> str:
        return f"the cluster barrier, where {self.arrived} of {self.live_warps} warps have arrived"

    def release(self) -> None:
        """Complete the cluster barrier if every live warp has arrived."""
        if self.arrived and self.arrived >= self.live_warps:
            self.arrived = 0
            self.open()
