# SPDX-License-Identifier: Apache-2.0
"""Runs a GEMM from a function's arguments: directly by kernels, recorded by autograd, or through the op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scaling import PLAIN as SUM
from cutegemm.epilogue.scaling import scaled, shifted
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.ops.agreement import check_tensor, given_outs
from cutegemm.ops.dispatch import direct
from cutegemm.ops.fallback import address, constant, found_at, refuse_atomic
from cutegemm.ops.gradients.autograd import record
from cutegemm.ops.program import Program, check_number, kept
from cutegemm.ops.quantized.operands import FIELDS, KINDS, NONE, Kinds
from cutegemm.ops.serve import serve
from cutegemm.ops.transforms import sharding
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.named import Signature
from cutegemm.running.arguments.results import Outputs
from cutegemm.spec import AUTO, GemmSpec

_DEFAULT = GemmSpec()
BACKENDS: dict[str, Any] = {"gpu": None, "reference": "reference", "emulator": "emulator"}
is_compiling = torch.compiler.is_compiling

# Programs of recent calls, by the identities of spec and epilogue, which an entry keeps alive.
_recent: Memo[tuple[Any, Any, Program]] = Memo()


def product(
    a: Tensor,
    b: Tensor,
    epilogue: Graph | None,
    spec: GemmSpec | None,
    form: str,
    named: dict[str, Any],
    out: Any,
    who: str,
    kinds: Kinds = NONE,
) -> Any:
    """Run a GEMM directly by kernels, or through the op if torch must see it.

    Args:
        a, b, epilogue, spec, out: as the caller gave them.
        form: of the program.
        named: the epilogue's inputs, and scales whose kinds are inferred, by name.
        who: the result of `fallback.server`.
        kinds: of the inferred scales.
    """
    if spec is not None and spec.split_reduction == "atomic" and torch.are_deterministic_algorithms_enabled():
        refuse_atomic()
    backend = BACKENDS.get(who)
    if is_compiling():
        scalars = tuple([name for name, x in named.items() if isinstance(x, Tensor) and x.dim() == 0])
        text, names, numbers, integers, outputs = described(
            address(epilogue), address(spec), form, scalars, backend, tuple(named), kinds
        )
        tensors = [named[x] for x in names]
        floats = [named[x] if type(named[x]) is float else float(named[x]) for x in numbers]
        whole = [named[x] for x in integers]
        return through_the_op(a, b, tensors, floats, whole, text, outputs, out)
    program = program_of(epilogue, spec, form, named, backend, kinds)
    check_names(program, named)
    tensors = [named[x] for x in program.inputs]
    outs = None if out is None else given_outs(program, out)
    floats = [number_of(name, "scalar", named[name]) for name in program.numbers]
    whole = [number_of(name, "integer", named[name]) for name in program.integers]
    if direct(a, b, *tensors) and not torch._C._is_any_autocast_enabled():
        recorded = torch.is_grad_enabled() and (
            a.requires_grad or b.requires_grad or any([x.requires_grad for x in tensors])
        )
        if not recorded:
            found = serve(program, a, b, tensors, floats, whole, outs)
            if outs:
                found = tuple([outs.get(name, x) for name, x in zip(program.outputs, found)])
            return found[0] if program.alone else Outputs(**dict(zip(program.outputs, found)))
        if out is None:
            found = record((program, floats, whole), a, b, *tensors)
            return found if program.alone else Outputs(**dict(zip(program.outputs, found)))
    for name, x in zip(program.inputs, tensors):
        check_tensor(name, x)
    return through_the_op(a, b, tensors, floats, whole, program.text, program.outputs, out)


def through_the_op(
    a: Tensor, b: Tensor, tensors: Any, numbers: Any, integers: Any, text: str, outputs: Any, out: Any = None
) -> Any:
    """Run a GEMM through the op, from a program's text and its inputs in order."""
    if not is_compiling():
        sharding.ensure()
    op = torch.ops.cutegemm.gemm
    if out is not None:
        outs = outs_of(outputs, out)
        op.out(a, b, tensors, numbers, integers, text, out=outs)
        return out if isinstance(out, Tensor) else Outputs(**dict(zip(outputs, outs)))
    if len(outputs) == 1 and outputs[0] == "d":
        return op.default(a, b, tensors, numbers, integers, text)
    return Outputs(**dict(zip(outputs, op.many(a, b, tensors, numbers, integers, text))))


