# SPDX-License-Identifier: Apache-2.0
"""Results rows of the ladder as a measuring run writes them, for problems that cuBLAS does in 10 us."""

from __future__ import annotations

from typing import Any

BASELINE_US = 10.0


def row(
    contender: str,
    us: float,
    shape: int | tuple[int, int, int] = 4096,
    beta: float = 0.0,
    dtype: str = "bf16",
) -> dict[str, Any]:
    """A row of a problem; an int is a square."""
    m, n, k = (shape,) * 3 if isinstance(shape, int) else shape
    times = {"us": us, "tflops": 2 * m * n * k / us / 1e6, "ratio": BASELINE_US / us}
    return {"dtype": dtype, "m": m, "n": n, "k": k, "beta": beta, "contender": contender, **times}
