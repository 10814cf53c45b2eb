# SPDX-License-Identifier: Apache-2.0
"""8-bit values and their scales with torch operations. They match `cutegemm.quantize` and its kernels bit for bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.epilogue.scales import ROW, TENSOR, BlockScale, Kind

# torch's type of power-of-two scales, ue8m0; available since torch 2.7
EXPONENTS: Any = getattr(torch, "float8_e8m0fnu", None)
# type -> the largest magnitude after scaling; for int8 that is 127, because +128 does not exist
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
ROW_ALIGN = 16  # alignment of rows in bytes for TMA


def quantised(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> tuple[Tensor, Tensor]:
    """Values and scales of (M, K) or (L, M, K), as `cutegemm.quantize` defines them; given scales are used."""
    (m, k), (rows, columns) = x.shape[-2:], _group(x, kind)
    if x.numel() == 0:
        ones = torch.ones(shape_of(x, kind), dtype=torch.float32, device=x.device)
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
        # casts of infinities differ between devices
        scaled = torch.where(finite, scaled.clamp(-LARGEST[dtype], LARGEST[dtype]), float("nan"))
    values = scaled.to(dtype).flatten(-4, -3).flatten(-2).contiguous()[..., :m, :k]
    return values, scale


def powers(scales: torch.Tensor) -> torch.Tensor:
    """Block scales as numbers: fp32 unchanged; bytes are exponents and become 2**(x - 127) in fp64, with 255 as NaN."""
    if scales.dtype.itemsize > 1:
        return scales
    exponents = scales.view(torch.uint8).double()
    return torch.where(exponents == 255, torch.nan, torch.exp2(exponents - 127))


def shifted(x: Tensor, kind: Kind, scale: Tensor | None = None, zero: Tensor | None = None) -> Shifted:
    """int8 values of a matrix (M, K) or of its rows, whose range lies beside zero: (values - zero) * scale is near x.

    The range has zero, and 255 steps. A non-finite element counts as `quantised` says of int8. Given scales and zero
    points are used.
    """
    whole, finite = x.float(), x.isfinite()
    limits = torch.iinfo(torch.int8)
    if scale is None or zero is None:
        axes = (-2, -1) if kind == TENSOR else (-1,)
        # a column of zeros: a range without elements is that of zero
        edges = torch.nn.functional.pad(torch.where(finite, whole, float("nan")), (0, 1))
        if kind == TENSOR:
            edges = torch.nn.functional.pad(edges, (0, 0, 0, 1))
        low, high = edges.amin(axes), edges.amax(axes)
        # see `scales_of`
        steps = whole.new_full((), limits.max - limits.min)
        # the difference of finite numbers may overflow
        scale = torch.where((high - low).isinf(), high / steps - low / steps, (high - low) / steps)
        scale = torch.where(scale == 0, 1.0, scale.clamp(min=torch.finfo(torch.float32).tiny))
        zero = (
            (limits.min - low / scale).round().clamp(limits.min, limits.max).nan_to_num(0.0).to(torch.int32)
        )
    by, beside = (scale, zero) if kind == TENSOR else (scale.unsqueeze(-1), zero.unsqueeze(-1))
    found = (whole / by + beside).round().clamp(limits.min, limits.max)
    # a non-finite element is zero
    values = torch.where(finite & ~found.isnan(), found, beside.float()).to(torch.int8)
    return Shifted(values, scale, zero)


class Shifted(NamedTuple):
    """int8 values with scales and zero points in int32."""

    values: Tensor
    scale: Tensor
    zero: Tensor


def dequantized(
    values: Tensor, scale: Tensor, kind: Kind, dtype: torch.dtype, zero: Tensor | None = None
) -> Tensor:
    """`dequantize` with checked arguments, and with zero points of rows or one; blocks of K may be padded."""
    if values.numel() == 0:
        return values.new_empty(values.shape, dtype=dtype)
    rows, columns = _group(values, kind)
    m, k = values.shape[-2:]
    scale = scale if isinstance(kind, str) else scale[..., : shape_of(values, kind)[-1]]
    wide = values.float()
    if zero is not None:
        wide = wide - (zero if kind == TENSOR else zero.unsqueeze(-1))
    x = _grouped(_padded(wide, rows, columns), rows, columns)
    return (x * _broadcast(powers(scale).float(), kind)).flatten(-4, -3).flatten(-2)[..., :m, :k].to(dtype)


def shape_of(x: Tensor, kind: Kind) -> tuple[Any, ...]:
    """The extents of an operand's scales."""
    *lead, m, k = x.shape
    if isinstance(kind, str):
        return () if kind == TENSOR else (*lead, m)
    return (*lead, *BlockScale("scale", "m", kind[1]).shape(m, 0, k))


def scales_of(amax: Tensor, largest: float) -> Tensor:
    """The fp32 scales of groups with these largest magnitudes."""
    smallest = torch.finfo(torch.float32).tiny  # reciprocals of smaller scales overflow
    # divide by a tensor, because on a GPU torch multiplies by the reciprocal of a Python number
    return torch.where(amax == 0, 1.0, (amax / amax.new_full((), largest)).clamp(min=smallest))


def _scale(magnitudes: Tensor, kind: Kind, largest: float) -> Tensor:
    """The scales of groups from their elements' magnitudes, in the form that `checked_scale` returns."""
    amax = magnitudes.amax((-3, -1)).float()
    if kind == TENSOR:
        amax = amax.amax()
    elif kind == ROW:
        amax = amax.squeeze(-1)
    elif kind[1] == 1:
        # the layout that kernels and torch read
        amax = amax.mT.contiguous().mT
    return scales_of(amax, largest)


def _powers_of_two(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Round normal numbers up to powers of two; returns exponents (ue8m0; 255 is NaN) and fp32."""
    bits = torch.where(scale.isnan(), 255, (scale.view(torch.int32) + ((1 << 23) - 1)) >> 23)
    return bits.to(torch.uint8).view(EXPONENTS), (bits << 23).to(torch.int32).view(torch.float32)


def _group(x: Tensor, kind: Kind) -> tuple[Any, Any]:
    """Rows and columns of x that share a scale; a whole row is padded to a multiple of 16 bytes."""
    if isinstance(kind, tuple):
        return kind[1], kind[2]
    return 1, x.shape[-1] + -x.shape[-1] % ROW_ALIGN


def _padded(x: Tensor, rows: Any, columns: Any) -> Tensor:
    """x padded with zeros to whole groups."""
    m, k = x.shape[-2:]
    below, right = -m % rows, -k % columns
    return torch.nn.functional.pad(x, (0, right, 0, below)) if below or right else x


def _grouped(x: Tensor, rows: Any, columns: Any) -> Tensor:
    """x as (..., M / rows, rows, K / columns, columns)."""
    m, k = x.shape[-2:]
    return x.reshape(*x.shape[:-2], m // rows, rows, k // columns, columns)


def _broadcast(scale: Tensor, kind: Kind) -> Tensor:
    """Scales in a shape that broadcasts over `_grouped` elements."""
    if kind == TENSOR:
        return scale
    return scale[..., :, None, None, None] if kind == ROW else scale[..., :, None, :, None]


__all__ = ["EXPONENTS", "LARGEST", "ROW_ALIGN", "dequantized", "powers", "quantised", "scales_of", "shape_of"]
