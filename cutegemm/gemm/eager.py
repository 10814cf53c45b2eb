# SPDX-License-Identifier: Apache-2.0
"""Excludes runs from torch.compile's graphs, because it cannot trace launches through TVM-FFI.

torch.compile decides twice: at the call of a function, and when the function's own frame begins. The first ends the
caller's graph. Without the second, the function itself would be traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def ends_graph(function: F) -> F:
    """Mark a function so that torch.compile leaves its calls out of graphs, and return it."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "cutegemm launches its kernels itself"
    return function


def leave(function: Callable[..., Any]) -> None:
    """Tell torch.compile not to trace a function or what it calls. Does nothing before torch is imported."""
    try:
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except (KeyError, AttributeError):
        # torch is not imported, only partly imported, or has renamed these
        return


__all__ = ["ends_graph", "leave"]
