# SPDX-License-Identifier: Apache-2.0
"""State dicts of modules that have several of torch's parameters as one, loaded in part, wrongly, and under assign."""

import copy
import itertools
import re

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.nn.utils import parametrizations, prune

from cutegemm import nn


class Layers(torch.nn.Module):
    """Three layers of different heights with biases, or two like ones without, and another."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        gated = "gate_proj" in names
        for i, name in enumerate(names):
            setattr(self, name, torch.nn.Linear(4, 8 if gated else 4 + i, bias=not gated))
        self.down_proj = torch.nn.Linear(8, 4, bias=False)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        """The gated perceptron, with its two factors in the other order."""
        return self.down_proj(self.up_proj(x) * self.act_fn(self.gate_proj(x)))


JOINED, GATED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def pruned(module, name):
    """Half of a weight is masked."""
    prune.l1_unstructured(module, name, amount=0.5)


def pair(names):
    """(ours, torch's) with equal parameters, both in a model."""
    theirs = torch.nn.ModuleDict({"inner": Layers(*names), "last": torch.nn.Linear(2, 2)})
    ours = copy.deepcopy(theirs)
    options = {"swiglu": [Layers]} if names == GATED else {"joined": [JOINED]}
    done = nn.convert(ours, fallback="reference", **options)
    assert not done.left
    return ours, theirs


def equal(ours, theirs):
    """Whether two models have the same state dict, in the same order."""
    a, b = ours.state_dict(), theirs.state_dict()
    return list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in b)


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("names", [JOINED, GATED], ids=["joined", "gated"])
def test_any_part_of_a_state_dict_is_loaded_as_torch_does(names, assign):
    """Missing and unexpected keys, and every value afterwards; nothing given leaves the parameters themselves."""
    whole = {f"inner.{key}": x for key, x in Layers(*names).state_dict().items()}
    parts = [key for key in whole if "down" not in key][:3]
    for count in range(len(parts) + 1):
        for absent in itertools.combinations(parts, count):
            ours, theirs = pair(names)
            state = {key: x for key, x in whole.items() if key not in absent} | {"inner.more": torch.ones(1)}
            found, expected = (x.load_state_dict(state, strict=False, assign=assign) for x in (ours, theirs))
            assert [set(x) for x in found] == [set(x) for x in expected], absent
            assert equal(ours, theirs), absent
    ours, theirs = pair(names)
    before = dict(ours.named_parameters())
    found, expected = (x.load_state_dict({}, strict=False, assign=assign) for x in (ours, theirs))
    assert set(found.missing_keys) == set(expected.missing_keys) and equal(ours, theirs)
    assert all(x is before[name] for name, x in ours.named_parameters())


@pytest.mark.parametrize("names", [JOINED, GATED], ids=["joined", "gated"])
def test_other_extents_are_refused_by_the_parts_names(names):
    """Also where their sum is right, and where they differ in width; a module without memory takes no single part."""
    ours, theirs = pair(names)
    first, second = (f"inner.{name}.weight" for name in names[:2])
    state = theirs.state_dict()
    for one, other in (((7, 4), (9, 4)), ((8, 5), (8, 4))):
        state |= {first: torch.zeros(one), second: torch.zeros(other)}
        for model in (ours, theirs):
            with pytest.raises(RuntimeError, match=f"size mismatch for {re.escape(first)}"):
                model.load_state_dict(state)
    with torch.device("meta"):
        empty = pair(names)[0]
    with pytest.raises(RuntimeError, match="has no memory yet"):
        empty.load_state_dict({first: theirs.state_dict()[first]}, strict=False, assign=True)
    with pytest.raises(RuntimeError, match=f"size mismatch for {re.escape(first)}"):
        empty.load_state_dict(state, assign=True)
    empty.load_state_dict(theirs.state_dict(), assign=True)
    assert equal(empty, theirs)


@pytest.mark.parametrize("change", [parametrizations.weight_norm, pruned])
@pytest.mark.parametrize("names", [JOINED, GATED], ids=["joined", "gated"])
def test_a_weight_that_torch_computes_is_saved_and_loaded(names, change):
    """torch's utilities replace the parameter by others, which keep their own names in the state dict."""
    ours, _ = pair(names)
    inner = ours["inner"]
    change(*((inner.q_proj.joined, "weight") if names == JOINED else (inner, "gate_up_weight")))
    saved = {key: x.clone() for key, x in ours.state_dict().items()}
    with torch.no_grad():
        for x in ours.parameters():
            x.zero_()
    ours.load_state_dict(saved)
    found = ours.state_dict()
    assert list(found) == list(saved) and all(torch.equal(found[key], x) for key, x in saved.items())


@pytest.mark.parametrize("names", [JOINED, GATED], ids=["joined", "gated"])
def test_distributed_checkpoints_find_every_key(names):
    """torch looks a model's attributes up by the keys of its state dict."""
    (ours, theirs), (others, _) = pair(names), pair(names)
    found = get_model_state_dict(ours)
    assert list(found) == list(theirs.state_dict())
    set_model_state_dict(others, found)
    assert equal(others, theirs)
