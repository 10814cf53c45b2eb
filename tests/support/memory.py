# SPDX-License-Identifier: Apache-2.0
"""Matrices inside larger, watched allocations: poisoned where nothing was written, guarded all around."""

from dataclasses import dataclass

import torch

MARGIN = 512  # guard elements before and after a matrix; a multiple of 16 bytes in every type
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# NaNs, with a payload where the type has room for one
_POISON = {
    torch.float16: 0x7E55,
    torch.bfloat16: 0x7FD5,
    torch.float32: 0x7FD5_5555,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7E,
}


@dataclass(frozen=True)
class Guarded:
    """A matrix `view` and the whole `buffer` it lies in; all of it starts as poison, a NaN."""

    buffer: torch.Tensor
    view: torch.Tensor

    def untouched(self) -> bool:
        """Whether every element outside the view still holds the poison."""
        bits = self._bits(self.buffer)
        inside = torch.zeros_like(bits, dtype=torch.bool)
        inside.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(True)
        return bool(((bits == _POISON[self.buffer.dtype]) | inside).all())

    def unwritten(self) -> bool:
        """Whether the whole buffer, the view included, still holds the poison."""
        return bool((self._bits(self.buffer) == _POISON[self.buffer.dtype]).all())

    @staticmethod
    def _bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(_BITS[tensor.element_size()])


def guarded(
    shape: tuple, strides: tuple, dtype: torch.dtype, device: str = "cpu", offset: int = 0
) -> Guarded:
    """A poisoned matrix with guard bands; `offset` moves its base off the 16-byte grid, in elements."""
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 1
    size = 2 * MARGIN + offset + span
    bits = torch.full((size,), _POISON[dtype], dtype=_BITS[dtype.itemsize], device=device)
    buffer = bits.view(dtype)
    return Guarded(buffer, buffer.as_strided(shape, strides, MARGIN + offset))


@dataclass(frozen=True)
class Layout:
    """How a matrix lies: unit axis ("row-major" or not, or none), leading dimension, base offset, batch gap."""

    row_major: bool = True
    unit: int = 1  # stride of the inner axis, elements
    pad: int = 0  # elements added to the leading dimension
    aligned: bool = True  # leading dimension and batch stride rounded up to 16 bytes
    offset: int = 0  # of the base address, elements

    def strides(self, shape: tuple, itemsize: int) -> tuple:
        """The strides of a (rows, cols) or (batch, rows, cols) matrix."""
        rows, cols = shape[-2:]
        inner, outer = (cols, rows) if self.row_major else (rows, cols)
        leading = max(inner, 1) * self.unit + self.pad
        step = 16 // itemsize
        if self.aligned:
            leading = -(-leading // step) * step
        elif leading % step == 0:
            leading += 1
        two = (leading, self.unit) if self.row_major else (self.unit, leading)
        return two if len(shape) == 2 else (leading * max(outer, 1), *two)

    def make(self, shape: tuple, dtype: torch.dtype, device: str = "cpu") -> Guarded:
        """A poisoned matrix of this layout."""
        return guarded(shape, self.strides(shape, dtype.itemsize), dtype, device, self.offset)

    def random(self, shape: tuple, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """A matrix of this layout with normally distributed elements."""
        view = self.make(shape, dtype, generator.device).view
        view.copy_(torch.randn(shape, generator=generator, device=generator.device))
        return view
