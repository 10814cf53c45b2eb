# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of repeated calls of `grouped_mm`'s op, in backward passes and in compiled code, as `ops.shortcuts` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cutegemm.ops.program import Program
from cutegemm.ops.shortcuts import ATTEMPTS, kind_of
from cutegemm.running.arguments.call import Memo
from cutegemm.running.backends.shortcut import shortcut_of_all

_modes = torch._C._len_torch_dispatch_stack
# by `_key`, and by this and the tensors' kinds: shortcuts, and attempts to make one
_shorts: Memo[Any] = Memo()
_attempts: Memo[int] = Memo()


def again(program: Program, how: str, tensors: Sequence[Tensor], numbers: Sequence[float]) -> Any:
    """All outputs of a call by a cached shortcut, in a tuple; None if there is none that matches.

    Args:
        program: of the call; how: the form of its groups.
        tensors: A, B, the ends of the groups and the inputs.
        numbers: of the epilogue.
    """
    if program.backend is not None or program.merged or program.integers or len(numbers) > 1:
        return None
    if _modes() or forward_ad._current_level >= 0:
        return None
    key = _key(program, how, tensors)
    known = _shorts.recent.get(key)
    if known is None:
        return None
    found = known(tensors, *numbers)
    if found is None:
        # calls of one key may differ in strides and classes
        other = _shorts.recent.get((key, *map(kind_of, tensors)))
        if other is not None and other is not known:
            found = other(tensors, *numbers)
    return (found,) if program.alone and found is not None else found


def remember(
    program: Program, how: str, tensors: Sequence[Tensor], prepared: Any, given: Sequence[Tensor | None]
) -> None:
    """Cache a shortcut of a call that has just run; does nothing after `ATTEMPTS` attempts for its kind.

    Args:
        program, how, tensors: as for `again`.
        prepared: what ran the call.
        given: its tensors in the order of a launch, None for outputs.
    """
    if program.backend is not None or program.merged or program.integers:
        return
    key = _key(program, how, tensors)
    kind = (key, *map(kind_of, tensors))
    tried = _attempts.recent.get(kind, 0)
    if tried >= ATTEMPTS:
        return
    _attempts.put(kind, tried + 1)
    places, outputs, order = {id(x): i for i, x in enumerate(tensors)}, len(tensors), []
    for x in given:
        order.append(outputs if x is None else places.get(id(x), -1))
        outputs += x is None
    # each tensor once: of a tensor that is passed twice a shortcut could not tell the places
    if sorted(order) == list(range(outputs)):
        found = shortcut_of_all(prepared, tensors, order=order)
        _shorts.put(kind, found)
        _shorts.put(key, found)


def _key(program: Program, how: str, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return program.text, how, *[x.shape for x in tensors]


__all__ = ["again", "remember"]
