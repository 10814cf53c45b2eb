# SPDX-License-Identifier: Apache-2.0
"""RMSNorm before and after a linear layer, by epilogues of `linear`, and the gradients of sums."""

import pytest
import torch
from torch.nn import functional as F

import cutegemm
from cutegemm import epilogue as epi
from tests.support.torch_ops import error

EPS = 1e-3
BEFORE, AFTER = epi.rms_partial(), epi.rms_apply()


def block(x, first, gain, second, how):
    """x + its linear layer, and a linear layer of the norm of that."""
    h = cutegemm.linear(x, first, epilogue=BEFORE, residual=x, fallback=how)
    known = {"squares": h.squares, "inverse_n": 1 / h.d.shape[-1], "eps": EPS}
    return h.d, cutegemm.linear(h.d, second * gain, epilogue=AFTER, fallback=how, **known)


def expected(x, first, gain, second):
    """`block` by torch's functions."""
    h = x + F.linear(x, first)
    return h, F.linear(F.rms_norm(h, h.shape[-1:], gain, EPS), second)


def tensors(dtype=torch.float32):
    """x of two leading dimensions, two weights and a gain."""
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in ((2, 5, 24), (24, 24), (24,), (16, 24))]


@pytest.mark.parametrize(
    ("how", "dtype", "bound"),
    [("torch", torch.float32, 1e-5), ("reference", torch.float32, 1e-5), ("emulator", torch.bfloat16, 2e-2)],
)
def test_a_norm_between_two_layers(how, dtype, bound):
    """The statistic comes with the first layer, finished, and is applied behind the second."""
    given = tensors(dtype)
    for found, wanted in zip(block(*given, how), expected(*[x.double() for x in given])):
        assert found.shape == wanted.shape and error(found, wanted) < bound


def test_a_norm_before_a_layer():
    """The statistic of a tensor that no product made: torch's own sum."""
    x, _, gain, second = tensors()
    known = {"squares": x.square().sum(-1), "inverse_n": 1 / 24, "eps": EPS}
    found = cutegemm.linear(x, second * gain, epilogue=epi.rms_apply(), fallback="reference", **known)
    assert error(found, F.linear(F.rms_norm(x, (24,), gain, EPS), second)) < 1e-5


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_of_a_norm_between_two_layers(compiled):
    """The statistic's gradient reaches everything that the first layer read."""
    ours = [x.requires_grad_() for x in tensors()]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    call = torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block
    for of, leaves in ((lambda *x: call(*x, "reference"), ours), (expected, theirs)):
        h, y = of(*leaves)
        (h.sin().sum() + y.square().sum()).backward()
    for mine, other in zip(ours, theirs):
        assert error(mine.grad, other.grad) < 1e-4


@epi.define
def sums(acc, *, bias: epi.Row, gain: epi.Col):
    """Sums of a product along every axis."""
    h = epi.tanh(acc + bias) * gain
    return epi.Output(
        rows=epi.Sum(h, axis=-1), cols=epi.SumSquares(h, axis=-2), both=epi.Sum(h * acc), top=epi.Max(h)
    )


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_gradients_of_sums_along_every_axis(lead):
    """Sums over D of a linear layer have torch's gradients, whatever its leading dimensions; a maximum has none."""
    torch.manual_seed(1)
    leaves = [torch.randn(s, requires_grad=True) for s in ((*lead, 12), (7, 12), (7,), lead)]
    x, w, bias, gain = leaves
    out = cutegemm.linear(x, w, bias, epilogue=sums, gain=gain, fallback="reference")
    assert not out.top.requires_grad
    acc = F.linear(x, w)
    h = torch.tanh(acc + bias) * gain[..., None]
    wanted = h.sum(-1), h.square().reshape(-1, 7).sum(0), (h * acc).sum()
    for found, right in zip((out.rows, out.cols, out.both), wanted):
        assert found.shape == right.shape
        weight = torch.randn(right.shape)
        pairs = [torch.autograd.grad((y * weight).sum(), leaves, retain_graph=True) for y in (found, right)]
        for mine, other in zip(*pairs):
            assert error(mine, other) < 1e-5


@pytest.mark.parametrize("shared", [False, True], ids=["batched", "shared B"])
def test_gradients_of_sums_of_a_batch(shared):
    """Each product of a batch has its own sums and their gradients."""
    torch.manual_seed(2)
    shapes = ((3, 5, 12), (12, 7) if shared else (3, 12, 7), (3, 7), (3, 5))
    leaves = [torch.randn(s, requires_grad=True) for s in shapes]
    a, b, bias, gain = leaves
    out = cutegemm.matmul(a, b, epilogue=sums, bias=bias, gain=gain, fallback="reference")
    acc = a @ b
    h = torch.tanh(acc + bias[:, None]) * gain[..., None]
    wanted = h.sum(-1), h.square().sum(1), (h * acc).sum((1, 2))
    for found, right in zip((out.rows, out.cols, out.both), wanted):
        weight = torch.randn(right.shape)
        pairs = [torch.autograd.grad((y * weight).sum(), leaves, retain_graph=True) for y in (found, right)]
        for mine, other in zip(*pairs):
            assert error(mine, other) < 1e-5
