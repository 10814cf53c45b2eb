# SPDX-License-Identifier: Apache-2.0
"""Epilogues that see a whole tile's sum once, run on the emulator under any spec."""

from __future__ import annotations

import dataclasses

import torch

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.gemm import Gemm
from cutegemm.running.results import Partial
from tests.support.epilogues import assert_outputs_close, random_inputs

GRAPHS = {
    "swiglu": epi.swiglu("halves"),
    "softmax_partials": epi.softmax_partials(),
    "bias_act_residual": epi.bias_act_residual("gelu"),
}


def assert_fused(name: str, spec: GemmSpec, shape: tuple[int, int, int]) -> None:
    """A spec's kernel with one of `GRAPHS`, on D of m x n and K of k, gives every output within its bound."""
    graph, (m, n, k) = GRAPHS[name], shape
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(m, k, generator=generator).bfloat16()
    b = torch.randn(k, 2 * n if graph.gated else n, generator=generator).bfloat16()
    inputs = random_inputs(graph, (m, n), generator, (torch.bfloat16, torch.float32))
    out = Gemm(dataclasses.replace(spec, epilogue=graph)).run(a, b, backend="emulator", **inputs)
    named = {"d": out} if isinstance(out, torch.Tensor) else vars(out)
    finished = {x: v.finish() if isinstance(v, Partial) else v for x, v in named.items()}
    assert_outputs_close(finished, graph, a, b, inputs)
