# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of the most common calls (`running.backends.shortcut`), cached by their tensors' shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from cutegemm.epilogue.scales import NAMES as SCALES
from cutegemm.epilogue.scales import SINGLE
from cutegemm.gemm import recalled
from cutegemm.ops.layouts import matrices
from cutegemm.ops.program import Program
from cutegemm.ops.serve import serve
from cutegemm.running.arguments.call import Memo
from cutegemm.running.backends.shortcut import shortcut, shortcut_of_all
from cutegemm.running.backends.uncompiled import uncompiled

_modes, _recording = torch._C._len_torch_dispatch_stack, torch.is_grad_enabled
# attempts to create a shortcut per kind of call: some support none, and calls may differ in what `kind_of` leaves out
ATTEMPTS = 8


def shortened(program: Program, a: Any, b: Any, bias: Any, alpha: float) -> Any:
    """D by the cached shortcut of a call; None if there is none, or if it does not match the call.

    Also checks what the shortcut itself does not: Python dispatch modes, and forward-mode differentiation. None for
    calls that autograd records: `Plain.forward` has shortcuts of its own.
    """
    try:
        key = a.shape, b.shape
        known = key in program.gemm.shortcuts.recent
        wanted = a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    except (AttributeError, RuntimeError, TypeError):
        # arguments that are not tensors, nested tensors, or traced tensors with symbolic extents
        return None
    if not known or (wanted and _recording()) or _modes() or forward_ad._current_level >= 0:
        return None
    return cached(program, key, a, b, bias, alpha)


def cached(program: Program, key: Any, a: Any, b: Any, bias: Any, alpha: float) -> Any:
    """D by a cached shortcut of a call; None if there is none, or if none matches the call."""
    tensors = (a, b) if bias is None else (a, b, bias)
    return found_in(program.gemm.shortcuts, key, tensors, (a, b, bias, alpha))


