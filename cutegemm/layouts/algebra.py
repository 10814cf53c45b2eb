# SPDX-License-Identifier: Apache-2.0
"""The layout algebra: coalesce, composition, complement and inverses.

Every operation either returns a layout that obeys the law in its docstring at every coordinate, or raises.
A *tiler* is a layout, an int n (for n:1), None (leave alone) or a tuple of tilers, one for each leading
mode. Where CuTe lets a layout run past its end, we refuse. The first argument may be a `ComposedLayout`
in coalesce and composition: they act on the layout under the swizzle.
Source: docs.nvidia.com/cutlass, "CuTe Layout Algebra".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cutegemm.errors import SpecError, check
from cutegemm.layouts.int_tuple import IntTuple, ceil_div
from cutegemm.layouts.layout import Layout, make_layout
from cutegemm.layouts.swizzle import through_swizzle

Tiler = Layout | int | None | tuple["Tiler", ...]
T = TypeVar("T")
FlatModes = tuple[tuple[int, int], ...]


def _from_flat_modes(flat: list[tuple[int, int]]) -> Layout:
    """Make a layout of (extent, stride) pairs: 1:0 of none, depth 0 of one."""
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
    """Refuse an empty tuple of tilers and one with more tilers than there are modes."""
    check(
        0 < len(tilers) <= layout.rank,
        SpecError,
        f"has between 1 and {layout.rank} entries for {layout}",
        field="len(tiler)",
        value=len(tilers),
        nearest=max(1, min(len(tilers), layout.rank)),
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
        # goes on where the mode before ends
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    return _from_flat_modes(merged)


@through_swizzle
def composition(a: Layout, b: Tiler) -> Layout:
    """Compose two layouts: first B, then A; the result has B's coordinates.

    Law: R(c) = A(B(c)) for every coordinate c of B. Holds because B's leaves, seen as coordinates of
    coalesce(A), add up without a carry from one mode of A into the next; that is what is checked.

    Raises:
        SpecError: B leaves A's domain; a leaf s:d of B meets the end of a mode of A after a number of steps
            that does not divide s; or the leaves of B together carry past the end of a mode of A.

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
    check(
        b.cosize <= a.size,
        SpecError,
        f"offsets of the second lie below {a.size}, the size of the first, {a}",
        field="b",
        value=b,
    )
    flat_a = coalesce(a).flat_modes
    parts, reach = _compose_tree(flat_a, b, b)
    for (extent, _), last in zip(flat_a, reach):
        check(
            last < extent,
            SpecError,
            f"its modes carry past a mode of extent {extent} of the first, {a}",
            field="b",
            value=b,
        )
    return parts


def _compose_tree(flat_a: FlatModes, b: Layout, whole: Layout) -> tuple[Layout, list[int]]:
    """Compose every leaf of B on its own; add up how far the leaves reach in each mode of A. `whole` is all of B."""
    if isinstance(b.shape, int) and isinstance(b.stride, int):
        return _compose_leaf(flat_a, b.shape, b.stride, whole)
    parts, reaches = zip(*(_compose_tree(flat_a, mode, whole) for mode in b))
    return make_layout(*parts), [sum(column) for column in zip(*reaches)]


def _compose_leaf(flat_a: FlatModes, extent: int, step: int, whole: Layout) -> tuple[Layout, list[int]]:
    """Compose one leaf extent:step of B; also return its largest coordinate in each mode of A.

    Steps as often as no mode of A ends; then goes on with steps as long as all those together.
    """
    reach = [0] * len(flat_a)
    if step == 0:
        return Layout(extent, 0), reach
    found: list[tuple[int, int]] = []
    while extent > 1:
        coordinate = _coordinate(flat_a, step)
        steps = min([extent] + [ceil_div(e, c) for (e, _), c in zip(flat_a, coordinate) if c])
        check(
            extent % steps == 0,
            SpecError,
            f"its mode {extent}:{step} meets the end of a mode of the first after {steps} steps, which do not "
            f"divide {extent}",
            field="b",
            value=whole,
        )
        found.append((steps, sum(c * stride for (_, stride), c in zip(flat_a, coordinate))))
        reach = [last + (steps - 1) * c for last, c in zip(reach, coordinate)]
        extent, step = extent // steps, step * steps
    return coalesce(_from_flat_modes(found)), reach


def _coordinate(flat: FlatModes, index: int) -> list[int]:
    """Split a linear index over flat modes."""
    found = []
    for extent, _ in flat:
        index, coordinate = divmod(index, extent)
        found.append(coordinate)
    return found


def complement(layout: Layout, bound: int = 1) -> Layout:
    """Find the layout that fills the gaps of `layout` and repeats it until `bound` offsets are covered.

    Law: with A's stride-0 modes left out, (A, R) is a bijection onto 0 .. n - 1, where n is the least legal
    number >= bound; R's offsets increase.

    Raises:
        SpecError: A maps two coordinates of non-zero modes to one offset, or its strides do not divide.

    >>> print(complement(Layout((2, 2), (1, 6)), 24))
    (3,2):(2,12)
    """
    gaps: list[tuple[int, int]] = []
    covered = 1
    for stride, extent in sorted((d, s) for s, d in layout.flat_modes if s > 1 and d > 0):
        check(
            stride % covered == 0,
            SpecError,
            f"for a complement the stride {stride} is a multiple of {covered}, what the smaller modes cover",
            field="layout",
            value=layout,
        )
        gaps.append((stride // covered, covered))
        covered = stride * extent
    gaps.append((ceil_div(bound, covered), covered))
    return coalesce(_from_flat_modes(gaps))


def right_inverse(layout: Layout) -> Layout:
    """Find where the first offsets come from.

    Law: A(R(i)) = i for all i < size(R). For an injective A, R is as large as it can be.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    """
    found: list[tuple[int, int]] = []
    covered, before = 1, 1
    candidates = []
    for extent, stride in layout.flat_modes:
        candidates.append((stride, extent, before))
        before *= extent
    for stride, extent, linear_step in sorted(candidates):
        if extent > 1 and stride == covered:
            found.append((extent, linear_step))
            covered = stride * extent
    return coalesce(_from_flat_modes(found))


def left_inverse(layout: Layout) -> Layout:
    """Find the linear index that an offset belongs to.

    Law: R(A(i)) = i for all i < size(A). What R gives for offsets that A skips has no meaning.

    Raises:
        SpecError: A maps two coordinates to one offset, or its strides do not divide one another.

    >>> print(left_inverse(Layout((2, 3), (4, 8))))
    (4,6):(0,1)
    """
    modes = []
    before = 1
    for extent, stride in layout.flat_modes:
        if extent > 1:
            modes.append((stride, extent, before))
        before *= extent
    found: list[tuple[int, int]] = []
    covered, step, needed = 1, 0, 1
    for stride, extent, linear_step in sorted(modes):
        check(
            stride >= needed and stride % covered == 0,
            SpecError,
            f"for a left inverse the stride {stride} is at least {needed}, what the smaller modes span, and a "
            f"multiple of {covered}",
            field="layout",
            value=layout,
        )
        found.append((stride // covered, step))
        covered, step, needed = stride, linear_step, stride * extent
    found.append((needed // covered, step))
    return coalesce(_from_flat_modes(found))
