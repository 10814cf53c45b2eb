# SPDX-License-Identifier: Apache-2.0
"""Layers that `convert` stores in 8 bits."""

import copy
import io

import pytest
import torch

from cutegemm import nn
from cutegemm.errors import GemmError
from tests.support.stored_layers import near, through

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
TYPES = {"fp8": E4M3, "int8": torch.int8}


def model(dtype=BF16, bias=True):
    """Two layers and what lies between, with parameters that the seed gives."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(300, 200, bias), torch.nn.GELU(), torch.nn.Linear(200, 48, bias))
    return torch.nn.Sequential(*layers).to(dtype).eval()


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("activations", [True, False], ids=["both", "weights"])
@pytest.mark.parametrize("weights", TYPES)
def test_layers_compute_with_quantised_operands(weights, activations, dtype):
    """Beside fp64 of the quantised operands within rounding, beside the eager model within the type's error."""
    eager, x = model(dtype), torch.randn(3, 50, 300, dtype=dtype)
    mine = copy.deepcopy(eager)
    made = nn.convert(mine, weights=weights, activations=weights if activations else None)
    assert made.converted == ("0", "2") and isinstance(mine[0], nn.QuantizedLinear)
    assert mine[0].weight.dtype == TYPES[weights] and mine[0].weight_scale.shape == (200,)
    y = mine[0](x)
    w = through(eager[0].weight, "row", TYPES[weights])
    given = through(x, "row", TYPES[weights]) if activations else x.double()
    assert y.dtype == dtype and y.shape == (3, 50, 200)
    near(y, given @ (w if activations else w.to(dtype).double()).T + eager[0].bias.double())
    exact = copy.deepcopy(eager).double()(x.double())
    most = {"fp8": 0.06, "int8": 0.015}[weights]
    with torch.no_grad():
        assert (mine(x).double() - exact).norm() < most * exact.norm()


@pytest.mark.parametrize("weights", TYPES)
def test_a_layer_without_inputs_gives_its_bias(weights):
    """K may be 0, of rows and of batches."""
    mine = torch.nn.Sequential(torch.nn.Linear(0, 7)).eval()
    nn.convert(mine, weights=weights, activations=weights)
    assert torch.equal(mine(torch.randn(2, 3, 0)), mine[0].bias.expand(2, 3, 7))


def test_what_a_layer_was_it_stays():
    """Names of the state dict, the object and its hooks; casts leave weights and scales; copies and files have all."""
    mine, seen = model(), []
    first = mine[0]
    first.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(4, 300, dtype=BF16)
    nn.convert(mine, weights="fp8", activations="fp8")
    assert mine[0] is first and not any(p.requires_grad for n, p in mine.named_parameters() if "weight" in n)
    assert sorted(mine.state_dict()) == sorted(
        f"{i}.{name}" for i in (0, 2) for name in ("weight", "weight_scale", "bias")
    )
    y = mine(x)
    assert seen == [1] and "torch.float8_e4m3fn" in repr(first) and str(nn.convert(mine, weights="fp8"))
    file = io.BytesIO()
    torch.save(mine.state_dict(), file)
    file.seek(0)
    other = model()
    torch.nn.init.zeros_(other[0].weight)
    nn.convert(other, weights="fp8", activations="fp8")
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), y) and torch.equal(copy.deepcopy(mine)(x), y)
    mine.half()
    assert (first.weight.dtype, first.weight_scale.dtype, first.bias.dtype) == (
        E4M3,
        torch.float32,
        torch.float16,
    )
    assert mine(x.half()).dtype == torch.float16
    again = nn.convert(mine, weights="fp8", activations="fp8")
    assert not again.converted and not again.left


def test_weights_of_another_type_are_not_cast():
    """A state dict of 16 bits is refused, also a partial one, and the layer stays as it was."""
    mine, x = model(), torch.randn(4, 300, dtype=BF16)
    nn.convert(mine, weights="fp8")
    y = mine(x)
    with pytest.raises(RuntimeError, match="0.weight: must be torch.float8_e4m3fn, got torch.bfloat16"):
        mine.load_state_dict({"0.weight": torch.ones(200, 300, dtype=BF16)}, strict=False)
    assert torch.equal(mine(x), y)


@pytest.mark.parametrize("activations", ["fp8", None])
def test_autocast_gives_the_type_of_results(activations):
    """As of torch's layers, whatever type the input has."""
    mine, x = model(torch.float32), torch.randn(4, 300)
    nn.convert(mine, weights="fp8", activations=activations)
    with torch.autocast("cpu", BF16):
        assert mine[0](x).dtype == BF16


def test_what_is_left_alone():
    """Shared parameters, classes of their own, other types, what is skipped: each by name; ours are converted."""

    class Other(torch.nn.Linear):
        pass

    tied = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(16, 8), "head": torch.nn.Linear(8, 16), "other": Other(8, 8),
         "wide": torch.nn.Linear(8, 8).double(), "skipped": torch.nn.Linear(8, 8), "ours": nn.Linear(8, 8)}
    ).eval()  # fmt: skip
    tied["head"].weight = tied["embedding"].weight
    made = nn.convert(tied, weights="int8", skip="skip*")
    assert made.converted == ("ours",) and set(made.left) == {"head", "other", "wide", "skipped"}
    assert "same parameter" in made.left["head"] and type(tied["head"]) is torch.nn.Linear
    with pytest.raises(GemmError, match="eval"):
        nn.convert(model().train(), weights="fp8")
    with pytest.raises(GemmError, match="one type"):
        nn.convert(model(), weights="fp8", activations="int8")
    with pytest.raises(GemmError, match="one type"):
        nn.convert(model(), activations="int8")


