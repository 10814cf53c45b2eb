# SPDX-License-Identifier: Apache-2.0
"""The values that are accepted for an output, and those of quantized blocks and of their scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import STORE, Result
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.eight_bits import powers, quantised

INFINITY = float("inf")
# unit roundoff of fp32
U = 2.0**-24


@dataclass(frozen=True)
class Bound:
    """An output in fp64, and the smallest and largest accepted value; NaN if only NaN is accepted."""

    expected: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    free: torch.Tensor  # where every value is accepted

    def wrong(self, got: torch.Tensor) -> torch.Tensor:
        """The elements that break the bound."""
        got = got.double()
        inside = (got >= self.low) & (got <= self.high) | got.isnan() & self.expected.isnan()
        return ~inside & ~self.free

    def complaint(self, got: torch.Tensor) -> str | None:
        """The first error of a result as text, or None."""
        wrong = self.wrong(got)
        if not wrong.any():
            return None
        at = tuple(wrong.nonzero()[0].tolist())
        return (
            f"{int(wrong.sum())} of {wrong.numel()} elements are off; first at {at}: {got[at].item()}, expected "
            f"{self.expected[at].item()}, at least {self.low[at].item()} and at most {self.high[at].item()}"
        )


def bound_of_blocks(
    x: Result, value: torch.Tensor, error: torch.Tensor, free: torch.Tensor, dtype: torch.dtype
) -> Bound:
    """The bound of quantized blocks or of their scales, which grow with the largest magnitude of a block."""
    of, kind, (m, n) = reference.TORCH_DTYPE[as_dtype(x.dtype)], ("block", x.block, K_BLOCK), value.shape[-2:]
    size = value.abs()
    scale, least, most = (
        powers(
            quantised(torch.where(value.isfinite(), y, value), kind, of, exponents=x.exponents)[1]
        ).double()
        for y in (size, (size - error).clamp(min=0.0), size + error)
    )

    def some(found: torch.Tensor) -> torch.Tensor:
        """The blocks with such an element: an int8 block with a non-finite element has a NaN scale."""
        return quantised(torch.where(found, INFINITY, 0.0), kind, torch.int8)[1].isnan()

    free = some(free)
    # a block that may hold zeros only has the scale 1 or that of its errors, so its values may be anything
    unsure = some(size + error > 0) & ~some(size > error)
    least, most = torch.where(unsure, 0.0, least), torch.where(unsure, most.clamp(min=1.0), most)
    if x.kind != STORE:
        return Bound(scale, least, most, free)
    free = free | unsure
    wide = lambda y: y.repeat_interleave(x.block, -2).repeat_interleave(K_BLOCK, -1)[..., :m, :n]
    scale, least, most, free = map(wide, (scale, least, most, free))
    low, high = value - error, value + error
    low = low / torch.where(low < 0, least, most) - U * (low / least).abs()
    high = high / torch.where(high < 0, most, least) + U * (high / least).abs()
    expected = torch.where(value.isfinite(), value / scale, torch.nan)
    if not of.is_floating_point:
        expected, low, high = expected.nan_to_num(0.0), low.nan_to_num(0.0), high.nan_to_num(0.0)
    low, high = (reference.round_to(y, dtype).double() for y in (low, high))
    return Bound(expected, low, high, free)
