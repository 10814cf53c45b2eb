# SPDX-License-Identifier: Apache-2.0
"""Runs a call of the op on real tensors by `Gemm.run`, on the GPU, the reference or the emulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from cutegemm.arch import records
from cutegemm.epilogue.graph import STORE
from cutegemm.epilogue.result import SCALE
from cutegemm.errors import InputError, field_error
from cutegemm.ops.layouts import Matrices, as_called, matrices, unfolded
from cutegemm.ops.program import Program
from cutegemm.problems import columns
from cutegemm.running.arguments.describe import shown
from cutegemm.running.backends.uncompiled import uncompiled


@cache
def hopper(device: torch.device) -> bool:
    """Whether kernels run on a device: a CUDA device of compute capability 9.0."""
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == records.DEFAULT.limits.capability


@uncompiled
def serve(
    program: Program,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[float],
    integers: Sequence[int],
    outs: Mapping[str, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """All outputs of a call, in the graph's order.

    Args:
        program: of the call.
        a, b: the operands in the program's form.
        inputs: of the epilogue, in the order of `Program.inputs`.
        numbers, integers: in the order of `Program.numbers` and `Program.integers`.
        outs: given outputs by name.

    Raises:
        GemmError: see `Gemm.run`.
    """
    try:
        backend: Any = program.backend
        if backend is None and a.is_cuda and not hopper(a.device):
            backend = "reference"
        short = outs is None and program.plain
        if short and not inputs and (program.form == "matrix" or a.dim() == b.dim() == 2):
            # most calls are of this kind
            left, right = a, b
            if program.form == "linear":
                right = b.t()
            elif program.form == "weight":
                left = a.t()
            return (program.gemm.run(left, right, alpha=numbers[0], backend=backend),)
        call = matrices(program, a, b, inputs)
        if program.merged:
            return _merged(program, call, dict(call.inputs) | program.named(numbers, integers), backend, outs)
        if short:
            c, beta = (call.inputs["c"], numbers[1]) if inputs else (None, None)
            found = program.gemm.run(call.a, call.b, c, alpha=numbers[0], beta=beta, backend=backend)
            return (unfolded(program, found, "d", call.lead),)
        named: dict[str, Any] = call.inputs
        if numbers or integers:
            named = named | program.named(numbers, integers)
        if outs is None and program.alone:
            found = program.gemm.run(call.a, call.b, backend=backend, **named)
            return (found if call.lead is None else unfolded(program, found, "d", call.lead),)
        given = (
            None
            if outs is None
            else {name: _folded_out(program, name, x, a.shape[:-1]) for name, x in outs.items()}
        )
        out: Any = given.get("d") if given and program.alone else given
        found = program.gemm.run(call.a, call.b, out=out, backend=backend, **named)
        if program.alone:
            return (unfolded(program, found, "d", call.lead),)
        return tuple(unfolded(program, getattr(found, x), x, call.lead) for x in program.outputs)
    except InputError as error:
        raise as_called(program, error, a, b) from None


def _merged(
    program: Program, call: Matrices, named: dict[str, Any], backend: Any, outs: Any
) -> tuple[torch.Tensor, ...]:
    """All outputs of a call that stores two matrices side by side in one tensor.

    Raises:
        InputError: outputs are given.
    """
    if outs is not None:
        raise InputError("merged outputs share one tensor, which the call allocates", field="out")
    rows, width = call.a.shape[-2], columns(program.graph, call.b.shape[-1])
    whole = call.a.new_empty((rows, width * len(program.merged)))
    parts = dict(zip(program.merged, whole.split(width, -1)))
    found = program.gemm.run(call.a, call.b, out=parts, backend=backend, **named)
    given = {name: whole if name in parts else getattr(found, name) for name in program.outputs}
    return tuple(unfolded(program, x, name, call.lead) for name, x in given.items())


def _folded_out(program: Program, name: str, x: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """A given output as the GEMM writes it: the same memory with leading dimensions folded.

    Raises:
        InputError: it has other leading dimensions, or its layout does not allow folding them.
    """
    if program.form in ("matrix", "weight"):
        return x
    result = next(r for r in program.graph.outputs if r.name == name)
    if result.kind == SCALE:
        return _folded_scale(name, x, lead, result.block)
    given = x.shape[:-1] if result.kind == STORE and x.dim() else x.shape
    nothing = result.kind == STORE and x.dim() == 0
    if nothing or ((result.kind == STORE or result.axis == 1) and given != lead):
        rule = f"must begin with the dimensions {tuple(lead)} of x"
        raise field_error(InputError, f"{shown(name)}.shape", tuple(x.shape), rule)
    if result.kind != STORE:
        return x.view(-1) if result.axis == 1 else x
    try:
        return x.view(-1, x.shape[-1]) if x.dim() != 2 else x
    except RuntimeError as error:
        rule = "it must be possible to view its leading dimensions as one"
        raise field_error(InputError, "out.stride()", x.stride(), rule) from error


def _folded_scale(name: str, x: torch.Tensor, lead: tuple[int, ...], block: int) -> torch.Tensor:
    """Given scales of D's blocks as the GEMM writes them; blocks of many rows count rows of all leading dimensions.

    Raises:
        InputError: they have other leading dimensions, or their layout does not allow folding them.
    """
    if block > 1:
        return x
    if x.dim() != len(lead) + 1 or x.shape[:-1] != lead:
        rule = f"must begin with the dimensions {tuple(lead)} of x"
        raise field_error(InputError, f"{name}.shape", tuple(x.shape), rule)
    try:
        # each column of blocks is contiguous
        return x.movedim(-1, 0).view(x.shape[-1], math.prod(lead)).mT
    except RuntimeError as error:
        rule = "it must be possible to view its leading dimensions as one"
        raise field_error(InputError, f"{name}.stride()", x.stride(), rule) from error


__all__ = ["hopper", "serve"]
