# SPDX-License-Identifier: Apache-2.0
"""Memory and addresses: regions of bytes, buffers in global memory, windows of the generic address space.

Source: PTX ISA 9.0, 5.1 (state spaces).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from cutegemm.checks import integer
from cutegemm.emulator.numbers.types import Value, Vector
from cutegemm.emulator.numbers.values import ND, wrap
from cutegemm.errors import EmulatorError, check, field_error

PARAM_WINDOW = 1 << 60  # generic addresses of the parameter space; host pointers use fewer than 57 bits
SHARED_WINDOW = 1 << 59
LOCAL_WINDOW = 1 << 58
RANK_SHIFT = 24  # a shared address has the CTA's rank in the cluster above the offset
ADDRESS_MOST = (1 << 56) - 1  # of host memory; the windows of other spaces are above
OFFSET_MASK = (1 << RANK_SHIFT) - 1
WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Fault(Exception):
    """An access or instruction that the hardware would refuse; the executor adds the place."""


@dataclass(frozen=True)
class Buffer:
    """Host memory that a kernel may access as global memory: address and size in bytes, and a name for reports."""

    address: int
    size: int
    name: str = "buffer"

    def __post_init__(self) -> None:
        for field in ("address", "size"):
            value = integer(EmulatorError, field, getattr(self, field), 0, ADDRESS_MOST)
            object.__setattr__(self, field, value)
        check(isinstance(self.name, str), EmulatorError, "must be a str", field="name", value=self.name)


@dataclass(frozen=True)
class View:
    """A NumPy array or a CPU tensor: address, extents, strides and element size in bytes, and the name of its type.

    A tensor is any object with `data_ptr()`, `shape`, `stride()` and `element_size()`, so torch is not needed.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    kind: str
    owner: Any

    @classmethod
    def of(cls, field: str, x: Any) -> View | None:
        """The view of a NumPy array or a CPU tensor; None for anything else.

        Raises:
            EmulatorError: about `field`: an array of Python objects; a tensor that is not dense or not on the CPU.
        """
        if isinstance(x, np.ndarray):
            if x.dtype.hasobject:
                raise field_error(
                    EmulatorError, field, x, "an array of Python objects has no bytes for a kernel"
                )
            return cls(x.ctypes.data, x.shape, x.strides, x.itemsize, x.dtype.name, x)
        try:
            if not all(hasattr(x, name) for name in ("data_ptr", "shape", "stride", "element_size")):
                return None
            device = getattr(getattr(x, "device", None), "type", "cpu")
            if device != "cpu":
                raise field_error(EmulatorError, field, x, f"on {device}: must be a CPU tensor")
            item = int(x.element_size())
            strides = tuple(int(s) * item for s in x.stride())
            shape, kind = tuple(int(n) for n in x.shape), str(x.dtype).rsplit(".", 1)[-1]
            return cls(int(x.data_ptr()), shape, strides, item, kind, x)
        except EmulatorError:
            raise
        except Exception as e:
            # nested, sparse and lazy tensors raise errors of their own for shape, strides or pointer
            raise field_error(EmulatorError, field, x, f"must be dense ({type(e).__name__})") from e

    @classmethod
    def needed(cls, field: str, x: Any) -> View:
        """The view of a NumPy array or a CPU tensor.

        Raises:
            EmulatorError: about `field`, if `x` is neither.
        """
        view = cls.of(field, x)
        if view is None:
            raise field_error(EmulatorError, field, x, "must be a NumPy array or a CPU tensor")
        return view

    def buffer(self, name: str) -> Buffer:
        """The memory from its first to its last element."""
        if 0 in self.shape:
            return Buffer(self.address, 0, name)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(s for s in steps if s < 0)
        return Buffer(self.address + low, sum(abs(s) for s in steps) + self.item, name)


