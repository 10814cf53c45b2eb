# SPDX-License-Identifier: Apache-2.0
"""Tensors and calls that descriptions of calls are tested with."""

import torch

from cutegemm import GemmSpec
from cutegemm.gemm import Gemm, representative

BF16 = torch.bfloat16


def t(*shape, dtype=BF16, **options):
    """A tensor of ones."""
    return torch.ones(shape, dtype=dtype, **options)


def bare() -> Gemm:
    """A Gemm of a bare spec; nothing is compiled."""
    return Gemm(GemmSpec(), representative(GemmSpec()))


A, B, C = t(6, 5), t(5, 7), t(6, 7)
