# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of the commonest calls (`running.backends.shortcut`), remembered by their tensors' shapes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.autograd import forward_ad

from cutegemm.gemm import recalled
from cutegemm.ops.program import Program
from cutegemm.running.backends.shortcut import Shortcut, none, shortcut

_modes = torch._C._len_torch_dispatch_stack
# attempts to make a shortcut of calls that share a key: of some kinds there is none, others take turns
ATTEMPTS = 8


def shortened(program: Program, a: Any, b: Any, bias: Any, alpha: float) -> Any:
    """The product of a call from outside by its shortcut; None where there is none, or the call is another one.

    What the shortcut's own check does not see is asked for here: modes of Python, and forward-mode differentiation.
    """
    try:
        found = program.gemm.shortcuts.recent.get((a.shape, b.shape))
    except (AttributeError, RuntimeError, TypeError):
        # no tensors, nested ones, or traced ones whose extents are symbols
        return None
    if found is None or _modes() or forward_ad._current_level >= 0:
        return None
    return found(a, b, bias, alpha)


def remember(program: Program, key: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Make the shortcut of a call that has just been served, under a key; after some attempts leave what there is.

    Args:
        program: alpha * A B, or with a bias; of form "matrix" or "linear".
        key: the shapes of A and B, and what else its calls are asked for by.
        a, b, bias: as the program's form has them; they need no gradient, or none is recorded.
    """
    gemm, found = program.gemm, cast(Shortcut, none)
    tried = gemm.attempts.recent.get(key, 0)
    if tried >= ATTEMPTS:
        return
    gemm.attempts.put(key, tried + 1)
    left, right = a, b
    lead: tuple[int, ...] = ()
    if program.form == "linear":
        right = b.t()
        if a.dim() > 2:
            left, lead = a.reshape(-1, a.shape[-1]), a.shape[:-1]
    if a.dim() > 1 and left.data_ptr() == a.data_ptr():
        prepared = recalled(gemm, left, right, {} if bias is None else {"bias": bias}, program.backend)
        tensors = (a, b) if bias is None else (a, b, bias)
        found = shortcut(prepared, tensors, lead)
    gemm.shortcuts.put(key, found)


__all__ = ["remember", "shortened"]
