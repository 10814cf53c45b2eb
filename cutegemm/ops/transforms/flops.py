# SPDX-License-Identifier: Apache-2.0
"""What the op costs, for torch.utils.flop_counter: who counts a model's operations, or weighs what to recompute."""

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
    """Two for every element of A and column of the product, as torch counts its own products; epilogues are free.

    Args:
        a, b: shapes of the operands.
        inputs, numbers, integers: the op's other arguments.
        program: what is computed, as text.
    """
    form = decode(program).form
    width = b[0] if form == "linear" else b[-1]
    # an A that serves every batch
    times = b[0] if form == "matrix" and len(b) == 3 and (len(a) == 2 or a[0] == 1) else 1
    return 2 * times * math.prod(a) * width


def register() -> None:
    """Tell torch."""
    of_our_op: Any = register_flop_formula(torch.ops.cutegemm.gemm)
    of_our_op(flops)


__all__ = ["flops", "register"]
