# SPDX-License-Identifier: Apache-2.0
"""The layout algebra: coalesce, composition, complement and inverses.

Every operation either returns a layout that obeys the law in its docstring at every coordinate, or raises. A *tiler* is
a layout, an int n (for n:1), None (leaves the mode alone) or a tuple of tilers, one for each leading mode. Unlike CuTe,
a layout cannot run past its end. `coalesce` and `composition` also accept a `ComposedLayout`: they act on the layout
inside the swizzle.
Source: docs.nvidia.com/cutlass, "CuTe Layout Algebra".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cutegemm.layouts.int_tuple import IntTuple, ceil_div, require
from cutegemm.layouts.layout import Layout, make_layout
from cutegemm.layouts.swizzle import through_swizzle

Tiler = Layout | int | None | tuple["Tiler", ...]
T = TypeVar("T")
FlatModes = tuple[tuple[int, int], ...]


def _from_flat_modes(flat: list[tuple[int, int]]) -> Layout:
    """Make a layout of (extent, stride) pairs: 1:0 without any, depth 0 for one."""
    if not flat:
        return Layout(1, 0)
    if len(flat) == 1:
        return Layout(*flat[0])
    shape, stride = zip(*flat)
    return Layout(shape, stride)


def by_mode(operation: Callable[[Layout, T], Layout], layout: Layout, tilers: tuple[T, ...]) -> Layout:
    """Apply an operation to each leading mode with its own tiler; keep the other modes."""
    check_tilers(layout, tilers)
    parts = [operation(mode, tiler) for mode, tiler in zip(layout, tilers)]
    return make_layout(*parts, *list(layout)[len(tilers) :])


def check_tilers(layout: Layout, tilers: tuple[object, ...]) -> None:
    """Refuse an empty tuple of tilers, and more tilers than modes."""
    require(
        0 < len(tilers) <= layout.rank,
        "len(tiler)",
        len(tilers),
        f"must be between 1 and {layout.rank}, the modes of {layout}",
        max(1, min(len(tilers), layout.rank)),
    )


@through_swizzle
def coalesce(layout: Layout, profile: IntTuple | None = None) -> Layout:
    """Find the layout with the fewest modes that is the same function of the linear index.

    A tuple as profile coalesces by mode: each mode that has a leaf in `profile` becomes one mode of depth <= 1.
    Law: coalesce(A)(i) = A(i) for all i < size(A).

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2))), (0, 0)))
    (2,6):(1,2)
    """
    if isinstance(profile, tuple):
        return by_mode(coalesce, layout, profile)
    merged: list[tuple[int, int]] = []
    for extent, stride in layout.flat_modes:
        # one coordinate: the stride is never used
        if extent == 1:
            continue
        # continues where the mode before ends
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    return _from_flat_modes(merged)


@through_swizzle
def composition(a: Layout, b: Tiler) -> Layout:
    """Compose two layouts: first B, then A; the result has B's coordinates.

    Law: R(c) = A(B(c)) for every coordinate c of B. It holds because B's leaves, as coordinates of coalesce(A), add up
    without a carry from one mode of A into the next. That is what is checked.

    Raises:
        SpecError: B's offsets exceed A's domain. Or a leaf s:d of B reaches the end of a mode of A after a number of
            steps that does not divide s. Or the leaves of B together carry past the end of a mode of A.

    >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> print(composition(Layout((12, 8)), (3, 4)))
    (3,4):(1,12)
    """
    if b is None:
        return a
    if isinstance(b, tuple):
        return by_mode(composition, a, b)
    if not isinstance(b, Layout):
        b = Layout(b)
    require(b.cosize <= a.size, "b", b, f"its offsets must be below {a.size}, the size of {a}")
    flat_a = coalesce(a).flat_modes
    parts, reach = _compose_tree(flat_a, b, b)
    for (extent, _), last in zip(flat_a, reach):
        require(last < extent, "b", b, f"its modes must not carry past the mode of extent {extent} of {a}")
    return parts


def _compose_tree(flat_a: FlatModes, b: Layout, whole: Layout) -> tuple[Layout, list[int]]:
    """Compose each leaf of B, and sum the largest coordinates of the leaves in each mode of A; `whole` is all of B."""
    if isinstance(b.shape, int) and isinstance(b.stride, int):
        return _compose_leaf(flat_a, b.shape, b.stride, whole)
    parts, reaches = zip(*(_compose_tree(flat_a, mode, whole) for mode in b))
    return make_layout(*parts), [sum(column) for column in zip(*reaches)]


def _compose_leaf(flat_a: FlatModes, extent: int, step: int, whole: Layout) -> tuple[Layout, list[int]]:
    """Compose one leaf extent:step of B; also return its largest coordinate in each mode of A.

    It steps until a mode of A ends, then continues with steps as long as all of those together.
    """
    reach = [0] * len(flat_a)
    if step == 0:
        return Layout(extent, 0), reach
    pairs: list[tuple[int, int]] = []
    while extent > 1:
        coordinate = _coordinate(flat_a, step)
        steps = min([extent] + [ceil_div(e, c) for (e, _), c in zip(flat_a, coordinate) if c])
        require(
            extent % steps == 0,
            "b",
            whole,
            f"its mode {extent}:{step} reaches the end of a mode of the first after {steps} steps, which must divide "
            f"{extent}",
        )
        pairs.append((steps, sum(c * stride for (_, stride), c in zip(flat_a, coordinate))))
        reach = [last + (steps - 1) * c for last, c in zip(reach, coordinate)]
        extent, step = extent // steps, step * steps
    return coalesce(_from_flat_modes(pairs)), reach


def _coordinate(flat: FlatModes, index: int) -> list[int]:
    """Split a linear index over flat modes."""
    coordinates = []
    for extent, _ in flat:
        index, coordinate = divmod(index, extent)
        coordinates.append(coordinate)
    return coordinates


def complement(layout: Layout, bound: int = 1) -> Layout:
    """Find the layout that fills the gaps of `layout` and repeats it until `bound` offsets are covered.

    Law: without A's stride-0 modes, (A, R) is a bijection onto 0 .. n - 1, where n is the least legal number >= bound;
    R's offsets increase.

    Raises:
        SpecError: A maps two coordinates of non-zero modes to one offset, or its strides do not divide.

    >>> print(complement(Layout((2, 2), (1, 6)), 24))
    (3,2):(2,12)
    """
    gaps: list[tuple[int, int]] = []
    covered = 1
    for stride, extent in sorted((d, s) for s, d in layout.flat_modes if s > 1 and d > 0):
        require(
            stride % covered == 0,
            "layout",
            layout,
            f"its stride {stride} must be a multiple of {covered}, which the smaller modes cover",
        )
        gaps.append((stride // covered, covered))
        covered = stride * extent
    gaps.append((ceil_div(bound, covered), covered))
    return coalesce(_from_flat_modes(gaps))


def right_inverse(layout: Layout) -> Layout:
    """Find the linear indices of the first offsets.

    Law: A(R(i)) = i for all i < size(R). For an injective A, R is as large as possible.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    """
    inverse: list[tuple[int, int]] = []
    covered = 1
    for stride, extent, linear_step in _by_stride(layout):
        if stride == covered:
            inverse.append((extent, linear_step))
            covered = stride * extent
    return coalesce(_from_flat_modes(inverse))


def left_inverse(layout: Layout) -> Layout:
    """Find the linear index of an offset.

    Law: R(A(i)) = i for all i < size(A). R's values at offsets that A skips are undefined.

    Raises:
        SpecError: A maps two coordinates to one offset, or its strides do not divide one another.

    >>> print(left_inverse(Layout((2, 3), (4, 8))))
    (4,6):(0,1)
    """
    inverse: list[tuple[int, int]] = []
    covered, step, needed = 1, 0, 1
    for stride, extent, linear_step in _by_stride(layout):
        require(
            stride >= needed and stride % covered == 0,
            "layout",
            layout,
            f"its stride {stride} must be at least {needed}, which the smaller modes span, and a multiple of {covered}",
        )
        inverse.append((stride // covered, step))
        covered, step, needed = stride, linear_step, stride * extent
    inverse.append((needed // covered, step))
    return coalesce(_from_flat_modes(inverse))


def _by_stride(layout: Layout) -> list[tuple[int, int, int]]:
    """(stride, extent, step of the linear index) of each flat mode of more than one element, by stride."""
    modes, step = [], 1
    for extent, stride in layout.flat_modes:
        if extent > 1:
            modes.append((stride, extent, step))
        step *= extent
    return sorted(modes)
