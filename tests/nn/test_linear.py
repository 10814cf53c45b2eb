# SPDX-License-Identifier: Apache-2.0
"""`nn.Linear`: torch's module in all but the product."""

import copy
import pickle

import numpy
import pytest
import torch
from torch.sparse import SparseSemiStructuredTensor

from cutegemm import nn
from cutegemm.errors import HardwareError, InputError
from cutegemm.nn import linear as layers


def test_it_is_torchs_layer():
    """The same parameters, state dict and values; it may be copied and pickled."""
    torch.manual_seed(0)
    theirs = torch.nn.Linear(12, 7)
    ours = nn.Linear(12, 7, fallback="reference")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 12)
    for layer in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.allclose(layer(x), theirs(x), atol=1e-6)
        assert layer.fallback == "reference"


def test_constant_weights_are_refused_in_training():
    """The promise holds in evaluation alone, whenever training begins."""
    layer = nn.Linear(16, 8, constant_weights=True)
    x = torch.randn(3, 16)
    with pytest.raises(InputError, match="training=True: constant_weights promises that no kernel in flight"):
        layer(x)
    assert torch.allclose(layer.eval()(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert "constant_weights=True" in repr(layer)


class Quantised(torch.Tensor):
    """A weight that knows torch's linear layer and nothing else, as libraries of quantisation have them."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Twice the product."""
        if function is torch.nn.functional.linear:
            return 2 * function(args[0], args[1].as_subclass(torch.Tensor), *args[2:])
        return super().__torch_function__(function, types, args, kwargs)


class Named(torch.Tensor):
    """A tensor of another name, and nothing more."""


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_that_multiply_themselves_are_left_to_torch(compiled, monkeypatch):
    """As on a GPU, where a quantised weight would meet an op that it does not know; also one that came later."""

    def ours(*args, **options):
        raise NotImplementedError("our op")

    layer, x = nn.Linear(12, 8, bias=False), torch.randn(3, 12)
    w = layer.weight.detach()
    monkeypatch.setattr(layers, "linear", ours)
    torch._dynamo.reset()
    run = torch.compile(layer, backend="eager") if compiled else layer
    layer.weight = torch.nn.Parameter(w.as_subclass(Quantised), requires_grad=False)
    assert torch.allclose(run(x), 2 * x @ w.t(), atol=1e-5)
    assert [layers.multiplies(x) for x in (Quantised, Named, torch.nn.Parameter, SparseSemiStructuredTensor)] == [
        True, False, False, True,
    ]  # fmt: skip
    theirs = torch.nn.Linear(12, 8, bias=False)
    theirs.weight = layer.weight
    assert nn.convert(theirs).left == {"": "its weight is a Quantised, which overrides matmul"}


def test_nested_tensors_are_left_to_torch():
    """Layers that take them as torch's do; a named fallback still refuses them."""
    rows = torch.randn(7, 12)
    x = torch.nested.nested_tensor([rows[:2], rows[2:]], layout=torch.jagged)
    parts = torch.nn.ModuleDict({name: torch.nn.Linear(12, 4) for name in "qk"})
    nn.convert(parts, joined=[("q", "k")])
    for layer in (nn.Linear(12, 5), nn.MLP(12, 8), nn.SwiGLU(12, 8), parts["q"], parts["k"]):
        y = layer(x)
        assert torch.allclose(y.values(), layer(rows), atol=1e-6)
        y.values().sum().backward()
    with pytest.raises(InputError, match="not a nested one"):
        nn.Linear(12, 5, fallback="reference")(x)


@pytest.mark.parametrize("form", ["sparse", "sparse_csr", "sparse_csc"])
def test_sparse_tensors_are_left_to_torch(form):
    """As an input, and as a weight: torch's layer multiplies them; a named fallback still refuses them."""
    x, theirs = torch.randn(7, 12), torch.nn.Linear(12, 5)
    sparse = getattr(x, f"to_{form}")()
    layer = copy.deepcopy(theirs)
    nn.convert(layer)
    assert torch.allclose(layer(sparse), theirs(x), atol=1e-6)
    with pytest.raises(InputError, match="x.layout=.*must be strided"):
        nn.Linear(12, 5, fallback="reference")(sparse)
    layer.weight = torch.nn.Parameter(getattr(theirs.weight.detach(), f"to_{form}")())
    layer.bias = None
    assert torch.allclose(layer(x), torch.nn.functional.linear(x, theirs.weight), atol=1e-6)


@pytest.mark.parametrize("x", [3, None, [[1.0]], numpy.ones((2, 16), numpy.float32)], ids=repr)
def test_what_is_no_tensor_is_no_input(x):
    """Every layer refuses it by name, those that `convert` makes too."""
    eight, parts = (
        torch.nn.Linear(16, 16).eval(),
        torch.nn.ModuleDict({y: torch.nn.Linear(16, 4) for y in "qk"}),
    )
    nn.convert(parts, joined=[("q", "k")])
    nn.convert(eight, weights="int8")
    layers = [nn.Linear(16, 8), nn.MLP(16, 8), nn.SwiGLU(16, 8), nn.MoE(16, 8, 4, 2), *parts.values()]
    for layer in (*layers, eight):
        with pytest.raises(InputError, match=r"^(input|x)\b.*must be a torch.Tensor"):
            layer(x)


@pytest.mark.parametrize(
    "x", [torch.ones(()), torch.ones(2, 8), torch.ones(2, 16).double(), torch.ones(2, 16).bool()]
)
def test_an_input_of_another_shape_or_type_is_named(x):
    """By layers that compute something of it before they multiply."""
    eight = torch.nn.Linear(16, 16).bfloat16().eval()
    nn.convert(eight, weights="fp8", activations="fp8")
    for layer in (nn.MoE(16, 8, 4, 2), eight):
        with pytest.raises(InputError, match=r"^(input|x)\.(shape|dtype)="):
            layer(x)


def test_a_script_is_refused():
    """By a sentence, where torch would stumble over something."""
    with pytest.raises(InputError, match="module='Linear': does not support torch.jit.script"):
        torch.jit.script(torch.nn.Sequential(nn.SwiGLU(3, 4)))


def test_the_fallback_is_the_layers():
    """fallback="error" refuses where there is no Hopper GPU."""
    with pytest.raises(HardwareError):
        nn.Linear(4, 4, fallback="error")(torch.randn(2, 4))


def test_two_layers_train_as_torchs_do():
    """Twenty steps on drawn data: the same losses as torch.nn.Linear's, and they fall."""

    def losses(layer, **options):
        torch.manual_seed(1)
        model = torch.nn.Sequential(layer(8, 32, **options), torch.nn.Tanh(), layer(32, 1, **options))
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        x = torch.randn(64, 8)
        y = x[:, :1] * x[:, 1:2]
        found = []
        for _ in range(20):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found)

    ours, theirs = losses(nn.Linear, fallback="reference"), losses(torch.nn.Linear)
    assert torch.allclose(ours, theirs, rtol=1e-4)
    assert ours[-1] < 0.7 * ours[0]
