# SPDX-License-Identifier: Apache-2.0
"""Parts of a joined layer that a user wraps, replaces, freezes or changes one by one."""

import copy

import pytest
import torch
from torch.nn.utils import prune

from cutegemm.errors import InputError
from cutegemm.nn.joined import Part
from tests.support.attention import NAMES, pair


class Adapted(torch.nn.Module):
    """A layer with a low-rank adapter, as LoRA wraps it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        """The layer's output plus the adapter's."""
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_part_is_saved_and_loaded(name):
    """Its state dict is loaded by a model of the same structure, and the other parts keep their keys."""
    ours, _ = pair(True)
    ours.requires_grad_(False)
    setattr(ours, name, Adapted(getattr(ours, name)))
    other, x = copy.deepcopy(ours), torch.randn(3, 12)
    state = {key: t.clone() for key, t in ours.state_dict().items()}
    assert {f"{x}.{kind}" for x in NAMES if x != name for kind in ("weight", "bias")} <= state.keys()
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(state)
    assert torch.equal(other(x), ours(x))


@pytest.mark.parametrize("name", NAMES)
def test_another_layer_in_a_part_s_place_is_saved_as_itself(name):
    """Its key holds its own weight, not the rows of the part that was there."""
    ours, _ = pair(True)
    layer = torch.nn.Linear(12, getattr(ours, name).out_features)
    setattr(ours, name, layer)
    state, x = ours.state_dict(), torch.randn(3, 12)
    assert torch.equal(state[f"{name}.weight"], layer.weight)
    assert not [key for key in state if "joined" in key]
    other, plain = copy.deepcopy(ours), pair(True)[1]
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(state)
    plain.load_state_dict(state)
    assert torch.equal(other(x), ours(x)) and torch.allclose(plain(x), ours(x), atol=1e-6)
    rest = {key: t for key, t in state.items() if not key.startswith(name)}
    assert set(other.load_state_dict(rest, strict=False).missing_keys) == {f"{name}.weight", f"{name}.bias"}


def test_no_part_left_is_a_plain_model():
    """When all parts are replaced the hooks do nothing."""
    ours, theirs = pair(True)
    for name in NAMES:
        setattr(ours, name, getattr(theirs, name))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_a_part_alone_is_not_frozen():
    """The others have the same parameter; what changes nothing is allowed, as for an adapter of a frozen model."""
    ours, _ = pair(True)
    with pytest.raises(InputError, match="requires_grad_=False: is a part of a joined layer"):
        ours.k_proj.requires_grad_(False)
    assert ours.q_proj.requires_grad_() is ours.q_proj and ours.q_proj.weight.requires_grad
    ours.requires_grad_(False)
    assert isinstance(ours.q_proj.requires_grad_(False), Part)


def test_a_part_s_weight_is_not_replaced():
    """It is a view: an assignment, and torch's pruning, are refused by name; writing into it is seen."""
    ours, theirs = pair(True)
    x = torch.randn(3, 12)
    for change in (
        lambda: setattr(ours.q_proj, "weight", torch.nn.Parameter(torch.zeros(16, 12))),
        lambda: prune.l1_unstructured(ours.q_proj, "weight", 0.5),
        lambda: setattr(ours.k_proj, "bias", torch.nn.Parameter(torch.zeros(8))),
    ):
        with pytest.raises(InputError, match="is a view of the joined layer's parameter: write into it"):
            change()
    with torch.no_grad():
        for model in (ours, theirs):
            model.k_proj.weight.mul_(2)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
