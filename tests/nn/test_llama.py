# SPDX-License-Identifier: Apache-2.0
"""A small Llama of transformers, converted: loss, gradients, state dict and generation are the original's."""

import pytest
import torch

from cutegemm import nn
from tests.support.torch_ops import BOUNDS, error

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def perceptron():
    """The class of Llama's gated perceptrons."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    return LlamaMLP


def llama(dtype, layers=2):
    """Layers with grouped queries, the same random weights at every call."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype)


def learn(model):
    """The loss of the tokens, and all gradients by name, a fused parameter's apart."""
    model.zero_grad()
    loss = model(TOKENS, labels=TOKENS).loss
    loss.backward()
    found = {}
    for name, p in getattr(model, "_orig_mod", model).named_parameters():
        if name.endswith("gate_up_weight"):
            gate, up = p.grad.chunk(2)
            found[name.replace("gate_up_weight", "gate_proj.weight")] = gate
            found[name.replace("gate_up_weight", "up_proj.weight")] = up
        else:
            found[name] = p.grad
    return loss.detach(), found


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("fused", "compiled"),
    [(False, False), (True, False), (True, True)],
    ids=["layers", "swiglu", "swiglu compiled"],
)
def test_a_converted_llama_learns_as_the_original(fused, compiled, perceptron):
    """In bf16: the loss and every gradient within its bounds of the original in fp64; compiled it is one graph."""
    model, exact = llama(torch.bfloat16), llama(torch.bfloat16).double()
    state = {name: x.clone() for name, x in model.state_dict().items()}
    report = nn.convert(model, fallback="reference", swiglu=[perceptron] if fused else [])
    assert len(report.converted) == (2 + 2 + 8 + 1 if fused else 14 + 1) and not report.left
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    (loss, gradients), (expected, wanted) = learn(run), learn(exact)
    assert abs(loss - expected) < 1e-3 * expected
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        assert error(gradient, wanted[name]) < BOUNDS[torch.bfloat16], name
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(model.state_dict()[name], x) for name, x in state.items())
    again = llama(torch.bfloat16)
    again.load_state_dict(model.state_dict())


@pytest.mark.sliced
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_it_generates_the_same_tokens(compiled, perceptron):
    """Sixteen tokens, one by one after a prompt of four, with weights that are promised to be constant."""
    layers = 1 if compiled else 2
    theirs, ours = llama(torch.float32, layers).eval(), llama(torch.float32, layers).eval()
    nn.convert(ours, fallback="reference", swiglu=[perceptron], constant_weights=True)
    if compiled:
        torch._dynamo.reset()
        ours.forward = torch.compile(ours.forward, fullgraph=True, dynamic=True, backend="aot_eager")
    prompt = TOKENS[:, :4]
    options = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": 16,
        "do_sample": False,
        "eos_token_id": None,
    }
    found = ours.generate(prompt, **options)
    assert found.shape == (2, 20)
    assert torch.equal(found, theirs.generate(prompt, **options))
