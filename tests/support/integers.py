# SPDX-License-Identifier: Apache-2.0
"""Integer operands: drawn, with zero points, and multiplied on the emulator or in 64 bits."""

from __future__ import annotations

import torch

from cutegemm import Gemm, GemmSpec, emulator

INT8, UINT8 = torch.int8, torch.uint8


def drawn(rows, cols, dtype, seed):
    """Uniformly drawn integers of a type."""
    kept = torch.iinfo(dtype)
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(kept.min, kept.max + 1, (rows, cols), generator=draw, dtype=dtype)


def emulated(spec, a, b, **named):
    """D on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings
    return run.d


def points(kinds, m, n):
    """Zero points of A and B by name."""
    values = {
        "zero_point_a": {"tensor": 113, "row": drawn(1, m, UINT8, 3)[0]},
        "zero_point_b": {"tensor": torch.tensor(-7, dtype=torch.int8), "row": drawn(1, n, INT8, 4)[0]},
    }
    return {name: of[kind] for (name, of), kind in zip(values.items(), kinds) if kind != "auto"}


def exact(a, b, given):
    """(A - za)(B - zb) in 64 bits."""
    za, zb = (torch.as_tensor(given.get(x, 0)).long() for x in ("zero_point_a", "zero_point_b"))
    return (a.long() - (za[..., None] if za.dim() else za)) @ (b.long() - zb)


def asked(kinds, **fields):
    """A spec with zero points of these kinds."""
    return GemmSpec(zero_point_a=kinds[0], zero_point_b=kinds[1], **fields)
