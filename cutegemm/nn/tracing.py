# SPDX-License-Identifier: Apache-2.0
"""Makes a module of ours one node under `torch.fx.symbolic_trace`, as torch.nn.Linear is.

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


__all__ = ["Proxy", "leaf"]
