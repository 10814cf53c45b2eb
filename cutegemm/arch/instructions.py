# SPDX-License-Identifier: Apache-2.0
"""From operand types to the tensor-core instruction that multiplies them. One row a pair of types.

Source: PTX ISA 9.0, wgmma.mma_async (shapes, types of D, transposition of A and B).
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.dtypes import DType


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What is fixed about one wgmma by its operands' types.

    Attributes:
        k: elements of K that it multiplies.
        n_step: its columns come in multiples of this.
        accumulator: type that it adds in.
        any_major: whether shared memory may hold its operands along M or N as well as along K.
        promoted: whether its accumulator keeps fewer bits than fp32, so that partial sums have to be added to an
            fp32 copy every few stages.
    """

    k: int
    n_step: int
    accumulator: DType
    any_major: bool
    promoted: bool


_HALF = Instruction(k=16, n_step=8, accumulator=DType.FP32, any_major=True, promoted=False)

INSTRUCTIONS: dict[tuple[DType, DType], Instruction] = {
    (DType.FP16, DType.FP16): _HALF,
    (DType.BF16, DType.BF16): _HALF,
}


def instruction(a: DType, b: DType) -> Instruction:
    """The instruction that multiplies operands of these types.

    Raises:
        KeyError: there is none in the table.
    """
    return INSTRUCTIONS[a, b]
