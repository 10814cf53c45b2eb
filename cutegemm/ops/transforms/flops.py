# SPDX-License-Identifier: Apache-2.0
"""The FLOP count of the op for torch.utils.flop_counter, which also guides recomputation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from cutegemm.ops.program import decode


def flops(
    a: Sequence[int], b: Sequence[int], inputs: Any, numbers: Any, integers: Any, program: str, **_: Any
) -> int:
    """Two per element of A and column of the result, as torch counts its GEMMs; epilogues count nothing.

    Args:
        a, b: shapes of the operands.
        inputs, numbers, integers: the op's other arguments.
        program: of the call, as text.
    """
    form = decode(program).form
    width = b[0] if form == "linear" else b[-1]
    # all batches share this A
    times = b[0] if form == "matrix" and len(b) == 3 and (len(a) == 2 or a[0] == 1) else 1
    return 2 * times * math.prod(a) * width


def register() -> None:
    """Register the function with torch."""
    of_our_op: Any = register_flop_formula(torch.ops.cutegemm.gemm)
    of_our_op(flops)


__all__ = ["flops", "register"]
