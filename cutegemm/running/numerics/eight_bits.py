# SPDX-License-Identifier: Apache-2.0
"""Values of 8 bits and their scales in torch's operations: what `cutegemm.quantize` gives, kernels bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.scales import ROW, TENSOR, BlockScale, Kind

# torch's type of scales that are powers of two, ue8m0; torch has it since 2.7
EXPONENTS: Any = getattr(torch, "float8_e8m0fnu", None)
# type -> the largest magnitude that a scale maps to; -128 would have no opposite
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
ROW_ALIGN = 16  # bytes at whose multiples TMA reads rows


def quantised(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> tuple[Tensor, Tensor]:
    """Values and scales of (M, K) or (L, M, K), as `cutegemm.quantize` says; scales that are given are used."""
    (m, k), (rows, columns) = x.shape[-2:], _group(x, kind)
    if x.numel() == 0:
        ones = torch.ones(shape_of(x, kind), device=x.device)
        ones = _powers_of_two(ones)[0] if exponents else ones
        return x.new_empty(x.shape, dtype=dtype), ones if scale is None else scale
    whole = dtype == torch.int8
    groups = _grouped(_padded(x, rows, columns), rows, columns)
    finite = groups.isfinite()
    if scale is None:
        magnitudes = torch.where(finite, groups.abs(), float("nan") if whole else 0.0)
        scale = divisor = _scale(magnitudes, kind, LARGEST[dtype])
        if exponents:
            scale, divisor = _powers_of_two(divisor)
    else:
        divisor = powers(scale).float()
    scaled = groups.float() / _broadcast(divisor, kind)
    if whole:
        limits = torch.iinfo(dtype)
        scaled = torch.where(finite & ~scaled.isnan(), scaled.round().clamp(limits.min, limits.max), 0.0)
    else:
        # casts of infinities differ among devices
        scaled = torch.where(finite, scaled.clamp(-LARGEST[dtype], LARGEST[dtype]), float("nan"))
    values = scaled.to(dtype).flatten(-4, -3).flatten(-2).contiguous()[..., :m, :k]
    return values, scale


def powers(scales: torch.Tensor) -> torch.Tensor:
    """Scales of blocks as numbers: themselves, or in fp64 2**(x - 127) of bytes, which are exponents; 255 is NaN."""
    if scales.dtype.itemsize > 1:
        return scales
    exponents = scales.view(torch.uint8).double()
    return torch.where(exponents == 255, torch.nan, torch.exp2(exponents - 127))


def dequantized(values: Tensor, scale: Tensor, kind: Kind, dtype: torch.dtype) -> Tensor:
    """`dequantize` of checked arguments; blocks of K may be padded."""
    if values.numel() == 0:
        return values.new_empty(values.shape, dtype=dtype)
    rows, columns = _group(values, kind)
    m, k = values.shape[-2:]
    scale = scale if isinstance(kind, str) else scale[..., : shape_of(values, kind)[-1]]
    x = _grouped(_padded(values.float(), rows, columns), rows, columns)
    return (x * _broadcast(powers(scale).float(), kind)).flatten(-4, -3).flatten(-2)[..., :m, :k].to(dtype)


def shape_of(x: Tensor, kind: Kind) -> tuple[Any, ...]:
    """The extents of an operand's scales."""
    *lead, m, k = x.shape
    if isinstance(kind, str):
        return () if kind == TENSOR else (*lead, m)
    return (*lead, *BlockScale("scale", "m", kind[1]).shape(m, 0, k))


def scales_of(amax: Tensor, largest: float) -> Tensor:
    """The scales of groups of these largest magnitudes, in fp32."""
    smallest = torch.finfo(torch.float32).tiny  # reciprocals of smaller scales overflow
    # on a GPU torch multiplies by the reciprocal of a number
    return torch.where(amax == 0, 1.0, (amax / amax.new_full((), largest)).clamp(min=smallest))


def _scale(magnitudes: Tensor, kind: Kind, largest: float) -> Tensor:
    """The scales of groups from their elements' magnitudes, as `checked_scale` returns given ones."""
    amax = magnitudes.amax((-3, -1)).float()
    if kind == TENSOR:
        amax = amax.amax()
    elif kind == ROW:
        amax = amax.squeeze(-1)
    elif kind[1] == 1:
        # as kernels read them, and torch's
        amax = amax.mT.contiguous().mT
    return scales_of(amax, largest)


def _powers_of_two(scale: Tensor) -> tuple[Tensor, Tensor]:
    """The next powers of two, as exponents (ue8m0; 255 is NaN) and in fp32; of normal numbers."""
    bits = torch.where(scale.isnan(), 255, (scale.view(torch.int32) + ((1 << 23) - 1)) >> 23)
    return bits.to(torch.uint8).view(EXPONENTS), (bits << 23).to(torch.int32).view(torch.float32)


def _group(x: Tensor, kind: Kind) -> tuple[Any, Any]:
    """Rows and columns of x that share a scale; where whole rows do, what makes them multiples of 16 bytes."""
    if isinstance(kind, tuple):
        return kind[1], kind[2]
    return 1, x.shape[-1] + -x.shape[-1] % ROW_ALIGN


def _padded(x: Tensor, rows: Any, columns: Any) -> Tensor:
    """x with zeros behind its rows and columns, so that groups are whole."""
    m, k = x.shape[-2:]
    below, right = -m % rows, -k % columns
    return torch.nn.functional.pad(x, (0, right, 0, below)) if below or right else x


def _grouped(x: Tensor, rows: Any, columns: Any) -> Tensor:
    """x as (..., M / rows, rows, K / columns, columns)."""
    m, k = x.shape[-2:]
    return x.reshape(*x.shape[:-2], m // rows, rows, k // columns, columns)


def _broadcast(scale: Tensor, kind: Kind) -> Tensor:
    """Scales that multiply `_grouped` elements."""
    if kind == TENSOR:
        return scale
    return scale[..., :, None, None, None] if kind == ROW else scale[..., :, None, :, None]


__all__ = ["EXPONENTS", "LARGEST", "ROW_ALIGN", "dequantized", "powers", "quantised", "scales_of", "shape_of"]
