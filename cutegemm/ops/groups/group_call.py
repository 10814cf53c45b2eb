# SPDX-License-Identifier: Apache-2.0
"""Calls of `grouped_mm` that have been read: who serves them, directly or through torch's dispatcher."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import address
from cutegemm.ops.groups.grouped_epilogue import own_of, recorded
from cutegemm.ops.groups.grouped_op import gemm_of
from cutegemm.ops.groups.routing import gathered
from cutegemm.ops.products import check_names, described, is_compiling, outs_of, program_of
from cutegemm.ops.quantized.operands import Kinds
from cutegemm.running.arguments.call import NOWHERE, Memo
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.groups import Groups
from cutegemm.running.kind import Prepared
from cutegemm.spec import GemmSpec

# what serves calls on GPUs that say nothing else, by `short_key`
SHORTS: Memo[Prepared] = Memo()


class Asked(NamedTuple):
    """What a call's program is made of.

    Attributes:
        graph: the epilogue, without the operands' scales.
        spec: as the caller gave it; dtype: of a new D.
        kinds: of scales that the spec leaves open.
        backend: as of `Gemm.run`.
        alone: whether the caller gave no epilogue.
    """

    graph: Any
    spec: GemmSpec | None
    dtype: Any
    kinds: Kinds
    backend: str | None
    alone: bool


class Call(NamedTuple):
    """A call: its tensors, its groups with rows that a kernel gathers, what the epilogue reads, and its program."""

    a: Tensor
    b: Tensor
    groups: Groups
    out: Any
    inputs: dict[str, Any]
    asked: Asked


def run(call: Call, key: Any) -> Any:
    """Serve a call; what served it is kept under `key`, unless that is None.

    Raises:
        GemmError: as of `grouped_mm`.
    """
    a, b, groups, out, inputs, asked = call
    ends, rows = groups.ends, groups.rows
    tensors = [x for x in inputs.values() if isinstance(x, Tensor)]
    taped = recording(a, b, *tensors)
    if not taped and not is_compiling() and direct(a, b, ends, *tensors):
        return _direct(call, key)
    if rows is not None:
        a = gathered(a, rows)
    told = groups.how(a, b)
    how = told.text
    if taped and not asked.alone and out is None:
        own = own_of(address(asked.graph), told.form)
        if own is not None:
            return recorded(a, b, ends, how, asked.graph, asked.spec, asked.dtype, own, inputs, asked.backend)
    text, names, numbers, integers, outputs = _known(asked, inputs)
    args = (
        a, b, ends, [inputs[x] for x in names], [float(inputs[x]) for x in numbers], [inputs[x] for x in integers],
        text, how,
    )  # fmt: skip
    op = torch.ops.cutegemm.grouped_mm
    if out is not None:
        outs = outs_of(outputs, out)
        op.out(*args, out=outs)
        return out if isinstance(out, Tensor) else Outputs(**dict(zip(outputs, outs)))
    return op.default(*args) if outputs == ("d",) else Outputs(**dict(zip(outputs, op.many(*args))))


def _known(asked: Asked, inputs: dict[str, Any]) -> tuple[Any, ...]:
    """The text of a call's program, and the names of what it takes and gives."""
    graph, spec, dtype, kinds, backend, _ = asked
    if is_compiling():
        scalars = tuple([name for name, x in inputs.items() if isinstance(x, Tensor) and x.dim() == 0])
        found: tuple[Any, ...] = described(
            address(graph), address(spec), "matrix", scalars, backend, tuple(inputs), kinds, dtype
        )
        return found
    program = program_of(graph, spec, "matrix", inputs, backend, kinds, dtype)
    check_names(program, inputs)
    return program.text, program.inputs, program.numbers, program.integers, program.outputs


def _direct(call: Call, key: Any) -> Any:
    """A call of which torch need not know."""
    a, b, groups, out, inputs, asked = call
    program = program_of(asked.graph, asked.spec, "matrix", inputs, asked.backend, asked.kinds, asked.dtype)
    prepared = gemm_of(program).prepared(a, b, groups, inputs, out, asked.backend)
    if key is not None and asked.backend is None:
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


__all__ = ["SHORTS", "Asked", "Call", "run", "short_key"]
