# SPDX-License-Identifier: Apache-2.0
"""No tensor that a call reads or makes is kept by us: in the memory pool of a CUDA graph torch refuses what stays."""

import pytest
import torch

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.ops import program
from cutegemm.running.backends import counters
from tests.support.torch_ops import survivors

GELU = epi.bias_act("gelu")


@epi.define
def summed(acc):
    """Whose sums need workspace."""
    return epi.Output(d=acc, rows=epi.Sum(acc, axis=1), whole=epi.Sum(acc))


def functions(fallback, r):
    """Calls of every kind, with gradients and without."""
    # extents that no other test has: every kind of call is new
    x, w, b = r(4, 11, 40), r(56, 40), r(56)
    options = {"fallback": fallback}
    cutegemm.matmul(x[0], w.t(), **options)
    cutegemm.matmul(x[0], w.t(), r(11, 56), beta=0.5, **options)
    cutegemm.bmm(x, r(4, 40, 56), **options)
    cutegemm.linear(x, w, b, **options)
    cutegemm.linear(x[0], w, epilogue=summed, **options)
    cutegemm.matmul(x[0], w.t(), out=r(11, 56), **options)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    for epilogue in (None, GELU):
        cutegemm.linear(*leaves, epilogue=epilogue, **options).sum().backward()
    cutegemm.linear(x, w, **options).sum().backward()
    cutegemm.matmul(x[0], w.t(), **options).sum().backward()


def modules(fallback, r):
    """A training step of each module."""
    options = {"fallback": fallback, "dtype": torch.bfloat16}
    for model in (nn.Linear(40, 56, **options), nn.MLP(40, 56, **options), nn.SwiGLU(40, 56, **options)):
        x = r(11, 40)
        model.to(x.device)(x.requires_grad_()).sum().backward()


@pytest.mark.sliced
@pytest.mark.parametrize("backend", ["reference", pytest.param("error", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("calls", [functions, modules])
def test_nothing_survives_the_calls_of_new_kinds(calls, backend, monkeypatch):
    """Operands, outputs, workspace and what was saved for gradients are gone, though kinds of calls are remembered."""
    device = "cuda" if backend == "error" else "cpu"
    # programs without any kind of call
    monkeypatch.setattr(program, "_programs", program.Memo())

    def r(*shape):
        return torch.randn(shape, device=device).bfloat16()

    if device == "cuda":
        # counters are the device's, not a call's
        counters.owner(torch.cuda.current_device()).reserve(1)
    allocated = torch.cuda.memory_allocated() if device == "cuda" else 0
    assert survivors(lambda: calls(backend, r)) == []
    assert device == "cpu" or torch.cuda.memory_allocated() == allocated
