# SPDX-License-Identifier: Apache-2.0
"""Mixtures of transformers, converted, beside the same model's own experts in fp64."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cutegemm
from cutegemm.errors import InputError
from cutegemm.nn import convert, mixtures
from cutegemm.nn import experts as experts_module

transformers = pytest.importorskip("transformers")

TOKENS = 11
COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50, "num_experts_per_tok": 2,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS = {
    "Mixtral": {"num_local_experts": 5},
    "Qwen3Moe": {"num_experts": 5, "moe_intermediate_size": 48, "decoder_sparse_step": 1, "norm_topk_prob": True},
    "DeepseekV3": {
        "n_routed_experts": 8, "moe_intermediate_size": 48, "first_k_dense_replace": 0, "n_group": 2,
        "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4,
    },
    "GptOss": {"num_local_experts": 5, "sliding_window": 8, "layer_types": ["full_attention"]},
}  # fmt: skip


def model_of(kind, **more):
    """A small model of random weights in bf16; biases and gates of all sizes."""
    torch.manual_seed(0)
    fields = COMMON | MODELS[kind] | more
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "experts" in name:
                x.copy_(torch.randn_like(x) * (0.3 if "bias" in name else x.shape[-2] ** -0.5))
    return model


def experts_of(model):
    """The experts of its layers."""
    return [(name, x) for name, x in model.named_modules() if mixtures.recognised(x)]


def inputs_of(experts, recorded):
    """Tokens, indices and weights of a routing."""
    width = experts.down_proj.shape[1 if not experts.is_transposed else 2]
    x = torch.randn(TOKENS, width).bfloat16().requires_grad_(recorded)
    chances = torch.randn(TOKENS, experts.num_experts).softmax(-1)
    weights, index = chances.topk(2, -1)
    return x, index, weights.bfloat16().requires_grad_(recorded)


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", MODELS)
def test_converted_experts_compute_what_theirs_do(kind, recorded):
    """Outputs and the gradients of tokens, routing weights, matrices and biases; state dict and object stay."""
    model = model_of(kind)
    ((name, experts),) = experts_of(model)
    theirs, before = copy.deepcopy(experts).double(), set(model.state_dict())
    done = convert(model, fallback="reference")
    assert name in done.converted
    assert dict(model.named_modules())[name] is experts
    assert set(model.state_dict()) == before
    given = inputs_of(experts, recorded)
    x, index, weights = given
    wide = (
        x.detach().double().requires_grad_(recorded),
        index,
        weights.detach().double().requires_grad_(recorded),
    )
    theirs.config._experts_implementation = "eager"
    with torch.set_grad_enabled(recorded):
        found, told = experts(*given), theirs(*wide)
    assert found.dtype == torch.bfloat16
    assert (found.double() - told).norm() <= 0.01 * told.norm()
    if recorded:
        above = torch.randn_like(told)
        ours = torch.autograd.grad(found, (x, weights, *experts.parameters()), above.bfloat16())
        wanted = torch.autograd.grad(told, (wide[0], wide[2], *theirs.parameters()), above)
        for y, z in zip(ours, wanted, strict=True):
            assert (y.double() - z).norm() <= 0.02 * z.norm()


@pytest.mark.parametrize("kind", MODELS)
def test_the_type_may_change_after_conversion(kind):
    """fp16 is computed by us; fp32 and fp64 by transformers' own forward, but fp32 under autocast by us."""
    model = model_of(kind)
    ((_, experts),) = experts_of(model)
    theirs = copy.deepcopy(experts).double()
    theirs.config._experts_implementation = "eager"
    convert(model, fallback="reference")
    x, index, weights = inputs_of(experts, False)
    told = theirs(x.double(), index, weights.double())
    for dtype, most in ((torch.float32, 1e-5), (torch.float64, 1e-12), (torch.float16, 1e-2)):
        found = model.to(dtype) and experts(x.to(dtype), index, weights.to(dtype))
        assert found.dtype == dtype and (found - told).norm() <= most * told.norm()
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = experts(x.float(), index, weights)
    assert 1e-4 * told.norm() <= (found - told).norm() <= 1e-2 * told.norm()


