# SPDX-License-Identifier: Apache-2.0
"""Hooks: events that the units report to observers while a kernel runs. No result depends on them.

`Observer` ignores all events; coverage, the meter, the record of writes and the race detector override the hooks that
they need. The race detector also gives each warp a tracker, which gives each asynchronous operation a token;
`races/tracker.py` has the methods of both. Arguments of type `Any` are objects of modules that import this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.state.memory import MemoryRegion

# Bytes that a cp.async accesses: lanes, region, byte offsets.
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
    """An access: `size` bytes at each offset.

    `m` are the active lanes, None for all. In space "matrix" (ldmatrix, stmatrix) `offset` are rows of 16 bytes and `m`
    the active warps. `strong` is "" for a plain access, else relaxed, acquire, release or acq_rel.
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
    """The tracker of every warp and the token of every operation without the race detector."""

    follows = False  # whether anyone listens; if not, callers need not compute arguments

    def __getattr__(self, name: str) -> Callable[..., Untracked]:
        setattr(self, name, _ignore)
        return _ignore


UNTRACKED = Untracked()


class Observer:
    """The hooks of one launch."""

    def access(self, group: Any, touch: Touch) -> None:
        """An access is about to happen."""

    def atomics(self, group: Any, touch: Touch, returns: bool) -> None:
        """An atomic operation; `returns`: whether an instruction uses the values that it returned."""

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
        """A try_wait or test_wait found its phase not complete."""

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


def _each(methods: list[Callable[..., None]]) -> Callable[..., None]:
    def report(*args: Any) -> None:
        for act in methods:
            act(*args)

    return report


class Observers(Observer):
    """Calls the observers of a launch; each one for the hooks that it overrides."""

    def __init__(self, *observers: Observer) -> None:
        for name in [name for name in vars(Observer) if not name.startswith("_")]:
            methods = [
                getattr(x, name) for x in observers if getattr(type(x), name) is not vars(Observer)[name]
            ]
            if methods:
                setattr(self, name, methods[0] if len(methods) == 1 else _each(methods))

    def hears(self, name: str) -> bool:
        """Whether an observer overrides a hook."""
        return name in vars(self)
