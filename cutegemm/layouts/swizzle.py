# SPDX-License-Identifier: Apache-2.0
"""Swizzle and ComposedLayout: offsets whose bits are mixed so that shared-memory banks are spread.

A swizzle is its own inverse and moves nothing out of an aligned block of `period` offsets, so a swizzled
tile needs the memory of the plain one when the tile fills whole periods. Source: CuTe's `Swizzle<B, M, S>`;
the TMA and WGMMA modes are listed in PTX ISA, "Shared Memory Matrix Layout" and "Swizzling Modes".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from cutegemm.errors import SpecError, check, field_error
from cutegemm.layouts import int_tuple
from cutegemm.layouts.int_tuple import IntTuple
from cutegemm.layouts.layout import Layout, slice_
from cutegemm.layouts.layout import parse as parse_plain


@dataclass(frozen=True)
class Swizzle:
    """XOR `bits` bits of an offset, from bit `base`, with the bits `shift` places further left.

    A negative shift takes them from the right instead: bits from `base` are XORed into bits at base - shift.

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
            check(int_tuple.is_int(value), SpecError, "is an int", field=name, value=value)
            check(
                value >= 0 or name == "shift",
                SpecError,
                "is at least 0",
                field=name,
                value=value,
                nearest=0,
            )
        check(
            abs(self.shift) >= self.bits,
            SpecError,
            f"|shift| is at least bits={self.bits}",
            field="shift",
            value=self.shift,
            nearest=self.bits,
        )

    @property
    def period(self) -> int:
        """The size of the aligned blocks of offsets that the swizzle permutes within themselves."""
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
            SpecError: a width is no power of two, or the swizzle would tear a wider element apart.

        >>> Swizzle(3, 4, 3).recast(8, 16)
        Swizzle(bits=3, base=3, shift=3)
        """
        for name, width in (("old_bits", old_bits), ("new_bits", new_bits)):
            check(
                width > 0 and width & (width - 1) == 0,
                SpecError,
                "is a power of two, in bits",
                field=name,
                value=width,
            )
        base = self.base + old_bits.bit_length() - new_bits.bit_length()
        check(
            base >= 0,
            SpecError,
            f"{self} over {old_bits}-bit elements tears wider ones apart",
            field="new_bits",
            value=new_bits,
            nearest=old_bits << self.base,
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
        check(
            int_tuple.is_int(self.offset) and self.offset >= 0,
            SpecError,
            "is an int and at least 0",
            field="offset",
            value=self.offset,
            nearest=0,
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
        """One more than the largest offset; looks at every coordinate."""
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
    """Read a layout as `str` prints it, with or without a swizzle; stride and offset may be left out.

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
    """An operation on layouts that keeps the kind of layout it is given."""

    def __call__(self, layout: L, /, *args: P.args, **kwargs: P.kwargs) -> L:
        """Apply it to a layout, or to the one under a swizzle."""
        ...


def through_swizzle(operation: Callable[Concatenate[Layout, P], Layout]) -> Lifted[P]:
    """Let an operation on layouts work on a `ComposedLayout` too, by changing its plain layout.

    Right for every operation that only rearranges or repeats the domain of its first argument.

    >>> from cutegemm.layouts.algebra import composition
    >>> print(composition(ComposedLayout(Swizzle(1, 0, 1), 0, Layout((2, 2))), Layout(2, 2)))
    S<1,0,1> o 0 o 2:2
    """

    @wraps(operation)
    def lifted(layout: AnyLayout, *args: Any, **kwargs: Any) -> AnyLayout:
        """Apply the operation to the plain layout inside, if there is one."""
        if isinstance(layout, ComposedLayout):
            return replace(layout, layout=operation(layout.layout, *args, **kwargs))
        return operation(layout, *args, **kwargs)

    return cast("Lifted[P]", lifted)


def slice_swizzled(composed: ComposedLayout, coordinate: Any) -> ComposedLayout:
    """Fix some modes; the offset of the fixed ones goes into the result, under the swizzle.

    Raises:
        SpecError: the coordinate does not fit the shape or lies outside it.

    >>> print(slice_swizzled(ComposedLayout(Swizzle(1, 0, 1), 0, Layout((2, 2))), (None, 1)))
    S<1,0,1> o 2 o 2:1
    """
    kept, offset = slice_(composed.layout, coordinate)
    return replace(composed, offset=composed.offset + offset, layout=kept)
