# SPDX-License-Identifier: Apache-2.0
"""Layers joined into one product: values, gradients, state dicts, and calls in another order."""

import copy
import importlib
import pickle

import pytest
import torch
from torch._dynamo.testing import AotEagerAndRecordGraphs

from cutegemm import nn
from cutegemm.errors import InputError
from cutegemm.nn import linear as layers
from tests.support.attention import NAMES, Attention, pair
from tests.support.torch_ops import survivors

# the module: torch.nn.parallel has its function of that name
replicate = importlib.import_module("torch.nn.parallel.replicate")


@pytest.fixture
def products(monkeypatch):
    """The inputs of every product that a layer computes."""
    seen = []
    run = layers.linear
    monkeypatch.setattr(layers, "linear", lambda x, *rest, **more: seen.append(x) or run(x, *rest, **more))
    return seen


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_tensor_are_one_product(bias, products):
    """Two products where there were four; values and all gradients are the original's."""
    ours, theirs = pair(bias)
    x = torch.randn(2, 3, 12)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours(a).square().sum().backward()
    theirs(b).square().sum().backward()
    assert len(products) == 2
    assert torch.allclose(a.grad, b.grad, atol=1e-4)
    for kind in ("weight", "bias") if bias else ("weight",):
        expected = torch.cat([getattr(getattr(theirs, x), kind).grad for x in NAMES])
        assert torch.allclose(getattr(ours.q_proj.joined, kind).grad, expected, atol=1e-4)
        assert torch.equal(getattr(ours.k_proj, kind), getattr(theirs.k_proj, kind))


@pytest.mark.parametrize("bias", [False, True])
def test_the_state_dict_stays_as_it_was(bias):
    """Keys in their order and values, both ways; a copy is whole and knows nothing of the first one."""
    ours, theirs = pair(bias)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    other = Attention(bias)
    copied = copy.deepcopy(ours)
    ours.load_state_dict(other.state_dict())
    for name, x in ours.state_dict().items():
        assert torch.equal(x, other.state_dict()[name])
    x = torch.randn(3, 12)
    assert torch.allclose(ours(x), other(x), atol=1e-6) and torch.allclose(copied(x), theirs(x), atol=1e-6)
    holder = torch.nn.ModuleDict({"a": copied, "b": torch.nn.Linear(2, 2)})
    assert list(holder.state_dict())[-2:] == ["b.weight", "b.bias"]


@pytest.mark.parametrize("bias", [False, True])
def test_part_of_a_state_dict_is_loaded_as_it_was(bias):
    """Entries that exist are loaded. Missing ones stay. The error names these and those of a wrong shape."""
    ours, theirs = pair(bias)
    state = Attention(bias).state_dict()
    del state["k_proj.weight"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "k_proj.weight"'):
        copy.deepcopy(ours).load_state_dict(state)
    assert ours.load_state_dict(state, strict=False) == theirs.load_state_dict(state, strict=False)
    for name, x in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], x)
    state |= {"q_proj.weight": torch.zeros(8, 12), "k_proj.weight": torch.zeros(16, 12)}
    for model in (ours, theirs):
        with pytest.raises(RuntimeError, match=r"(?s)mismatch for q_proj.weight.*mismatch for k_proj.weight"):
            model.load_state_dict(state)
    with torch.device("meta"):
        empty, _ = pair(bias)
    assert empty.load_state_dict(theirs.state_dict(), assign=True) == ours.load_state_dict(
        theirs.state_dict()
    )
    assert torch.equal(empty.v_proj.weight, theirs.v_proj.weight)


def test_another_tensor_or_order_is_computed_for_itself(products):
    """A part is only given what was computed for its very tensor, with or without gradients as it is called."""
    ours, theirs = pair(True)
    x, y = torch.randn(3, 12), torch.randn(3, 12)
    for name, t in (("v_proj", x), ("q_proj", x), ("k_proj", y), ("v_proj", x), ("v_proj", x), ("q_proj", y)):
        assert torch.allclose(getattr(ours, name)(t), getattr(theirs, name)(t), atol=1e-6)
    with torch.no_grad():
        ours.q_proj(x)
    assert ours.k_proj(x).requires_grad
    # first v; q; another k; v is given; again v; q; k without what was computed without gradients
    assert len(products) == 7


