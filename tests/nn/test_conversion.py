# SPDX-License-Identifier: Apache-2.0
"""`nn.convert`: what becomes ours, what is left alone and why."""

import pytest
import torch

from cutegemm import nn
from cutegemm.errors import InputError


class Own(torch.nn.Linear):
    """A linear layer of somebody else."""


class Gated(torch.nn.Module):
    """A gated perceptron as transformers writes it."""

    def __init__(self, act=None, bias=False):
        super().__init__()
        self.gate_proj = torch.nn.Linear(12, 16, bias=bias)
        self.up_proj = torch.nn.Linear(12, 16, bias=bias)
        self.down_proj = torch.nn.Linear(16, 12, bias=bias)
        self.act_fn = torch.nn.SiLU() if act is None else act

    def forward(self, x):
        """Down of silu(gate) times up."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def test_layers_stay_the_same_objects():
    """Parameters, hooks, state dict and identity of a layer are kept; its values too."""
    model = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
    first, x, state = model[0], torch.randn(3, 12), dict(model.state_dict())
    seen = []
    first.register_forward_hook(lambda *_: seen.append(1))
    expected = model(x)
    report = nn.convert(model, fallback="reference")
    assert report.converted == ("0", "2") and not report.left
    assert model[0] is first and type(first) is nn.Linear
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.allclose(model(x), expected, atol=1e-6) and len(seen) == 2
    assert str(report) == "converted 2 of 2 layers"
    assert not nn.convert(model).converted
    alone = torch.nn.Linear(4, 4)
    assert nn.convert(alone).converted == ("",) and type(alone) is nn.Linear


def test_what_is_left_alone_is_said():
    """Subclasses, replaced forwards, other types, modules with products of their own, and what the caller names."""
    model = torch.nn.ModuleDict(
        {
            "own": Own(4, 4),
            "wide": torch.nn.Linear(4, 4, dtype=torch.float64),
            "patched": torch.nn.Linear(4, 4),
            "head": torch.nn.Linear(4, 4),
            "attention": torch.nn.MultiheadAttention(4, 1),
            "plain": torch.nn.Linear(4, 4),
        }
    )
    model["patched"].forward = lambda x: x
    report = nn.convert(model, skip=["he*"])
    assert report.converted == ("plain",)
    assert report.left == {
        "own": "Own is a subclass, which may compute something else",
        "wide": "its weight is torch.float64; supported are float16, bfloat16 and float32",
        "patched": "its forward has been replaced",
        "head": "skip='he*'",
        "attention": "MultiheadAttention multiplies by its weights itself",
        "attention.out_proj": "NonDynamicallyQuantizableLinear is a subclass, which may compute something else",
    }
    assert "left head: skip='he*'" in str(report)


def test_another_fallback_is_refused():
    """Before a layer is touched."""
    model = torch.nn.Linear(4, 4)
    with pytest.raises(
        InputError, match="fallback='eager': must be one of torch, error, reference, emulator"
    ):
        nn.convert(model, fallback="eager")
    assert type(model) is torch.nn.Linear


def test_constant_weights_are_for_inference():
    """A model in training is refused and unchanged; in evaluation weights that cannot load early are named."""
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 12, dtype=torch.bfloat16), torch.nn.Linear(12, 8, dtype=torch.bfloat16)
    )
    with pytest.raises(InputError, match="model.training=True: constant_weights promises"):
        nn.convert(model, constant_weights=True)
    assert type(model[0]) is torch.nn.Linear
    report = nn.convert(model.eval(), constant_weights=True)
    assert model[0].constant_weights and not model[1].constant_weights
    assert list(report.varying) == ["1"] and "not multiples of 16 bytes" in report.varying["1"]
    x = torch.randn(3, 16).bfloat16()
    model(x)
    with pytest.raises(InputError, match="constant_weights promises"):
        model.train()(x)


def test_gated_perceptrons_become_one_product():
    """Modules of the named classes are joined if they are what they seem; values and state dict stay."""
    model = torch.nn.ModuleList(
        [Gated(), Gated(torch.nn.GELU()), Gated(bias=True), *(Gated() for _ in range(5))]
    )
    model[3].act_fn = torch.nn.PReLU(device="meta")
    model[4].register_forward_hook(lambda *_: None)
    model[5].up_proj.requires_grad_(False)
    model[6].up_proj.forward = model[6].up_proj.forward
    model.append(model[7])
    state = dict(model.state_dict())
    x = torch.randn(3, 12)
    expected = model[0](x)
    report = nn.convert(model, swiglu=[Gated], fallback="reference")
    assert type(model[0]) is nn.SwiGLU and type(model[1]) is Gated
    assert torch.allclose(model[0](x), expected, atol=1e-6)
    assert report.left == {
        "1": "its act_fn is GELU, not a known silu",
        "2": "gate_proj, up_proj and down_proj must be torch.nn.Linear without biases",
        "3": "its act_fn is PReLU, not a known silu",
        "4": "it or one of its layers has hooks or a replaced forward",
        "5": "gate_proj and up_proj must agree and be float16, bfloat16 or float32",
        "6": "it or one of its layers has hooks or a replaced forward",
        "6.up_proj": "its forward has been replaced",
        "7": "7: the model has the same layer in another place",
    }
    assert type(model[7]) is Gated and model[7] is model[8]
    assert list(model.state_dict()) == list(state)
    meta = "3.act_fn.weight"
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items() if k != meta)
    # three layers of each that is left alone, but for the replaced forward
    assert len(report.converted) == 1 + 1 + 7 * 3 - 1


class Clamped(torch.nn.Module):
    """What equals silu up to 2."""

    def forward(self, x):
        """silu of the clamped input."""
        return torch.nn.functional.silu(torch.clamp(x, max=2.0))


class Scaled(Gated):
    """A perceptron with a parameter and a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))


