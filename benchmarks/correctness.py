# SPDX-License-Identifier: Apache-2.0
"""Checks contenders before timing: sampled rows and columns of D, in every batch, against fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.inputs import InputSet

SAMPLES = 16  # rows, and columns, of D that are compared

# Bound on |D - reference| / |reference| in the Frobenius norm. 16-bit: twice the unit roundoff of D's type, for one
# rounding of D and for partial sums in that type, which cuBLAS may have. fp32: four times a random walk of roundings
# along K = 16384 (2**-24 * sqrt(16384) = 7.6e-6).
FROBENIUS_BOUND = {torch.bfloat16: 2 * 2**-9, torch.float16: 2 * 2**-12, torch.float32: 3e-5}
# Bound on a single element's error, in Frobenius bounds times the reference's root mean square. Values reach five
# times the root mean square, and their rounding errors scale with them.
ELEMENT_FACTOR = 16


class WrongResult(Exception):
    """A contender's D is not A @ B."""


def check(call: Callable[[InputSet], Any], inputs: InputSet) -> float:
    """Fill D with NaN, run the contender once, and compare. If the call returns a tensor, that is D.

    Returns:
        The larger relative Frobenius error of the sampled rows and of the sampled columns.

    Raises:
        WrongResult: an element is not finite or an error exceeds its bound.
    """
    inputs.out.fill_(float("nan"))
    returned = call(inputs)
    a, b, out = inputs.a, inputs.b, inputs.out if returned is None else returned
    if not bool(torch.isfinite(out).all()):
        wrong = int((~torch.isfinite(out)).sum())
        raise WrongResult(
            f"{wrong} of {out.numel()} elements of D are not finite (before the call all are NaN)"
        )
    rows, cols = _sample(out.shape[-2], out.device), _sample(out.shape[-1], out.device)
    by_rows = _compare(out[..., rows, :], a[..., rows, :].double() @ b.double(), out.dtype)
    by_cols = _compare(out[..., cols], a.double() @ b[..., cols].double(), out.dtype)
    return max(by_rows, by_cols)


def _sample(extent: int, device: torch.device) -> torch.Tensor:
    """Up to `SAMPLES` indices, including the first and the last."""
    generator = torch.Generator().manual_seed(extent)
    inner = torch.randperm(max(extent - 2, 0), generator=generator)[: SAMPLES - 2] + 1
    return torch.cat([torch.tensor(sorted({0, extent - 1})), inner]).to(device)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The Frobenius norm of the difference over that of what is wanted, in fp64."""
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm())


def _compare(got: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> float:
    bound = FROBENIUS_BOUND[dtype]
    difference = got.double() - reference
    error = float(difference.norm() / reference.norm())
    if not error <= bound:
        raise WrongResult(f"relative Frobenius error {error:.2e} of D: must be at most {bound:.2e}")
    element = float(difference.abs().max() / reference.square().mean().sqrt())
    if not element <= ELEMENT_FACTOR * bound:
        raise WrongResult(
            f"an element of D errs by {element:.2e} root mean squares: must be at most "
            f"{ELEMENT_FACTOR * bound:.2e}"
        )
    return error
