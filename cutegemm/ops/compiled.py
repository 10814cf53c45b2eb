# SPDX-License-Identifier: Apache-2.0
"""Ops in code that Inductor generates: it calls their implementations by name, without torch's dispatcher.

Inductor calls an op that it does not know as `torch.ops.cutegemm.gemm(...)`. That takes some 10 us, most of them in the
dispatcher and in the op's autograd implementation. Generated code has plain tensors, and AOTAutograd has recorded its
gradients and casts when it was traced, so only the implementation for a device is left to see the call. Our lowerings
are Inductor's own for an op whose operands may have any strides, but for the name of the function in generated Python.

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

_modes, _profiling = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
_LOWERING = "torch._inductor.lowering"
# of an op: operands may have any strides, so Inductor may choose them
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
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
        # the profiler and dispatch modes, such as one that counts FLOP, see the op
        return op(*args) if _modes() or _profiling() else real(*args)

    setattr(getattr(torch.ops, space), called, call)
    _names[op] = f"torch.ops.{space}.{called}"

    def traced(*args: Any, **named: Any) -> Any:
        if op not in _lowered and _LOWERING in sys.modules:
            with contextlib.suppress(AttributeError, TypeError):
                _lower(op)
            _lowered.add(op)
        return fake(*args, **named)

    return traced


def _lower(op: Any) -> None:
    """Register Inductor's lowering of an op."""
    lowering: Any = sys.modules[_LOWERING]
    fallback = lowering.fallback_handler(op, add_to_fallback_set=False)

    def lowered(*args: Any, **named: Any) -> Any:
        found, graph = fallback(*args, **named), lowering.V.graph
        made = (
            x for x in reversed(getattr(graph, "operations", ())) if getattr(x, "op_overload", None) is op
        )
        kernel = next(made, None)
        if kernel is not None and not graph.cpp_wrapper:
            kernel.python_kernel_name = _names[op]
        return found

    lowering.register_lowering(op, type_promotion_kind=None)(lowered)


__all__ = ["TAGS", "described"]
