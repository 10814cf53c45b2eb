# SPDX-License-Identifier: Apache-2.0
"""Under `torch.fx.symbolic_trace` a module of ours is one node, as torch.nn.Linear is.

torch.fx knows the leaves of its own package alone and calls the forward of every other module with a `Proxy`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from cutegemm.errors import InputError, field_error


def leaf(module: torch.nn.Module, input: Any) -> Any:
    """The node that calls a module, for the forward of that module when it is handed a `Proxy`.

    Raises:
        InputError: the module is itself what is traced, so that no graph could call it.
    """
    tracer: Any = input.tracer
    name = tracer.path_of_module(module)
    if not name:
        rule = "is one node of a torch.fx graph: trace the model that holds it"
        raise field_error(InputError, "module", type(module).__name__, rule)
    return tracer.create_proxy("call_module", name, (input,), {})


__all__ = ["Proxy", "leaf"]
