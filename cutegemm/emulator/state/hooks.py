# SPDX-License-Identifier: Apache-2.0
"""What the units report to observers while a kernel runs. No result depends on it.

An `Observer` follows a launch, a `Tracker` one warp, a `Token` one asynchronous operation. The base classes ignore
all reports; the race detector, coverage, the meter and the record of writes override what they need. Arguments typed
`Any` are objects of the running machine, which is built on top of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from cutegemm.emulator.numbers.types import Chunks, Mask, Value, Vector
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.state.memory import MemoryRegion

# Bytes a cp.async touches: lanes, region, byte offsets.
Touched: TypeAlias = tuple[Vector, MemoryRegion, Vector]
# Part of a region: first byte, shape (the last extent in bytes), strides of the other dimensions.
Reach: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


class Touch(NamedTuple):
    """A plain access, or a strong one (relaxed, acquire, release, acq_rel): `size` bytes at each offset.

    `m` are the active lanes, None for all. In "matrix" space (ldmatrix, stmatrix) `offset` are rows of 16 bytes and `m`
    the active warps.
    """

    m: Mask
    region: MemoryRegion
    offset: Value
    size: int
    write: bool
    space: str
    strong: str = ""


class Token:
    """An asynchronous operation: what it reads and writes, and the mbarriers it completes on."""

    follows = False  # whether reports are used: if not, arguments need not be computed

    def read_shared(self, cta: Any, chunks: Chunks) -> None: ...
    def write_shared(self, cta: Any, chunks: Chunks) -> None: ...
    def write_cells(self, cta: Any, offset: int, size: int, bar: Any) -> None: ...
    def copied(self, to: Touched, source: Touched | None, size: int) -> None: ...
    def read_global(self, region: MemoryRegion, reach: Reach) -> None: ...
    def write_global(self, region: MemoryRegion, reach: Reach, atomic: bool) -> None: ...
    def uses(self, bar: Any) -> None: ...
    def complete_on(self, bar: Any, amount: int = 0) -> None: ...


UNFOLLOWED = Token()


class Tracker:
    """One warp: its accesses, barriers, fences and asynchronous operations."""

    follows = False

    def access(self, touch: Touch) -> None:
        """An access by some lanes; see `Observer.access`."""

    def atomics(
        self, m: Mask, region: MemoryRegion, offset: Value, size: int, order: str, returns: bool
    ) -> None:
        """An atomic operation by the lanes `m` on one region; `returns` a value that is used."""

    def stored(self, m: Mask, values: Sequence[Value]) -> None:
        """The store that was the warp's last access writes these values."""

    def lanes_met(self) -> None:
        """The lanes of the warp have synchronised."""

    def some_met(self, met: Vector) -> None:
        """Some lanes have synchronised."""

    def defect(self, kind: str, text: str) -> None:
        """Something this warp does is wrong by itself."""

    def release_to(self, barrier: Any) -> None:
        """The warp arrives at a barrier."""

    def release_inits(self, barrier: Any) -> None:
        """The warp arrives, but releases only the initialisations of mbarriers that a fence covers."""

    def acquire_from(self, barrier: Any) -> None:
        """The warp's wait at a barrier is over."""

    def barrier_init(self, bar: Any) -> None:
        """The warp initialised an mbarrier."""

    def arrive(self, bars: Sequence[Any], m: Mask, relaxed: bool) -> None:
        """mbarrier.arrive by the lanes `m`."""

    def waited(self, bar: Any, relaxed: bool) -> None:
        """A wait on an mbarrier succeeded."""

    def fence(self, op: str) -> None:
        """A fence, by its opcode."""

    def grid_wait(self, m: Mask) -> None:
        """griddepcontrol.wait by some lanes."""

    def grid_trigger(self, m: Mask) -> None:
        """griddepcontrol.launch_dependents by some lanes."""

    def issue(self, what: str, generic: bool = False, m: Mask = None) -> Token:
        """A bulk copy (of the async proxy) or an asynchronous store (of the generic one) was issued by lanes `m`."""
        return UNFOLLOWED

    def issue_copy(self, m: Mask = None) -> Token:
        """A cp.async was issued."""
        return UNFOLLOWED

    def copies_closed(self) -> None:
        """The cp.asyncs issued so far are committed, or an mbarrier follows them."""

    def issue_wgmma(self, where: Any, a: Any, b: Value, form: Any) -> Token:
        """wgmma.mma_async: its operands are read from now until its wait."""
        return UNFOLLOWED

    def done(self, token: Any, written: bool = True) -> None:
        """The warp has waited for an operation of its own: for its reads, or besides for what it writes."""

    def wgmma_fence(self) -> None:
        """wgmma.fence."""

    def wgmma_done(self, tokens: Sequence[Any]) -> None:
        """A wait of this warp covers wgmmas, its own and those of the other warps of its warpgroup."""

    def accumulator(self, index: int, write: bool) -> None:
        """A register of an accumulator list is read or written."""

    def fragment_written(self, slot: int) -> None:
        """A register that holds part of A for some wgmma is written."""

    def ended(self) -> None:
        """The warp has ended."""


