# SPDX-License-Identifier: Apache-2.0
"""Input sets: so many copies of one problem's operands that a launch finds nothing of its own in L2."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.results import Case

L2_BYTES = 50 * 2**20  # of an H100 or H200, CUDA C++ Programming Guide
ROTATION_BYTES = 2 * L2_BYTES  # touched between two uses of a set: evicts it without relying on exact LRU
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MAJORS = ("kk", "kn", "mk", "mn")


@dataclass(frozen=True)
class InputSet:
    """One problem's operands: a (M, K), b (K, N) and the output out (M, N)."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def set_bytes(case: Case) -> int:
    """Bytes of one input set."""
    elements = case.m * case.k + case.k * case.n + case.m * case.n
    return elements * DTYPES[case.dtype].itemsize


def set_count(case: Case) -> int:
    """How many input sets to rotate: at least two, and together at least `ROTATION_BYTES`."""
    return max(2, -(-ROTATION_BYTES // set_bytes(case)))


def make_sets(case: Case, device: str, count: int, seed: int = 0) -> list[InputSet]:
    """Draw A and B from a standard normal distribution; D is allocated, row-major, and holds anything.

    Raises:
        ValueError: the case is batched.
    """
    if case.batch != 1:
        raise ValueError(f"batch={case.batch}: must be 1, the nearest legal value")
    generator = torch.Generator(device).manual_seed(seed)

    def draw(rows: int, cols: int, row_major: bool) -> torch.Tensor:
        shape = (rows, cols) if row_major else (cols, rows)
        values = torch.randn(shape, generator=generator, device=device, dtype=DTYPES[case.dtype])
        return values if row_major else values.T

    return [
        InputSet(
            a=draw(case.m, case.k, case.majors[0] == "k"),
            b=draw(case.k, case.n, case.majors[1] == "n"),
            out=torch.empty(case.m, case.n, device=device, dtype=DTYPES[case.dtype]),
        )
        for _ in range(count)
    ]
