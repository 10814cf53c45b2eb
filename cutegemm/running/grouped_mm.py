# SPDX-License-Identifier: Apache-2.0
"""Groups of rows times a matrix each, in one launch; where the groups end is read on the device.

The core of grouped GEMMs along M. It has no epilogue but alpha, and what lies behind the last group is not written.
"""

from __future__ import annotations

import dataclasses

import torch

from cutegemm.arch.records import DEFAULT
from cutegemm.emulator import run_steps, tensor_buffer
from cutegemm.errors import InputError, field_error
from cutegemm.launch_layout import GROUP_ENDS, layout_of
from cutegemm.planning.grouped import grouped
from cutegemm.problems import Operand, alignment, operand_of
from cutegemm.running import check, steps
from cutegemm.running.describe import OPERANDS, check_tensor
from cutegemm.running.launcher import device_of, function_for
from cutegemm.spec import GemmSpec


def multiply_groups(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    spec: GemmSpec | None = None,
) -> torch.Tensor:
    """D[r] = alpha * A[r] @ B[g] for the rows r of each group g, on a Hopper GPU or, of CPU tensors, in the emulator.

    Args:
        a: (M, K), adjacent along K.
        b: (G, K, N).
        ends: (G,) int32: group g ends before row ends[g], and begins where the one before it ends. What is no such row
            counts as the nearest that is.
        out: (M, N), adjacent along N; None allocates it. Rows behind the last group are not written.
        alpha: a number.
        spec: what is given of the kernel.

    Raises:
        InputError: a tensor breaks a rule; nothing has been written.
        PlanError: no kernel of groups serves the operands under the spec.
        HardwareError: the device is not a Hopper GPU.
    """
    _check(a, b, ends, out)
    d = torch.empty(a.shape[0], b.shape[2], dtype=a.dtype, device=a.device) if out is None else out
    if not d.numel():
        return d
    tensors = {"a": a, "b": b, "d": d, GROUP_ENDS: ends}
    for name, x in tensors.items():
        if name != "d" and _overlap(x, d):
            raise check.overlap("d", name, False)
    device = device_of(a.device) if a.is_cuda else DEFAULT
    step = grouped(spec or GemmSpec(), _lies(a), _lies(b), _lies(d), device)
    values = step.values({name: x.data_ptr() for name, x in tensors.items()}, 0, {"alpha": float(alpha)})
    packed = layout_of(step.config).pack(values)
    if a.is_cuda:
        with torch.cuda.device(a.device):
            function = function_for(step.config, a.device.index)
            function(*packed, torch.cuda.current_stream().cuda_stream)
    else:
        # rows behind the last group are not written, so nobody asks whether all of D is
        buffers = [tensor_buffer(x, name) for name, x in tensors.items()]
        run_steps(steps.of_launch(step.config, (*packed, 0)), buffers)
    return d


def _lies(x: torch.Tensor) -> Operand:
    return dataclasses.replace(operand_of(x), align=alignment(x.data_ptr()))


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    first, other = x.data_ptr(), y.data_ptr()
    return first < other + check.extent_bytes(y) and other < first + check.extent_bytes(x)


def _check(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, out: torch.Tensor | None) -> None:
    """Types, ranks, extents, devices and strides.

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    check_tensor("a", a, (2,), OPERANDS)
    check_tensor("b", b, (3,), (a.dtype,))
    check_tensor("ends", ends, (1,), (torch.int32,))
    groups, depth, columns = b.shape
    _agree("b.shape", tuple(b.shape), depth == a.shape[1], f"must have {a.shape[1]} rows (K) in each matrix")
    rule = "must have a matrix for each group, apart in memory, and at least one"
    _agree("b.stride()", b.stride(), groups > 0 and (groups == 1 or b.stride(0) > 0), rule)
    _agree("ends.shape", tuple(ends.shape), ends.shape[0] == groups, f"must be ({groups},)")
    _agree("ends.stride()", ends.stride(), ends.is_contiguous(), "must be contiguous")
    given = {"b": b, "ends": ends}
    if out is not None:
        check_tensor("out", out, (2,), OPERANDS)
        shape = (a.shape[0], columns)
        _agree("out.shape", tuple(out.shape), tuple(out.shape) == shape, f"must be {shape}")
        given["out"] = out
    for name, x in given.items():
        _agree(f"{name}.device", str(x.device), x.device == a.device, f"must be a's device, {a.device}")


def _agree(field: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise field_error(InputError, field, value, rule)


__all__ = ["multiply_groups"]
