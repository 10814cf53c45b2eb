# SPDX-License-Identifier: Apache-2.0
"""Modules under torch.compile(dynamic=True), more than one of them: Dynamo makes defaults that are floats symbolic."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cutegemm
from cutegemm import nn

BF16 = torch.bfloat16


def gradients(function, x, module):
    """The gradients of the input and of every parameter that trains."""
    x = x.clone().requires_grad_()
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.autograd.grad(function(x).float().square().sum(), (x, *trained))


def compiled(function):
    """One graph for every number of rows."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_8_bit_layers_one_after_the_other(kind, bias):
    """Their backward passes are two graphs of Dynamo; the gradients are those of eager mode, also of a bias."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 48, bias), torch.nn.Linear(48, 33, bias)).to(BF16).eval()
    nn.convert(layers, weights=kind, activations=kind, fallback="reference")
    function = compiled(layers)
    for rows in (8, 5):
        x = torch.randn(rows, 64, dtype=BF16)
        for found, told in zip(gradients(function, x, layers), gradients(layers, x, layers), strict=True):
            assert torch.equal(found, told)


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
def test_mixtures_in_checkpoints(recorded):
    """Two checkpointed mixtures compile in one graph."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(nn.MoE(32, 48, 4, 2, dtype=BF16, fallback="reference") for _ in range(2))

    def function(x):
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    x = torch.randn(9, 32, dtype=BF16)
    if recorded:
        found, told = (gradients(f, x, layers) for f in (compiled(function), function))
    else:
        with torch.no_grad():
            found, told = [compiled(function)(x)], [function(x)]
    for one, other in zip(found, told, strict=True):
        # compiled calls apply the routing weights after rounding
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-4)


def test_a_literal_alpha_in_checkpoints():
    """What docs/pytorch.md says of functions in regions of one's own."""
    weight, matrices = torch.randn(32, 32), torch.randn(3, 32, 32)
    offs = torch.tensor([2, 2, 7], dtype=torch.int32)

    def region(x):
        x = cutegemm.matmul(x, weight, alpha=1.0, fallback="reference")
        return cutegemm.grouped_mm(
            x.bfloat16(), matrices.bfloat16(), offs, alpha=1.0, fallback="reference"
        ).float()

    def function(x):
        return checkpoint(region, checkpoint(region, x, use_reentrant=False), use_reentrant=False)

    x = torch.randn(8, 32)
    assert torch.isfinite(compiled(function)(x.requires_grad_())).all()