UNTRACKED = Tracker()


class Observer:
    """One launch, as seen by the race detector, coverage, the meter or the record of writes."""

    def access(self, group: Any, touch: Touch) -> None:
        """An access is about to happen."""

    def atomics(
        self, group: Any, m: Mask, region: MemoryRegion, offsets: Vector, size: int, order: str, returns: bool
    ) -> None:
        """An atomic operation of the lanes `m` on one region happened, at a byte offset for each lane.

        `returns` says whether something uses the values that it returned.
        """

    def tensor_load(self, group: Any, tensor: Any, at: tuple[int, ...], bars: Sequence[Any]) -> None:
        """A tensor load of the box at `at` was issued, completing on `bars`."""

    def tensor_store(self, group: Any, tensor: Any, reach: Reach | None) -> None:
        """A tensor store or reduction was issued."""

    def bulk(self, region: MemoryRegion, start: int, size: int, write: bool, copies: int) -> None:
        """A bulk copy of contiguous bytes of global memory, into `copies` CTAs, was issued."""

    def async_copy(self, to: Touched, source: Touched | None, size: int, around_l1: bool) -> None:
        """A cp.async was issued; source None reads nothing."""

    def wgmma(self, group: Any, form: Any, a_in_registers: bool) -> None:
        """A wgmma was issued."""

    def ran(self, group: Any, block: int, mask: Mask) -> None:
        """A group has run a block."""

    def blocked(self, group: Any, block: int) -> None:
        """A group has to wait at a block."""

    def polled(self, block: int) -> None:
        """A try_wait or test_wait found its phase incomplete."""

    def waited_for(self, groups: Sequence[Any], program: Translation) -> None:
        """A wait for groups of asynchronous work names these."""

    def overrun(self, text: str) -> None:
        """An mbarrier got more arrivals than it was initialised for; without an observer this is a fault."""

    def warp_started(self, group: Any) -> None:
        """A group of warps starts."""

    def warp_ended(self, group: Any) -> None:
        """A group of warps has reached its end."""

    def cluster_ended(self, cluster: Any) -> None:
        """Every warp of a cluster has ended."""


def _each(heard: list[Callable[..., None]]) -> Callable[..., None]:
    def report(*args: Any) -> None:
        for act in heard:
            act(*args)

    return report


class Observers(Observer):
    """The observers of one launch as one; each is called for what it overrides."""

    def __init__(self, *observers: Observer) -> None:
        for name in [name for name in vars(Observer) if not name.startswith("_")]:
            heard = [
                getattr(x, name) for x in observers if getattr(type(x), name) is not vars(Observer)[name]
            ]
            if heard:
                setattr(self, name, heard[0] if len(heard) == 1 else _each(heard))

    def hears(self, name: str) -> bool:
        """Whether an observer overrides a hook."""
        return name in vars(self)

    @property
    def listening(self) -> bool:
        """Whether accesses have to be reported."""
        return "access" in vars(self)
