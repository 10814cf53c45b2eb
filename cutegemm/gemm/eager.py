# SPDX-License-Identifier: Apache-2.0
"""torch.compile leaves a run to Python: kernels are launched through TVM-FFI, which it cannot trace.

It looks at a function twice: where it is called, and where its own frame begins. The first ends the graph of the
caller; without the second the function itself is traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def ends_graph(function: F) -> F:
    """A function whose calls torch.compile leaves out of its graphs."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "cutegemm launches its kernels itself"
    return function


def leave(function: Callable[..., Any]) -> None:
    """Tell torch.compile to trace neither a function nor all it calls; nothing where torch is not loaded yet."""
    try:
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except (KeyError, AttributeError):
        # torch is not imported, not yet whole, or has other names for these
        return


__all__ = ["ends_graph", "leave"]
