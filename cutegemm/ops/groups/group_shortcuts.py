# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of repeated calls of `grouped_mm`'s op, in backward passes and in compiled code, as `ops.shortcuts` has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cutegemm.ops.program import Program
from cutegemm.ops.shortcuts import found_in, put_in
from cutegemm.running.arguments.call import Memo
from cutegemm.running.backends.shortcut import shortcut_of_all

_modes = torch._C._len_torch_dispatch_stack
# shortcuts, and attempts to make one, as `found_in` and `put_in` have them, by `_key`
_shorts: Memo[Any] = Memo()
_attempts: Memo[int] = Memo()


def again(program: Program, how: str, tensors: Sequence[Tensor], numbers: Sequence[float]) -> Any:
    """All outputs of a call by a cached shortcut, in a tuple; None if there is none that matches.

    Args:
        program: of the call; how: the form of its groups.
        tensors: A, B, the ends of the groups and the inputs.
        numbers: of the epilogue.
    """
    if not program.short or _modes() or forward_ad._current_level >= 0:
        return None
    found = found_in(_shorts, _key(program, how, tensors), tensors, (tensors, *numbers))
    return (found,) if program.alone and found is not None else found


def remember(
    program: Program, how: str, tensors: Sequence[Tensor], prepared: Any, given: Sequence[Tensor | None]
) -> None:
    """Cache a shortcut of a call that has just run (`shortcuts.put_in`).

    Args:
        program, how, tensors: as for `again`.
        prepared, given: as for `shortcut_of`.
    """
    if program.short and program.backend is None:
        made = partial(shortcut_of, prepared, tensors, given)
        put_in(_shorts, _attempts, _key(program, how, tensors), tensors, made)


def shortcut_of(prepared: Any, tensors: Sequence[Tensor], given: Sequence[Tensor | None]) -> Any:
    """The shortcut of a call, which takes its tensors and alpha; None if its launch reads other tensors.

    Args:
        prepared: what ran the call.
        tensors: of the call, in any order.
        given: those of the launch, None for its outputs.
    """
    places, outputs, order = {id(x): i for i, x in enumerate(tensors)}, len(tensors), []
    for x in given:
        order.append(outputs if x is None else places.get(id(x), -1))
        outputs += x is None
    # of a tensor that is passed twice a shortcut could not tell the places
    whole = sorted(order) == list(range(outputs))
    return shortcut_of_all(prepared, tensors, order=order) if whole else None


def _key(program: Program, how: str, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return program.text, how, *[x.shape for x in tensors]


__all__ = ["again", "remember", "shortcut_of"]
