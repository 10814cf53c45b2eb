# SPDX-License-Identifier: Apache-2.0
"""The memories and plain accesses to them: registered global buffers, shared memory, local memory, parameters.

Every access is checked for bounds and alignment. A `Region` is a stretch of bytes with views of every width;
lanes are gathered and scattered by NumPy indexing.

Source: PTX ISA 9.0, 5.1 (state spaces), 9.7.9.8 (ld), 9.7.9.11 (st).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from cutegemm.checks import integer
from cutegemm.emulator.numbers.values import ND, wrap
from cutegemm.emulator.state.addresses import LOCAL_WINDOW, PARAM_WINDOW, RANK_SHIFT, SHARED_WINDOW
from cutegemm.errors import EmulatorError, check

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value, Vector
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.watch.shadow import Shadow

ADDRESS_MOST = (1 << 56) - 1  # of host memory; what lies beyond are the windows of other spaces
OFFSET_MASK = (1 << RANK_SHIFT) - 1
POLL_COST = 300  # blocks of a group's turn that one polling load uses up, so that spinning gives way
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Fault(Exception):
    """An access or instruction the hardware would refuse; the machine adds where it happened."""


@dataclass(frozen=True)
class Buffer:
    """Host memory a kernel may touch as global memory: address and size in bytes, and a name for reports."""

    address: int
    size: int
    name: str = "buffer"

    def __post_init__(self) -> None:
        for field in ("address", "size"):
            value = integer(EmulatorError, field, getattr(self, field), 0, ADDRESS_MOST)
            object.__setattr__(self, field, value)
        check(isinstance(self.name, str), EmulatorError, "must be a str", field="name", value=self.name)


class Region:
    """Bytes at `base` with `size` usable, seen through views of 1, 2, 4, 8 and 16 bytes per element."""

    def __init__(self, data: np.ndarray, base: int, name: str, size: int | None = None) -> None:
        self.data, self.base, self.name = data, base, name
        self.size = len(data) if size is None else size
        self.first = 0  # usable bytes start here (a buffer's first bytes may only pad it to 16)
        self.views: dict[tuple[int, int], np.ndarray] = {}
        self.shadow: Shadow | None = None  # of the race detector
        self.at = data.ctypes.data  # the bytes' address, for compiled loops

    @classmethod
    def of_host(cls, buffer: Buffer) -> Region:
        """A window onto host memory, widened to 16-byte bounds that are never touched."""
        pad = buffer.address % 16
        total = -(-(buffer.size + pad) // 16) * 16
        raw = (ctypes.c_uint8 * total).from_address(buffer.address - pad)
        # NumPy's types leave out ctypes arrays.
        data = np.frombuffer(raw, np.uint8)  # type: ignore[call-overload]
        region = cls(data, buffer.address - pad, buffer.name, pad + buffer.size)
        region.first = pad
        return region

    def view(self, size: int, count: int = 1) -> np.ndarray:
        """Elements of `size` bytes; rows of `count` of them when `count` > 1."""
        view = self.views.get((size, count))
        if view is None:
            whole = len(self.data) // (size * count) * (size * count)
            view = self.data[:whole].view(_WIDTHS[size] if size < 16 else "V16")
            view = self.views[size, count] = view.reshape(-1, count) if count > 1 else view
        return view


class GlobalMemory:
    """The registered buffers, found by address."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.regions = [Region.of_host(b) for b in buffers if b.size]
        self.last: Region | None = self.regions[0] if self.regions else None

    def word_of(self, low: int, high: int) -> Region | None:
        """`find`, where the bytes may begin before the region, in the 16-byte word of its first byte."""
        inside = (x for x in self.regions if x.base <= low and high <= x.base + x.size)
        return self.find(low, high) or next(inside, None)

    def find(self, low: int, high: int) -> Region | None:
        """The region holding the bytes [low, high), or None."""
        last = self.last
        if last is not None and last.base + last.first <= low and high <= last.base + last.size:
            return last
        for region in self.regions:
            if region.base + region.first <= low and high <= region.base + region.size:
                self.last = region
                return region
        return None

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest buffer, for reports."""
        if not self.regions:
            return "no buffer is registered"
        near = min(self.regions, key=lambda r: max(r.base + r.first - address, address - r.base - r.size, 0))
        start = near.base + near.first
        if start <= address < near.base + near.size:
            return f"{address - start:#x} bytes into {near.name!r} ({near.base + near.size - start} bytes)"
        side = (
            f"{start - address} bytes before"
            if address < start
            else f"{address - near.base - near.size} bytes past the end of"
        )
        return f"{side} {near.name!r} ({near.base + near.size - start} bytes)"


def shift_address(base: Value, offset: int, bits: int) -> Value:
    """A base address plus a constant, wrapped to the width of its register."""
    if base.__class__ is not ND:
        return (base + offset) & ((1 << bits) - 1)
    moved: Vector = base + base.dtype.type(offset & ((1 << base.dtype.itemsize * 8) - 1))
    return moved


def widen(x: Value) -> Value:
    """Address as 64 bits."""
    return x.astype(np.uint64) if x.__class__ is ND else x


def map_shared(address: Value, rank: Value, bits: int, generic: bool) -> Value:
    """mapa: replace the rank in a shared address."""
    low = address & OFFSET_MASK
    out = wrap(low, bits) + (wrap(rank, bits) << RANK_SHIFT)
    return out + SHARED_WINDOW if generic else out


def in_space(address: Value, space: str) -> bool | Vector:
    """isspacep: whether a generic address lies in a space."""
    top = address >> (np.uint64(58) if address.__class__ is ND else 58)
    number = {"local": 1, "shared": 2, "param": 4, "global": 0, "const": 0}[space]
    return top == number


@overload
def resolve(a: int) -> tuple[str, int]: ...
@overload
def resolve(a: Vector) -> tuple[str, Vector]: ...
def resolve(a: Any) -> tuple[str, Any]:
    """Space and address within it of a generic address (uniform or of all lanes)."""
    first = int(a[0]) if a.__class__ is ND else a
    for window, space in ((PARAM_WINDOW, "param"), (SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local")):
        if first >= window:
            if a.__class__ is ND:
                if not ((a >= window) & (a < 2 * window)).all():
                    raise Fault(
                        "the lanes of one access reach different state spaces; such accesses are not emulated"
                    )
                return space, a if space == "param" else a - np.uint64(window)
            return space, a if space == "param" else a - window
    return "global", a


def _check(
    ok: bool, group: Group, lanes: None, x: int, size: int, region: Region | None, reason: str
) -> None:
    """Raise the fault for the first offending lane."""
    if ok:
        return
    text = f"{reason}: address {x:#x}, {size} bytes"
    where = group.device.memory.describe(x) if region is None else region.name
    raise Fault(f"{text}, {where}", lanes)


@overload
def locate(group: Group, m: Mask, a: int, size: int, space: str) -> tuple[Region, int]: ...
@overload
def locate(group: Group, m: Mask, a: Vector, size: int, space: str) -> tuple[Region | None, Vector]: ...
def locate(group: Group, m: Mask, a: Any, size: int, space: str) -> tuple[Region | None, Any]:
    """Region and byte offsets of one access of `size` bytes per lane; `a` holds only active lanes.

    Raises:
        Fault: out of bounds or misaligned.
    """
    device = group.device
    if space == "shared":
        return _locate_shared(group, a, size)
    if space == "param":
        region = device.params
    elif space == "local":
        region = group.local
        a = a + group.local_bases(m)
    else:
        return _locate_global(group, a, size)
    offset = a - (np.uint64(region.base) if a.__class__ is ND else region.base)
    high = int(offset.max()) if offset.__class__ is ND else offset
    _check(0 <= high <= region.size - size, group, None, high, size, region, "out of bounds")
    return region, offset


def _locate_global(group: Group, a: Any, size: int) -> tuple[Region | None, Any]:
    if a.__class__ is not ND:
        region = group.device.memory.find(a, a + size)
        if region is None:
            raise Fault(
                f"global access out of bounds: address {a:#x}, {size} bytes, {group.device.memory.describe(a)}"
            )
        if a % size:
            raise Fault(f"misaligned global access: address {a:#x}, {size} bytes")
        return region, a - region.base
    low, high = int(a.min()), int(a.max())
    region = group.device.memory.find(low, high + size)
    if region is None:
        bad = next((int(x) for x in a if group.device.memory.find(int(x), int(x) + size) is None), None)
        if bad is None:
            return None, a  # the lanes reach several buffers
        raise Fault(
            f"global access out of bounds: address {bad:#x}, {size} bytes, {group.device.memory.describe(bad)}"
        )
    offset = a - np.uint64(region.base)
    if int(np.bitwise_or.reduce(a)) & (size - 1):
        bad = next(int(x) for x in a if int(x) % size)
        raise Fault(f"misaligned global access: address {bad:#x}, {size} bytes")
    return region, offset


def _locate_shared(group: Group, a: Any, size: int) -> tuple[Region | None, Any]:
    cta = group.cta
    if a.__class__ is not ND:
        rank, offset = a >> RANK_SHIFT, a & OFFSET_MASK
        both, high = offset, offset
    else:
        a = a.astype(np.uint32)
        ranks = a >> np.uint32(RANK_SHIFT)
        rank = int(ranks[0])
        if len(cta.peers) > 1 and not (ranks == rank).all():
            return None, a
        offset = a & np.uint32(OFFSET_MASK)
        both, high = int(np.bitwise_or.reduce(offset)), int(offset.max())
    if rank >= len(cta.peers):
        raise Fault(f"shared access to CTA {rank} of a cluster of {len(cta.peers)}: address {high:#x}")
    cta.peers[rank].must_live("a shared access reaches")
    target = cta.peers[rank].shared
    low = offset if offset.__class__ is not ND else int(offset.min())
    if high + size > target.size or low < target.first:
        raise Fault(
            f"shared access out of bounds: offset {high:#x}, {size} bytes of {target.size} "
            f"(user memory starts at {target.first:#x})"
        )
    if both & (size - 1):
        raise Fault(f"misaligned shared access: offset {high:#x}, {size} bytes")
    return target, offset


def load(group: Group, m: Mask, a: Value, size: int, count: int, space: str, order: str) -> tuple[Value, ...]:
    """Values of a load: a tuple of `count` ints or full-length vectors (zero in inactive lanes).

    `order` is "" or what makes the access strong: relaxed (volatile too) or acquire. A strong load may be polling.
    """
    if order:
        group.budget -= POLL_COST
    if space in ("generic", "const"):
        space, a = resolve(a if m is None or a.__class__ is not ND else a[m])
        active = True
    else:
        active = False
    shift = size.bit_length() - 1
    x = a if m is None or a.__class__ is not ND or active else a[m]
    if space == "local" and x.__class__ is not ND:
        x = np.full(group.lanes if m is None else int(m.sum()), x, np.uint64)
    region, offset = locate(group, m, x, size * count, space)
    if region is None:
        return _each_lane(group, m, np.asarray(x), size, count, space, order)
    if order:
        polled(group, region, offset)
    if group.device.watch.listening:
        group.device.watch.access(group, m, region, offset, size * count, False, space, order)
    if offset.__class__ is not ND:
        row = region.view(size)[(offset >> shift) : (offset >> shift) + count]
        return tuple(int(v) for v in row)
    index = (offset // offset.dtype.type(size * count)).astype(np.int64)
    values = region.view(size, count)[index]
    values = np.ascontiguousarray(values.T) if count > 1 else values[None]
    if m is None:
        return tuple(values)
    out = np.zeros((count, group.lanes), values.dtype)
    out[:, m] = values
    return tuple(out)


def polled(group: Group, region: Region, offset: Value) -> None:
    """Remember what a strong read looked at: if it is polling, a deadlock report names it."""
    first = int(offset[0]) if offset.__class__ is ND else offset
    group.waiting, group.waiting_at = ("memory", region.name, first - region.first), group.pc


def _each_lane(
    group: Group, m: Mask, x: Vector, size: int, count: int, space: str, order: str
) -> tuple[Vector, ...]:
    """The rare access whose lanes reach several buffers or CTAs: lane by lane."""
    out = np.zeros((count, group.lanes), _WIDTHS[size])
    for lane, address in zip(
        np.flatnonzero(m).tolist() if m is not None else range(group.lanes), x.tolist(), strict=True
    ):
        region, offset = locate(group, m, address, size * count, space)
        if group.device.watch.track is not None:
            one = np.arange(group.lanes) == lane
            group.device.watch.track.access(group, one, region, offset, size * count, False, space, order)
        out[:, lane] = region.view(size)[offset // size : offset // size + count]
    return tuple(out)


def store(
    group: Group, m: Mask, a: Value, values: Sequence[Value], size: int, space: str, order: str = ""
) -> None:
    """Write `values` (one per vector element); where lanes collide the last one wins. `order`: relaxed, release."""
    group.device.events += 1
    count = len(values)
    uniform = a.__class__ is not ND
    if m is not None and a.__class__ is ND:
        a = a[m]
    if space == "generic":
        space, a = resolve(a)
    if space == "local" and uniform:
        a = np.full(group.lanes if m is None else int(m.sum()), a, np.uint64)
        uniform = False
    offset: Any  # a vector unless `uniform`
    region, offset = locate(group, m, a, size * count, space)
    if region is None:
        lanes = np.arange(group.lanes) if m is None else np.flatnonzero(m)
        for lane, address in zip(lanes.tolist(), np.asarray(a).tolist(), strict=True):
            one = np.arange(group.lanes) == lane
            store(group, one, address, tuple(lane_of(v, lane) for v in values), size, space, order)
        return
    if group.device.watch.listening:
        group.device.watch.access(group, m, region, offset, size * count, True, space, order)
        if group.tracker is not None and not order and space != "local":
            group.tracker.stored(m, values)
    view = region.view(size)
    kind = _WIDTHS[size]
    if uniform:
        for i, v in enumerate(values):
            view[offset // size + i] = wrap(
                lane_of(v, -1 if m is None else int(np.flatnonzero(m)[-1])), 8 * size
            )
        return
    index = (offset // offset.dtype.type(size)).astype(np.int64)
    for i, v in enumerate(values):
        if v.__class__ is ND:
            v = (v if m is None else v[m]).astype(kind)
        else:
            v = v & ((1 << 8 * size) - 1)
        view[index + i if i else index] = v


def lane_of(value: Value, lane: int) -> int:
    """One lane's value as a Python int."""
    # The type checker does not see that what is no vector is an int: it narrows by isinstance, which is slower.
    return int(value[lane]) if value.__class__ is ND else value  # type: ignore[return-value]
