# SPDX-License-Identifier: Apache-2.0
"""Calls of `grouped_mm` that have been read: who serves them, directly or through torch's dispatcher."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import Graph
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.fallback import address, constant, found_at
from cutegemm.ops.groups.grouped_epilogue import recorded, rows_of
from cutegemm.ops.groups.grouped_op import gemm_of
from cutegemm.ops.groups.routing import gathered
from cutegemm.ops.products import check_names, is_compiling, made, outs_of
from cutegemm.ops.program import Program, decode
from cutegemm.ops.quantized.operands import NONE, Kinds
from cutegemm.running.arguments.call import NOWHERE, Memo
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.groups import Groups
from cutegemm.running.kind import Prepared
from cutegemm.spec import GemmSpec

# programs of recent calls, by the identities of spec and epilogue, which they keep alive
_recent: Memo[tuple[Any, Any, Program]] = Memo()
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

    @property
    def how(self) -> str:
        """How groups are told (`grouped_op`)."""
        return self.groups.how(self.a, self.b).text


def run(call: Call, key: Any) -> Any:
    """Serve a call; what served it is kept under `key`, unless that is None.

    Raises:
        GemmError: as of `grouped_mm`.
    """
    a, b, groups, out, inputs, asked = call
    ends, rows = groups.ends, groups.rows
    tensors = [x for x in inputs.values() if isinstance(x, Tensor)]
    taped = recording(a, b, *tensors)
    if taped and not asked.alone and out is None:
        read = rows_of(address(asked.graph))
        if read is not None:
            a = a if rows is None else gathered(a, rows)
            return recorded(
                a, b, ends, call.how, asked.graph, asked.spec, asked.dtype, read, inputs, asked.backend
            )
    if is_compiling():
        return _compiled(call)
    if not taped and direct(a, b, ends, *tensors):
        return _direct(call, key)
    if rows is not None:
        a = gathered(a, rows)
    program = _program(asked, inputs)
    check_names(program, inputs)
    text, names, numbers, integers = program.text, program.inputs, program.numbers, program.integers
    return _through_the_op(a, b, ends, text, names, numbers, integers, inputs, call.how, out)


def _direct(call: Call, key: Any) -> Any:
    """A call of which torch need not know."""
    program = _program(call.asked, call.inputs)
    prepared = gemm_of(program).prepared(
        call.a, call.b, call.groups, call.inputs, call.out, call.asked.backend
    )
    if key is not None and call.asked.backend is None:
        SHORTS.put(key, prepared[0])
    return prepared[0](*prepared[1:], None)


def _through_the_op(
    a: Tensor, b: Tensor, ends: Any, text: str, names: Any, numbers: Any, integers: Any, given: Any, how: str,
    out: Any = None,
) -> Any:  # fmt: skip
    """A call by the op, where torch must know of it."""
    args = (
        a, b, ends, [given[x] for x in names], [float(given[x]) for x in numbers], [given[x] for x in integers],
        text, how,
    )  # fmt: skip
    op, outputs = torch.ops.cutegemm.grouped_mm, _outputs(text)
    if out is not None:
        outs = outs_of(outputs, out)
        op.out(*args, out=outs)
        return out if isinstance(out, Tensor) else Outputs(**dict(zip(outputs, outs)))
    if outputs == ("d",):
        return op.default(*args)
    return Outputs(**dict(zip(outputs, op.many(*args))))


@constant
def _outputs(text: str) -> tuple[str, ...]:
    return decode(text).outputs


def _compiled(call: Call) -> Any:
    """A call that torch.compile traces."""
    asked, given = call.asked, call.inputs
    scalars = tuple([name for name, x in given.items() if isinstance(x, Tensor) and x.dim() == 0])
    found = _described(
        address(asked.graph),
        address(asked.spec),
        asked.dtype,
        scalars,
        asked.backend,
        tuple(given),
        asked.kinds,
    )
    text, names, numbers, integers = found
    return _through_the_op(
        call.a, call.b, call.groups.ends, text, names, numbers, integers, given, call.how, call.out
    )


@constant
def _described(
    graph: int, spec: int, dtype: Any, scalars: Any, backend: Any, names: Any, kinds: Kinds
) -> Any:
    """What a compiler needs to know of a program: its text, and the names of what it takes."""
    program = _made(Asked(found_at(graph), found_at(spec), dtype, kinds, backend, True), scalars)
    check_names(program, dict.fromkeys(names, 0))
    return program.text, program.inputs, program.numbers, program.integers


def _program(asked: Asked, given: dict[str, Any]) -> Program:
    """The program of a call: the same object for the same spec and epilogue."""
    scalars = tuple([name for name, x in given.items() if isinstance(x, Tensor) and x.dim() == 0])
    key = id(asked.graph), id(asked.spec), asked.dtype, scalars, asked.backend, asked.kinds
    found = _recent.recent.get(key)
    if found is None:
        found = asked.graph, asked.spec, _made(asked, scalars)
        _recent.put(key, found)
    return found[2]


def _made(asked: Asked, scalars: tuple[str, ...]) -> Program:
    """The program of what the caller gave.

    Raises:
        SpecError: no epilogue graph, or two of them.
    """
    spec = GemmSpec() if asked.spec is None else asked.spec
    if asked.dtype is not None:
        spec = dataclasses.replace(spec, d_dtype=as_dtype(asked.dtype, "out_dtype"))
    # an epilogue of the spec's is scaled there
    graph = None if asked.kinds != NONE and asked.graph == spec.epilogue else asked.graph
    return made(graph, spec, "matrix", scalars, asked.backend, asked.kinds)


def program_of(graph: Graph, spec: GemmSpec | None) -> Program:
    """The program of a call that reads nothing but numbers."""
    return _program(Asked(graph, spec, None, NONE, None, True), {})


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


__all__ = ["SHORTS", "Asked", "Call", "program_of", "run", "short_key"]
