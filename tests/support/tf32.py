# SPDX-License-Identifier: Apache-2.0
"""fp32 operands on the tensor cores: drawn, multiplied on the emulator, and judged."""

from __future__ import annotations

import torch

from cutegemm import Gemm, emulator
from cutegemm.epilogue.graph import linear_combination
from cutegemm.running.numerics.bounds import bound

SMALL, ODD, LONG = (70, 40, 132), (70, 41, 133), (200, 72, 520)


def drawn(*shape, seed=0):
    """Normally distributed elements."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(shape, majors="kk"):
    """A and B of a shape (M, N, K), contiguous along the given axes."""
    m, n, k = shape
    a, b = drawn(m, k), drawn(k, n, seed=1)
    return a if majors[0] == "k" else a.mT.contiguous().mT, b if majors[1] == "n" else b.mT.contiguous().mT


def emulated(spec, a, b, races=True, **named):
    """D on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=races, progress=False), **named)
    assert not run.findings
    return run.d


def error(a, b, d):
    """Of D, relative to its norm."""
    exact = a.double() @ b.double()
    return ((d.double() - exact).norm() / exact.norm()).item()


def complaint(arithmetic, a, b, d, promote=None):
    """What is wrong with D, or None."""
    named, types = {"alpha": 1.0}, {"d": d.dtype}
    limits = bound(linear_combination(False), a, b, named, types, promote=promote, arithmetic=arithmetic)
    return limits["d"].complaint(d)
