# SPDX-License-Identifier: Apache-2.0
"""Calls of `grouped_mm` that have been read: who serves them, directly or through torch's dispatcher."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import address
from cutegemm.ops.groups.gathering import gathered
from cutegemm.ops.groups.group_gradient import added_to_main_grad
from cutegemm.ops.groups.grouped_epilogue import own_of, recorded
from cutegemm.ops.groups.grouped_op import Call, gemm_of
from cutegemm.ops.products import check_names, described, is_compiling, outs_of, program_of
from cutegemm.ops.program import Program
from cutegemm.running.arguments.call import NOWHERE, Memo
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.kind import Prepared

# what serves calls on GPUs that say nothing else, by `short_key`
SHORTS: Memo[Prepared] = Memo()


def run(call: Call, key: Any) -> Any:
    """Serve a call; what served it is kept under `key`, unless that is None.

    Raises:
        GemmError: as of `grouped_mm`.
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
        return added_to_main_grad(found, a, b, ends, how, inputs["alpha"], call.backend, call.main)
    return op.default(*args) if outputs == ("d",) else Outputs(**dict(zip(outputs, op.many(*args))))


def _known(call: Call) -> tuple[Any, ...]:
    """The text of a call's program, and the names of what it takes and gives."""
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
    """A call of which torch need not know."""
    gemm = gemm_of(_program(call))
    prepared = gemm.prepared(call.a, call.b, call.groups, call.inputs, call.out, call.backend)
    if key is not None and call.backend is None:
        SHORTS.put(key, prepared[0])
    return prepared[0](*prepared[1:], None)


def short_key(
    a: Any, b: Any, ends: Any, offs: Any, starts: Any, counts: Any, tail: Any, fallback: Any
) -> Any:
    """(what a call without an epilogue is remembered by, its addresses); (None, None) of one that is not.

    On the path of every call, so written out.
    """
    try:
        if not direct(a, b, ends) or torch._C._is_any_autocast_enabled():
            return None, None
        if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
            return None, None
        p, q, r = a.data_ptr(), b.data_ptr(), ends.data_ptr()
        if not (p and q and r):
            return None, None
        key = (
            a.shape, a.stride(), a.dtype, a.get_device(), a.is_neg(),
            b.shape, b.stride(), b.dtype, b.get_device(), b.is_neg(),
            ends.shape, ends.stride(), ends.dtype, ends.get_device(),
            p & 15 | (q & 15) << 4 | (r & 15) << 8,
            offs is None, starts is None, counts is None, tail, fallback,
        )  # fmt: skip
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return None, None
    return key, (p, q, NOWHERE, r)


__all__ = ["SHORTS", "run", "short_key"]
