# SPDX-License-Identifier: Apache-2.0
"""`quantize` and `dequantize`: 8-bit operands and their scales, in torch's operations, which Inductor fuses."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.scales import K_BLOCK, KINDS, ROW, TENSOR, BlockScale, Kind, checked
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.quantized import kernel
from cutegemm.running.arguments.describe import OPERANDS, SCALES, check_tensor
from cutegemm.running.numerics.reference import EXPONENTS, TORCH_DTYPE, powers

# type -> the largest magnitude that a scale maps to; -128 would have no opposite
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
EIGHT_BITS = tuple(x for kind, x in TORCH_DTYPE.items() if kind.bits == 8)
ROW_ALIGN = 16  # bytes at whose multiples TMA reads rows
_compiling = torch.compiler.is_compiling


class Quantized(NamedTuple):
    """An operand of 8 bits: values (M, K) or (L, M, K), and their scales in fp32, as `Gemm.run` takes both."""

    values: Tensor
    scale: Tensor


@overload
def quantize(
    x: Tensor,
    kind: Kind = ...,
    dtype: Any = ...,
    *,
    scale: Any = ...,
    scale_dtype: Any = ...,
    transposed: Literal[False] = ...,
) -> Quantized: ...


@overload
def quantize(
    x: Tensor,
    kind: Kind = ...,
    dtype: Any = ...,
    *,
    scale: Any = ...,
    scale_dtype: Any = ...,
    transposed: Literal[True],
) -> tuple[Quantized, Quantized]: ...


@checks.keywords()
def quantize(
    x: Tensor,
    kind: Kind = ROW,
    dtype: Any = torch.float8_e4m3fn,
    *,
    scale: Any = None,
    scale_dtype: Any = torch.float32,
    transposed: bool = False,
) -> Quantized | tuple[Quantized, Quantized]:
    """x in 8 bits and its scales, so that values * scale is near x.

    A group of elements shares a scale, fp32(amax / largest): amax is the group's largest finite magnitude, largest is
    448 for e4m3, 57344 for e5m2 and 127 for int8. A value is fp32(x / scale), rounded to nearest even and saturated.

    - A group of zeros, or without elements, has scale 1. No scale is below 2**-126, the smallest normal number, so
      groups of smaller magnitudes use fewer bits. Quotients below an fp8 type's subnormals become zero.
    - Elements that are not finite become NaN in fp8, and the others of their group are quantised as if they were zero.
      int8 has no NaN: the element becomes 0 and the scale of its group NaN.

    On a Hopper GPU in eager mode one kernel reads x once, a second time if all elements share a scale; rows that are
    not aligned, or not contiguous along K, are copied first. Elsewhere torch's operations compute it. Under
    torch.compile Inductor fuses these; its division may differ in the last bit.

    Args:
        x: (M, K) or (L, M, K), fp16, bf16 or fp32; any strides. K is the axis of the GEMM's sums. A weight of
            `torch.nn.Linear` is (N, K), the transpose of B: pass `values.T` as B, and `scale` as `scale_b`.
        kind: what shares a scale, as in `GemmSpec.scale_a`: "tensor", "row", ("block", 1, 128), ("block", 128, 128).
        dtype: torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8.
        scale: scales to use instead, such as those of a calibration.
        scale_dtype: torch.float32, or torch.float8_e8m0fnu for scales of blocks that are powers of two, rounded up.
        transposed: whether to quantise x.mT as well, as a backward pass needs it; its rows are then x's columns.

    Returns:
        values, of x's shape, with unit stride along K and rows that begin at multiples of 16 bytes; scale: (), (M,),
        (M, K / 128), unit stride along M, or (M / 128, K / 128), each with an L in front if x has one and `kind` is not
        "tensor". With `transposed` a pair of both, x's and x.mT's.

    Raises:
        InputError: x or `scale` has another type, shape or device, or x needs a gradient.
        SpecError: `kind`, `dtype` or `scale_dtype` is none of these.

    Example:
        >>> values, scale = quantize(torch.randn(256, 512), ("block", 1, 128))
        >>> scale.shape
        torch.Size([256, 4])
    """
    check_tensor("x", x, (2, 3), OPERANDS)
    kind, dtype = _kind(kind), _dtype(dtype)
    checks.truth(InputError, "transposed", transposed)
    if scale is not None and transposed and kind not in (TENSOR, KINDS[-1]):
        rule = "x.mT has scales of its own; quantise it apart, with its own"
        raise field_error(InputError, "transposed", True, rule, False)
    given = None if scale is None else checked_scale(scale, kind, x)
    known = type(scale_dtype) is torch.dtype
    exponents = known and scale_dtype != torch.float32
    if not known or (exponents and (scale_dtype != EXPONENTS or isinstance(kind, str))):
        rule = "must be torch.float32, or torch.float8_e8m0fnu for blocks"
        raise field_error(SpecError, "scale_dtype", scale_dtype, rule, torch.float32)
    made = twins if transposed else quantized
    return made(x, kind, dtype, given, exponents)


@checks.keywords()
def dequantize(values: Tensor, scale: Any, kind: Kind = ROW, dtype: Any = torch.float32) -> Tensor:
    """fp32(values * scale), rounded to nearest even in another type: the inverse of `quantize`.

    Args:
        values: (M, K) or (L, M, K), e4m3, e5m2, int8 or uint8; any strides.
        scale: as `quantize` returns it for this kind; any strides, and blocks of K may be padded to a multiple of four.
        kind: as of `quantize`.
        dtype: fp32, fp16 or bf16, of the result.

    Raises:
        InputError: values or `scale` has another type, shape or device.
        SpecError: `kind` or `dtype` is none of these.
    """
    check_tensor("values", values, (2, 3), EIGHT_BITS)
    kind = _kind(kind)
    wanted = dtype if type(dtype) is torch.dtype and dtype in OPERANDS else TORCH_DTYPE[as_dtype(dtype)]
    if wanted not in OPERANDS:
        raise field_error(SpecError, "dtype", dtype, "must be float16, bfloat16 or float32", torch.float32)
    return dequantized(values, checked_scale(scale, kind, values), kind, wanted)


def dequantized(values: Tensor, scale: Tensor, kind: Kind, dtype: torch.dtype) -> Tensor:
    """`dequantize` of checked arguments; blocks of K may be padded."""
    if values.numel() == 0:
        return values.new_empty(values.shape, dtype=dtype)
    rows, columns = _group(values, kind)
    m, k = values.shape[-2:]
    scale = scale if isinstance(kind, str) else scale[..., : _shape(values, kind)[-1]]
    x = _grouped(_padded(values.float(), rows, columns), rows, columns)
    return (x * _broadcast(powers(scale).float(), kind)).flatten(-4, -3).flatten(-2)[..., :m, :k].to(dtype)


def checked_scale(scale: Any, kind: Kind, x: Tensor) -> Tensor:
    """Scales that a caller gives for an operand (M, K) or (L, M, K), without the padding of K's blocks.

    Raises:
        InputError: they have another type, shape or device.
    """
    if kind == TENSOR and isinstance(scale, (int, float)) and not isinstance(scale, bool):
        return torch.full((), scale, dtype=torch.float32, device=x.device)
    check_tensor("scale", scale, (0, 1, 2, 3), (torch.float32,) if isinstance(kind, str) else SCALES)
    if scale.device != x.device:
        rule = f"must be the operand's device, {x.device}"
        raise field_error(InputError, "scale.device", str(scale.device), rule)
    given: Tensor = scale
    wanted = _shape(x, kind)
    if isinstance(kind, str):
        if tuple(scale.shape) != wanted:
            raise field_error(InputError, "scale.shape", tuple(scale.shape), f"must be {wanted}")
        return given
    fits = BlockScale("scale", "m", kind[1]).fits(tuple(scale.shape[-2:]), wanted[-2:])
    if tuple(scale.shape[:-2]) != wanted[:-2] or not fits:
        rule = f"must be {wanted}, one for each {kind[1]} x {K_BLOCK}"
        raise field_error(InputError, "scale.shape", tuple(scale.shape), rule)
    return given[..., : wanted[-1]]


def _shape(x: Tensor, kind: Kind) -> tuple[Any, ...]:
    """The extents of an operand's scales."""
    *lead, m, k = x.shape
    if isinstance(kind, str):
        return () if kind == TENSOR else (*lead, m)
    return (*lead, *BlockScale("scale", "m", kind[1]).shape(m, 0, k))


