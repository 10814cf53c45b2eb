# SPDX-License-Identifier: Apache-2.0
"""The half of validation that reads addresses: alignment, overlap, workspace."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from cutegemm.errors import InputError, field_error
from cutegemm.problems import Operand, alignment
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import Call, shown

ONLY_ITSELF = "; it may only be {} itself (same pointer, shape, strides and dtype)"
# alignment in bytes that copies and partial results need in workspace
WORKSPACE_ALIGN = 16


def aligned(call: Call, request: Request) -> Call:
    """Set the alignments of a described call from its tensors' addresses.

    Raises:
        InputError: a tensor has elements but no memory, such as a wrapper of other tensors.
    """
    aligns = {name: alignment(_address(name, tensor)) for name, tensor in request.tensors.items()}

    def of(name: str, operand: Operand) -> Operand:
        return dataclasses.replace(operand, align=aligns.get(name, operand.align))

    problem = call.problem
    problem = dataclasses.replace(
        problem,
        a=of("a", problem.a),
        b=of("b", problem.b),
        inputs=tuple((name, of(name, x)) for name, x in problem.inputs),
        outputs=tuple((name, of(name, x)) for name, x in problem.outputs),
    )
    return dataclasses.replace(call, problem=problem)


def _address(name: str, tensor: Any) -> int:
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:
        address = 0
    if address == 0 and tensor.numel():
        rule = f"must be a torch.Tensor with memory of its own, got {type(tensor).__name__}"
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            rule = (
                "is a tensor of torch.func (vmap, grad, jvp), which has no memory; use cutegemm.matmul there"
            )
        raise InputError(rule, field=shown(name))
    return address


def extent_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last; 0 if it is empty."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return int((last + 1) * tensor.element_size())


def same_layout(x: Any, y: Any) -> bool:
    """Shape, strides and dtype agree."""
    return bool(x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype)


def overlaps(request: Request, kinds: Mapping[str, str]) -> None:
    """Check that outputs share no memory with other tensors, or a tile could read what another wrote.

    An output may be a matrix input itself.

    Raises:
        InputError: an output shares memory with an input or another output.
    """
    done: dict[str, Any] = {}
    for name, out in request.outs.items():
        start, size = out.data_ptr(), extent_bytes(out)
        for other, tensor in (*request.read.items(), *done.items()):
            matrix = kinds.get(other) == "matrix"
            first, reach = tensor.data_ptr(), extent_bytes(tensor)
            if not (size and reach and first < start + size and start < first + reach):
                continue
            if not (matrix and first == start and same_layout(tensor, out)) and not apart(out, tensor):
                raise overlap(name, other, matrix)
        done[name] = out


def apart(x: Any, y: Any) -> bool:
    """Whether two matrices with overlapping address ranges share no element: different columns or rows of one buffer.

    True only if both have the same strides: 1 and the buffer's pitch.
    """
    if x.dim() < 2 or x.stride() != y.stride() or x.dtype != y.dtype:
        return False
    row, col = x.stride()[-2:]
    pitch, axis = (row, -1) if col == 1 else (col, -2)
    if min(row, col) != 1 or pitch <= 1 or any(step % pitch for step in x.stride()[:-2]):
        return False
    base = min(x.data_ptr(), y.data_ptr())
    (a, m), (b, n) = (((t.data_ptr() - base) // t.element_size() % pitch, t.shape[axis]) for t in (x, y))
    return bool(a + m <= pitch and b + n <= pitch and (a + m <= b or b + n <= a))


def overlap(name: str, other: str, matrix: bool) -> InputError:
    """The error of an output that shares memory with another tensor."""
    itself = ONLY_ITSELF.format(shown(other)) if matrix else ""
    return InputError(f"overlaps {shown(other)} in memory{itself}", field=shown(name))


def workspace(given: Any, need: int, tensors: Mapping[str, Any]) -> int:
    """Check the caller's workspace and return its address.

    Args:
        given: the argument.
        need: bytes that the call uses.
        tensors: the call's tensors by name; None for an output to be allocated.

    Raises:
        InputError: it is not a dense tensor of `need` bytes, 16-byte aligned, on A's device, disjoint from all others.
    """
    device = tensors["a"].device
    if not isinstance(given, torch.Tensor) or given.is_nested or given.layout is not torch.strided:
        rule = f"must be a uint8 tensor of {need} bytes on {device}"
        raise field_error(InputError, "workspace", given, rule)
    size = given.numel() * given.element_size()
    if given.device != device or size < need or not given.is_contiguous():
        rule = f"must be {need} contiguous bytes on {device}"
        raise field_error(InputError, "workspace", f"{size} bytes on {given.device}", rule)
    start = given.data_ptr()
    if start % WORKSPACE_ALIGN:
        raise field_error(InputError, "workspace", hex(start), "must be 16-byte aligned")
    for name, tensor in tensors.items():
        reach = 0 if tensor is None else extent_bytes(tensor)
        if need and reach and start < tensor.data_ptr() + reach and tensor.data_ptr() < start + need:
            raise InputError(f"overlaps {shown(name)} in memory", field="workspace")
    return start


__all__ = [
    "aligned", "alignment", "apart", "extent_bytes", "overlap", "overlaps", "same_layout", "workspace",
]  # fmt: skip
