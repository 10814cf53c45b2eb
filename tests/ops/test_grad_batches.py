# SPDX-License-Identifier: Apache-2.0
"""Gradients that are mapped or recorded, of regions that are checkpointed, saved elsewhere, or changed afterwards."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cutegemm
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.ops.perceptron import perceptron
from tests.support.torch_ops import error

GELU = epi.bias_act("gelu")


def gelu(x, w, b):
    """A layer whose gradient reads its accumulator."""
    return cutegemm.linear(x, w, epilogue=GELU, fallback="reference", bias=b)


def plain(x, w, b):
    """A layer whose gradient reads its operands alone."""
    return cutegemm.linear(x, w, b, fallback="reference")


def two(x, w, b):
    """Two layers whose gradients are fused."""
    return perceptron(x, w, b, GELU, w.t()[:, :7].contiguous(), fallback="reference")


LAYERS = {"plain": plain, "gelu": gelu, "perceptron": two}


def drawn():
    """x, a weight and a bias, which have gradients."""
    return [torch.randn(shape, requires_grad=True) for shape in ((5, 12), (7, 12), (7,))]


@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_of_gradients_of_a_checkpointed_region(name, recorded):
    """Its forward runs again, outside of the map, and what it saves is read once."""
    layer, tensors = LAYERS[name], drawn()
    y = layer(*tensors)
    upstream = torch.randn(4, *y.shape)
    exact = torch.autograd.grad(y, tensors, upstream, is_grads_batched=True)
    again = checkpoint(layer, *tensors, use_reentrant=False)
    found = torch.autograd.grad(again, tensors, upstream, is_grads_batched=True, create_graph=recorded)
    assert all(error(x.detach(), wanted) < 1e-6 for x, wanted in zip(found, exact))


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_a_checkpointed_region(name, reentrant):
    """They equal those of the layer without checkpoints, also where one region is within another."""
    layer, tensors = LAYERS[name], drawn()

    def region(*tensors):
        return checkpoint(layer, *tensors, use_reentrant=reentrant)

    y = layer(*tensors)
    exact = torch.autograd.grad(y, tensors, torch.ones_like(y))
    checkpoint(region, *tensors, use_reentrant=reentrant).sum().backward()
    assert all(error(x.grad, wanted) < 1e-6 for x, wanted in zip(tensors, exact))


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("name", ["gelu", "perceptron"])
def test_a_recorded_gradient_that_is_mapped_refuses(name, frozen):
    """vmap of a gradient that autograd records: whoever differentiates it is refused, and not given a part of it."""
    x, w, b = drawn()
    w.requires_grad_(not frozen)
    y = LAYERS[name](x, w, b)
    upstream = torch.randn(4, *y.shape)
    found = torch.vmap(lambda g: torch.autograd.grad(y, x, g, create_graph=True)[0])(upstream)
    with pytest.raises(InputError, match="double backward"):
        torch.autograd.grad(found.square().sum() + x.sum(), x)


@pytest.mark.parametrize("name", LAYERS)
def test_a_recorded_gradient_may_be_changed_in_place(name):
    """As torch's may: clipping a norm does."""
    tensors = drawn()
    y = LAYERS[name](*tensors)
    exact = torch.autograd.grad(y.sum(), tensors, retain_graph=True)
    for x, wanted in zip(torch.autograd.grad(y.sum(), tensors, create_graph=True), exact):
        assert error(x.mul_(2.0).detach(), 2.0 * wanted) < 1e-6
