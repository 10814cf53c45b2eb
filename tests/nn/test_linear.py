# SPDX-License-Identifier: Apache-2.0
"""`nn.Linear`: torch's module in all but the product."""

import copy
import pickle

import pytest
import torch

from cutegemm import nn
from cutegemm.errors import HardwareError, InputError


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
    with pytest.raises(InputError, match="training=True: constant_weights promises that no launch"):
        layer(x)
    assert torch.allclose(layer.eval()(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert "constant_weights=True" in repr(layer)


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
