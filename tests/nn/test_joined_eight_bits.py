# SPDX-License-Identifier: Apache-2.0
"""Joined layers with 8-bit weights: one quantized input and one GEMM, the same results and state dict as apart."""

import copy
import io

import pytest
import torch

from cutegemm import nn
from cutegemm.errors import InputError
from cutegemm.nn import quantized
from cutegemm.nn.joined import QuantizedJoined

NAMES = ("q_proj", "k_proj", "v_proj")
SIZES = (48, 16, 32)


class Attention(torch.nn.Module):
    """Three layers of one input."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        for name, size in zip(NAMES, SIZES, strict=True):
            setattr(self, name, torch.nn.Linear(64, size, bias))

    def forward(self, x):
        return [getattr(self, name)(x) for name in NAMES]


def converted(joined=(NAMES,), *, bias=False, weights="fp8", activations="fp8", seed=0):
    """A converted module with random weights."""
    torch.manual_seed(seed)
    model = Attention(bias).to(torch.bfloat16).eval()
    found = nn.convert(model, weights=weights, activations=activations, joined=joined)
    assert len(found.converted) == 3 and not found.left
    return model


def drawn(seed=1):
    """An input."""
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def same(found, expected):
    """Whether two lists of tensors have the same bits."""
    return all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("weights", "activations"), [("fp8", "fp8"), ("fp8", None), ("int8", "int8")])
def test_the_same_results_as_apart(weights, activations, bias):
    """A row of D depends on its own scale alone, so joining changes no bit."""
    options = {"bias": bias, "weights": weights, "activations": activations}
    apart, joined, x = converted((), **options), converted(**options), drawn()
    assert isinstance(joined.q_proj.joined, QuantizedJoined)
    assert same(joined(x), apart(x))


def test_the_input_is_quantized_once(monkeypatch):
    """Three GEMMs apart, one together; a changed input is multiplied again."""
    inputs = []
    plain = quantized.frozen_linear
    monkeypatch.setattr(quantized, "frozen_linear", lambda *x: inputs.append(x[0]) or plain(*x))
    joined, x = converted(), drawn()
    first = joined(x)
    assert len(inputs) == 1
    x.mul_(2)
    assert not same(joined(x), first) and len(inputs) == 2
    converted(())(x)
    assert len(inputs) == 5


def test_a_part_alone_computes_its_own_rows():
    """Parts may be called in any order, and without the others."""
    apart, joined, x = converted((), bias=True), converted(bias=True), drawn()
    for name in reversed(NAMES):
        assert torch.equal(getattr(joined, name)(x), getattr(apart, name)(x))


def test_a_changed_scale_is_seen_between_two_parts():
    """A share computed with the old scales is not used, like one with an old weight."""
    apart, joined, x = converted(()), converted(), drawn()
    joined.q_proj(x)
    for model in (apart, joined):
        model.k_proj.weight_scale.mul_(2)
    assert torch.equal(joined.k_proj(x), apart.k_proj(x))
    joined.q_proj(x)
    whole = joined.q_proj.joined
    whole.weight_scale = quantized.frozen(whole.weight_scale * 2)
    with torch.no_grad():
        apart.v_proj.weight_scale.mul_(2)
    assert torch.equal(joined.v_proj(x), apart.v_proj(x))


def test_a_part_has_its_scales():
    """Under the name that they have in a layer apart and in the state dict; none in 16 bits."""
    apart, joined = converted(()), converted()
    for name in NAMES:
        assert torch.equal(getattr(joined, name).weight_scale, getattr(apart, name).weight_scale)
    model = Attention()
    nn.convert(model, joined=[NAMES])
    assert not hasattr(model.q_proj, "weight_scale")


@pytest.mark.parametrize("part", NAMES)
def test_a_nested_input_is_refused_as_by_a_layer_apart(part):
    """It has no one shape, and parts do not split their result for it."""
    nested = torch.nested.nested_tensor([drawn(), drawn()[:2]], layout=torch.jagged)
    for model in (converted(()), converted()):
        with pytest.raises(InputError, match="input=.*: must be a tensor of one shape, not a nested one"):
            getattr(model, part)(nested)


@pytest.mark.parametrize("bias", [False, True])
def test_the_state_dict_is_that_of_layers_apart(bias):
    """It can be loaded in either direction, scales too, and by a copy."""
    apart, joined, x = converted((), bias=bias, seed=2), converted(bias=bias), drawn()
    before, kept = joined(x), apart.state_dict()
    assert list(kept) == list(joined.state_dict())
    assert f"{NAMES[1]}.weight_scale" in kept and not same(apart(x), before)
    joined.load_state_dict(kept)
    assert same(joined(x), apart(x)) and same(joined.state_dict().values(), kept.values())
    again = converted((), bias=bias)
    again.load_state_dict(joined.state_dict())
    assert same(again(x), apart(x))
    file = io.BytesIO()
    torch.save(joined, file)
    file.seek(0)
    for twin in (copy.deepcopy(joined), torch.load(file, weights_only=False)):
        assert same(twin(x), apart(x))


def test_weights_of_16_bits_are_not_cast():
    """A state dict from before the conversion is refused, and changes nothing."""
    joined, x = converted(), drawn()
    before = joined(x)
    with pytest.raises(RuntimeError, match="must be torch.float8_e4m3fn, got torch.bfloat16"):
        joined.load_state_dict(Attention().to(torch.bfloat16).state_dict(), strict=False)
    assert same(joined(x), before)


def test_casting_a_module_keeps_its_8_bit_weights():
    """Only the bias takes the type."""
    whole = converted(bias=True).half().q_proj.joined
    assert whole.weight.dtype == torch.float8_e4m3fn and whole.weight_scale.dtype == torch.float32
    assert whole.bias.dtype == torch.float16


def test_compiled_it_is_one_quantization():
    """Dynamo and AOTAutograd see one op each."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    ops = []

    def keep(graph, _):
        ops.extend(str(x.target) for x in graph.graph.nodes if "cutegemm" in str(x.target))
        return make_boxed_func(graph.forward)

    joined, x = converted(), drawn()
    with torch.no_grad():
        found = torch.compile(joined, backend=aot_autograd(fw_compiler=keep, inference_compiler=keep))(x)
        assert same(found, joined(x))
    assert sorted(ops) == ["cutegemm.gemm.default", "cutegemm.quantize.default"]


