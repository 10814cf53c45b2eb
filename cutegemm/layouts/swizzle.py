# SPDX-License-Identifier: Apache-2.0
"""Swizzle and ComposedLayout: offsets whose bits are permuted to spread accesses over shared-memory banks.

A swizzle is its own inverse and permutes offsets within aligned blocks of `period` offsets. So a swizzled tile of whole
periods needs the same memory as the plain one. Source: CuTe's `Swizzle<B, M, S>`; PTX ISA, "Shared Memory Matrix
Layout" and "Swizzling Modes", lists the TMA and WGMMA modes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from cutegemm.errors import SpecError, field_error
from cutegemm.layouts import int_tuple
from cutegemm.layouts.int_tuple import IntTuple, require
from cutegemm.layouts.layout import Layout
from cutegemm.layouts.layout import parse as parse_plain


@dataclass(frozen=True)
class Swizzle:
    """XOR `bits` bits of an offset, from bit `base`, with the bits `shift` places further left.

    With a negative shift, bits from `base` are XORed into the bits at base - shift.

    Raises:
        SpecError: negative bits or base, or |shift| < bits, where the two bit fields would overlap.

    >>> [Swizzle(1, 0, 1)(i) for i in range(4)], Swizzle(3, 4, 3).period
    ([0, 1, 3, 2], 1024)
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        """Check that both bit fields exist and do not overlap."""
        for name in ("bits", "base", "shift"):
            value = getattr(self, name)
            require(int_tuple.is_int(value), name, value, "must be an int")
            require(value >= 0 or name == "shift", name, value, "must be at least 0", 0)
        require(
            abs(self.shift) >= self.bits,
            "shift",
            self.shift,
            f"its magnitude must be at least bits={self.bits}",
            self.bits,
        )

    @property
    def period(self) -> int:
        """The size of the aligned blocks of offsets within which the swizzle permutes."""
        return 1 << (self.base + self.bits + abs(self.shift)) if self.bits else 1

    def __call__(self, offset: int) -> int:
        """Swizzle one offset."""
        low = ((1 << self.bits) - 1) << self.base
        if self.shift >= 0:
            return offset ^ ((offset >> self.shift) & low)
        return offset ^ ((offset & low) << -self.shift)

    def recast(self, old_bits: int, new_bits: int) -> Swizzle:
        """Turn a swizzle of `old_bits`-wide elements into the same one of `new_bits`-wide elements.

        Raises:
            SpecError: a width is not a power of two, or the swizzle moves chunks smaller than a new element.

        >>> Swizzle(3, 4, 3).recast(8, 16)
        Swizzle(bits=3, base=3, shift=3)
        """
        for name, width in (("old_bits", old_bits), ("new_bits", new_bits)):
            require(width > 0 and width & (width - 1) == 0, name, width, "must be a power of two, in bits")
        base = self.base + old_bits.bit_length() - new_bits.bit_length()
        require(
            base >= 0,
            "new_bits",
            new_bits,
            f"must be at most as wide as the chunks that {self} moves",
            old_bits << self.base,
        )
        return replace(self, base=base)


@dataclass(frozen=True)
class ComposedLayout:
    """The function swizzle(offset + layout(coordinate)).

    >>> swizzled = ComposedLayout(Swizzle(1, 0, 1), 0, Layout((2, 2)))
    >>> print(swizzled, [swizzled(i) for i in range(4)])
    S<1,0,1> o 0 o (2,2):(1,2) [0, 1, 3, 2]
    """

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __post_init__(self) -> None:
        """Check the offset."""
        require(
            int_tuple.is_int(self.offset) and self.offset >= 0,
            "offset",
            self.offset,
            "must be an int of at least 0",
            0,
        )

    @property
    def shape(self) -> IntTuple:
        """The shape of the plain layout."""
        return self.layout.shape

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return self.layout.size

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return self.layout.rank

    @property
    def cosize(self) -> int:
        """One more than the largest offset; evaluates every coordinate."""
        return 1 + max(self(i) for i in range(self.size))

    def __call__(self, *coordinate: IntTuple) -> int:
        """Map a coordinate, given as one argument or one per mode, to its swizzled offset."""
        return self.swizzle(self.offset + self.layout(*coordinate))

    def __str__(self) -> str:
        """The notation S<bits,base,shift> o offset o shape:stride; `parse` reads it."""
        s = self.swizzle
        return f"S<{s.bits},{s.base},{s.shift}> o {self.offset} o {self.layout}"


AnyLayout = Layout | ComposedLayout
_COMPOSED = re.compile(r"S<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>\s*o\s*(?:(\d+)\s*o\s*)?(.*)", re.DOTALL)


def parse(text: str) -> AnyLayout:
    """Read the notation of `str(layout)`, with or without a swizzle; stride and offset are optional.

    Raises:
        SpecError: the text is not a layout.

    >>> parse("(4,2):(1,4)")
    Layout((4, 2), (1, 4))
    >>> print(parse("S<3,3,3> o 0 o (8,64):(64,1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    text = text.strip()
    if not text.startswith("S"):
        return parse_plain(text)
    found = _COMPOSED.fullmatch(text)
    if found is None:
        rule = "must be shape:stride, or S<bits,base,shift> o offset o shape:stride"
        raise field_error(SpecError, "layout", text, rule, "S<3,3,3> o 0 o (8,64):(64,1)")
    bits, base, shift, offset = (int(x or 0) for x in found.groups()[:4])
    return ComposedLayout(Swizzle(bits, base, shift), offset, parse_plain(found[5]))


L = TypeVar("L", Layout, ComposedLayout)
P = ParamSpec("P")


class Lifted(Protocol[P]):
    """An operation that returns a layout of the type that it is given."""

    def __call__(self, layout: L, /, *args: P.args, **kwargs: P.kwargs) -> L:
        """Apply it to a layout, or to the one inside a swizzle."""
        ...


def through_swizzle(operation: Callable[Concatenate[Layout, P], Layout]) -> Lifted[P]:
    """Extend an operation on layouts to `ComposedLayout`, where it acts on the plain layout.

    This is correct for operations that only rearrange or repeat the domain of their first argument.

    >>> from cutegemm.layouts.algebra import composition
    >>> print(composition(ComposedLayout(Swizzle(1, 0, 1), 0, Layout((2, 2))), Layout(2, 2)))
    S<1,0,1> o 0 o 2:2
    """

    @wraps(operation)
    def lifted(layout: AnyLayout, *args: Any, **kwargs: Any) -> AnyLayout:
        """Apply the operation to the plain layout."""
        if isinstance(layout, ComposedLayout):
            return replace(layout, layout=operation(layout.layout, *args, **kwargs))
        return operation(layout, *args, **kwargs)

    return cast("Lifted[P]", lifted)
