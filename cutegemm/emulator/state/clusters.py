# SPDX-License-Identifier: Apache-2.0
"""The running device: clusters, thread blocks, their shared memory, barriers and registers.

Source: PTX ISA 9.0, 2.2 (thread hierarchy), 9.7.13.1 (bar, barrier.cta), 9.7.13.4 (barrier.cluster), 9.7.13.15
(mbarrier), 9.7.20.5 (setmaxnreg).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.state.completion import Eager
from cutegemm.emulator.state.geometry import Geometry, Triple
from cutegemm.emulator.state.hooks import Observers
from cutegemm.emulator.state.memory import RANK_SHIFT, SHARED_BASE, Fault, GlobalMemory, MemoryRegion
from cutegemm.emulator.state.pending import Warpgroup
from cutegemm.emulator.state.tensors import Tensor

WARP = 32
SM_THREADS, SM_CTAS, SM_SHARED = 2048, 32, 233_472  # per SM of sm_90, CUDA programming guide, table 28


def occupancy(threads: int, shared_bytes: int) -> int:
    """CTAs an SM holds, by threads and shared memory; PTX does not say how many registers a thread takes."""
    warps = -(-threads // WARP) * WARP
    return max(1, min(SM_CTAS, SM_THREADS // warps, SM_SHARED // (shared_bytes + SHARED_BASE)))


# Lane numbers, which lanes lead their warps, which exist (None: all), special registers.
LaneFacts: TypeAlias = tuple[npt.NDArray[np.uint32], Vector, Mask, dict[str, Value]]
# Of a predicate: how many lanes take a branch, which do, which do not.
Halves: TypeAlias = tuple[int, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


@dataclass(eq=False)
class EmulatedDevice:
    """One launch: program, geometry, memories, the completion policy, the observers."""

    program: Translation
    geometry: Geometry
    memory: GlobalMemory
    params: MemoryRegion
    completion: Eager
    symbols: dict[str, int]  # addresses of the module's variables
    environment: dict[str, int]  # special registers of a cooperative launch
    registers: int | None  # of a thread when it starts, if the kernel says so
    watch: Observers = field(default_factory=Observers)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    events: int = 0  # counts whatever may unblock a warp
    timed_out: bool = False  # nothing else can move, so try_wait gives up
    # Remembered: what the lanes of a tuple of warps always hold; active warps of masks; of predicates who takes a
    # branch (`Group.branch`); of masks who leads (`warp_ops.elect`).
    lane_cache: dict[tuple[int, ...], LaneFacts] = field(default_factory=dict)
    mask_cache: dict[bytes, int] = field(default_factory=dict)
    branch_cache: dict[tuple[bytes, bool], Halves] = field(default_factory=dict)
    elected: dict[bytes, tuple[Value, Vector]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warps = self.geometry.warps

    def submit(self, action: Callable[[], None]) -> None:
        """A copy towards shared memory was issued: the policy says when it happens."""
        self.events += 1
        self.completion.submit(action)


class Gate:
    """What threads arrive at and wait for. Observers attach `knowledge` to arrivals; those who wait get `released`."""

    def __init__(self) -> None:
        self.knowledge: Any = None
        self.released: Any = None

    def open(self) -> None:
        """The phase is complete."""
        self.released = self.knowledge


class NamedBarrier(Gate):
    """One of the CTA's 16 barriers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.arrived, self.generation = number, 0, 0
        self.expected: int | None = None
        self.value: int | None = None  # of bar.red
        self.result: int | None = None

    def arrive(self, cta: CTA, warps: int, count: int | None) -> None:
        """Count warps in; the count must be the same for all who take part."""
        if count is not None and (count % WARP or count == 0):
            raise Fault(f"barrier {self.number}: thread count {count} is not a positive multiple of {WARP}")
        if self.arrived and count != self.expected:
            raise Fault(
                f"barrier {self.number}: this warp expects {count or 'all'} threads, "
                f"an earlier one {self.expected or 'all'}"
            )
        self.expected = count
        self.arrived += warps * WARP
        self.release(cta)

    def release(self, cta: CTA) -> None:
        """Complete the barrier if all threads have arrived."""
        need = cta.live_warps * WARP if self.expected is None else self.expected
        if self.arrived and self.arrived >= need:
            if self.arrived > need:
                raise Fault(f"barrier {self.number}: {self.arrived} threads arrived, {need} expected")
            self.arrived = 0
            self.generation += 1
            self.result, self.value = self.value, None
            self.open()
            cta.device.events += 1


