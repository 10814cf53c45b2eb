# SPDX-License-Identifier: Apache-2.0
"""8-bit operands of groups and their scales for tests, and results beside fp64."""

import torch

from tests.support.groups import drawn


def operand(*shape):
    """Normal numbers in e4m3."""
    return drawn(*shape).to(torch.float8_e4m3fn)


def positive(*shape):
    """Scales of either magnitude, the same for the same shape."""
    return (drawn(*shape).float() / 2).exp()


def wide(x, scale, rows=1):
    """An operand (..., rows, K) in fp64 times its scales, of rows or of blocks of so many rows."""
    if scale.dtype == torch.uint8:
        scale = torch.exp2(scale.double() - 127)
    scale = scale.double()
    if scale.dim() == x.dim():
        scale = scale.repeat_interleave(rows, -2).repeat_interleave(128, -1)
        return x.double() * scale[..., : x.shape[-2], : x.shape[-1]]
    return x.double() * scale[..., None]


def close(found, told):
    """Each row is right to the rounding of bf16 and to the bits that the tensor cores cut from sums.

    Half an ulp is 2^-8 of a value just above a power of two, so the rest needs room of its own.
    """
    error = (found.double() - told).abs().amax(-1)
    assert torch.all(error <= (2**-8 + 2**-10) * told.abs().amax(-1))