@pytest.mark.parametrize("kind", MODELS)
def test_a_converted_model_gives_the_same_words(kind):
    """From tokens to logits, with the rest of the model converted as well."""
    model = model_of(kind).eval()
    words = torch.randint(3, 50, (2, 9))
    with torch.no_grad():
        model.set_experts_implementation("eager")
        told = model(words).logits
        convert(model, fallback="reference")
        found = model(words).logits
    # what a rounding turns over in the routing of a token moves that token alone
    near = (found - told).float().norm(dim=-1) <= 0.05 * told.float().norm(dim=-1)
    assert near.float().mean() >= 0.9


def test_the_first_launch_applies_the_gate(monkeypatch):
    """silu(gate) * up * weight is its epilogue, with gradients too. After another gate the second launch weighs."""
    seen = []

    def watch(module, name):
        own = getattr(module, name)

        def watched(*given, **named):
            seen.append((name, {x for x, y in named.items() if y is not None}))
            return own(*given, **named)

        monkeypatch.setattr(module, name, watched)

    watch(experts_module, "grouped_mm")
    watch(experts_module, "grouped_perceptron")
    watch(mixtures, "grouped_mm")
    told = {"cu_seqlens", "alpha", "fallback"}
    for kind, recorded, calls in [
        ("Mixtral", False, [{"rows", "epilogue", "weights", "tail"} | told, told]),
        ("GptOss", False, [{"rows", "bias"} | told, {"weight", "bias"} | told]),
        ("GptOss", True, [{"bias"} | told] * 2),
    ]:
        ((_, experts),) = experts_of(model := model_of(kind))
        convert(model, fallback="reference")
        seen.clear()
        with torch.set_grad_enabled(recorded):
            experts(*inputs_of(experts, recorded))
        assert seen == [("grouped_mm", x) for x in calls]
    ((_, experts),) = experts_of(model := model_of("Mixtral"))
    convert(model, fallback="reference")
    seen.clear()
    experts(*inputs_of(experts, True))
    assert [name for name, _ in seen] == ["grouped_perceptron"]


def through(x, transposed):
    """A matrix of 8 bits with a scale for each row of the linear layer, back in bf16."""
    rows = x.mT if transposed else x
    values, scale = cutegemm.quantize(rows.detach(), "row", torch.float8_e4m3fn)
    wide = (values.double() * scale.double()[..., None]).bfloat16()
    return wide.mT if transposed else wide


@pytest.mark.parametrize("activations", ["fp8", None])
@pytest.mark.parametrize("kind", MODELS)
def test_experts_in_8_bits(kind, activations):
    """What the dequantised matrices give, but for the rounding of activations; so do the gradients of tokens."""
    ((name, experts),) = experts_of(model := model_of(kind).eval())
    theirs = copy.deepcopy(experts)
    with torch.no_grad():
        for x in (theirs.gate_up_proj, theirs.down_proj):
            x.copy_(through(x, theirs.is_transposed))
    theirs.config._experts_implementation = "eager"
    done = convert(model, fallback="reference", weights="fp8", activations=activations)
    assert name in done.converted and experts.down_proj.dtype == torch.float8_e4m3fn
    x, index, weights = inputs_of(experts, False)
    told = theirs.double()(x.double(), index, weights.double())
    with torch.no_grad():
        found = experts(x, index, weights)
    assert (found.double() - told).norm() <= (0.06 if activations else 0.01) * told.norm()
    x.requires_grad_()
    recorded = experts(x, index, weights)
    assert (recorded.double() - told).norm() <= 0.01 * told.norm()
    recorded.sum().backward()
    assert x.grad.any()


