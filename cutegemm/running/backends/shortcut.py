# SPDX-License-Identifier: Apache-2.0
"""The fastest path of a call: one check of its tensors, allocation of its outputs, its launches.

torch.compile guards its code with a C++ check of tensors: class, device, type, extents, strides and dispatch keys,
which include autocast, functorch's transforms and negated views. A shortcut uses this check to decide whether a
call is of its kind. It holds no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from cutegemm.epilogue.graph import SCALE, STORE
from cutegemm.running.backends import launcher
from cutegemm.running.backends.launcher import Launcher
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.numerics.reference import TORCH_DTYPE

# (a, b, bias, alpha) -> D, or None if the call is of another kind. `alpha` is ignored unless the epilogue reads it.
Shortcut = Callable[[Any, Any, Any, float], Any]

# shortcuts are disabled if torch lacks these names
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guards = getattr(_guards, "TensorGuards", None)
_NUMBERS = ((), ("alpha",))


def none(a: Any, b: Any, bias: Any, alpha: float) -> Any:
    """The shortcut of a kind that supports none."""
    return None


def _check(*tensors: torch.Tensor) -> Callable[..., bool]:
    """torch's check for tensors like these. No two of them may be the same object."""
    found: Any = _Guards
    return found(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check  # type: ignore[no-any-return]


def _check_twice(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> Callable[..., bool]:
    """The check of a call whose A and B are the same tensor."""
    as_a, as_b = _check(a, *rest), _check(b)
    return lambda x, *more: as_a(x, *more) and as_b(x)


class New(NamedTuple):
    """What a shortcut allocates and returns.

    Attributes:
        empty: torch's function that allocates a tensor.
        made: extents, strides and type of each output, in the order of a launch.
        shown: the outputs' places in that order, in the order of the epilogue.
    """

    empty: Any
    made: list[tuple[tuple[int, ...], tuple[int, ...], Any]]
    shown: list[int]


def _new(prepared: Any, count: int, lead: Sequence[int]) -> New | None:
    """The outputs of a kind's shortcut; None for a kind without shortcuts.

    Args:
        count: number of a call's input tensors.
    """
    if type(prepared) is not Launcher or not prepared.launches or _Guards is None:
        return None
    order, wanted, results = prepared.kind.order, prepared.kind.shapes.wanted, prepared.kind.graph.outputs
    empty: Any = getattr(_guards, f"_empty_strided_{prepared.device.type}", None)
    # outputs must be nonempty and contiguous, and are returned as they are
    simple = len(order.names) == count + len(wanted) and order.numbers in _NUMBERS and not prepared.pairs
    simple = simple and not any(x.block or x.partial or x.kind == SCALE for x in results)
    if not simple or empty is None or any(not math.prod(x.shape) or x.order is not None for x in wanted):
        return None
    kinds, names, made = {x.name: x for x in results}, [x.name for x in wanted], []
    for x in wanted:
        shape = tuple(x.shape)
        if lead and kinds[x.name].kind == STORE:
            shape = (*lead, shape[-1])
        elif lead and kinds[x.name].axis == 1:
            shape = tuple(lead)
        strides = tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])
        made.append((shape, strides, TORCH_DTYPE[x.dtype]))
    return New(empty, made, [names.index(x.name) for x in results])


def shortcut_of_all(
    prepared: Any,
    tensors: Sequence[torch.Tensor],
    lead: Sequence[int] = (),
    order: Sequence[int] | None = None,
) -> Callable[..., Any]:
    """The shortcut of a kind of call with any number of tensors and outputs.

    It takes the tensors and alpha; it returns the output, a tuple of several, or None.

    Args:
        prepared, lead: as for `shortcut`.
        tensors: of a call.
        order: for each launch argument, its index among the tensors followed by the outputs; None is the order of the
            kind.
    """
    made, count = _new(prepared, len(tensors), lead), len(tensors)
    if made is None:
        return lambda tensors, alpha=1.0: None
    empty, outputs, shown = made
    try:
        check = _check(*tensors)
    except (TypeError, RuntimeError):
        return lambda tensors, alpha=1.0: None
    alone, every = prepared.alone, prepared._launch_all
    extents, steps, schedule = (
        (None,) * 3 if alone is None else (prepared.extents, prepared.strides, prepared.schedule)
    )
    index, place, single = prepared.index, prepared.first_out, prepared.single
    written = range(count, count + len(outputs))
    pick = itemgetter(*(order or (*range(place), *written, *range(place, count))))
    aligned = [x.data_ptr() & 15 for x in tensors]
    differentiable, scaled = any(x.requires_grad for x in tensors), bool(prepared.kind.order.numbers)
    device: Any = launcher._current_device
    stream: Any = launcher._current_stream

    @uncompiled
    def again(tensors: Sequence[Any], alpha: float = 1.0) -> Any:
        if not check(*tensors) or (differentiable and torch.is_grad_enabled()):
            return None
        pointers = [x.data_ptr() for x in tensors]
        # a tensor without memory, such as a freed parameter, is refused elsewhere
        if not all(pointers) or [p & 15 for p in pointers] != aligned or device() != index:
            return None
        outs = [empty(*x) for x in outputs]
        pointers += [x.data_ptr() for x in outs]
        numbers = (alpha,) if scaled else launcher._NO_NUMBERS
        if alone is None:
            every(pick(pointers), numbers, stream(index), None)
        else:
            alone(pick(pointers), extents, steps, numbers, schedule, stream(index))
        return outs[0] if single else tuple([outs[i] for i in shown])

    return again


def shortcut(prepared: Any, tensors: Sequence[torch.Tensor], lead: Sequence[int] = ()) -> Shortcut:
    """The shortcut of a kind of call.

    Args:
        prepared: the callable for the kind.
        tensors: of a call, as the caller passes them: A, B and perhaps a bias. They may be other views of the memory
            that `prepared` was made for, with the same addresses.
        lead: D's dimensions before its columns, if they differ from those of `prepared`.

    Returns:
        The shortcut; `none` if D is not the only result, or without a GPU.
    """
    made = _new(prepared, len(tensors), lead)
    if made is None or not prepared.single:
        return none
    if prepared.alone is None:
        every = shortcut_of_all(prepared, tensors, lead)
        return lambda a, b, bias, alpha: every((a, b) if bias is None else (a, b, bias), alpha)
    order, empty, ((shape, strides, dtype),) = prepared.kind.order, made.empty, made.made
    try:
        check, check_twice = _check(*tensors), _check_twice(*tensors)
    except (TypeError, RuntimeError):
        return none
    alone, extents, steps, schedule = prepared.alone, prepared.extents, prepared.strides, prepared.schedule
    index, scaled = prepared.index, bool(order.numbers)
    aligned = [x.data_ptr() & 15 for x in tensors]
    differentiable = any(x.requires_grad for x in tensors)
    recording, fixed = torch.is_grad_enabled, launcher._NO_NUMBERS
    device: Any = launcher._current_device
    stream: Any = launcher._current_stream

    if len(tensors) == 2:
        low = aligned[0] | aligned[1] << 4

        @uncompiled
        def product(a: Any, b: Any, bias: Any, alpha: float) -> Any:
            if not (check_twice(a) if a is b else check(a, b)) or (differentiable and recording()):
                return None
            p, q = a.data_ptr(), b.data_ptr()
            # a tensor without memory, such as a freed parameter, is refused elsewhere
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

    @uncompiled
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


__all__ = ["Shortcut", "none", "shortcut", "shortcut_of_all"]
