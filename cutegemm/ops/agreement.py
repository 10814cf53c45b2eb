# SPDX-License-Identifier: Apache-2.0
"""What kernels refuse is refused before torch's own functions serve a call: one check of types and shapes for both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutegemm.errors import InputError, field_error
from cutegemm.ops.fallback import HALF, autocast_to, autocast_type
from cutegemm.ops.layouts import as_called, matrices, numeric
from cutegemm.ops.program import Program
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.describe import OPERANDS, shown
from cutegemm.running.arguments.named import outputs_given
from cutegemm.running.run import agreed
from cutegemm.spec import AUTO, GemmSpec

_tracing, _autocast = torch._C._is_tracing, torch._C._is_any_autocast_enabled
# kinds of calls that were found legal
_known: Memo[bool] = Memo()


def agree_on_type(a: Tensor) -> None:
    """`agree` for a compiler, for which extents are symbols that torch's functions check.

    Raises:
        InputError: no kernel has A's type.
    """
    if a.dtype not in OPERANDS and not _autocast():
        raise field_error(InputError, "a.dtype", a.dtype, "must be float16, bfloat16 or float32")


def agree(
    form: str, spec: GemmSpec | None, a: Tensor, b: Tensor, c: Tensor | None, program: Callable[[], Program]
) -> None:
    """Refuse a call that no kernel would serve, before torch's functions do.

    Args:
        form: of the program; spec: of the caller.
        a, b, c: the operands, and C or a bias.
        program: makes the call's program, where its kind is not known.

    Raises:
        InputError: a tensor breaks a rule.
        PlanError: the spec cannot serve the operands.
    """
    if _tracing():
        agree_on_type(a)
        return
    dtype = autocast_type(a.device) if _autocast() else None
    dtype = dtype if dtype in HALF else None
    tensors = (a, b) if c is None else (a, b, c)
    key: Any
    try:
        what = form if spec is None else program()
        key = (what, dtype, *[(x.shape, x.stride(), x.dtype, x.device) for x in tensors])
        if _known.get(key):
            return
    except (RuntimeError, TypeError):
        # no strides, or extents that are symbols
        key = None
    if not all(numeric(x) for x in tensors):
        return
    made = program()
    if dtype is not None:
        a, b = autocast_to(dtype, a), autocast_to(dtype, b)
    asked = made.spec if made.plain else dataclasses.replace(made.spec, epilogue=made.graph)
    try:
        with torch.no_grad():
            agreed(asked, made.graph, matrices(made, a, b, tensors[2:]).request())
    except InputError as error:
        raise as_called(made, error, a, b) from None
    if key is not None:
        _known.put(key, True)


def check_tensor(name: str, x: Any) -> None:
    """Refuse what is not a strided tensor of one shape.

    Raises:
        InputError: it is none.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"must be a torch.Tensor, got {type(x).__name__}", field=name)
    if x.is_nested:
        raise field_error(InputError, name, x, "must be a tensor of one shape, not a nested one")
    # a compiler's graphs have no other tensors, and it does not say the layout of all of them
    if not torch.compiler.is_compiling() and x.layout is not torch.strided:
        raise field_error(InputError, f"{name}.layout", x.layout, "must be strided", torch.strided)


def torchs(spec: GemmSpec | None, a: Tensor, c: Tensor | None) -> bool:
    """Whether torch's functions give what a kernel gives: D as torch has it, and a C or bias of A's type.

    Kernels take a C of any type. What else a spec says is about kernels alone.
    """
    opened = spec is None or (spec.d_dtype == AUTO and spec.d_major == AUTO)
    return opened and (c is None or c.dtype == a.dtype or _autocast())


def given_outs(program: Program, out: Any) -> dict[str, Any]:
    """The outputs that are given, by name.

    Raises:
        InputError: there is no such output, or what is given is no tensor.
    """
    outs = outputs_given(program.graph, out)
    for name, x in outs.items():
        check_tensor(shown(name), x)
    return outs


__all__ = ["agree", "agree_on_type", "check_tensor", "given_outs", "torchs"]
