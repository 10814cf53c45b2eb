# SPDX-License-Identifier: Apache-2.0
"""Functions that torch.compile never compiles, whatever code calls them.

A frame that Dynamo leaves to Python, for example around a graph break, may call one of our operators or launches.
Dynamo would then compile every function that it calls, including the planner, and fail when a launch requests
the current stream. So operators on real tensors, and launches, are marked. Graphs with our operators are unaffected.

Source: torch/csrc/dynamo/eval_frame.c, which sets the strategy of a code object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_FRAMES: Any = torch._C._dynamo.eval_frame


def uncompiled(function: Function) -> Function:
    """Mark a function so that Dynamo compiles neither it nor what it calls."""
    # a private function of torch; without it Dynamo may compile them
    if hasattr(_FRAMES, "set_code_exec_strategy"):
        skip = _FRAMES._FrameAction.SKIP
        _FRAMES.set_code_exec_strategy(function.__code__, _FRAMES._FrameExecStrategy(skip, skip))
    return function


__all__ = ["uncompiled"]
