# SPDX-License-Identifier: Apache-2.0
"""Element types of operands, results and accumulators, without importing torch or the DSL."""

from __future__ import annotations

import enum

from cutegemm.errors import SpecError, field_error


class DType(enum.Enum):
    """An element type; the value is the name used in specs, plans and result files."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return {DType.FP32: 32, DType.FP8_E4M3: 8, DType.FP8_E5M2: 8}.get(self, 16)

    @property
    def bytes(self) -> int:
        """Width of one element in bytes."""
        return self.bits // 8

    def __repr__(self) -> str:
        return repr(self.value)


_ALIASES = {
    "fp16": DType.FP16, "float16": DType.FP16, "half": DType.FP16, "f16": DType.FP16,
    "bf16": DType.BF16, "bfloat16": DType.BF16,
    "fp32": DType.FP32, "float32": DType.FP32, "float": DType.FP32, "f32": DType.FP32,
    "fp8": DType.FP8_E4M3, "fp8_e4m3": DType.FP8_E4M3, "float8_e4m3fn": DType.FP8_E4M3, "e4m3": DType.FP8_E4M3,
    "fp8_e5m2": DType.FP8_E5M2, "float8_e5m2": DType.FP8_E5M2, "e5m2": DType.FP8_E5M2,
}  # fmt: skip


def as_dtype(value: object, field: str = "dtype") -> DType:
    """Turn a `DType`, a name such as "bf16" or "float32", or a `torch.dtype` into a `DType`.

    Raises:
        SpecError: the value names no type this library computes with.

    Example:
        >>> as_dtype("bfloat16")
        'bf16'
    """
    if isinstance(value, DType):
        return value
    try:
        name = str(value).removeprefix("torch.").lower()
    except Exception:
        # a thing that does not even print names no type
        name = ""
    if name not in _ALIASES:
        raise field_error(SpecError, field, value, f"must be one of {', '.join(x.value for x in DType)}")
    return _ALIASES[name]
