# SPDX-License-Identifier: Apache-2.0
"""`Gemm.run` refuses tensors with tangents, and tensors of torch.func, on every backend."""

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.gemm import Gemm, representative
from tests.support.gpu_path import on_the_gpu

PLAIN, BIASED = (Gemm(x, representative(x)) for x in (GemmSpec(), GemmSpec(epilogue=epi.bias())))
A, B, BIAS, ENDS = torch.ones(4, 8), torch.ones(8, 5), torch.ones(5), torch.tensor([1, 4])
ROWS, WEIGHTS = A.bfloat16(), torch.ones(2, 8, 5).bfloat16()
REFUSED = r": has a tangent: forward-mode gradients \(jvp\) are not supported; use torch\.matmul there"


def calls(backend):
    """name of an argument -> a call with a dual tensor there."""
    return {
        "a": lambda dual: PLAIN.run(dual(A), B, backend=backend),
        "b": lambda dual: PLAIN.run(A, dual(B), backend=backend),
        "c": lambda dual: PLAIN.run(A, B, dual(torch.ones(4, 5)), backend=backend),
        "out": lambda dual: PLAIN.run(A, B, out=dual(torch.ones(4, 5)), backend=backend),
        "bias": lambda dual: BIASED.run(A, B, bias=dual(BIAS), backend=backend),
    }


def check(call, name):
    """A call is refused with a tangent, before and after the same call without one, which runs within a level too."""

    def dual(x):
        return make_dual(x, torch.ones_like(x))

    for _ in range(2):
        with dual_level():
            with pytest.raises(InputError, match=rf"^{name}{REFUSED}"):
                call(dual)
            call(lambda x: x)
        call(lambda x: x)


@pytest.mark.parametrize("name", calls(None))
@pytest.mark.parametrize("backend", ["gpu", "reference", "emulator"])
def test_a_tangent_is_not_lost(backend, name, monkeypatch):
    """A kernel computes none, so it is refused, also for a kind of call that is cached."""
    if backend == "gpu":
        on_the_gpu(monkeypatch)
        for gemm in (PLAIN, BIASED):
            monkeypatch.setattr(gemm, "_kinds", type(gemm._kinds)())
    check(calls(None if backend == "gpu" else backend)[name], name)


def test_groups_and_tensors_without_memory_refuse_it_too():
    """Groups on the reference, and meta tensors, whose results have no values but may have tangents."""
    groups = cutegemm.Groups(offs=ENDS)
    check(lambda dual: PLAIN.run(dual(ROWS), WEIGHTS, groups=groups), "a")
    check(lambda dual: PLAIN.run(A.to("meta"), dual(B.to("meta"))), "b")


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.jacfwd])
def test_tensors_of_transforms_are_named(transform):
    """They have no memory: the message names the functions that torch's transforms support."""
    gemm = Gemm(GemmSpec())
    with pytest.raises(InputError, match=r"^a: is a tensor of torch\.func .*cutegemm\.matmul"):
        transform(lambda x: gemm.run(x, B).sum())(torch.ones(3, 4, 8) if transform is torch.vmap else A)
