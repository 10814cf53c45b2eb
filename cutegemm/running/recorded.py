# SPDX-License-Identifier: Apache-2.0
"""Whether autograd records operations on tensors, also while torch.compile traces."""

from __future__ import annotations

from typing import Any

import torch

_compiling, _transforming = torch.compiler.is_compiling, torch._C._are_functorch_transforms_active


def recording(*tensors: Any) -> bool:
    """Whether autograd records operations on these tensors."""
    if not torch.is_grad_enabled():
        return False
    if _compiling() and _transforming():
        # Dynamo takes the argument of torch.func.grad for a constant, but not its views
        tensors = tuple([x.view_as(x) for x in tensors])
    return any([x.requires_grad for x in tensors])


__all__ = ["recording"]