class MBarrier(Gate):
    """An mbarrier object: expected and pending arrivals, tx-count, and the number of completed phases."""

    def __init__(self, cta: CTA, offset: int, count: int) -> None:
        super().__init__()
        self.cta, self.offset = cta, offset
        self.count = self.next_count = self.pending = count
        self.tx = self.phase = 0
        self.announced = self.brought = 0  # bytes in all: by expect_tx, by copies
        self.init: int | None = None  # of the race detector: the segment that initialised it
        self.fenced = False  # a fence made the initialisation visible to the async proxy

    def advance(self) -> None:
        """Complete the phase when nothing is pending."""
        if self.pending < 0:
            text = f"{self}: more arrivals than the {self.count} it was initialised for{self.mismatch()}"
            if not self.cta.device.watch.hears("overrun"):
                raise Fault(text)
            self.cta.device.watch.overrun(text)
            self.pending = 0
        if self.pending == 0 and self.tx == 0:
            self.open()
            self.phase += 1
            self.count = self.next_count
            self.pending = self.count
            self.cta.device.events += 1

    def expect(self, amount: int) -> None:
        """expect_tx; complete_tx for a negative amount."""
        self.tx += amount
        if amount > 0:
            self.announced += amount
        else:
            self.brought -= amount

    def mismatch(self) -> str:
        """What to say of an expect_tx that does not fit the copies; nothing where it does."""
        if not self.tx:
            return ""
        return (
            f"; wrong expect_tx: {self.announced} bytes were announced in all, copies brought {self.brought}"
        )

    def __str__(self) -> str:
        return (
            f"mbarrier at shared offset {self.offset:#x}{self.cta.shared.part(self.offset)} of CTA {self.cta.index} "
            f"(phase {self.phase}, {self.pending} of {self.count} arrivals and {self.tx} bytes pending)"
        )


@dataclass
class Pool:
    """Registers per thread that each warp of a CTA holds, and how many a warp could still get."""

    launched: int
    warps: int
    held: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = dict.fromkeys(range(self.warps), self.launched)

    @property
    def free(self) -> int:
        """Registers per thread of one warp that nobody holds."""
        return self.launched * self.warps - sum(self.held.values())

    def __str__(self) -> str:
        return (
            f"registers: the CTA was launched with {self.launched} a thread, {self.free} of one warp are free"
        )


class CTA:
    """One thread block: shared memory, barriers, registers."""

    def __init__(self, device: EmulatedDevice, cluster: Cluster, index: Triple, rank: int) -> None:
        self.device, self.cluster, self.index, self.rank = device, cluster, index, rank
        self.peers: list[CTA] = cluster.ctas
        self.window = rank << RANK_SHIFT
        size = SHARED_BASE + device.geometry.shared_bytes
        self.shared = MemoryRegion(
            np.full(-(-size // 16) * 16, 0xAB, np.uint8), 0, f"shared memory of CTA {index}", size
        )
        self.shared.first = SHARED_BASE
        start = SHARED_BASE + device.geometry.static_bytes
        self.shared.parts = tuple((x, start + at, n) for x, at, n in device.geometry.shared_parts)
        self.barriers: dict[int, NamedBarrier] = {}
        self.pool = None if device.registers is None else Pool(device.registers, device.warps)
        self.mbarriers: dict[int, MBarrier] = {}
        self.warpgroups: dict[int, Warpgroup] = {}  # number -> its wgmmas
        self.live_warps = device.warps
        self.pace = device.completion.pace()
        self.special = device.geometry.special(index, rank) | device.environment

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

    def ended(self, warps: int) -> None:
        """Some warps have ended; barriers no longer wait for them."""
        self.live_warps -= warps
        self.cluster.live_warps -= warps
        for bar in self.barriers.values():
            if self.live_warps:
                bar.release(self)
        self.cluster.release()


class Cluster(Gate):
    """The CTAs of one cluster and its barrier."""

    def __init__(self, device: EmulatedDevice, first: Triple) -> None:
        super().__init__()
        self.device = device
        self.ctas: list[CTA] = []
        self.arrived = self.generation = 0
        cx, cy, cz = device.geometry.cluster
        self.live_warps = cx * cy * cz * device.warps
        x, y, z = first
        for rank in range(cx * cy * cz):
            index = (x + rank % cx, y + rank // cx % cy, z + rank // (cx * cy))
            self.ctas.append(CTA(device, self, index, rank))

    def release(self) -> None:
        """Complete the cluster barrier if every live warp has arrived."""
        if self.arrived and self.arrived >= self.live_warps:
            self.arrived = 0
            self.generation += 1
            self.open()
            self.device.events += 1
