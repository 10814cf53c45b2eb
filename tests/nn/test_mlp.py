# SPDX-License-Identifier: Apache-2.0
"""`nn.MLP` and `nn.SwiGLU`: values, gradients and state dicts of the torch modules they replace."""

import pytest
import torch
from torch.nn import functional as F

from cutegemm import nn
from cutegemm.errors import InputError
from tests.support.torch_ops import BOUNDS, error


class Gated(torch.nn.Module):
    """A gated perceptron of three torch layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, hidden, bias=False)
        self.up_proj = torch.nn.Linear(width, hidden, bias=False)
        self.down_proj = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        """Down of silu(gate) times up."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def pair(name):
    """(ours, torch's) with equal weights."""
    if name == "swiglu":
        ours, theirs = nn.SwiGLU(12, 16, fallback="reference"), Gated(12, 16)
    else:
        act = {"gelu": torch.nn.GELU(), "relu": torch.nn.ReLU(), "gelu_tanh": torch.nn.GELU("tanh")}[name]
        ours = nn.MLP(12, 16, 8, name, fallback="reference")
        theirs = torch.nn.Sequential(torch.nn.Linear(12, 16), act, torch.nn.Linear(16, 8))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def flat_gradients(model):
    """All gradients of a model as one vector, in the order of torch's parameters."""
    if isinstance(model, nn.SwiGLU):
        return torch.cat([model.gate_up_weight.grad.flatten(), model.down_proj.weight.grad.flatten()])
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "swiglu"])
def test_values_and_gradients_are_torchs(name, dtype):
    """Forward and all gradients against the torch modules in fp64, from one state dict."""
    torch.manual_seed(0)
    ours, theirs = pair(name)
    ours, theirs = ours.to(dtype), theirs.to(dtype).double()
    x = torch.randn(2, 3, 12).to(dtype)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, z = ours(a), theirs(b)
    assert error(y.detach(), z.detach()) <= BOUNDS[dtype]
    upstream = torch.randn(z.shape).to(dtype)
    y.backward(upstream)
    z.backward(upstream.double())
    assert error(a.grad, b.grad) <= BOUNDS[dtype]
    assert error(flat_gradients(ours), flat_gradients(theirs)) <= BOUNDS[dtype]


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_state_dicts_go_both_ways(name):
    """Keys and values are those of torch's modules, strictly, in both directions."""
    ours, theirs = pair(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    again = pair(name)[0]
    assert not torch.equal(next(iter(again.state_dict().values())), next(iter(ours.state_dict().values())))
    again.load_state_dict(theirs.state_dict())
    for x, y in zip(again.state_dict().values(), ours.state_dict().values()):
        assert torch.equal(x, y)


def test_an_activation_that_is_none_is_refused():
    """The names are listed."""
    with pytest.raises(InputError, match="activation='swish': must be one of gelu, gelu_tanh, relu, silu"):
        nn.MLP(4, 8, activation="swish")


def test_without_biases_and_with_constant_weights():
    """A perceptron without biases is torch's; constant weights are refused in training."""
    model = nn.MLP(8, 16, bias=False)
    x = torch.randn(3, 8)
    assert torch.allclose(model(x), model[2](F.gelu(model[0](x))))
    for made in (nn.MLP(8, 16, constant_weights=True), nn.SwiGLU(8, 16, constant_weights=True)):
        with pytest.raises(InputError, match="training"):
            made(x)
        made.eval()(x)