class Doubled(Gated):
    """A perceptron whose forward does something else with the same layers."""

    def forward(self, x):
        """Twice the product."""
        return 2 * super().forward(x)


class Branching(Gated):
    """A perceptron whose forward asks for values."""

    def forward(self, x):
        """Another result for a negative sum."""
        return super().forward(x) if x.sum() > 0 else x


class Inlined(Gated):
    """A perceptron that calls torch's function, on the right of the product."""

    def __init__(self):
        super().__init__()
        del self.act_fn

    def forward(self, x):
        """Up times silu(gate)."""
        return self.down_proj(self.up_proj(x) * torch.nn.functional.silu(self.gate_proj(x)))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Gated(Clamped()), "its act_fn is Clamped, not a known silu"),
        (lambda: Gated(torch.nn.PReLU()), "its act_fn is PReLU, not a known silu"),
        (lambda: Gated(lambda x: x), "its act_fn is <lambda>, not a known silu"),
        (Scaled, "it has its own parameters or buffers: scale, seen"),
        (Doubled, "its forward is not down_proj(silu(gate_proj(x)) * up_proj(x))"),
        (Branching, "its forward cannot be traced: TraceError"),
        (lambda: Gated(torch.nn.functional.silu), None),
        (Inlined, None),
    ],
    ids=["clamped", "learned", "lambda", "own parameters", "twice", "branching", "function", "inlined"],
)
def test_a_perceptron_is_recognised_by_type_and_structure(made, why):
    """What only looks like a gated perceptron is left with everything it has; what is one gives the same values."""
    model, x = torch.nn.Sequential(made()), torch.randn(3, 12) * 4
    expected, state = model(x), dict(model.state_dict())
    report = nn.convert(model, swiglu=[Gated], fallback="reference")
    assert report.left.get("0") == why
    assert (type(model[0]) is nn.SwiGLU) == (why is None)
    assert torch.allclose(model(x), expected, atol=1e-4) and list(model.state_dict()) == list(state)


class Conv1D(torch.nn.Module):
    """A linear layer of transformers' GPT-2: its weight is (in, out)."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 8))


def test_what_is_no_linear_layer_is_named_or_counted():
    """A module that may multiply by a weight of its own is named with its type; torch's other modules are counted."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(3, 4),
        Conv1D(),
        torch.nn.LayerNorm(8),
        torch.nn.LayerNorm(8),
        torch.nn.Linear(8, 4),
    )
    report = nn.convert(model)
    assert report.converted == ("4",) and report.others == {"Embedding": 1, "LayerNorm": 2}
    rule = "Conv1D is not a torch.nn.Linear and may use its weight (4, 8) in its own way"
    assert report.left == {"1": rule}
    assert str(report).splitlines()[-1] == "other modules with parameters: 1 Embedding, 2 LayerNorm"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"skip": ["0", "lm_haed"]},
            "skip[1]='lm_haed': no module of the model has this name; nearest legal value: 'lm_head'",
        ),
        ({"swiglu": [Scaled]}, "swiglu[0]='Scaled': no module of the model has this class"),
        ({"joined": [("q", "k")]}, "joined[0]=('q', 'k'): no module of the model has these layers"),
        ({"joined": [("0",)]}, "joined[0]=('0',): must be the names of several layers"),
    ],
)  # fmt: skip
def test_what_matches_nothing_is_refused(options, message):
    """A misspelt name is an error before anything is changed; what was converted before still matches."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Gated())
    model.lm_head = torch.nn.Linear(4, 4)
    with pytest.raises(InputError) as e:
        nn.convert(model, **options)
    assert str(e.value) == message and type(model.lm_head) is torch.nn.Linear
    for _ in range(2):
        nn.convert(model, swiglu=[Gated], joined=[("0", "lm_head")], skip="lm_*")
    assert type(model[1]) is nn.SwiGLU


def test_a_converted_model_is_traced_by_torch_fx():
    """Every layer of ours is one node, as torch.nn.Linear is; a layer alone is refused by its name."""
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), Gated(), nn.MLP(12, 16, bias=False))
    model.q, model.k = torch.nn.Linear(12, 12), torch.nn.Linear(12, 12)
    nn.convert(model, swiglu=[Gated], joined=[("q", "k")], fallback="reference")
    traced = torch.fx.symbolic_trace(model)
    assert [x.target for x in traced.graph.nodes if x.op == "call_module"] == ["0", "1", "2", "q", "k"]
    x = torch.randn(3, 12)
    assert torch.equal(traced(x), model(x))
    with pytest.raises(InputError, match="module='SwiGLU': is a single node of a torch.fx graph"):
        torch.fx.symbolic_trace(model[1])
