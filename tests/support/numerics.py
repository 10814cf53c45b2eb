# SPDX-License-Identifier: Apache-2.0
"""An fp64 reference and the bound a result must keep.

For D = alpha A B + beta C in fp32 with K products, the error of one element grows with sqrt(K) times the
magnitude |alpha| |A| |B| + |beta| |C| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1,
probabilistic form), plus one rounding to D's type.
"""

import torch

ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # half an ulp of 1
# half the least subnormal
TINY = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
STEP = 2.0**-22  # of one fp32 accumulation; tensor cores truncate, so four times fp32's roundoff


def combine(a, b, c, alpha: float, beta: float) -> torch.Tensor:
    """alpha A B + beta C in fp64; C is not read when beta is 0, as in BLAS."""
    d = alpha * torch.matmul(a.double(), b.double())
    return d if c is None or beta == 0 else d + beta * c.double()


def assert_close(got, a, b, c=None, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Every finite element within the bound, NaN and infinities where the reference has them."""
    expected = combine(a, b, c, alpha, beta)
    magnitude = combine(a.abs(), b.abs(), None if c is None else c.abs(), abs(alpha), abs(beta))
    expected, magnitude = expected.expand(got.shape), magnitude.expand(got.shape)
    u = ROUNDOFF[got.dtype]
    bound = u * expected.abs() + STEP * (4 + a.shape[-1] ** 0.5) * magnitude + TINY[got.dtype]
    finite = expected.isfinite()
    error = (got.double() - expected).abs()
    wrong = torch.where(finite, ~(error <= bound), got.double().isfinite())
    wrong |= torch.isnan(expected) & ~torch.isnan(got)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are off; first at {at}: {got[at].item()}, "
            f"expected {expected[at].item()} within {bound[at].item()}"
        )
    if finite.all() and expected.numel():
        # what the norm would be had no product cancelled another: of few elements all may be near zero
        squares = [None if x is None else x.double() ** 2 for x in (a, b, c)]
        typical = combine(*squares, alpha**2, beta**2).expand(got.shape).sqrt().norm().item()
        scale = max(expected.norm().item(), typical, 1e-30)
        ratio, limit = (
            error.norm().item() / scale,
            u + 2.0**-19 + TINY[got.dtype] * got.numel() ** 0.5 / scale,
        )
        assert ratio <= limit, f"norm of the error over norm of the result is {ratio}, more than {limit}"
