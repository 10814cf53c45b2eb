# SPDX-License-Identifier: Apache-2.0
"""Nested tuples of integers: the shapes, strides and coordinates of the layout algebra.

An *int tuple* is an int or a non-empty tuple of int tuples. Every order is colexicographic: the first mode is the
fastest, as in CuTe (docs.nvidia.com/cutlass, "CuTe Layouts").
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import product as cartesian
from math import prod
from typing import TypeGuard

from cutegemm.errors import SpecError, field_error

IntTuple = int | tuple["IntTuple", ...]


def require(condition: bool, field: str, value: object, rule: str, nearest: object = None) -> None:
    """Raise the `SpecError` about a field unless `condition` holds."""
    if not condition:
        raise field_error(SpecError, field, value, rule, nearest)


def is_int(value: object) -> TypeGuard[int]:
    """Say whether `value` is an int and not a bool.

    >>> is_int(3), is_int(True), is_int((3,))
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def check_int_tuple(value: object, field: str, minimum: int) -> None:
    """Refuse anything but an int tuple whose leaves are at least `minimum`.

    Raises:
        SpecError: a leaf is not an int or too small, or a tuple is empty.

    >>> check_int_tuple((4, (2, 3)), "shape", 1)
    >>> check_int_tuple((4, 0), "shape", 1)
    Traceback (most recent call last):
        ...
    cutegemm.errors.SpecError: shape=0: must be at least 1; nearest legal value: 1
    """
    if isinstance(value, tuple):
        require(len(value) > 0, field, value, "must have at least one mode")
        for part in value:
            check_int_tuple(part, field, minimum)
        return
    require(is_int(value), field, value, "must be an int or a tuple of ints")
    require(
        isinstance(value, int) and value >= minimum,
        field,
        value,
        f"must be at least {minimum}",
        minimum,
    )


def flatten(t: IntTuple) -> tuple[int, ...]:
    """List the leaves, left to right.

    >>> flatten((1, (2, (3, 4))))
    (1, 2, 3, 4)
    """
    return tuple(leaf for part in t for leaf in flatten(part)) if isinstance(t, tuple) else (t,)


def map_leaves(f: Callable[..., IntTuple], *trees: IntTuple) -> IntTuple:
    """Apply `f` to the corresponding leaves of congruent int tuples; the result nests like the first one.

    >>> map_leaves(lambda s, d: s * d, (4, (2, 3)), (1, (10, 100)))
    (4, (20, 300))
    """
    first = trees[0]
    if isinstance(first, tuple):
        return tuple(map_leaves(f, *parts) for parts in zip(*trees))
    return f(*trees)


def unflatten(leaves: tuple[IntTuple, ...], profile: IntTuple) -> IntTuple:
    """Nest `leaves` like `profile`; the inverse of `flatten`.

    >>> unflatten((5, 6, 7), (1, (1, 1)))
    (5, (6, 7))
    """
    rest = iter(leaves)
    return map_leaves(lambda _: next(rest), profile)


def rank(t: IntTuple) -> int:
    """Count the top-level modes; an int has one.

    >>> rank(7), rank((4, (2, 3)))
    (1, 2)
    """
    return len(t) if isinstance(t, tuple) else 1


def depth(t: IntTuple) -> int:
    """Count the levels of nesting; an int has none.

    >>> depth(7), depth((4, 2)), depth((4, (2, 3)))
    (0, 1, 2)
    """
    return 1 + max(depth(part) for part in t) if isinstance(t, tuple) else 0


def product(t: IntTuple) -> int:
    """Multiply all leaves: the number of coordinates of a shape.

    >>> product((4, (2, 3)))
    24
    """
    return prod(flatten(t))


def modes(t: IntTuple) -> tuple[IntTuple, ...]:
    """List the top-level modes; an int is its own only mode.

    >>> modes((4, (2, 3))), modes(7)
    ((4, (2, 3)), (7,))
    """
    return t if isinstance(t, tuple) else (t,)


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Say whether two int tuples nest alike.

    >>> congruent((4, (2, 3)), (0, (0, 0))), congruent((4, 2), 8)
    (True, False)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def prefix_product(shape: IntTuple) -> IntTuple:
    """Multiply the leaves to the left of each leaf: the strides of a compact column-major layout.

    >>> prefix_product((4, (2, 3)))
    (1, (4, 8))
    """
    products, running = [], 1
    for extent in flatten(shape):
        products.append(running)
        running *= extent
    return unflatten(tuple(products), shape)


def ceil_div(a: int, b: int) -> int:
    """Divide rounding up.

    >>> ceil_div(7, 4), ceil_div(8, 4)
    (2, 2)
    """
    return -(-a // b)


def crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    """Map a coordinate to an index: the inner product of its natural form with `stride`.

    Raises:
        SpecError: the coordinate does not match `shape` or is outside it.

    >>> crd2idx((1, (0, 2)), (4, (2, 3)), (1, (4, 8))), crd2idx((1, 4), (4, (2, 3)), (1, (4, 8)))
    (17, 17)
    """
    if isinstance(coordinate, tuple):
        require(
            isinstance(shape, tuple) and len(coordinate) == len(shape),
            "coordinate",
            coordinate,
            f"must have the profile of the shape {shape} or a coarser one",
        )
        return sum(crd2idx(c, s, d) for c, s, d in zip(coordinate, modes(shape), modes(stride)))
    rest, offset = coordinate if is_int(coordinate) else -1, 0
    for extent, step in zip(flatten(shape), flatten(stride)):
        rest, leaf = divmod(rest, extent)
        offset += leaf * step
    require(rest == 0, "coordinate", coordinate, f"must be in [0, {product(shape)}) for the shape {shape}")
    return offset


def coordinates(shape: IntTuple) -> Iterator[IntTuple]:
    """Yield every natural coordinate of `shape`, the first mode fastest.

    >>> list(coordinates((2, (1, 2))))
    [(0, (0, 0)), (1, (0, 0)), (0, (0, 1)), (1, (0, 1))]
    """
    for reversed_leaves in cartesian(*(range(extent) for extent in reversed(flatten(shape)))):
        yield unflatten(reversed_leaves[::-1], shape)


def to_string(t: IntTuple) -> str:
    """Write an int tuple as CuTe does, without spaces.

    >>> to_string((4, (2, 3))), to_string((4,))
    ('(4,(2,3))', '(4)')
    """
    return f"({','.join(map(to_string, t))})" if isinstance(t, tuple) else str(t)


def parse(text: str) -> IntTuple:
    """Read the notation of `to_string`; spaces are ignored, and `(4)` is the tuple of one mode.

    Raises:
        SpecError: the text is not an int tuple.

    >>> parse("(4, (2,3))")
    (4, (2, 3))
    """
    compact = "".join(text.split())
    try:
        # a comma makes a tuple of one mode in Python
        value = ast.literal_eval(compact.replace(")", ",)"))
        whole = all(map(is_int, flatten(value))) and to_string(value) == compact
    # deep nesting exhausts the parser
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        whole = False
    require(whole, "text", text, "must be an int or a tuple of ints", "(4,(2,3))")
    result: IntTuple = value
    return result
