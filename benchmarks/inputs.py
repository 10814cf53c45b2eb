# SPDX-License-Identifier: Apache-2.0
"""Input sets: enough copies of a problem's operands that a launch finds none of its own in L2."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.results import Case
from cutegemm.arch.records import RECORDS

L2_BYTES = max(record.l2_bytes for record in RECORDS)  # the largest of all known GPUs
ROTATION_BYTES = (
    2 * L2_BYTES
)  # accessed between two uses of a set; evicts the set without relying on exact LRU
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MAJORS = ("kk", "kn", "mk", "mn")


@dataclass(frozen=True)
class InputSet:
    """The operands of one problem: a (M, K), b (K, N) and out (M, N), with a leading batch dimension if batched."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def set_bytes(case: Case) -> int:
    """Bytes of one input set."""
    elements = case.m * case.k + case.k * case.n + case.m * case.n
    return case.batch * elements * DTYPES[case.dtype].itemsize


def set_count(case: Case) -> int:
    """The number of input sets to rotate: at least two, and together at least `ROTATION_BYTES`."""
    return max(2, -(-ROTATION_BYTES // set_bytes(case)))


def make_sets(case: Case, device: str, count: int, seed: int = 0) -> list[InputSet]:
    """Draw A and B from a standard normal distribution; D is row-major and uninitialized."""
    batch = () if case.batch == 1 else (case.batch,)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(rows: int, cols: int, row_major: bool) -> torch.Tensor:
        shape = (*batch, rows, cols) if row_major else (*batch, cols, rows)
        values = torch.randn(shape, generator=generator, device=device, dtype=DTYPES[case.dtype])
        return values if row_major else values.mT

    return [
        InputSet(
            a=draw(case.m, case.k, case.majors[0] == "k"),
            b=draw(case.k, case.n, case.majors[1] == "n"),
            out=torch.empty(*batch, case.m, case.n, device=device, dtype=DTYPES[case.dtype]),
        )
        for _ in range(count)
    ]
