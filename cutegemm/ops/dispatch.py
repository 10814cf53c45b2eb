# SPDX-License-Identifier: Apache-2.0
"""The path of a call: directly to the kernels, recorded by autograd, or through the op if torch must see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._functorch.autograd_function import (  # type: ignore[attr-defined]
    enable_single_level_autograd_function,
)
from torch.autograd import forward_ad

from cutegemm.ops.program import Program
from cutegemm.ops.shortcuts import served
from cutegemm.running.recorded import recording

_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_autocast, _recording = torch._C._is_any_autocast_enabled, torch.is_grad_enabled
# torch.jit.trace records torch's ops, not a kernel's writes
_tracing = torch._C._is_tracing
_compiling = torch.compiler.is_compiling
# devices that ops have implementations for
DEVICES = ("cpu", "cuda")
_ORDINARY = frozenset((torch.Tensor, torch.nn.Parameter))
T = TypeVar("T")


def direct(*tensors: torch.Tensor) -> bool:
    """Whether a call can bypass torch's dispatcher: no mode, transform, subclass or tracer is active."""
    if _compiling() or _modes() or _transforms() or _tracing() or forward_ad._current_level >= 0:
        return False
    for x in tensors:
        if type(x) not in _ORDINARY:
            return False
    return True


def way(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> str:
    """The path of a call on these tensors: "run" (directly to the kernels), "record" (by `Direct`) or "op".

    Inlined, because it runs in every call.
    """
    if _modes() or _transforms() or _autocast() or _tracing() or forward_ad._current_level >= 0:
        return "op"
    if type(a) not in _ORDINARY or type(b) not in _ORDINARY or (c is not None and type(c) not in _ORDINARY):
        return "op"
    if a.requires_grad or b.requires_grad or (c is not None and c.requires_grad):
        return "record" if _recording() else "run"
    return "run"


def call(
    program: Program,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Sequence[torch.Tensor] = (),
    numbers: Sequence[float] = (),
    integers: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """All outputs of a call: directly from the kernels if possible, else through the op."""
    if direct(a, b, *inputs):
        return served(program, a, b, inputs, numbers, integers)
    ops = torch.ops.cutegemm.gemm
    args = (a, b, list(inputs), list(numbers), list(integers), program.text)
    return (ops.default(*args),) if program.alone else tuple(ops.many(*args))


def below(function: Callable[..., T], *args: Any) -> T:
    """Call a function from an autograd function's forward, so that lower functorch levels may record it."""
    if not torch._C._are_functorch_transforms_active():
        return function(*args)
    # lower levels then see their tangents, and refuse them
    tangents = forward_ad._set_fwd_grad_enabled(True)
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad(), tangents:
        return function(*args)


def recorded(record: Callable[..., T], *args: Any) -> T:
    """A call that a `_SingleLevelFunction` records, from an op's autograd implementation."""
    if not torch._C._are_functorch_transforms_active():
        return record(*args)
    with enable_single_level_autograd_function():
        return record(*args)


def redispatched(op: Any, keyset: Any, *args: Any, **named: Any) -> Any:
    """The call of an op below autograd, from its autograd implementation."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **named)


__all__ = ["DEVICES", "below", "call", "direct", "recorded", "recording", "redispatched", "way"]
