# SPDX-License-Identifier: Apache-2.0
"""Registers with undefined bits, which no instruction wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np

from cutegemm.emulator.numbers.types import Value


class Undefined:
    """A register with undefined bits, which are set in `bits` (an int, or a vector with one element per lane).

    Moves, masks, shifts and permutations may use them. Any other use (arithmetic, a comparison, an address, a
    predicate, a store) is a TypeError, which the executor reports with its place. A register without any write is None.
    """

    __slots__ = ("value", "bits")
    __array_ufunc__ = None  # NumPy uses the operators of this class
    __hash__ = None  # type: ignore[assignment]  # objects without a hash

    def __init__(self, value: Value, bits: Value) -> None:
        self.value, self.bits = value, bits

    @staticmethod
    def of(x: Register, bits: int) -> Undefined:
        """A register of `bits` bits as an Undefined."""
        if x is None:
            return Undefined(0, (1 << bits) - 1)
        return x if isinstance(x, Undefined) else Undefined(x, 0)

    def defined(self) -> Value | Undefined:
        """The plain value if no bit is undefined."""
        return self if np.any(self.bits) else self.value

    def each(self, f: Callable[[Value], Value]) -> Value | Undefined:
        """Apply a function that moves bits to the value and to `bits`."""
        return Undefined(f(self.value), f(self.bits)).defined()

    def __and__(self, other: Value | Undefined) -> Value | Undefined:
        if isinstance(other, Undefined):
            return Undefined(self.value & other.value, self.bits | other.bits)
        return Undefined(self.value & other, self.bits & other).defined()

    def __or__(self, other: Value | Undefined) -> Value | Undefined:
        if isinstance(other, Undefined):
            return Undefined(self.value | other.value, self.bits | other.bits)
        low: Value = (1 << 64) - 1
        if isinstance(other, np.ndarray):
            low = other.dtype.type(-1 % 2 ** (8 * other.dtype.itemsize))
        return Undefined(self.value | other, self.bits & (other ^ low)).defined()

    def __xor__(self, other: Value | Undefined) -> Value | Undefined:
        if isinstance(other, Undefined):
            return Undefined(self.value ^ other.value, self.bits | other.bits)
        return Undefined(self.value ^ other, self.bits)

    def __lshift__(self, other: Value) -> Value | Undefined:
        return self.each(lambda x: x << other)

    def __rshift__(self, other: Value) -> Value | Undefined:
        return self.each(lambda x: x >> other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _use(self, *_: object) -> NoReturn:
        raise TypeError("use of Undefined bits")

    __int__ = __index__ = __bool__ = __float__ = __array__ = __len__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = _use
    __eq__ = __ne__ = _use


# A register of a group of warps; None before the first write.
Register: TypeAlias = "Value | Undefined | None"
