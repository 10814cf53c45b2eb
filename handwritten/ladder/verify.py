# SPDX-License-Identifier: Apache-2.0
"""Checks a stage: D, poisoned and between guard rows, against fp64 on the GPU, on shapes around the tile."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch

from cutegemm.errors import GemmError
from handwritten.ladder import launch
from handwritten.ladder.compiling import legal_majors
from handwritten.ladder.problem import ELEMENT_BYTES
from handwritten.ladder.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCH_DTYPES = {name: dtype for dtype, name in launch.DTYPES.items()}
# Bound on |D - reference| / |reference| (Frobenius): for 16-bit twice D's unit roundoff, three times the expected
# error of rounding D; for fp32 a random walk of roundings, with a safety factor.
ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
WALK_FACTOR = 4.0  # times roundoff * sqrt(K), for fp32 sums
ELEMENT_FACTOR = 16.0  # bound on an element's error, in bounds times the root mean square
GUARD_ROWS = 2  # rows before and after D that must not change
HANG_SECONDS = 60.0  # longer than any correct launch
POLL_SECONDS = 1e-3


class WrongResult(GemmError):
    """A stage's D is not alpha * A @ B + beta * C."""


class Hang(GemmError):
    """A launch hung; the CUDA context is lost."""


def shapes(stage: Stage) -> Iterator[tuple[int, int, int]]:
    """Yield extents around the stage's tile, rounded up to its limits: one tile, several, ragged, tiny."""
    limits = stage.limits
    bm, bn, bk = (stage.constants.get(name, 32) for name in ("BM", "BN", "BK"))
    wanted = (
        (bm, bn, bk),
        (2 * bm, 2 * bn, 8 * bk),
        (bm + 1, bn + 1, bk + 1),
        (3 * bm - 7, 2 * bn - 9, 5 * bk - 3),
        (1, 8, 8),
        (200, 328, 1000),
        (1037, 1160, 520),
    )
    element = ELEMENT_BYTES[stage.dtypes[0]]
    vector = max(limits.align // element, 1)
    for m, n, k in wanted:
        steps = (limits.m, math.lcm(limits.n, vector), math.lcm(limits.k, vector))
        m, n, k = (-(-extent // step) * step for extent, step in zip((m, n, k), steps))
        yield m, n, k


def operand(rows: int, cols: int, major: str, dtype: str, seed: int) -> torch.Tensor:
    """Return a random matrix on the GPU, row-major ("r") or column-major ("c")."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (cols, rows) if major == "c" else (rows, cols)
    matrix = torch.randn(shape, generator=generator, device="cuda").to(TORCH_DTYPES[dtype])
    return matrix.t() if major == "c" else matrix


def wait(seconds: float = HANG_SECONDS) -> None:
    """Wait for the current stream.

    Raises:
        Hang: it has not finished after `seconds`.
    """
    done = torch.cuda.Event()
    done.record()
    limit = time.monotonic() + seconds
    while not done.query():
        if time.monotonic() > limit:
            raise Hang(f"not finished after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def error(
    stage: Stage,
    dtype: str,
    shape: tuple[int, int, int],
    *,
    majors: str = "rr",
    alpha: float = 1.0,
    beta: float = 0.0,
) -> float:
    """Run the stage once and return |D - reference| / |reference|.

    D lies between guard rows and holds NaN before the run; with beta = 0, C holds NaN too.

    Raises:
        WrongResult: an element, the norm of the error, or a guard row is wrong.
        Hang: the launch hangs.
    """
    m, n, k = shape
    a, b = operand(m, k, majors[0], dtype, 1), operand(k, n, majors[1], dtype, 2)
    c = operand(m, n, "r", dtype, 3)
    if beta == 0:
        c.fill_(math.nan)
    guarded = torch.full((m + 2 * GUARD_ROWS, n), math.nan, dtype=c.dtype, device="cuda")
    out = guarded[GUARD_ROWS : GUARD_ROWS + m]
    stage.run(a, b, c, alpha, beta, out=out)
    wait()
    reference = alpha * (a.double() @ b.double())
    if beta:
        reference += beta * c.double()
    bound = WALK_FACTOR * ROUNDOFF[dtype] * math.sqrt(k) if dtype == "fp32" else ROUNDOFF[dtype]
    difference = (out.double() - reference).abs()
    scale = reference.norm() / math.sqrt(m * n)
    relative = float(difference.norm() / reference.norm())
    case = f"{stage.key} {dtype} {majors} {m}x{n}x{k} alpha={alpha} beta={beta}"
    if not relative <= bound:
        wrong = int((~(difference <= ELEMENT_FACTOR * bound * scale)).sum())
        raise WrongResult(f"{case}: relative error {relative:.2e} > {bound:.2e}; {wrong} of {m * n} elements")
    worst = float(difference.max() / scale)
    if not worst <= ELEMENT_FACTOR * bound:
        raise WrongResult(f"{case}: an element is off by {worst:.2e} root mean squares")
    fence = torch.cat([guarded[:GUARD_ROWS], guarded[GUARD_ROWS + m :]])
    if not bool(fence.isnan().all()):
        raise WrongResult(f"{case}: wrote outside D")
    return relative


def verify(stage: Stage) -> float:
    """Run the stage on its shapes, dtypes and majors; return the largest relative error.

    Raises:
        WrongResult: a result is wrong.
        Hang: a launch hangs.
    """
    worst = 0.0
    for dtype in stage.dtypes:
        for index, shape in enumerate(shapes(stage)):
            for majors in legal_majors(stage):
                if not stage.takes(dtype, *shape, majors):
                    continue  # a pitch along M may need alignment that this M lacks
                alpha, beta = ((1.0, 0.0), (2.0, 0.5), (-0.5, 1.0))[index % 3]
                worst = max(worst, error(stage, dtype, shape, majors=majors, alpha=alpha, beta=beta))
    return worst
