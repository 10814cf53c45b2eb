# SPDX-License-Identifier: Apache-2.0
"""Layout: a function from coordinates to offsets, written `shape:stride`.

`Layout((4, (2, 3)), (1, (4, 8)))` maps the coordinate (i, (j, k)) to i + 4j + 8k. A coordinate may be natural (one int
per leaf), coarser, or one linear index in colexicographic order (the first mode is the fastest). Coordinates outside
the shape are refused, so a layout is a finite function; CuTe lets the last mode run past its end. Strides are never
negative. Offsets count elements, not bytes. Source: docs.nvidia.com/cutlass, "CuTe Layouts"; C. Cecka, "CuTe Layout
Representation and Algebra".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from cutegemm.layouts import int_tuple
from cutegemm.layouts.int_tuple import IntTuple, require


@dataclass(frozen=True)
class Layout:
    """A shape and a congruent stride; without a stride, compact and column-major.

    Raises:
        SpecError: an extent is below 1, a stride is negative, or shape and stride nest differently.

    >>> layout = Layout((4, (2, 3)), (6, (1, 2)))
    >>> print(layout, layout.size, layout.cosize, layout(1, (0, 2)), layout((1, 4)), layout(17))
    (4,(2,3)):(6,(1,2)) 24 24 10 10 10
    >>> [Layout(4, 2)(i) for i in range(4)]
    [0, 2, 4, 6]
    """

    shape: IntTuple
    # None is compact; `__post_init__` fills it in
    stride: IntTuple = cast("IntTuple", None)

    def __post_init__(self) -> None:
        """Check the shape; fill in the compact stride or check the given one."""
        int_tuple.check_int_tuple(self.shape, "shape", 1)
        if self.stride is None:
            object.__setattr__(self, "stride", int_tuple.prefix_product(self.shape))
        int_tuple.check_int_tuple(self.stride, "stride", 0)
        require(
            int_tuple.congruent(self.shape, self.stride),
            "stride",
            self.stride,
            f"must nest like the shape {self.shape}",
        )

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return int_tuple.product(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest offset: the elements that an array for this layout needs."""
        return self(self.size - 1) + 1

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return int_tuple.rank(self.shape)

    @property
    def depth(self) -> int:
        """The levels of nesting."""
        return int_tuple.depth(self.shape)

    @property
    def flat_modes(self) -> tuple[tuple[int, int], ...]:
        """The leaves as (extent, stride) pairs."""
        return tuple(zip(int_tuple.flatten(self.shape), int_tuple.flatten(self.stride)))

    def __call__(self, *coordinate: IntTuple) -> int:
        """Map a coordinate, given as one argument or one per mode, to its offset."""
        whole = coordinate[0] if len(coordinate) == 1 else coordinate
        return int_tuple.crd2idx(whole, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        """Take one top-level mode."""
        require(
            -self.rank <= mode < self.rank,
            "mode",
            mode,
            f"must be a mode of {self}, 0 to {self.rank - 1}",
            min(max(mode, 0), self.rank - 1),
        )
        return Layout(int_tuple.modes(self.shape)[mode], int_tuple.modes(self.stride)[mode])

    def __len__(self) -> int:
        """The number of top-level modes."""
        return self.rank

    def __iter__(self) -> Iterator[Layout]:
        """Yield the top-level modes."""
        return (self[mode] for mode in range(self.rank))

    def __str__(self) -> str:
        """CuTe's notation, `shape:stride`; `parse` reads it."""
        return f"{int_tuple.to_string(self.shape)}:{int_tuple.to_string(self.stride)}"

    def __repr__(self) -> str:
        """Valid Python."""
        return f"Layout({self.shape!r}, {self.stride!r})"


def parse(text: str) -> Layout:
    """Read CuTe's notation; the stride is optional.

    Raises:
        SpecError: the text is not a layout.

    >>> parse("(4,2):(1,4)"), parse("(4,2)") == parse("(4,2):(1,4)")
    (Layout((4, 2), (1, 4)), True)
    """
    shape, _, stride = text.partition(":")
    extents = int_tuple.parse(shape)
    return Layout(extents, int_tuple.parse(stride)) if stride else Layout(extents)


def make_layout(*layouts: Layout) -> Layout:
    """Concatenate layouts: each becomes one mode of the result.

    >>> print(make_layout(Layout(4, 1), Layout((2, 3), (4, 8))))
    (4,(2,3)):(1,(4,8))
    """
    return Layout(tuple(each.shape for each in layouts), tuple(each.stride for each in layouts))


def row_major(shape: IntTuple) -> Layout:
    """Make the compact layout whose last mode is the fastest.

    >>> print(row_major((4, (2, 3))))
    (4,(2,3)):(6,(3,1))
    """
    leaves = int_tuple.flatten(shape)
    strides = int_tuple.flatten(int_tuple.prefix_product(leaves[::-1]))[::-1]
    return Layout(shape, int_tuple.unflatten(strides, shape))


def ordered_layout(shape: tuple[IntTuple, ...], order: tuple[int, ...]) -> Layout:
    """Make the compact layout whose top-level mode with the smallest `order` is the fastest.

    Raises:
        SpecError: `order` has another length than `shape`.

    >>> print(ordered_layout((2, 3, 4), (1, 0, 2)))
    (2,3,4):(3,1,6)
    """
    require(
        len(order) == len(shape),
        "order",
        order,
        f"must have one entry per mode of {shape}",
    )
    strides: dict[int, IntTuple] = {}
    running = 1
    for mode in sorted(range(len(shape)), key=lambda m: order[m]):
        strides[mode] = int_tuple.map_leaves(
            lambda d, unit=running: d * unit, int_tuple.prefix_product(shape[mode])
        )
        running *= int_tuple.product(shape[mode])
    return Layout(shape, tuple(strides[mode] for mode in range(len(shape))))


def slice_(layout: Layout, coordinate: Any) -> tuple[Layout, int]:
    """Fix some modes: None in `coordinate` keeps a mode, an index fixes it.

    Returns the layout of the kept modes (1:0 if there are none) and the offset of the fixed ones.

    Raises:
        SpecError: the coordinate does not match the shape or is outside it.

    >>> sub, offset = slice_(Layout((4, (2, 3))), (None, (1, None)))
    >>> print(sub, offset)
    (4,3):(1,8) 4
    """
    kept, offset = _slice(layout, coordinate)
    if not kept:
        return Layout(1, 0), offset
    return (kept[0] if len(kept) == 1 else make_layout(*kept)), offset


def _slice(layout: Layout, coordinate: Any) -> tuple[list[Layout], int]:
    """List the kept modes and sum the offsets of the fixed ones."""
    if coordinate is None:
        return [layout], 0
    if not isinstance(coordinate, tuple):
        return [], layout(coordinate)
    require(
        isinstance(layout.shape, tuple) and len(coordinate) == layout.rank,
        "coordinate",
        coordinate,
        f"must have one entry per mode of the shape {layout.shape}",
    )
    parts = [_slice(mode, c) for mode, c in zip(layout, coordinate)]
    return [m for kept, _ in parts for m in kept], sum(offset for _, offset in parts)
