# SPDX-License-Identifier: Apache-2.0
"""`quantize` and `dequantize`: 8-bit operands and their scales."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.scales import K_BLOCK, KINDS, ROW, TENSOR, BlockScale, Kind, checked, single
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.quantized.made import Quantized, quantized, twins
from cutegemm.running.arguments.describe import OPERANDS, SCALES, check_tensor
from cutegemm.running.numerics.eight_bits import EXPONENTS, LARGEST, dequantized, shape_of
from cutegemm.running.numerics.reference import TORCH_DTYPE

EIGHT_BITS = tuple(x for kind, x in TORCH_DTYPE.items() if kind.bits == 8)
_compiling = torch.compiler.is_compiling


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
    """Quantize x to 8-bit values and scales, so that values * scale is near x.

    A group of elements shares a scale, fp32(amax / largest). amax is the group's largest finite magnitude; largest is
    448 for e4m3, 57344 for e5m2 and 127 for int8. A value is fp32(x / scale), rounded to nearest even and saturated.

    - A group of zeros, or without elements, has scale 1. No scale is below 2**-126, the smallest normal number, so
      groups of smaller magnitudes use fewer bits. Quotients below an fp8 type's subnormals become zero.
    - A non-finite element becomes NaN in fp8, and the rest of its group is quantized as if that element were zero.
      int8 has no NaN, so the element becomes 0 and its group's scale NaN.

    On a Hopper GPU a kernel reads x once, also for its transpose; twice if all elements, or rows and columns, share a
    scale. If neither rows nor columns of x are aligned, x is copied first. A compiled call runs the same kernel, as an
    op. On other devices torch operations compute the result.

    Args:
        x: (M, K) or (L, M, K), fp16, bf16 or fp32; any strides. K is the axis that the GEMM reduces. A weight of
            `torch.nn.Linear` is (N, K), the transpose of B: pass `values.T` as B, and `scale` as `scale_b`.
        kind: elements that share a scale, as in `GemmSpec.scale_a`: "tensor", "row", ("block", 1 or 128, 128).
        dtype: torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8.
        scale: scales to use instead of computed ones, for example from a calibration.
        scale_dtype: torch.float32, or torch.float8_e8m0fnu for block scales that are rounded up to powers of two.
        transposed: whether to also quantize x.mT, as a backward pass needs; its rows are x's columns.

    Returns:
        values, of x's shape, with unit stride along K and rows that begin at multiples of 16 bytes; scale: (), (M,),
        (M, K / 128), unit stride along M, or (M / 128, K / 128), each with an L in front if x has one and `kind` is not
        "tensor". With `transposed` a pair of both, x's and x.mT's.

    Raises:
        InputError: x or `scale` has another type, shape or device, or x needs a gradient.
        SpecError: `kind`, `dtype` or `scale_dtype` is not one of these.

    Example:
        >>> values, scale = quantize(torch.randn(256, 512), ("block", 1, 128))
        >>> scale.shape
        torch.Size([256, 4])
    """
    check_tensor("x", x, (2, 3), OPERANDS)
    kind, dtype = _kind(kind), _dtype(dtype)
    checks.truth(InputError, "transposed", transposed)
    if scale is not None and transposed and kind not in (TENSOR, KINDS[-1]):
        rule = "x.mT needs its own scales; quantize it separately"
        raise field_error(InputError, "transposed", True, rule, False)
    given = None if scale is None else checked_scale(scale, kind, x)
    known = type(scale_dtype) is torch.dtype
    exponents = known and scale_dtype != torch.float32
    if not known or (exponents and (scale_dtype != EXPONENTS or isinstance(kind, str))):
        rule = "must be torch.float32, or torch.float8_e8m0fnu for blocks"
        raise field_error(SpecError, "scale_dtype", scale_dtype, rule, torch.float32)
    if exponents and given is not None and given.dtype == torch.float32:
        rule = f"must be {scale_dtype}, as scale_dtype says: scales are used as they are given"
        raise field_error(InputError, "scale.dtype", given.dtype, rule, scale_dtype)
    made = twins if transposed else quantized
    return made(x, kind, dtype, given, exponents)


@checks.keywords()
def dequantize(values: Tensor, scale: Any, kind: Kind = ROW, dtype: Any = torch.float32) -> Tensor:
    """fp32(values * scale), rounded to nearest even in `dtype`: the inverse of `quantize`.

    Args:
        values: (M, K) or (L, M, K), e4m3, e5m2, int8 or uint8; any strides.
        scale: as `quantize` returns it for this kind; any strides, and blocks of K may be padded to a multiple of four.
        kind: as for `quantize`.
        dtype: of the result: fp32, fp16 or bf16.

    Raises:
        InputError: values or `scale` has another type, shape or device.
        SpecError: `kind` or `dtype` is not one of these.
    """
    check_tensor("values", values, (2, 3), EIGHT_BITS)
    kind = _kind(kind)
    wanted = dtype if type(dtype) is torch.dtype and dtype in OPERANDS else TORCH_DTYPE[as_dtype(dtype)]
    if wanted not in OPERANDS:
        raise field_error(SpecError, "dtype", dtype, "must be float16, bfloat16 or float32", torch.float32)
    return dequantized(values, checked_scale(scale, kind, values), kind, wanted)


def checked_scale(scale: Any, kind: Kind, x: Tensor) -> Tensor:
    """Check given scales of an operand (M, K) or (L, M, K), and remove the padding of blocks along K.

    Raises:
        InputError: they have a wrong type, shape or device.
    """
    if kind == TENSOR and isinstance(scale, (int, float)) and not isinstance(scale, bool):
        if torch.finfo(torch.float32).max < abs(scale) < math.inf:
            raise field_error(InputError, "scale", scale, "must be in the range of fp32")
        return torch.full((), scale, dtype=torch.float32, device=x.device)
    if kind == TENSOR and not isinstance(scale, Tensor):
        raise field_error(InputError, "scale", scale, "must be a number or a 0-d fp32 tensor")
    check_tensor("scale", scale, (0, 1, 2, 3), (torch.float32,) if isinstance(kind, str) else SCALES)
    if scale.device != x.device:
        rule = f"must be the operand's device, {x.device}"
        raise field_error(InputError, "scale.device", str(scale.device), rule)
    given: Tensor = single("scale", scale) if kind == TENSOR else scale
    wanted = shape_of(x, kind)
    if isinstance(kind, str):
        if tuple(given.shape) != wanted:
            raise field_error(InputError, "scale.shape", tuple(scale.shape), f"must be {wanted}")
        return given
    fits = BlockScale("scale", "m", kind[1]).fits(tuple(scale.shape[-2:]), wanted[-2:])
    if tuple(scale.shape[:-2]) != wanted[:-2] or not fits:
        rule = f"must be {wanted}, one for each {kind[1]} x {K_BLOCK}"
        raise field_error(InputError, "scale.shape", tuple(scale.shape), rule)
    return given[..., : wanted[-1]]


def _kind(kind: Any) -> Kind:
    """Check the kind of scales; under torch.compile only by comparison."""
    if _compiling() and kind in KINDS:
        return kind  # type: ignore[no-any-return]
    return checked("kind", kind)


def _dtype(dtype: Any) -> torch.dtype:
    """Check the type of `quantize`'s values.

    Raises:
        SpecError: `quantize` does not support the type.
    """
    if type(dtype) is torch.dtype and dtype in LARGEST:
        return dtype
    near: Any = None
    try:
        found = TORCH_DTYPE[as_dtype(dtype)]
    except SpecError as error:
        found, near = None, error.nearest and TORCH_DTYPE[as_dtype(error.nearest)]
    if found in LARGEST:
        return found
    if near not in LARGEST:
        near = torch.int8 if found is torch.uint8 else torch.float8_e4m3fn
    names = ", ".join(str(x).removeprefix("torch.") for x in LARGEST)
    raise field_error(SpecError, "dtype", dtype, f"must be one of {names}", near)


__all__ = [
    "EIGHT_BITS",
    "LARGEST",
    "checked_scale",
    "dequantize",
    "quantize",
]