def autocast(ours, x):
    """The first part under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        ours.q_proj(x)


def inference(ours, x):
    """The first part in inference mode."""
    with torch.inference_mode():
        ours.q_proj(x)


def other_weights(ours, x):
    """The first part with weights of its caller, which nobody writes."""
    names = {f"joined.{name}": torch.zeros_like(p) for name, p in ours.q_proj.joined.named_parameters()}
    torch.func.functional_call(ours.q_proj, names, x)


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]], ids=["in order", "in reverse"])
def test_a_functional_call_gives_the_parameters_back(names):
    """torch.func lends a model other weights, by any of its parts or as a whole; afterwards it has its own."""
    ours = Attention(True)
    nn.convert(ours, fallback="reference", joined=[names])
    x, own = torch.randn(3, 12), dict(ours.named_parameters())
    before = ours(x)
    zeros = torch.func.functional_call(ours, {name: p * 0 for name, p in own.items()}, (x,))
    assert not zeros.any()
    weight = f"{names[1]}.joined.weight"
    other = torch.func.functional_call(ours, {weight: ours.k_proj.joined.weight * 0}, (x,))
    assert not torch.allclose(other, before)
    assert all(x is y for x, y in zip(dict(ours.named_parameters()).values(), own.values(), strict=True))
    assert torch.equal(ours(x), before)


# what happens between two parts of one tensor, the first of them already called where it is a write
BETWEEN = {
    "input": lambda ours, x: (ours.q_proj(x), x.add_(1)),
    "weight": lambda ours, x: (ours.q_proj(x), ours.q_proj.joined.weight.mul_(2)),
    "bias": lambda ours, x: (ours.q_proj(x), ours.q_proj.joined.bias.mul_(2)),
    "autocast": autocast,
    "inference mode": inference,
    "another weight": other_weights,
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_has_changed_since_is_computed_anew(name):
    """Writes to what the product read, and modes that give other types or kinds of tensors."""
    ours, _ = pair(True)
    x = torch.randn(3, 12)
    with torch.no_grad():
        BETWEEN[name](ours, x)
        found = ours.k_proj(x)
        assert torch.allclose(
            found, torch.nn.functional.linear(x, ours.k_proj.weight, ours.k_proj.bias), atol=1e-6
        )
    assert found.dtype == torch.float32 and not found.is_inference()


def test_compiled_parts_follow_autocast():
    """A region that begins between two parts gives the second its own type."""
    ours, _ = pair(True)

    def parts(x):
        q = ours.q_proj(x)
        with torch.autocast("cpu", torch.bfloat16):
            return q, ours.k_proj(x), ours.v_proj(x)

    q, k, v = torch.compile(parts, backend="aot_eager", fullgraph=True)(torch.randn(3, 12))
    assert q.dtype == torch.float32 and k.dtype == v.dtype == torch.bfloat16


def test_a_device_without_autocast_may_be_in_a_region():
    """A model on the meta device computes as usual while autocast is on for the CPU."""
    ours, _ = pair(True)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours.to("meta")(torch.randn(3, 12, device="meta"))
    assert y.is_meta and y.dtype == torch.float32


def test_a_copy_is_without_what_has_not_been_taken():
    """Shares that autograd recorded, which cannot be copied, and large ones, which nobody wants in a file."""
    ours, theirs = pair(True)
    x = torch.randn(1000, 12)
    ours.q_proj(x)
    assert torch.allclose(copy.deepcopy(ours).k_proj(x), theirs.k_proj(x), atol=1e-6)
    assert len(pickle.dumps(ours)) < x.nbytes // 2
    assert len(ours.q_proj.joined.pending) == 1


def test_threads_do_not_mix_their_shares(monkeypatch):
    """Another thread's product comes between a part's look at what is pending and its taking."""
    ours, theirs = pair(True)
    x, y = torch.randn(3, 12), torch.randn(3, 12)
    whole = ours.q_proj.joined
    ours.q_proj(x)
    look = type(whole)._circumstances

    def late(self, input):
        found = look(self, input)
        monkeypatch.undo()
        ours.q_proj(y)
        return found

    monkeypatch.setattr(type(whole), "_circumstances", late)
    assert torch.allclose(ours.k_proj(x), theirs.k_proj(x), atol=1e-6)
    assert torch.allclose(ours.k_proj(y), theirs.k_proj(y), atol=1e-6)


def shared_parameter(model):
    """Two layers have one weight."""
    model.k_proj.weight = model.o_proj.weight = torch.nn.Parameter(torch.randn(12, 12))


def shared_layer(model):
    """A layer hangs at two places."""
    model.again = model.v_proj


def test_what_is_shared_stays_shared():
    """Neither a parameter that another layer has nor a layer that is elsewhere, too, is torn from the other."""
    for share, why in ((shared_parameter, "the same parameter"), (shared_layer, "the same layer")):
        model = Attention(True)
        share(model)
        report = nn.convert(model, fallback="reference", joined=[NAMES])
        assert why in report.left["q_proj with k_proj, v_proj"]
        assert model.k_proj.weight is not model.v_proj.weight
    assert model.again is model.v_proj


def test_nothing_is_kept_after_the_last_part():
    """Neither the input nor a share."""
    ours, _ = pair(True)
    with torch.no_grad():
        assert survivors(lambda: ours(torch.randn(3, 12))) == []


def test_replicas_compute_with_their_own_copies(products, monkeypatch):
    """torch.nn.parallel.replicate: every part with its replica's weights, in one product; gradients reach the model."""
    ours, theirs = pair(True)

    def copies(tensors, devices, detach=False):
        return [[x * (1 + i) for x in tensors] for i in range(len(devices))]

    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", copies)
    monkeypatch.setattr(replicate, "_get_device_index", lambda x, _: x)
    replicas = replicate.replicate(ours, [0, 1])
    assert replicas[0].q_proj.joined.pending is not replicas[1].q_proj.joined.pending
    # the second replica's weights are twice the model's
    doubled = copy.deepcopy(theirs)
    for p in doubled.parameters():
        p.data.mul_(2)
    inputs = [torch.randn(3, 12) for _ in replicas]
    # in turns, as threads may
    parts = [[getattr(r, name)(x) for r, x in zip(replicas, inputs)] for name in NAMES]
    assert len(products) == 2
    for name, found in zip(NAMES, parts):
        for original, x, y in zip((theirs, doubled), inputs, found):
            assert torch.allclose(y, getattr(original, name)(x), atol=1e-5)
    sum(y.sum() for found in parts for y in found).backward()
    expected = (inputs[0] + 2 * inputs[1]).sum(0).expand(32, 12)
    assert torch.allclose(ours.q_proj.joined.weight.grad, expected, atol=1e-4)


