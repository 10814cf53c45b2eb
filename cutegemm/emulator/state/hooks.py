# SPDX-License-Identifier: Apache-2.0
"""What the units report while a kernel runs. No result depends on it.

An `Observer` follows a launch. The base class ignores all reports; coverage, the meter, the record of writes and the
race detector override the methods that they need. The race detector also follows each warp by a tracker, which gives a
token for each asynchronous operation (`races/tracker.py` has the methods of both). Arguments typed `Any` are objects of
the running device, which is built on top of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.state.memory import MemoryRegion

# Bytes a cp.async touches: lanes, region, byte offsets.
Touched: TypeAlias = tuple[Vector, MemoryRegion, Vector]
# A box within a region: first byte, shape (the last extent in bytes), strides of the other dimensions.
Reach: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


def row_starts(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """First bytes of the rows of a box."""
    rows = np.array([start], np.int64)
    for n, stride in zip(shape, strides):
        rows = (rows[:, None] + np.arange(n) * stride).ravel()
    return rows


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


def _ignore(*_: object, **__: object) -> Untracked:
    return UNTRACKED


class Untracked:
    """The tracker of every warp, and the token of every operation, of a launch without race detector."""

    follows = False  # whether reports are used: if not, their arguments need not be computed

    def __getattr__(self, name: str) -> Callable[..., Untracked]:
        setattr(self, name, _ignore)
        return _ignore


UNTRACKED = Untracked()


class Observer:
    """One launch, as seen by the race detector, coverage, the meter or the record of writes."""

    def access(self, group: Any, touch: Touch) -> None:
        """An access is about to happen."""

    def atomics(self, group: Any, touch: Touch, returns: bool) -> None:
        """An atomic operation happened; `returns`: whether an instruction uses the values that it returned."""

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

    def waited_for(self, groups: Sequence[Any]) -> None:
        """An instruction waits for these groups of asynchronous operations."""

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