class MemoryRegion:
    """Bytes at address `base`, of which `size` are usable, as arrays of 1, 2, 4, 8 or 16 bytes per element."""

    def __init__(self, data: np.ndarray, base: int, name: str, size: int | None = None) -> None:
        self.data, self.base, self.name = data, base, name
        self.size = len(data) if size is None else size
        self.first = 0  # first usable byte; bytes before it align the region to 16
        self.parts: tuple[tuple[str, int, int], ...] = ()  # (name, first byte, bytes), the smallest first
        self.views: dict[tuple[int, int], np.ndarray] = {}
        self.shared = name.startswith("shared memory")
        self.at = data.ctypes.data  # the bytes' address, for compiled loops

    @classmethod
    def of_host(cls, buffer: Buffer) -> MemoryRegion:
        """A buffer as a region, extended to multiples of 16 bytes; no access reaches the extra bytes."""
        pad = buffer.address % 16
        total = -(-(buffer.size + pad) // 16) * 16
        raw = (ctypes.c_uint8 * total).from_address(buffer.address - pad)
        # the types of NumPy do not allow ctypes arrays
        data = np.frombuffer(raw, np.uint8)  # type: ignore[call-overload]
        region = cls(data, buffer.address - pad, buffer.name, pad + buffer.size)
        region.first = pad
        return region

    def part(self, offset: int) -> str:
        """The name of the bytes at an offset, in brackets, or ""; behind all named bytes the name of the last ones."""
        for name, first, size in self.parts:
            if first <= offset < first + size:
                return f" ({name} + {offset - first:#x})" if offset > first else f" ({name})"
        before = [(first + size, name) for name, first, size in self.parts if first + size <= offset]
        if not before:
            return ""
        end, name = max(before)
        return f" ({offset - end:#x} bytes past the end of {name})"

    def view(self, size: int, count: int = 1) -> np.ndarray:
        """The bytes as elements of `size` bytes, in rows of `count` if that is above 1."""
        view = self.views.get((size, count))
        if view is None:
            whole = len(self.data) // (size * count) * (size * count)
            view = self.data[:whole].view(WIDTHS[size] if size < 16 else "V16")
            view = self.views[size, count] = view.reshape(-1, count) if count > 1 else view
        return view

    def take(self, chunks: np.ndarray) -> np.ndarray:
        """A copy of some 16-byte chunks."""
        data: np.ndarray = self.view(16)[chunks].view(np.uint8)
        return data


class GlobalMemory:
    """The buffers of a launch."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.regions = [MemoryRegion.of_host(b) for b in buffers if b.size]
        self.last: MemoryRegion | None = self.regions[0] if self.regions else None

    def word_of(self, low: int, high: int) -> MemoryRegion | None:
        """As `find`, but the bytes may begin before the region, in the 16-byte word that contains its first byte."""
        inside = (x for x in self.regions if x.base <= low and high <= x.base + x.size)
        return self.find(low, high) or next(inside, None)

    def find(self, low: int, high: int) -> MemoryRegion | None:
        """The region that contains the bytes [low, high), or None."""
        last = self.last
        if last is not None and last.base + last.first <= low and high <= last.base + last.size:
            return last
        for region in self.regions:
            if region.base + region.first <= low and high <= region.base + region.size:
                self.last = region
                return region
        return None

    def find_all(self, address: int, size: int, what: str) -> MemoryRegion:
        """The region that contains `size` bytes of `what`; a Fault if there is none."""
        region = self.find(address, address + size)
        if region is None:
            ends = self.describe(address + size)
            raise Fault(f"{what} out of bounds: begins {self.describe(address)}, ends {ends}")
        return region

    def describe(self, address: int) -> str:
        """Text about an address relative to the nearest buffer."""
        if not self.regions:
            return "no buffer is registered"
        near = min(self.regions, key=lambda r: max(r.base + r.first - address, address - r.base - r.size, 0))
        start = near.base + near.first
        size = near.base + near.size - start
        if start <= address < start + size:
            return f"{address - start:#x} bytes into {near.name!r} ({size} bytes)"
        if address < start:
            return f"{start - address} bytes before {near.name!r} ({size} bytes)"
        return f"{address - start - size} bytes past the end of {near.name!r} ({size} bytes)"


def shift_address(base: Value, offset: int, bits: int) -> Value:
    """An address plus a constant, wrapped to the width of its register."""
    if base.__class__ is not ND:
        return (base + offset) & ((1 << bits) - 1)
    moved: Vector = base + base.dtype.type(offset & ((1 << base.dtype.itemsize * 8) - 1))
    return moved


def widen(x: Value) -> Value:
    """An address as 64 bits."""
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
    """The space of a generic address (or of all lanes' addresses), and the address within it.

    The space may be "several"; if the first lane's is "global", those of other lanes may differ.
    """
    lanes = a.__class__ is ND
    first = int(a[0]) if lanes else a
    for window, space in ((PARAM_WINDOW, "param"), (SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local")):
        if first >= window:
            if lanes and not ((a >= window) & (a < 2 * window)).all():
                return "several", a
            return space, a if space == "param" else a - (np.uint64(window) if lanes else window)
    return "global", a