def test_it_prints_once_what_its_parts_share():
    """Below the first part."""
    text = repr(pair(True)[0])
    assert text.count("Joined(") == 1 and text.count("Part(") == 3


def test_it_compiles_into_one_graph_with_two_products():
    """Forward and backward, with the bits of the eager call."""
    ours, _ = pair(False)
    torch._dynamo.reset()
    graphs = AotEagerAndRecordGraphs()
    run, x = torch.compile(ours, fullgraph=True, backend=graphs), torch.randn(2, 3, 12)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = run(a), ours(b)
    y.sum().backward()
    z.sum().backward()
    assert torch.equal(y, z) and torch.equal(a.grad, b.grad)
    (forward,) = graphs.fw_graphs
    assert sum("cutegemm.gemm" in str(n.target) for n in forward.graph.nodes) == 2
    with torch.no_grad():
        assert torch.equal(run(x), z)


def test_a_group_is_no_collection_of_groups():
    """Names in place of groups would join nothing."""
    for wrong in (NAMES, "q_proj"):
        with pytest.raises(InputError, match="joined=.*must be groups of names"):
            nn.convert(Attention(True), joined=wrong)


def test_what_cannot_be_joined_says_why():
    """Hooks, layers that are not alike, and what the caller names: they are converted one by one or left."""
    for change, why in (
        (
            lambda m: m.k_proj.register_forward_hook(lambda *_: None),
            "k_proj: it has hooks",
        ),
        (lambda m: m.v_proj.to(torch.bfloat16), "they must agree"),
        (lambda m: m.v_proj.requires_grad_(False), "they must agree"),
        (lambda m: m.v_proj.bias.requires_grad_(False), "they must agree"),
    ):
        model = Attention(True)
        change(model)
        report = nn.convert(model, joined=[NAMES])
        assert why in report.left["q_proj with k_proj, v_proj"] and set(NAMES) < set(report.converted)
    report = nn.convert(Attention(True), joined=[NAMES], skip=["k_proj"])
    assert "skip='k_proj'" in report.left["q_proj with k_proj, v_proj"]
    ours, _ = pair(True, constant_weights=False)
    assert not ours.q_proj.joined.constant_weights
    model = Attention(False).to(torch.bfloat16).eval()
    report = nn.convert(model, joined=[NAMES], constant_weights=True)
    # rows of 12 elements are no multiple of 16 bytes
    assert set(report.varying) == {"q_proj"} and not model.q_proj.joined.constant_weights