def outs_of(outputs: tuple[str, ...], out: Any) -> list[Tensor]:
    """The tensors of `out`, in the order of the program's outputs.

    Raises:
        InputError: an output is missing.
    """
    outs = {"d": out} if isinstance(out, Tensor) else out
    if not isinstance(outs, Mapping) or tuple(sorted(outs)) != tuple(sorted(outputs)):
        rule = "must have every output if the call is compiled or transformed"
        raise InputError(f"{rule}: {', '.join(outputs)}", field="out")
    return [outs[x] for x in outputs]


@constant
def described(
    epilogue: int, spec: int, form: str, scalars: Any, backend: Any, names: Any, kinds: Kinds
) -> tuple[Any, ...]:
    """A program for torch.compile: its text, and the names of its inputs and outputs."""
    sharding.ensure()
    program = made(found_at(epilogue), found_at(spec), form, scalars, backend, kinds)
    check_names(program, dict.fromkeys(names, 0))
    return program.text, program.inputs, program.numbers, program.integers, program.outputs


def program_of(
    epilogue: Graph | None,
    spec: GemmSpec | None,
    form: str,
    named: Mapping[str, Any],
    backend: Any,
    kinds: Kinds = NONE,
) -> Program:
    """The program of a call: the same object for the same spec and epilogue."""
    scalars = tuple([name for name, x in named.items() if isinstance(x, Tensor) and x.dim() == 0])
    key = id(epilogue), id(spec), form, scalars, backend, kinds
    found = _recent.get(key)
    if found is None:
        found = epilogue, spec, made(epilogue, spec, form, scalars, backend, kinds)
        _recent.put(key, found)
    return found[2]


def made(
    epilogue: Any, spec: Any, form: str, tensors: tuple[str, ...], backend: Any, kinds: Kinds = NONE
) -> Program:
    """Create a program from the caller's arguments; `kinds` are of scales that the spec does not specify.

    Raises:
        SpecError: the epilogue is not a graph, or there are two.
    """
    spec = _DEFAULT if spec is None else spec
    if isinstance(epilogue, Graph) and epilogue == spec.epilogue:
        # the scales are added to the spec's epilogue below
        epilogue = None
    if any(kinds):
        spec = dataclasses.replace(
            spec, **{x: KINDS.get(kind, kind) for x, kind in zip((*FIELDS, "d_dtype"), kinds) if kind}
        )
    scales = {x: kind for x in ("a", "b") if (kind := getattr(spec, f"scale_{x}")) != AUTO}
    points = {x: kind for x, kind in zip("ab", spec.zero_points) if kind}
    if (scales or points) and isinstance(epilogue, Graph):
        if spec.epilogue == shifted(scaled(SUM, scales), points):
            epilogue, spec = None, dataclasses.replace(spec, epilogue=epilogue)
    if spec.epilogue != AUTO:
        if epilogue is not None and epilogue != spec.epilogue:
            raise field_error(SpecError, "epilogue", "...", "the spec already has an epilogue")
        # the graph already contains the scales
        epilogue = spec.epilogue
        spec = dataclasses.replace(spec, epilogue=AUTO, **dict.fromkeys(FIELDS, AUTO))
    # GemmSpec checks that it is a graph
    graph = GemmSpec(epilogue=epilogue).epilogue
    if not isinstance(graph, Graph):
        rule = "must be an epilogue graph, or None"
        raise field_error(SpecError, "epilogue", epilogue, rule)
    scalars = tuple(x for x, kind in graph.numbers.items() if kind == "scalar" and x in tensors)
    return kept(Program(spec, graph.finished(), form, scalars, backend))


def check_names(program: Program, named: Mapping[str, Any]) -> None:
    """Refuse a call whose names are not exactly the epilogue's inputs."""
    if len(named) == len(program.inputs) + len(program.numbers) + len(program.integers):
        if all(
            [x in named and named[x] is not None for x in (*program.graph.tensors, *program.graph.numbers)]
        ):
            return
    # raises an error about the first wrong name
    Signature(program.graph).bind(None, None, named, None)


def number_of(name: str, kind: str, value: Any) -> Any:
    """Convert a number that the epilogue reads to the op's type.

    Raises:
        InputError: it is not a number.
    """
    return value if type(value) is float and kind == "scalar" else check_number(name, kind, value)


__all__ = [
    "BACKENDS",
    "check_names",
    "described",
    "is_compiling",
    "made",
    "number_of",
    "outs_of",
    "product",
    "program_of",
    "through_the_op",
]
