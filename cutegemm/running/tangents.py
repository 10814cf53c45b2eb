# SPDX-License-Identifier: Apache-2.0
"""Refuses forward-mode differentiation: a kernel computes no tangent, and the tangents of its operands would be lost.

Tensors have tangents only within a dual level, so the check is fast elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from cutegemm.errors import InputError
from cutegemm.running.arguments.describe import shown

_batched, _unwrapped = torch._C._functorch.is_batchedtensor, torch._C._functorch.get_unwrapped

RULE = (
    "has a tangent: forward-mode gradients (jvp) are not supported; "
    "use torch.matmul there, or pass the primal of torch.autograd.forward_ad.unpack_dual"
)


def refuse(named: Iterable[tuple[str, Any]]) -> None:
    """Refuse tensors with tangents; None stands for a tensor that was not given.

    Raises:
        InputError: a tensor has a tangent.
    """
    if forward_ad._current_level < 0:
        return
    for name, x in named:
        if x is None:
            continue
        while _batched(x):
            # vmap has no rule for unpack_dual
            x = _unwrapped(x)
        if forward_ad.unpack_dual(x).tangent is not None:
            raise InputError(RULE, field=shown(name))


__all__ = ["RULE", "refuse"]