def test_a_transformer_layer_of_torch_keeps_its_weights():
    """In evaluation it gives its layers' weights to one function of torch, which multiplies no 8-bit ones."""
    mine, x = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(3, 5, 16)
    with torch.no_grad():
        expected = mine(x)
        left = nn.convert(mine, weights="fp8").left
        assert torch.equal(mine(x), expected)
    assert left["linear1"] == "torch.nn.TransformerEncoderLayer reads its weight itself in evaluation"


def test_modules_of_ours_that_keep_their_weights_are_named():
    """Several layers as one GEMM, experts, and a weight in the other type: each is left, with the reason."""
    x = torch.randn(3, 16)
    mine = torch.nn.ModuleDict(
        {"swiglu": nn.SwiGLU(16, 8), "moe": nn.MoE(16, 8, 4, 2, shared=torch.nn.Linear(16, 16)),
         "stored": torch.nn.Sequential(torch.nn.Linear(16, 8)),
         "both": torch.nn.ModuleDict({"q": torch.nn.Linear(16, 8), "k": torch.nn.Linear(16, 8)})}
    ).eval()  # fmt: skip
    assert not nn.convert(mine, joined=[("q", "k")]).left
    nn.convert(mine["stored"], weights="int8")
    expected = mine["both"]["q"](x)
    made = nn.convert(mine, weights="fp8")
    assert made.converted == ("swiglu.down_proj", "moe.shared")
    assert {name: why.split(":")[0] for name, why in made.left.items()} == {
        "swiglu": "it was made from several layers of 16 bits",
        "both.q.joined": "it was made from several layers of 16 bits",
        "moe": "the experts of nn.MoE are not stored in 8 bits; those of transformers are",
        "moe.router": "it routes tokens, and 8-bit weights would choose other experts",
        "stored.0": "its weight is torch.int8 already",
    }
    assert torch.equal(mine["both"]["q"](x), expected)


@pytest.mark.parametrize("activations", ["fp8", None])
def test_gradients_pass_through(activations):
    """The input's gradient is of the dequantised weight, the bias's is the sum of rows: adapters train on top."""
    mine, x = model(), torch.randn(6, 300, dtype=BF16, requires_grad=True)
    w = through(mine[0].weight, "row", E4M3)
    nn.convert(mine, weights="fp8", activations=activations)
    g = torch.randn(6, 200, dtype=BF16)
    mine[0](x).backward(g)
    near(x.grad, g.double() @ w.to(BF16).double())
    assert torch.allclose(mine[0].bias.grad.float(), g.float().sum(0), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("activations", ["fp8", None])
@pytest.mark.parametrize("name", ["weight", "weight_scale"])
def test_a_stored_weight_that_shall_train_is_refused(name, activations):
    """It would get no gradient, or one in 8 bits; without a gradient it computes as before."""
    mine, x = model()[:1].eval(), torch.randn(6, 300, dtype=BF16)
    nn.convert(mine, weights="fp8", activations=activations)
    expected = mine(x)
    getattr(mine[0], name).requires_grad_(True)
    with pytest.raises(
        GemmError, match=f"^{name}.requires_grad=True: 8-bit weights and their scales do not train"
    ):
        mine(x)
    with torch.no_grad():
        assert torch.equal(mine(x), expected)


def test_transforms_of_a_stored_layer():
    """vmap maps it where nothing is recorded; what has a gradient under a transform is refused by name."""
    mine, x = model(), torch.randn(3, 6, 300, dtype=BF16)
    nn.convert(mine, weights="fp8", activations="fp8")
    with torch.no_grad():
        assert torch.equal(torch.vmap(mine[0])(x), mine[0](x))
    with pytest.raises(
        GemmError, match="bias.requires_grad=True: has no gradient in 8 bits under torch.func"
    ):
        torch.vmap(mine[0])(x)
    with pytest.raises(GemmError, match="input.requires_grad=True: has no gradient in 8 bits"):
        torch.func.grad(lambda x: mine[0](x).sum())(x[0])


def test_rows_stay_padded_on_another_device():
    """A copy of a tensor has no padding; TMA reads rows that begin at multiples of 16 bytes, so layers restore it."""
    layer = model()[:1].eval()
    nn.convert(layer, weights="fp8", activations="fp8")
    kept = layer[0].weight.clone()
    layer._apply(torch.clone)
    assert layer[0].weight.stride() == (304, 1) and torch.equal(layer[0].weight.float(), kept.float())
    # as for fully_shard
    layer[0].weight.data = layer[0].weight.data.contiguous()
    assert layer._apply(torch.clone)[0].weight.is_contiguous()


def test_a_converted_model_compiles_and_traces():
    """One graph with the eager call's bits, with and without a gradient; one node of torch.fx."""
    mine, x = model(), torch.randn(6, 300, dtype=BF16)
    nn.convert(mine, weights="int8", activations="int8")
    torch._dynamo.reset()
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), mine(x))
    x.requires_grad_()
    grads = [torch.autograd.grad(of(x).sum(), x)[0] for of in (compiled, mine)]
    assert torch.equal(*grads)
    assert [n.target for n in torch.fx.symbolic_trace(mine).graph.nodes if n.op == "call_module"] == [
        "0",
        "1",
        "2",
    ]