def twins(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> tuple[Quantized, Quantized]:
    """x and x.mT in 8 bits, of checked arguments."""
    found = quantized(x, kind, dtype, scale, exponents)
    if kind not in (TENSOR, KINDS[-1]):
        return found, quantized(x.mT, kind, dtype, None, exponents)
    shared = found.scale if kind == TENSOR else found.scale.mT
    if not _compiling() and x.numel() and kernel.fits(x.mT, kind, scale is not None):
        # rounding again moves less than copying bytes does
        again = quantized(x.mT, kind, dtype, found.scale if kind == TENSOR else None, exponents)
        return found, Quantized(again.values, shared)
    return found, Quantized(_rows_aligned(found.values.mT), shared)


def quantized(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> Quantized:
    """x in 8 bits, of checked arguments; its scales, fp32 or `exponents`, are computed where none are given."""
    (m, k), (rows, columns) = x.shape[-2:], _group(x, kind)
    if x.numel() == 0:
        ones = torch.ones(_shape(x, kind), device=x.device)
        ones = _powers_of_two(ones)[0] if exponents else ones
        return Quantized(x.new_empty(x.shape, dtype=dtype), ones if scale is None else scale)
    if not _compiling() and kernel.fits(x, kind, scale is not None):
        return Quantized(*kernel.quantized_by(kernel.on_gpu, x, kind, dtype, scale, exponents))
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
    return Quantized(values, scale)


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
    return kernel.scales_of(amax, largest)


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


def _rows_aligned(values: Tensor) -> Tensor:
    """A copy with unit stride along columns, whose rows begin at multiples of 16 bytes."""
    k = values.shape[-1]
    # as bytes, which every device pads
    wide = torch.nn.functional.pad(values.view(torch.uint8), (0, -k % ROW_ALIGN)).contiguous()
    return wide.view(values.dtype)[..., :k]


def _kind(kind: Any) -> Kind:
    """The kind of scales; what a compiler traces is compared only."""
    if _compiling() and kind in KINDS:
        return kind  # type: ignore[no-any-return]
    return checked("kind", kind)


def _dtype(dtype: Any) -> torch.dtype:
    """The type that `quantize` makes.

    Raises:
        SpecError: it makes no such type.
    """
    if type(dtype) is torch.dtype and dtype in LARGEST:
        return dtype
    found = as_dtype(dtype)
    if TORCH_DTYPE[found] not in LARGEST:
        near = torch.int8 if found is DType.UINT8 else torch.float8_e4m3fn
        names = ", ".join(str(x).removeprefix("torch.") for x in LARGEST)
        raise field_error(SpecError, "dtype", dtype, f"must be one of {names}", near)
    return TORCH_DTYPE[found]


__all__ = [
    "EIGHT_BITS",
    "LARGEST",
    "Quantized",
    "checked_scale",
    "dequantize",
    "dequantized",
    "quantize",
    "quantized",
    "twins",
]