def test_what_cannot_be_joined_is_left_or_refused():
    """Layers without memory are left, SwiGLU is refused by an error that says what to do."""
    with torch.device("meta"):
        model = Attention().eval()
    found = nn.convert(model, weights="fp8", joined=[NAMES])
    assert not found.converted and "its parameters have no memory yet" in str(found)
    with pytest.raises(InputError, match=r"swiglu=.*joined=\[\('gate_proj', 'up_proj'\)\]"):
        nn.convert(Attention().eval(), weights="fp8", swiglu=[Attention])


@pytest.mark.parametrize("weights", [None, "fp8"])
def test_layers_that_have_8_bits_are_not_joined_later(weights):
    """The report says in which call to join them, and the model stays as it was."""
    model, x = converted(()), drawn()
    before = model(x)
    found = nn.convert(model, joined=[NAMES], weights=weights, activations=weights)
    assert found.left == {
        "q_proj with k_proj, v_proj": "q_proj: its weight has 8 bits already: "
        "give `joined` in the call that stores the model in 8 bits"
    }
    assert same(model(x), before)


@pytest.mark.parametrize("joined", [(), (NAMES,)])
@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ("fp8", None, "it has 8 bits already, and inputs of torch.float8_e4m3fn"),
        (None, "fp8", "it has 8 bits already, and quantizes no input"),
    ],
)
def test_other_activations_in_a_second_call_are_reported(joined, first, then, why):
    """The layers stay as they are; nothing about them was in the report."""
    model, x = converted(joined, activations=first), drawn()
    before = model(x)
    assert not nn.convert(model, weights="fp8", activations=first, joined=joined).left
    found = nn.convert(model, weights="fp8", activations=then)
    assert not found.converted and set(found.left.values()) == {why}
    assert same(model(x), before)
