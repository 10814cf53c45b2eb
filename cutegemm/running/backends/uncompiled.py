# SPDX-License-Identifier: Apache-2.0
"""Functions that torch.compile never compiles, whoever calls them.

A frame that Dynamo leaves to Python, for instance around a graph break, may call one of our operators or launches.
Dynamo would then compile each function behind it by itself, the planner among them, and fail where a launch asks for
the current stream. So operators on real tensors and launches are marked. A graph with our operators is not concerned.

Source: torch/csrc/dynamo/eval_frame.c, the strategy of a code object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_FRAMES: Any = torch._C._dynamo.eval_frame


def uncompiled(function: Function) -> Function:
    """A function that is left to Python, with all that it calls."""
    # not public: a version of torch without it may compile them
    if hasattr(_FRAMES, "set_code_exec_strategy"):
        skip = _FRAMES._FrameAction.SKIP
        _FRAMES.set_code_exec_strategy(function.__code__, _FRAMES._FrameExecStrategy(skip, skip))
    return function


__all__ = ["uncompiled"]
