# SPDX-License-Identifier: Apache-2.0
"""MLPs of other classes, which `convert(mlp=...)` recognizes and lets compute as `MLP` does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from cutegemm import nn
from cutegemm.errors import InputError
from cutegemm.nn import perceptrons


class Own(torch.nn.Module):
    """An MLP whose activation is any callable."""

    def __init__(self, activation, bias=True):
        super().__init__()
        self.up = torch.nn.Linear(16, 24, bias=bias)
        self.down = torch.nn.Linear(24, 16, bias=bias)
        self.act = activation

    def forward(self, x):
        """The output."""
        return self.down(self.act(self.up(x)))


class Dropping(Own):
    """One with a further module."""

    def __init__(self):
        super().__init__(F.gelu)
        self.drop = torch.nn.Dropout(0.1)
        self.second = torch.nn.Identity()


class Residual(Own):
    """One that adds its input."""

    def forward(self, x):
        """The output."""
        return x + super().forward(x)


class Twice(Own):
    """One whose last layer reads the first one's output without the activation."""

    def forward(self, x):
        """The output."""
        self.act(y := self.up(x))
        return self.down(y)


class Scaling(Own):
    """One with a parameter of its own."""

    def __init__(self):
        super().__init__(F.relu)
        self.gain = torch.nn.Parameter(torch.ones(()))


def of_transformers(name):
    """An MLP of the transformers library."""
    if name.startswith("ViT"):
        from transformers import ViTConfig
        from transformers.models.vit.modeling_vit import ViTMLP

        return ViTMLP(ViTConfig(hidden_size=16, intermediate_size=24, hidden_act=name.split()[1]))
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP

    return GPTNeoXMLP(GPTNeoXConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2))


MADE = {
    "a function": lambda: Own(F.gelu),
    "no bias": lambda: Own(F.silu, bias=False),
    "tanh": lambda: Own(lambda x: F.gelu(x, approximate="tanh")),
    "relu": lambda: Own(torch.relu),
    "a module": lambda: Own(torch.nn.GELU("tanh")),
    "silu": lambda: Own(torch.nn.SiLU()),
    "GPTNeoX": lambda: of_transformers("GPTNeoX"),
    "ViT": lambda: of_transformers("ViT gelu"),
    "ViT, tanh": lambda: of_transformers("ViT gelu_pytorch_tanh"),
}


def converted(module):
    """A model with a module in it, converted, and the report."""
    model = torch.nn.Sequential(module)
    return model, nn.convert(model, mlp=[type(module)], fallback="reference")


def both(one, other, x):
    """Outputs and gradients of two models."""
    found = []
    for model in (one, other):
        given = x.clone().requires_grad_()
        y = model(given)
        y.square().sum().backward()
        found.append([y.detach(), given.grad, *(p.grad for p in model.parameters())])
    return found


@pytest.fixture
def called(monkeypatch):
    """The names of the activations of MLPs that run in one pass."""
    names, through = [], perceptrons.through

    def watched(x, first, last, epilogue):
        names.append(epilogue)
        return through(x, first, last, epilogue)

    monkeypatch.setattr(perceptrons, "through", watched)
    return names


@pytest.mark.parametrize("name", MADE)
def test_it_computes_what_it_did(name, called):
    """Outputs and all gradients; the object, its modules, state dict and mode stay."""
    torch.manual_seed(0)
    module = MADE[name]()
    theirs = torch.nn.Sequential(copy.deepcopy(module))
    portable = not isinstance(module, Own) or isinstance(module.act, torch.nn.Module)
    children, names = dict(module.named_children()), list(module.state_dict())
    model, report = converted(module)
    assert report.converted[0] == "0" and len(report.converted) == 3 and not report.left
    assert model[0] is module and dict(module.named_children()) == children
    assert list(module.state_dict()) == names and module.training
    for one, two in zip(*both(model, theirs, torch.randn(3, 5, 16)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert len(called) == 1
    copies = [copy.deepcopy(model)]
    if portable:
        copies.append(pickle.loads(pickle.dumps(model)))
    for again in copies:
        torch.testing.assert_close(again(torch.ones(2, 16)), model(torch.ones(2, 16)))
    assert len(called) == 1 + 2 * len(copies)


LEFT = {
    "its modules are not exactly": Dropping,
    "its own parameters": Scaling,
    "its forward is not second": lambda: Residual(F.gelu),
    "its forward is not": lambda: Twice(F.gelu),
    "with gelu, relu or silu": lambda: Own(torch.nn.LeakyReLU()),
    "relu or silu": lambda: Own(lambda x: F.relu(x, inplace=True)),
    "gelu, relu": lambda: of_transformers("ViT gelu_new"),
    "cannot be traced": lambda: Own(lambda x: x if x.sum() > 0 else -x),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_computes_something_else_is_left(why, called):
    """With the reason; its layers are converted, and its output stays."""
    module = LEFT[why]().eval()
    x = torch.randn(3, 16)
    before = module(x)
    model, report = converted(module)
    assert why in report.left["0"] and type(module) is not perceptrons.FusedMLP
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    assert not called


def test_changed_layers_compute_as_the_original_class(called):
    """Hooks on a layer or the activation, another activation, another class of layer, a keyword."""
    module = Own(torch.nn.GELU())
    model, _ = converted(module)
    x = torch.randn(3, 16)
    expected = module.down(F.gelu(module.up(x)))
    seen = []
    for part in (module.up, module.act):
        hook = part.register_forward_hook(lambda *_: seen.append(1))
        torch.testing.assert_close(model(x), expected)
        hook.remove()
    torch.testing.assert_close(module(x=x), expected)
    assert len(seen) == 2 and not called
    model(x)
    assert len(called) == 1
    module.act = torch.nn.ReLU()
    torch.testing.assert_close(model(x), module.down(F.relu(module.up(x))))
    module.act = torch.nn.GELU("tanh")
    torch.testing.assert_close(model(x), module.down(F.gelu(module.up(x), approximate="tanh")))
    assert len(called) == 1


def test_it_is_one_node_and_compiles():
    """torch.fx sees one node, as it does for `MLP`; torch.compile traces through it."""
    model, _ = converted(Own(torch.nn.GELU()))
    traced = torch.fx.symbolic_trace(model)
    assert [x.op for x in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    x = torch.randn(3, 16)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


def test_arguments_are_checked():
    """A class that is not in the model, 8-bit weights; a model that was converted may be converted again."""
    model, _ = converted(Own(F.gelu))
    assert nn.convert(model, mlp=[Own], fallback="reference").converted == ()
    with pytest.raises(InputError, match=r"mlp\[0\]='Own': no module of the model has this class"):
        nn.convert(torch.nn.Sequential(torch.nn.Linear(8, 8)), mlp=[Own])
    with pytest.raises(InputError, match="mlp=.*no 8-bit weights"):
        nn.convert(torch.nn.Sequential(Own(F.gelu)).eval(), mlp=[Own], weights="fp8")
    skipped = nn.convert(torch.nn.Sequential(Own(F.gelu)), mlp=[Own], skip=["0"], fallback="reference")
    assert skipped.left["0"] == "skip='0'" and skipped.converted == ("0.up", "0.down")
