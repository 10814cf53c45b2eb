# SPDX-License-Identifier: Apache-2.0
"""torch.fx: makes a module of ours one node of a trace, as torch.nn.Linear is, and traces MLPs of other classes.

torch.fx treats only torch's own modules as leaves, and calls the forward of all others with a `Proxy`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from cutegemm.errors import InputError, field_error


def leaf(module: torch.nn.Module, input: Any) -> Any:
    """The node of a module's call, for a forward that receives a `Proxy`.

    Raises:
        InputError: the module is the root of the trace, so no graph can call it.
    """
    tracer: Any = input.tracer
    name = tracer.path_of_module(module)
    if not name:
        rule = "is a single node of a torch.fx graph: trace the model that contains it"
        raise field_error(InputError, "module", type(module).__name__, rule)
    return tracer.create_proxy("call_module", name, (input,), {})


def traced(module: torch.nn.Module) -> list[torch.fx.Node] | str:
    """The nodes of a module's traced forward, or why it cannot be traced."""
    try:
        return list(torch.fx.Tracer().trace(module).nodes)
    except Exception as error:
        # any forward may raise when it is traced
        return f"its forward cannot be traced: {type(error).__name__}"


def owning(module: torch.nn.Module) -> str | None:
    """That a module has parameters or buffers beside those of its children; None if it has not."""
    own = [x for x, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]
    return f"it has its own parameters or buffers: {', '.join(own)}" if own else None


__all__ = ["Proxy", "leaf", "owning", "traced"]
