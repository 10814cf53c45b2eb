# SPDX-License-Identifier: Apache-2.0
"""The shortest way of a call: one look at its tensors, a new D, one launch.

torch.compile guards its code by a check in C++ of whole tensors at once: class, device, type, extents, strides, and the
dispatcher's keys, in which autocast, functorch's transforms and negated views show. A shortcut asks the same check
whether a call is of the kind that it serves. It knows nothing else, and no tensor is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cutegemm.running.backends import launcher
from cutegemm.running.backends.launcher import Launcher

# (tensors in their order, alpha) -> D, or None where the call is of another kind. Without `alpha` among the epilogue's
# numbers it is not looked at.
Shortcut = Callable[[Any, Any, Any, float], Any]

# absent from a torch that has other names for them: then there are no shortcuts
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guards = getattr(_guards, "TensorGuards", None)
_NUMBERS = ((), ("alpha",))


def none(a: Any, b: Any, bias: Any, alpha: float) -> Any:
    """What stands for the shortcut of a kind that has none."""
    return None


def _check(*tensors: torch.Tensor) -> Callable[..., bool]:
    """torch's check of tensors like these, which no two of may be one object."""
    found: Any = _Guards
    return found(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check  # type: ignore[no-any-return]


def _check_twice(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> Callable[..., bool]:
    """The check of a call that has one tensor as A and B."""
    as_a, as_b = _check(a, *rest), _check(b)
    return lambda x, *more: as_a(x, *more) and as_b(x)


def shortcut(prepared: Any, tensors: Sequence[torch.Tensor], lead: Sequence[int] = ()) -> Shortcut:
    """The shortcut of a kind of call.

    Args:
        prepared: what serves the kind.
        tensors: a call's as its caller has them: A, B and perhaps a bias. They may be other views of the memory that
            `prepared` was made for, beginning at the same addresses.
        lead: the dimensions that D has before its columns, where they are not those of `prepared`.

    Returns:
        The shortcut; `none` where D is not the only result, several launches serve the kind, or no GPU does.
    """
    if type(prepared) is not Launcher or prepared.alone is None or not prepared.single or _Guards is None:
        return none
    order, wanted = prepared.kind.order, prepared.kind.shapes.wanted[0]
    # one that is not empty, so that strides are products of extents
    simple = len(order.names) == len(tensors) + 1 and order.numbers in _NUMBERS and not prepared.pairs
    empty: Any = getattr(_guards, f"_empty_strided_{prepared.device.type}", None)
    if not simple or not math.prod(wanted.shape) or wanted.order is not None or empty is None:
        return none
    shape = (*lead, wanted.shape[-1]) if lead else wanted.shape
    strides = tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])
    try:
        check, check_twice = _check(*tensors), _check_twice(*tensors)
    except (TypeError, RuntimeError):
        return none
    alone, extents, steps, schedule = prepared.alone, prepared.extents, prepared.strides, prepared.schedule
    index, dtype, scaled = prepared.index, prepared.dtype, bool(order.numbers)
    aligned = [x.data_ptr() & 15 for x in tensors]
    differentiable = any(x.requires_grad for x in tensors)
    recording, fixed = torch.is_grad_enabled, launcher._NO_NUMBERS
    device: Any = launcher._current_device
    stream: Any = launcher._current_stream

    if len(tensors) == 2:
        low = aligned[0] | aligned[1] << 4

        def product(a: Any, b: Any, bias: Any, alpha: float) -> Any:
            if not (check_twice(a) if a is b else check(a, b)) or (differentiable and recording()):
                return None
            p, q = a.data_ptr(), b.data_ptr()
            # without memory, as a parameter whose owner has freed it, it is refused elsewhere
            if not (p and q) or p & 15 | (q & 15) << 4 != low or device() != index:
                return None
            out = empty(shape, strides, dtype)
            numbers = (alpha,) if scaled else fixed
            alone((p, q, out.data_ptr()), extents, steps, numbers, schedule, stream(index))
            return out

        return product
    if len(tensors) != 3 or scaled:
        return none
    low = aligned[0] | aligned[1] << 4 | aligned[2] << 8

    def biased(a: Any, b: Any, bias: Any, alpha: float) -> Any:
        if bias is None or not (check_twice(a, bias) if a is b else check(a, b, bias)):
            return None
        if differentiable and recording():
            return None
        p, q, r = a.data_ptr(), b.data_ptr(), bias.data_ptr()
        if not (p and q and r) or p & 15 | (q & 15) << 4 | (r & 15) << 8 != low or device() != index:
            return None
        out = empty(shape, strides, dtype)
        alone((p, q, r, out.data_ptr()), extents, steps, fixed, schedule, stream(index))
        return out

    return biased


__all__ = ["Shortcut", "none", "shortcut"]