def found_in(shortcuts: Memo[Any], key: Any, tensors: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """What a cached shortcut returns for a call's arguments, among them its tensors; None if none matches.

    Calls of one key may be of several kinds: the layers of a model take inputs and gradients of different strides.
    """
    known = shortcuts.recent.get(key)
    if known is None:
        return None
    found = known(*arguments)
    if found is None:
        other = shortcuts.recent.get((key, *map(kind_of, tensors)))
        if other is not None and other is not known:
            found = other(*arguments)
    return found


def put_in(
    shortcuts: Memo[Any], attempts: Memo[int], key: Any, tensors: Sequence[Any], make: Callable[[], Any]
) -> None:
    """Cache for `found_in` what `make` makes, if anything; does nothing after `ATTEMPTS` attempts for such tensors."""
    kind = (key, *map(kind_of, tensors))
    tried = attempts.recent.get(kind, 0)
    if tried >= ATTEMPTS:
        return
    attempts.put(kind, tried + 1)
    if (found := make()) is not None:
        shortcuts.put(kind, found)
        shortcuts.put(key, found)


def kind_of(x: Any) -> Any:
    """What tells a tensor's calls from those of other tensors of the same extents."""
    try:
        return type(x), x.dtype, x.stride(), x.requires_grad
    except (AttributeError, RuntimeError):
        # not a strided tensor
        return type(x)


def remember(program: Program, key: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Cache a shortcut of a call that has just run; does nothing after `ATTEMPTS` attempts for its kind.

    Args:
        program: alpha * A B, or with a bias.
        key: the shapes of A and B, and anything else that identifies the call.
        a, b, bias: in the program's form; they need no gradient, or none is recorded.
    """
    if a.dim() > 1:
        _remember(program, key, a, b, () if bias is None else (bias,), shortcut)


def _remember(
    program: Program, key: Any, a: torch.Tensor, b: torch.Tensor, given: Sequence[torch.Tensor], make: Any
) -> None:
    """`remember` for a call with any number of inputs; `make` makes its shortcut, as `shortcut` does."""
    gemm, tensors = program.gemm, (a, b, *given)

    def made() -> Any:
        call = matrices(program, a, b, given)
        views = [call.a, call.b, *(call.inputs[name] for name in program.inputs)]
        if any(x.data_ptr() != y.data_ptr() for x, y in zip(tensors, views, strict=True)):
            return None
        prepared = recalled(gemm, call.a, call.b, call.inputs, program.backend)
        return make(prepared, tensors, a.shape[:-1] if a.dim() > 2 and call.lead else ())

    put_in(gemm.shortcuts, gemm.attempts, key, tensors, made)


# programs of calls with scales, by `_scaled_key`
_scaled: Memo[Program] = Memo()
_READ = ("scale_a", "scale_b", "bias")


def _scaled_key(form: Any, a: Any, b: Any, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The cache key of a call with scaled operands.

    Raises:
        AttributeError: an argument is not a tensor.
    """
    return form, a.shape, b.shape, *[None if (x := named.get(name)) is None else x.shape for name in _READ]


def scaled_again(form: Any, a: Any, b: Any, named: Mapping[str, Any]) -> Any:
    """D by the cached shortcut of a call with scaled operands, scales, perhaps a bias, and nothing else.

    Args:
        form: the form of the program, perhaps with other options of the call.
        a, b: in the program's form.
        named: scales and bias, by name.

    Returns:
        D, or None if there is no shortcut or it does not match the call.
    """
    try:
        key = _scaled_key(form, a, b, named)
        program = _scaled.recent.get(key)
        if program is None:
            # scales of whole operands that have dimensions, which `remember_scaled` got without
            whole = {x: named[x].reshape(()) for x in SCALES if x in named and named[x].shape in SINGLE}
            named = {**named, **whole}
            key = _scaled_key(form, a, b, named)
            program = _scaled.recent[key]
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return None
    given = [named.get(name) for name in program.inputs]
    if len(given) != len(named) or _modes() or forward_ad._current_level >= 0:
        return None
    tensors = (a, b, *given)
    return found_in(program.gemm.shortcuts, key, tensors, (tensors,))


def remember_scaled(
    form: Any, program: Program, a: torch.Tensor, b: torch.Tensor, named: Mapping[str, Any]
) -> None:
    """Cache a shortcut for `scaled_again`, as `remember` does."""
    if program.numbers or program.integers or a.dim() < 2:
        return
    key = _scaled_key(form, a, b, named)
    _scaled.put(key, program)
    _remember(program, key, a, b, [named[name] for name in program.inputs], shortcut_of_all)


@uncompiled
def served(
    program: Program,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[float],
    integers: Sequence[int],
) -> tuple[torch.Tensor, ...]:
    """`serve`, by a cached shortcut of such a call if there is one."""
    known = program.short and len(numbers) == len(program.numbers) and a.dim() > 1
    if not known or _modes() or forward_ad._current_level >= 0:
        return serve(program, a, b, inputs, numbers, integers)
    if program.alone and len(inputs) < 2:
        # most calls; their shortcuts take arguments one by one, which is faster, and `shortened` finds them, too
        key, bias = (a.shape, b.shape), inputs[0] if inputs else None
        found: Any = cached(program, key, a, b, bias, numbers[0] if numbers else 1.0)
        if found is None:
            (found,) = serve(program, a, b, inputs, numbers, integers)
            if program.backend is None:
                remember(program, key, a, b, bias)
        return (found,)
    tensors = (a, b, *inputs)
    every = "all", *[x.shape for x in tensors]
    found = found_in(program.gemm.shortcuts, every, tensors, (tensors, *numbers))
    if found is None:
        made = serve(program, a, b, inputs, numbers, integers)
        if program.backend is None:
            _remember(program, every, a, b, inputs, shortcut_of_all)
        return made
    return (found,) if program.alone else found


__all__ = [
    "ATTEMPTS",
    "cached",
    "found_in",
    "put_in",
    "remember",
    "remember_scaled",
    "scaled_again",
    "served",
    "shortened",
]
