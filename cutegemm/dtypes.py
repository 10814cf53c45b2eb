# SPDX-License-Identifier: Apache-2.0
"""Element types of operands, results and accumulators, without importing torch or the DSL."""

from __future__ import annotations

import enum

from cutegemm.errors import SpecError, field_error


class DType(enum.Enum):
    """An element type; the value is the name used in specs, plans and result files.

    Attributes:
        bits, bytes: width of one element.
    """

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"

    bits: int
    bytes: int

    def __init__(self, name: str) -> None:
        """Set attributes, which are faster to read than properties; a plan reads them a thousand times."""
        self.bits = {"fp32": 32, "int32": 32}.get(name, 8 if "8" in name else 16)
        self.bytes = self.bits // 8

    # members are singletons; Enum's own hash runs Python code for every cache key that holds a type
    __hash__ = object.__hash__

    @property
    def result(self) -> DType:
        """The default type of D for operands of this type under a plain epilogue."""
        return DType.INT32 if self.whole else self.fused

    @property
    def fused(self) -> DType:
        """The default type of D for operands of this type under a fused epilogue."""
        return DType.BF16 if self.bits == 8 else self

    @property
    def whole(self) -> bool:
        """Whether this is an integer type."""
        return "int" in self.value

    def __repr__(self) -> str:
        return repr(self.value)


# type -> the largest magnitude after scaling; for int8 that is 127, because +128 does not exist
LARGEST = {DType.FP8_E4M3: 448.0, DType.FP8_E5M2: 57344.0, DType.INT8: 127.0}
_ALIASES = {
    "fp16": DType.FP16, "float16": DType.FP16, "half": DType.FP16, "f16": DType.FP16,
    "bf16": DType.BF16, "bfloat16": DType.BF16,
    "fp32": DType.FP32, "float32": DType.FP32, "float": DType.FP32, "f32": DType.FP32,
    "fp8": DType.FP8_E4M3, "fp8_e4m3": DType.FP8_E4M3, "float8_e4m3fn": DType.FP8_E4M3, "e4m3": DType.FP8_E4M3,
    "fp8_e5m2": DType.FP8_E5M2, "float8_e5m2": DType.FP8_E5M2, "e5m2": DType.FP8_E5M2,
    "int8": DType.INT8, "s8": DType.INT8, "uint8": DType.UINT8, "u8": DType.UINT8,
    "int32": DType.INT32, "s32": DType.INT32,
}  # fmt: skip


_ACCUMULATE = ("kernels accumulate in fp32 at most", DType.FP32)
_COMPLEX = ("is complex: multiply real and imaginary parts separately", None)
_FNUZ = "is a format of other GPUs, with a different exponent bias"
# known types without a kernel -> the reason, and the nearest supported type
_UNSUPPORTED: dict[str, tuple[str, DType | None]] = {
    **dict.fromkeys(("float64", "double", "fp64", "f64"), _ACCUMULATE),
    **dict.fromkeys(("complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"), _COMPLEX),
    "float8_e4m3fnuz": (_FNUZ, DType.FP8_E4M3),
    "float8_e5m2fnuz": (_FNUZ, DType.FP8_E5M2),
}  # fmt: skip


def as_dtype(value: object, field: str = "dtype") -> DType:
    """Turn a `DType`, a name such as "bf16" or "float32", or a `torch.dtype` into a `DType`.

    Raises:
        SpecError: the value does not name a supported type.

    Example:
        >>> as_dtype("bfloat16")
        'bf16'
    """
    if isinstance(value, DType):
        return value
    try:
        name = str(value).removeprefix("torch.").lower()
    except Exception:
        # the value's own __str__ failed
        name = ""
    if name not in _ALIASES:
        why, near = _UNSUPPORTED.get(name, ("", None))
        legal = f"must be one of {', '.join(x.value for x in DType)}"
        raise field_error(SpecError, field, value, f"{why}; {legal}" if why else legal, near)
    return _ALIASES[name]
