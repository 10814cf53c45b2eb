# SPDX-License-Identifier: Apache-2.0
"""Fused kernels with small tiles: the library's graphs, one that has every kind of input and output, and operands.

Tests share these specs and shapes, so that a kernel is compiled once for all of them.
"""

import torch

from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.gemm import Gemm, representative
from cutegemm.problems import Problem
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.check import aligned
from cutegemm.running.arguments.describe import describe
from cutegemm.running.arguments.results import Partial
from tests.support.epilogues import random_inputs
from tests.support.profile import cases

BF16, FP32 = torch.bfloat16, torch.float32
SCHEDULES = {
    "cooperative": {"tile": Tile(128, 64, 32)},
    "pingpong": {"tile": Tile(64, 64, 32)},
    "multistage": {"tile": Tile(64, 64, 32)},
    "simt": {},
}
LIBRARY = {
    "linear_combination": epi.linear_combination(True),
    "bias": epi.bias(),
    "bias_act relu": epi.bias_act("relu"),
    "bias_act silu": epi.bias_act("silu"),
    "bias_act_residual gelu": epi.bias_act_residual("gelu"),
    "dropout_residual": epi.dropout_residual(0.25),
    "swiglu halves": epi.swiglu("halves"),
    "geglu interleaved": epi.geglu("interleaved"),
    "reglu halves": epi.reglu("halves"),
    "scaled row": epi.scaled("row"),
    "scaled column": epi.scaled("column"),
    "bias_quantize_fp8": epi.bias_quantize_fp8(),
    "rms_partial": epi.rms_partial(),
    "rms_apply": epi.rms_apply(),
    "softmax_partials": epi.softmax_partials(),
    "softmax_apply": epi.softmax_apply(),
    "row_max": epi.row_max(),
    "col_max": epi.col_max(),
    "cross_entropy_partials": epi.cross_entropy_partials(),
    "gradient of swiglu": epi.backward(epi.swiglu("halves")),
    "gradient of bias_act": epi.backward(epi.bias_act("gelu")),
}

SHAPES = ((70, 88, 40), (131, 66, 35))  # TMA addresses everything; nothing
# In the default profile an epilogue of the library runs on one schedule, neighbours on different ones.
_TAKEN = {name: cases((i % len(SCHEDULES),), range(len(SCHEDULES))) for i, name in enumerate(LIBRARY)}
READY = [(name, x) for name in LIBRARY for i, x in enumerate(SCHEDULES) if i in _TAKEN[name]]
# ways in and out of a kernel with the epilogue `everything`, run at one shape
FIELDS = {
    "clusters": {"tile": Tile(128, 64, 32), "cluster": (2, 1)},
    "store staged": {"tile": Tile(64, 64, 32), "store": "staged"},
    "store direct": {"tile": Tile(64, 64, 32), "store": "direct"},
    "three consumers": {"tile": Tile(192, 48, 32), "consumers": 3},
    "two passes": {"tile": Tile(256, 64, 32)},
    "one subtile ahead": {"tile": Tile(64, 128, 32), "input_stages": 1, "epilogue_stages": 1},
    "gathered": {"tile": Tile(64, 64, 32), "a_load": "gather"},
    "a CTA per tile": {"tile": Tile(64, 64, 32), "scheduler": "per_tile"},
    "few SMs": {"tile": Tile(64, 64, 32), "sms": 2},
}
FIELDS_SHAPE = (200, 104, 40)


def gemm_of(graph, schedule="cooperative", **fields) -> Gemm:
    """A Gemm with a small tile; nothing is compiled yet."""
    spec = GemmSpec(epilogue=graph, schedule=schedule, **(SCHEDULES[schedule] | fields))
    return Gemm(spec, representative(spec))


def operands(graph, shape, backend, batch=None, dtypes=(BF16, FP32), seed=0):
    """(a, b, inputs) for D's width n: B has twice as many columns if the graph is gated."""
    m, n, k = shape
    device = "cuda" if backend == "gpu" else "cpu"
    generator = torch.Generator(device).manual_seed(seed + m + n + k)
    lead = () if batch is None else (batch,)
    wide = 2 * n if graph.gated else n
    a = torch.randn((*lead, m, k), generator=generator, device=device).to(BF16)
    b = torch.randn((*lead, k, wide), generator=generator, device=device).to(BF16)
    return a, b, random_inputs(graph, (*lead, m, n), generator, dtypes)


def problem_of(graph, shape) -> Problem:
    """The problem of the operands that a graph has at a shape."""
    a, b, inputs = operands(graph, shape, "emulator")
    request = Request(a, b, {name: inputs[name] for name in graph.tensors})
    return aligned(describe(graph, request), request).problem


def results(out) -> dict:
    """A run's outputs by name, partial ones finished."""
    named = {"d": out} if isinstance(out, torch.Tensor) else vars(out)
    return {name: x.finish() if isinstance(x, Partial) else x for name, x in named.items()}


@epi.define
def everything(acc, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix, factor: epi.Scalar):
    """Every kind of input and output."""
    h = epi.tanh(acc * factor + bias) * scale
    return epi.Output(
        d=h + residual,
        pre=epi.Store(h, dtype="fp32", major="m"),
        low=epi.Store(h, dtype="fp8"),
        top=epi.AbsMax(h),
        rows=epi.Sum(h, axis=1),
        columns=epi.SumSquares(h, axis=0),
        lse=epi.LogSumExp(h, axis=1),
        parts=epi.Max(h, axis=0, partial=True),
    )
