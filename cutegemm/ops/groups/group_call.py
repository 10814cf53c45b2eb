# SPDX-License-Identifier: Apache-2.0
"""Runs parsed calls of `grouped_mm`: directly, or through torch's dispatcher and autograd."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import address
from cutegemm.ops.groups.gathering import gathered
from cutegemm.ops.groups.group_gradient import added_to_main_grad
from cutegemm.ops.groups.group_shortcuts import shortcut_of
from cutegemm.ops.groups.grouped_epilogue import own_of, recorded
from cutegemm.ops.groups.grouped_op import Call, gemm_of
from cutegemm.ops.products import check_names, described, is_compiling, outs_of, program_of
from cutegemm.ops.program import Program
from cutegemm.ops.shortcuts import ATTEMPTS
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.results import Outputs

# Shortcuts of GPU calls by `Key.kind`: (the epilogue, kept alive; the shortcut or None; number of attempts)
_shorts: Memo[tuple[Any, Any, int]] = Memo()
_modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing


class Key(NamedTuple):
    """Finds the shortcut of a repeated call.

    Attributes:
        kind: shapes of the operands and all arguments that are not tensors; hashable.
        tensors: all tensors of the call, in a fixed order.
        epilogue: as the caller gave it.
    """

    kind: tuple[Any, ...]
    tensors: list[Any]
    epilogue: Any


def run(call: Call, key: Any) -> Any:
    """Run a call. Unless `key` is None, cache a shortcut for its repetition under it.

    Raises:
        GemmError: as for `grouped_mm`.
    """
    a, b, groups, out, inputs, graph, alone, *_ = call
    ends, rows = groups.ends, groups.rows
    tensors = [x for x in inputs.values() if isinstance(x, Tensor)]
    taped = recording(a, b, *tensors)
    if not taped and not is_compiling() and direct(a, b, ends, *tensors):
        return _direct(call, key)
    if rows is not None:
        a = gathered(a, rows)
    told = groups.how(a, b)
    how = told.text
    if taped and not alone and out is None:
        own = own_of(address(graph), told.form)
        if own is not None:
            return recorded(call._replace(a=a), how, own)
    text, names, numbers, integers, outputs = _known(call)
    args = (
        a, b, ends, [inputs[x] for x in names], [float(inputs[x]) for x in numbers], [inputs[x] for x in integers],
        text, how,
    )  # fmt: skip
    op = torch.ops.cutegemm.grouped_mm
    if out is not None:
        outs = outs_of(outputs, out)
        op.out(*args, out=outs)
        return out if isinstance(out, Tensor) else Outputs(**dict(zip(outputs, outs)))
    if call.main is not None and alone:
        found = op.default(a, b.detach(), *args[2:])
        return added_to_main_grad(found, a, ends, how, inputs["alpha"], call.by, call.main)
    return op.default(*args) if outputs == ("d",) else Outputs(**dict(zip(outputs, op.many(*args))))


def _known(call: Call) -> tuple[Any, ...]:
    """The text of a call's program, and the names of its inputs, numbers, integers and outputs."""
    if is_compiling():
        scalars = tuple([name for name, x in call.inputs.items() if isinstance(x, Tensor) and x.dim() == 0])
        found: tuple[Any, ...] = described(
            address(call.graph),
            address(call.spec),
            "matrix",
            scalars,
            call.backend,
            tuple(call.inputs),
            call.fields,
        )
        return found
    program = _program(call)
    check_names(program, call.inputs)
    return program.text, program.inputs, program.numbers, program.integers, program.outputs


def _program(call: Call) -> Program:
    return program_of(call.graph, call.spec, "matrix", call.inputs, call.backend, call.fields)


def _direct(call: Call, key: Any) -> Any:
    """Run a call that needs neither autograd nor a compiler, mode or transform of torch."""
    program = _program(call)
    gemm = gemm_of(program)
    prepared = gemm.prepared(call.a, call.b, call.groups, call.inputs, call.out, call.backend)
    if key is not None and call.backend is None:
        _remember(key, program.outputs, *prepared[:2])
    return prepared[0](*prepared[1:], None)


def key_of(
    a: Any, b: Any, ends: tuple[Any, Any, Any], others: dict[str, Any] | None, epilogue: Any, tail: Any, fallback: Any
) -> Key | None:  # fmt: skip
    """The key of a call with only these arguments and alpha; None if an argument that must be a tensor is not.

    Args:
        ends: `offs`, `cu_seqlens` and `counts`.
        others: further tensors by name, or None.
    """
    offs, starts, counts = ends
    tensors, names = [a, b, offs if offs is not None else counts if starts is None else starts], None
    if others is not None:
        given = {name: x for name, x in others.items() if x is not None}
        names = tuple(given)
        tensors += given.values()
    try:
        kind = a.shape, b.shape, names, id(epilogue), offs is None, counts is None, tail, fallback
        hash(kind)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return Key(kind, tensors, epilogue)


def again(key: Key, alpha: float) -> Any:
    """D by the cached shortcut of a call; None if there is none, or if it does not match this call."""
    known = _shorts.recent.get(key.kind)
    if known is None or known[0] is not key.epilogue or known[1] is None:
        return None
    if _modes() or _tracing() or forward_ad._current_level >= 0:
        return None
    try:
        return known[1](key.tensors, alpha)
    except TypeError:
        # an argument is not a tensor
        return None


def _remember(key: Key, outputs: tuple[str, ...], prepared: Any, given: tuple[Any, ...]) -> None:
    """Cache a shortcut for `prepared` if its launch reads only tensors that the caller passed."""
    tried = _shorts.recent.get(key.kind, (None, None, 0))[2]
    if tried < ATTEMPTS:
        found = shortcut_of(prepared, key.tensors, given)
        if found is not None and outputs != ("d",):
            found = partial(_named, outputs, found)
        _shorts.put(key.kind, (key.epilogue, found, tried + 1))


def _named(outputs: tuple[str, ...], found: Any, tensors: list[Any], alpha: float) -> Outputs | None:
    """The tuple that the shortcut `found` returns for a call, by name; None if it does not match."""
    made = found(tensors, alpha)
    return None if made is None else Outputs(**dict(zip(outputs, made)))


__all__ = ["again", "key_of", "run"]
