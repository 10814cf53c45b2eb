# SPDX-License-Identifier: Apache-2.0
"""The tensor-core instruction for each pair of operand types and each arithmetic.

Source: PTX ISA 9.0, wgmma.mma_async (shapes, types of D, transposition of A and B).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType

EXACT = "exact"  # elements are multiplied as they are stored
TF32 = "tf32"  # fp32 elements are rounded to 10 fraction bits
TF32X3 = "tf32x3"  # fp32 elements are split into a high and a low tf32 part; three GEMMs of parts are added
ARITHMETICS = (EXACT, TF32, TF32X3)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The properties of a wgmma that its operand types determine."""

    form: str  # the DSL's name for it, a key of `kernels.host.operand_layouts.FORMS`
    k: int  # elements of K
    columns: tuple[int, ...]  # legal widths, multiples of the first
    accumulator: DType
    majors: tuple[str, ...]  # majors of A and B in shared memory: along K ("k"), along M or N ("mn")
    fraction: int = 23  # fraction bits that it keeps when it adds, relative to the largest addend
    promote: int = 0  # elements of K between promotions to fp32, which those bits need; 0 is never
    coarse: int = (
        0  # the same for outputs of at most eight significant bits, whose own rounding is far larger
    )
    whole: int = 0  # the largest K whose sums such outputs need not promote at all
    ignored: int = 0  # low bits of an element that it does not read; loads round the element to the others
    # parts of each element; a copy of the operand holds `run` elements along K of one part, then of the next
    parts: int = 1
    run: int = 1  # with parts, a tile's K must be a multiple of this

    def stored(self, depth: Any) -> Any:
        """Stored elements along K of an operand with K = `depth`: `depth`, or those of the copy of its parts."""
        return depth if self.parts == 1 else (depth + (self.run - 1)) // self.run * (self.run * self.parts)

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """The pairs of parts of A and B to multiply, small products first. Low by low is negligible and left out."""
        return ((0, 0),) if self.parts == 1 else ((1, 0), (0, 1), (0, 0))

    @property
    def n_step(self) -> int:
        """The step of legal widths."""
        return self.columns[0]


EIGHTS = tuple(range(8, 257, 8))
_HALF = Instruction(form="half", k=16, columns=EIGHTS, accumulator=DType.FP32, majors=("k", "mn"))
# The bits were measured on an H200. With four instructions between promotions the error is near the operands' own;
# with eight it is a tenth of what rounding to bf16 adds. Whole sums of 512 normally distributed products add
# 1.2 % to the error of D in bf16, and of 768 2.7 %; 512 products of one sign lose 0.6 %, 768 1 % (e4m3).
_EIGHT = Instruction(
    form="fp8",
    k=32,
    columns=EIGHTS,
    accumulator=DType.FP32,
    majors=("k",),
    fraction=13,
    promote=128,
    coarse=256,
    whole=512,
)
_FP8 = (DType.FP8_E4M3, DType.FP8_E5M2)
_WHOLE = Instruction(
    form="int8",
    k=32,
    columns=(8, 24, *range(16, 257, 16)),
    accumulator=DType.INT32,
    majors=("k",),
    fraction=31,
)
_BYTES = (DType.INT8, DType.UINT8)
_TF32 = Instruction(form="tf32", k=8, columns=EIGHTS, accumulator=DType.FP32, majors=("k",), ignored=13)
# tensor cores truncate sums, so long sums are promoted; both parts of a run fill one row of the 128-byte swizzle
_PARTS = dataclasses.replace(_TF32, ignored=0, parts=2, run=16, promote=32, coarse=32)

INSTRUCTIONS: dict[tuple[DType, DType, str], Instruction] = {
    (DType.FP16, DType.FP16, EXACT): _HALF,
    (DType.BF16, DType.BF16, EXACT): _HALF,
    **{(a, b, EXACT): _EIGHT for a in _FP8 for b in _FP8},
    **{(a, b, EXACT): _WHOLE for a in _BYTES for b in _BYTES},
    (DType.FP32, DType.FP32, TF32): _TF32,
    (DType.FP32, DType.FP32, TF32X3): _PARTS,
}


def instruction(a: DType, b: DType, arithmetic: str = EXACT) -> Instruction:
    """The instruction for operands of these types; KeyError if there is none."""
    return INSTRUCTIONS[a, b, arithmetic]


def exact_depth(a: DType, b: DType) -> int | None:
    """The largest K for which every sum of products of two integer types fits int32; None for other types."""
    magnitudes = {DType.INT8: 128, DType.UINT8: 255}
    if a not in magnitudes or b not in magnitudes:
        return None
    return (2**31 - 1) // (magnitudes[a] * magnitudes[b])


def multiplying(a: object, b: object, arithmetic: str = EXACT) -> Iterator[Instruction]:
    """The instructions for operands of these types; anything but a `DType` means any type."""
    for (left, right, how), candidate in INSTRUCTIONS.items():
        types = (a is left or not isinstance(a, DType)) and (b is right or not isinstance(b, DType))
        if types and how == arithmetic:
            yield candidate


def on_cuda_cores(a: object, arithmetic: str = EXACT) -> bool:
    """Whether operands of a type run on CUDA cores only."""
    return a is DType.FP32 and arithmetic == EXACT


def arithmetic_fault(a: object, arithmetic: str) -> tuple[str, object, str, object] | None:
    """Why an arithmetic does not support operands of a type, in the form of `types_fault`."""
    legal = [left for left, _, how in INSTRUCTIONS if how == arithmetic]
    if arithmetic == EXACT or not isinstance(a, DType) or a in legal:
        return None
    return "math", arithmetic, f"multiplies {legal[0].value} operands, and A is {a.value}", EXACT


def partners(a: DType) -> tuple[DType, ...]:
    """The types of B that kernels support for a type of A, on tensor cores or (fp32) on CUDA cores."""
    alone = (a,) if on_cuda_cores(a) else ()
    return tuple(dict.fromkeys((*alone, *(right for left, right, _ in INSTRUCTIONS if left is a))))


def types_fault(a: object, b: object) -> tuple[str, object, str, object] | None:
    """Why no kernel multiplies A by B: field, value, rule, nearest type; None if one does.

    Args:
        a, b: types; anything but a `DType` is unspecified.
    """
    for name, x in (("a_dtype", a), ("b_dtype", b)):
        if isinstance(x, DType) and not partners(x):
            *most, last = (y.value for y in DType if partners(y))
            return name, x, f"operands are {', '.join(most)} or {last}", DType.BF16
    if not isinstance(a, DType) or not isinstance(b, DType) or b in partners(a):
        return None
    legal = " or ".join(x.value for x in partners(a))
    return "b_dtype", b, f"A is {a.value}, B must be {legal}", a
