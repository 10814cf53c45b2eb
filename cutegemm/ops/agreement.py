# SPDX-License-Identifier: Apache-2.0
"""Checks of types and shapes before torch's functions run a call, so that they refuse the same calls as kernels."""

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
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.run import agreed
from cutegemm.spec import AUTO, GemmSpec

_tracing, _autocast = torch._C._is_tracing, torch._C._is_any_autocast_enabled
# kinds of calls that passed the checks
_known: Memo[bool] = Memo()


def agree_on_type(a: Tensor) -> None:
    """`agree` under torch.compile, where torch's functions check the symbolic extents.

    Raises:
        InputError: no kernel supports A's type.
    """
    if a.dtype not in OPERANDS and not _autocast():
        raise field_error(InputError, "a.dtype", a.dtype, "must be float16, bfloat16 or float32")


@uncompiled
def agree(
    form: str, spec: GemmSpec | None, a: Tensor, b: Tensor, c: Tensor | None, program: Callable[[], Program]
) -> None:
    """Refuse a call that no kernel supports, before torch's functions run it.

    Args:
        form: of the program; spec: as the caller gave it.
        a, b, c: the operands, and C or a bias.
        program: creates the call's program if its kind is not cached.

    Raises:
        InputError: a tensor breaks a rule.
        PlanError: the spec does not support the operands.
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
        # no strides, or symbolic extents
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
    """Check that a value is a strided, non-nested tensor.

    Raises:
        InputError: it is not.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"must be a torch.Tensor, got {type(x).__name__}", name)
    if x.is_nested:
        raise field_error(InputError, name, x, "must be a tensor of one shape, not a nested one")
    # torch.compile traces strided tensors only, and cannot query the layout of all of them
    if not torch.compiler.is_compiling() and x.layout is not torch.strided:
        raise field_error(InputError, f"{name}.layout", x.layout, "must be strided", torch.strided)


def torchs(spec: GemmSpec | None, a: Tensor, c: Tensor | None) -> bool:
    """Whether torch's functions give the same result as a kernel: D as in torch, and a C or bias of A's type.

    Kernels accept a C of any type. Other fields of a spec only concern kernels.
    """
    opened = spec is None or (spec.d_dtype == AUTO and spec.d_major == AUTO)
    return opened and (c is None or c.dtype == a.dtype or _autocast())


def given_outs(program: Program, out: Any) -> dict[str, Any]:
    """The given outputs by name.

    Raises:
        InputError: the program has no such output, or one is not a tensor.
    """
    outs = outputs_given(program.graph, out)
    for name, x in outs.items():
        check_tensor(shown(name), x)
    return outs


__all__ = ["agree", "agree_on_type", "check_tensor", "given_outs", "torchs"]
