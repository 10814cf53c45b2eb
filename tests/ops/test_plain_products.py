# SPDX-License-Identifier: Apache-2.0
"""The short way of a linear layer's backward pass, beside the general one."""

import pytest
import torch

import cutegemm
from cutegemm.ops.gradients import autograd, plain_products

LEADS = [(), (5,), (2, 3), (2, 1, 4)]


@pytest.fixture(name="ways")
def _ways(monkeypatch):
    """Which way each backward pass took."""
    taken, short, general = [], plain_products._of_linear, autograd._gradients
    monkeypatch.setattr(plain_products, "_of_linear", lambda *x: (taken.append("short"), short(*x))[1])
    monkeypatch.setattr(autograd, "_gradients", lambda *x: (taken.append("general"), general(*x))[1])
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_both_ways_have_the_same_bits(lead, biased, dtype, ways):
    """A recorded backward pass takes the general way; `autograd.grad` may ask for some gradients only."""
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(s, generator=draw).to(dtype).requires_grad_() for s in ((*lead, 24), (16, 24), (16,))
    )
    tensors = [x, weight, bias] if biased else [x, weight]
    y = cutegemm.linear(x, weight, bias if biased else None, fallback="reference")
    g = torch.randn(y.shape, generator=draw).to(dtype)
    short = torch.autograd.grad(y, tensors, g, retain_graph=True)
    general = torch.autograd.grad(y, tensors, g, create_graph=True)
    assert ways == ["short", "general"]
    for one, other in zip(short, general, strict=True):
        assert one.dtype is dtype and torch.equal(one, other)
    for i, wanted in enumerate(short):
        assert torch.equal(torch.autograd.grad(y, tensors[i], g, retain_graph=True)[0], wanted)


def test_the_gradient_of_a_bias_is_added_up_in_fp32():
    """Thousands of ones in bf16; a sum in bf16 would stay at 256."""
    x, bias = torch.ones(4096, 8).bfloat16(), torch.zeros(4).bfloat16().requires_grad_()
    cutegemm.linear(x, torch.ones(4, 8).bfloat16(), bias, fallback="reference").sum().backward()
    assert torch.equal(bias.grad, torch.full((4,), 4096.0).bfloat16())


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_sum_of_rows_is_rounded_once(dtype, lead):
    """To the bias's type, which may be wider than the gradient's, as under autocast."""
    g = torch.randn(*lead, 33).bfloat16()
    rows = tuple(range(len(lead)))
    told = (g.float().sum(rows) if rows else g.float()).to(dtype)
    found = autograd.summed_rows(g, dtype)
    assert found.dtype is dtype and torch.equal(found, told)
