# SPDX-License-Identifier: Apache-2.0
"""Runs a stage's real plan and real PTX in the emulator, on CPU tensors."""

import math

import torch

from cutegemm import emulator
from handwritten.ladder.emulated import SMS, launched
from handwritten.ladder.launch import describe
from handwritten.ladder.problem import ELEMENT_BYTES, Problem
from tests.support import numerics

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_SECONDS = 60.0


def matrix(rows: int, cols: int, major: str, dtype: str, align: int, seed: int) -> torch.Tensor:
    """A random matrix whose pitch is rounded up to `align` bytes; what lies between rows is NaN."""
    slow, fast = (cols, rows) if major == "c" else (rows, cols)
    step = max(align // ELEMENT_BYTES[dtype], 1)
    storage = torch.full((slow, -(-fast // step) * step), math.nan, dtype=DTYPES[dtype])
    values = torch.randn(slow, fast, generator=torch.Generator().manual_seed(seed))
    storage[:, :fast] = values.to(DTYPES[dtype])
    view = storage[:, :fast]
    return view.t() if major == "c" else view


def buffer(name: str, tensor: torch.Tensor) -> emulator.Buffer:
    """The tensor's memory, and nothing beside it."""
    span = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride())) + 1
    return emulator.Buffer(tensor.data_ptr(), span * tensor.element_size(), name)


def solve(stage, dtype, shape, majors="rr", alpha=2.0, beta=0.5, sms=SMS, **options):
    """Run the stage, compare with fp64, and return the race detector's findings.

    D starts as NaN; with beta = 0 so does C.
    """
    m, n, k = shape
    align = stage.limits.align
    a, b = matrix(m, k, majors[0], dtype, align, 1), matrix(k, n, majors[1], dtype, align, 2)
    c, d = matrix(m, n, "r", dtype, align, 3), matrix(m, n, "r", dtype, align, 4).fill_(math.nan)
    if beta == 0:
        c.fill_(math.nan)
    problem: Problem = describe(a, b, c, d, alpha=alpha, beta=beta)
    plan = stage.plan(problem, sms)
    workspace = torch.full((max(plan.workspace_bytes, 16),), 0xAB, dtype=torch.uint8)
    workspace[: plan.zeroed_bytes] = 0
    tensors = {"A": a, "B": b, "C": c, "D": d, "workspace": workspace}
    buffers = [buffer(name, tensor) for name, tensor in tensors.items()]
    asked = emulator.Options(max_seconds=MAX_SECONDS, **options)
    reports = launched(stage, plan, dtype, majors, buffers, workspace.data_ptr(), asked)
    numerics.assert_close(d, a, b, c, alpha, beta)
    return [finding for report in reports for finding in report.findings]
