# SPDX-License-Identifier: Apache-2.0
"""What tests of layers with 8-bit weights share."""

import torch

import cutegemm


def through(x, kind, dtype, scale=None):
    """x quantised and back, in fp64."""
    values, scales = cutegemm.quantize(x.detach().flatten(0, -2), kind, dtype, scale=scale)
    return cutegemm.dequantize(values, scales, kind).double().view(x.shape)


def near(y, exact):
    """y is the fp64 value, rounded to y's type, but for sums of fp32."""
    last = torch.finfo(y.dtype).eps
    y, exact = y.detach(), exact.detach()
    assert ((y.double() - exact).abs() <= last * exact.abs() + 1e-3 * exact.abs().mean()).all()
