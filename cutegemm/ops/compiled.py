# SPDX-License-Identifier: Apache-2.0
"""Ops in code that Inductor generates: it calls their implementations by name, without torch's dispatcher.

Inductor calls an op that it does not know as `torch.ops.cutegemm.gemm(...)`. That takes some 10 us, most of them in the
dispatcher and in the op's autograd implementation. Generated code has plain tensors, and AOTAutograd has recorded its
gradients and casts when it was traced, so only the implementation for a device is left to see the call. Our lowerings
are Inductor's own for such ops, but for the name of the function in generated Python.

Lowerings are a private interface of torch. Where it differs from what is used here, ops are called as before. So they
are in generated C++ (`cpp_wrapper`, AOTInductor), which finds no Python functions.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from cutegemm.running.backends.uncompiled import uncompiled

_modes = torch._C._len_torch_dispatch_stack
_LOWERING = "torch._inductor.lowering"
# op -> the name in `torch.ops.cutegemm` by which generated code calls its implementation
_names: dict[Any, str] = {}
# ops that Inductor lowers so
_lowered: set[Any] = set()


def described(op: Any, real: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The fake implementation of an op, which also has Inductor call `real` in code that it generates.

    Inductor traces an op by its fake implementation before it lowers it. Code of a warm cache is not lowered again, but
    finds the function, since it has its name when the op is registered.

    Args:
        op: an overload that returns new tensors.
        real: its implementation for all devices.
        fake: its implementation for tensors without data.
    """
    space, name = op.name().split("::")
    called = f"compiled_{name.replace('.', '_')}"

    @uncompiled
    def call(*args: Any) -> Any:
        # dispatch modes, such as one that counts FLOP, see the op
        return op(*args) if _modes() else real(*args)

    setattr(getattr(torch.ops, space), called, call)
    _names[op] = f"torch.ops.{space}.{called}"

    def traced(*args: Any, **named: Any) -> Any:
        if op not in _lowered and _LOWERING in sys.modules:
            _lowered.add(op)
            with contextlib.suppress(AttributeError, TypeError):
                _lower(op)
        return fake(*args, **named)

    return traced


def _lower(op: Any) -> None:
    """Register Inductor's lowering of an op."""
    lowering: Any = sys.modules[_LOWERING]
    fallback = lowering.fallback_handler(op, add_to_fallback_set=False)

    def lowered(*args: Any, **named: Any) -> Any:
        found, graph = fallback(*args, **named), lowering.V.graph
        made = [x for x in getattr(graph, "operations", ()) if getattr(x, "op_overload", None) is op]
        if made and not graph.cpp_wrapper:
            # the one that was just made
            made[-1].python_kernel_name = _names[op]
        return found

    lowering.register_lowering(op, type_promotion_kind=None)(lowered)


__all__ = ["described"]
