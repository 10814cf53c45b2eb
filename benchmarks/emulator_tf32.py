# SPDX-License-Identifier: Apache-2.0
"""Small GEMMs D = A @ B of fp32 operands on the tensor cores, which run on a GPU and on the emulator.

Operands come from a seed and are normally distributed. In "wide" cases exponents differ by up to 240, so that sums
cancel and subnormals occur. "special" cases also have infinities, NaN, zeros and overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cutegemm import Gemm, GemmSpec, Tile

EXPONENT = 60  # bound on the exponents of a wide case's factors
SIGNALLING = 0x7F800001  # a NaN that becomes infinity in tf32


@dataclass(frozen=True)
class Case:
    """A spec and a problem (M, N, K) with A and B contiguous along K; `seed` draws the exponents of a wide case."""

    spec: GemmSpec
    shape: tuple[int, int, int]
    seed: int | None = None
    special: bool = False

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A (M, K) and B (K, N) on the CPU."""
        m, n, k = self.shape
        generator = torch.Generator().manual_seed(m + n + k)
        a, b = torch.randn((m, k), generator=generator), torch.randn((n, k), generator=generator).T
        if self.seed is not None:
            generator.manual_seed(self.seed)
            for x in (a, b):
                x *= torch.exp2(torch.randint(-EXPONENT, EXPONENT, x.shape, generator=generator).float())
        if self.special:
            a[1, 3], a[2, 5] = float("inf"), float("nan")
            a.view(torch.int32)[3, 7] = SIGNALLING
            a[9] *= 2.0**-120
            a[10], a[11], b[4, 6] = 3.0e38, 1e-42, 0.0
        return a, b


def _case(
    shape: tuple[int, int, int], tile: Tile, math: str = "tf32", promote: Any = "auto", **more: Any
) -> Case:
    return Case(GemmSpec(math=math, tile=tile, swap=False, promote=promote), shape, **more)


CASES = {
    "tf32": _case((70, 40, 132), Tile(64, 40, 32)),
    "tf32_long": _case((64, 64, 1024), Tile(64, 64, 32)),
    "tf32_wide": _case((128, 72, 264), Tile(128, 72, 64), seed=2),
    "tf32_special": _case((64, 40, 64), Tile(64, 40, 32), seed=3, special=True),
    "tf32_promoted": _case((64, 40, 256), Tile(64, 40, 32), promote=64, seed=4),
    "tf32x3": _case((70, 40, 132), Tile(64, 40, 16), "tf32x3", promote=64),
}


def on_gpu(case: Case) -> torch.Tensor:
    """D from a GPU."""
    a, b = case.operands()
    return Gemm(case.spec).run(a.cuda(), b.cuda(), backend="gpu").cpu()