def test_experts_in_8_bits_stay_so():
    """Whatever the model becomes; copies, compilers, kernels and a second conversion serve them as well."""
    ((name, experts),) = experts_of(model := model_of("Qwen3Moe").eval())
    convert(model, fallback="reference", weights="fp8", activations="fp8")
    x, index, weights = inputs_of(experts, False)
    state = {"gate_up_proj", "down_proj", "gate_up_proj_scale", "down_proj_scale"}
    with torch.no_grad():
        told = experts(x, index, weights)
        half = copy.deepcopy(experts).half()
        assert half.down_proj.dtype == torch.float8_e4m3fn and half.down_proj_scale.dtype == torch.float32
        assert set(half.state_dict()) == state
        with pytest.raises(RuntimeError, match="down_proj: must be torch.float8_e4m3fn"):
            half.load_state_dict({"down_proj": half.down_proj.float()}, strict=False)
        emulated = copy.deepcopy(experts)
        setattr(emulated, mixtures.FALLBACK, "emulator")
        for other, given in ((half, x.half()), (emulated, x)):
            assert (other(given, index, weights) - told).float().norm() <= 0.02 * told.float().norm()
        compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, index, weights), told)
    values = experts.down_proj
    assert name in convert(model, fallback="reference", weights="fp8").converted
    assert experts.down_proj is values
    experts.requires_grad_(True)
    with pytest.raises(InputError, match="gate_up_proj.requires_grad=True: 8-bit weights .* do not train"):
        experts(x, index, weights)


def test_an_expert_of_another_process_gives_nothing():
    """Expert parallelism names what lies elsewhere by an index beyond the last."""
    ((_, experts),) = experts_of(model := model_of("Mixtral"))
    convert(model, fallback="reference")
    x, index, weights = inputs_of(experts, False)
    own = weights.clone()
    own[:, 1] = 0
    with torch.no_grad():
        index[:, 1] = 0
        told = experts(x, index, own)
        index[:, 1] = experts.num_experts
        assert torch.equal(experts(x, index, weights), told)


def test_no_tokens_give_no_rows():
    """Converted experts take a batch without tokens."""
    ((_, experts),) = experts_of(model := model_of("Qwen3Moe"))
    convert(model, fallback="reference")
    x, index, weights = inputs_of(experts, False)
    assert experts(x[:0], index[:0], weights[:0]).shape == (0, x.shape[1])


def test_what_is_left_is_named():
    """A type without kernels of groups, a forward of the caller's, and what the caller skips."""
    for spoil, why in [
        (lambda x: x.float(), "float16 and bfloat16"),
        (lambda x: setattr(x, "forward", x.forward), "forward has been replaced"),
        (lambda x: None, "skip='*experts'"),
        (lambda x: None, "not int8"),
    ]:
        ((name, experts),) = experts_of(model := model_of("Mixtral"))
        spoil(experts)
        eight = {"weights": "int8", "activations": "int8"} if "int8" in why else {}
        done = convert(model.eval(), skip=["*experts"] if "skip" in why else [], **eight)
        assert why in done.left[name]
        assert name not in done.converted
        assert experts.config._experts_implementation != mixtures.REGISTERED


def test_a_model_keeps_its_own_config():
    """Only the converted modules' is another, so that a model saved and loaded is one of transformers."""
    model = model_of("Mixtral")
    before = model.config._experts_implementation
    convert(model)
    assert model.config._experts_implementation == before
    assert copy.deepcopy(model).config.to_dict() == model_of("Mixtral").config.to_dict()


def test_checkpointed_layers_compile_with_dynamic_shapes():
    """Two layers' experts, which multiply with biases and without a fused gate, in one graph for all tokens."""
    model = model_of("GptOss", num_hidden_layers=2, layer_types=["full_attention"] * 2)
    convert(model, fallback="reference")
    layers = torch.nn.ModuleList(experts for _, experts in experts_of(model))
    x, index, weights = inputs_of(layers[0], True)

    def function(x):
        for layer in layers:
            x = checkpoint(layer, x, index, weights, use_reentrant=False)
        return x

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    given = (x, weights, *layers.parameters())
    grads = [torch.autograd.grad(f(x).float().square().sum(), given) for f in (compiled, function)]
    for found, told in zip(*grads, strict=True):
        torch.testing.assert_close(found, told, rtol=2e-2, atol=2e-2)
