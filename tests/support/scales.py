# SPDX-License-Identifier: Apache-2.0
"""Operands with scales: drawn, multiplied on the emulator, and compared with fp64."""

from __future__ import annotations

import torch

from cutegemm import Gemm, emulator
from cutegemm.running.numerics.bounds import bound

E4M3 = torch.float8_e4m3fn
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
KINDS = ("tensor", "row", ROWS, SQUARES)
SHAPE = (130, 152, 400)


def drawn(*shape, seed=0):
    """Normally distributed elements of e4m3."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(E4M3)


def scale(kind, rows, k, seed=0, batch=()):
    """Scales of one kind for an operand of so many rows along its free axis; some are negative."""
    shape = {"tensor": (), "row": (rows,)}.get(kind) if isinstance(kind, str) else None
    if shape is None:
        shape = (-(-rows // kind[1]), -(-k // 128))
    return torch.randn((*batch, *shape), generator=torch.Generator().manual_seed(seed))


def operands(shape, kinds, seed=0):
    """A, B and the scales of both by name."""
    m, n, k = shape
    a, b = drawn(m, k, seed=seed), drawn(n, k, seed=seed + 1).T
    return a, b, {"scale_a": scale(kinds[0], m, k, seed + 2), "scale_b": scale(kinds[1], n, k, seed + 3)}


def emulated(spec, a, b, **named):
    """D on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings
    return run.d


def check(spec, a, b, d, named):
    """D is within the bounds of fp64."""
    complaint = bound(spec.epilogue, a, b, named, {"d": d.dtype})["d"].complaint(d)
    assert complaint is None, complaint
