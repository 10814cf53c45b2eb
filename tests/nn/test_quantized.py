# SPDX-License-Identifier: Apache-2.0
"""Layers stored in 8 bits: made by `convert`, and taken over from transformers and compressed-tensors."""

import copy
import enum
import io
from types import SimpleNamespace

import pytest
import torch

import cutegemm
from cutegemm import nn
from cutegemm.errors import GemmError

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
TYPES = {"fp8": E4M3, "int8": torch.int8}


def model(dtype=BF16, bias=True):
    """Two layers and what lies between, with parameters that the seed gives."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(300, 200, bias), torch.nn.GELU(), torch.nn.Linear(200, 48, bias))
    return torch.nn.Sequential(*layers).to(dtype).eval()


def through(x, kind, dtype, scale=None):
    """x quantised and back, in fp64."""
    values, scales = cutegemm.quantize(x.detach().flatten(0, -2), kind, dtype, scale=scale)
    return cutegemm.dequantize(values, scales, kind).double().view(x.shape)


def near(y, exact):
    """y is the fp64 value, rounded to y's type, but for sums of fp32."""
    last = torch.finfo(y.dtype).eps
    y, exact = y.detach(), exact.detach()
    assert ((y.double() - exact).abs() <= last * exact.abs() + 1e-3 * exact.abs().mean()).all()


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


def fine_grained(**options):
    """transformers' layer of fp8 by blocks, with random contents."""
    kinds = pytest.importorskip("transformers.integrations.finegrained_fp8")
    layer = kinds.FP8Linear(300, 200, has_bias=True, **options).eval()
    size = options.get("block_size")
    kind = "tensor" if size is None else SQUARES
    values, scale = cutegemm.quantize(torch.randn(200, 300), kind)
    with torch.no_grad():
        layer.weight.copy_(values)
        if layer.weight_scale_inv.shape == scale.shape:
            layer.weight_scale_inv.copy_(scale)
        layer.bias.normal_()
    return layer, kind


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"block_size": (128, 128)}, ROWS),
        ({"block_size": (128, 128), "scale_fmt": "ue8m0"}, ROWS),
        ({}, "row"),
        ({"activation_scheme": "static"}, "tensor"),
    ],
    ids=str,
)
def test_transformers_layers(options, rows):
    """Blocks and whole tensors, dynamic and static activations, fp32 scales and exponents: fp64 of what they store."""
    layer, kind = fine_grained(**options)
    static = None
    if layer.activation_scale is not None:
        static = torch.tensor(0.02)
        layer.activation_scale.data.copy_(static)
    names, scale = sorted(layer.state_dict()), layer.weight_scale_inv.detach().float()
    held = torch.nn.ModuleDict({"proj": layer})
    assert nn.convert(held).converted == ("proj",) and type(layer) is nn.QuantizedLinear
    assert sorted(layer.state_dict()) == names and layer.weight_scale_inv.dtype == torch.float32
    x = torch.randn(2, 40, 300, dtype=BF16)
    w = cutegemm.dequantize(layer.weight, scale, kind).double()
    near(layer(x), through(x, rows, E4M3, static) @ w.T + layer.bias.double())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"block_size": (64, 128)}, "blocks are (64, 128)"),
        ({"activation_scheme": "other"}, "activation_scheme is 'other'"),
        ({"forward": len}, "forward has been replaced"),
    ],
    ids=str,
)
def test_other_layers_of_transformers_are_left(change, why):
    """By name, with the reason; the layer is what it was."""
    layer, _ = fine_grained(block_size=(128, 128))
    for name, value in change.items():
        setattr(layer, name, value)
    held = torch.nn.ModuleDict({"proj": layer})
    assert why in nn.convert(held).left["proj"] and type(layer).__name__ == "FP8Linear"


class Strategy(str, enum.Enum):
    """An enumeration of text, as compressed-tensors has them."""

    CHANNEL = "channel"


def arguments(strategy, kind="float", **more):
    """How compressed-tensors says what a tensor is quantised to."""
    given = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": False, "group_size": None}
    return SimpleNamespace(strategy=strategy, **{"block_structure": None, **given, **more})


def compressed(weights, inputs, scale, dtype=E4M3, **parameters):
    """A layer as compressed-tensors leaves it: a torch.nn.Linear with a scheme and a forward of its own."""
    layer = torch.nn.Linear(300, 200).to(BF16).eval()
    layer.weight = torch.nn.Parameter(torch.randn(200, 300).mul(20).to(dtype), requires_grad=False)
    for name, value in {"weight_scale": scale, **parameters}.items():
        if value is not None:
            layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    layer.quantization_scheme = SimpleNamespace(
        weights=weights, input_activations=inputs, output_activations=None, targets=["Linear"]
    )
    layer.quantization_status = "compressed"
    layer.forward = lambda x: None
    return layer


TOKEN = arguments("token", dynamic=True)
INT_TOKEN = arguments("token", "int", dynamic=True)


@pytest.mark.parametrize(
    ("weights", "inputs", "shape", "kinds", "dtype"),
    [
        (arguments(Strategy.CHANNEL), TOKEN, (200, 1), ("row", "row"), E4M3),
        (arguments("tensor"), arguments("tensor"), (1,), ("tensor", "tensor"), E4M3),
        (arguments("block", block_structure=[128, 128]), arguments("group", dynamic=True, group_size=128),
         (2, 3), (SQUARES, ROWS), E4M3),
        (arguments("channel", "int"), INT_TOKEN, (200, 1), ("row", "row"), torch.int8),
        (arguments("channel", "int"), None, (200, 1), ("row", None), torch.int8),
    ],
    ids=["channel token", "static tensor", "blocks", "int8", "int8 weights"],
)  # fmt: skip
def test_compressed_tensors_layers(weights, inputs, shape, kinds, dtype):
    """float-quantized and int-quantized ones compute in fp64 what their scheme says, with the names they had."""
    scale = torch.rand(shape).add(0.5).to(BF16)
    static = {"input_scale": torch.tensor([0.03])} if inputs is not None and not inputs.dynamic else {}
    layer = compressed(weights, inputs, scale, dtype, **static)
    names = sorted(layer.state_dict())
    held = torch.nn.ModuleDict({"proj": layer})
    assert nn.convert(held).converted == ("proj",) and sorted(layer.state_dict()) == names
    x = torch.randn(40, 300, dtype=BF16)
    wide = {"tensor": (), "row": (200,)}.get(kinds[0], shape) if isinstance(kinds[0], str) else shape
    w = cutegemm.dequantize(layer.weight, scale.float().view(wide), kinds[0]).double()
    if kinds[1] is None:
        w, given = w.to(BF16).double(), x.double()
    else:
        given = through(x, kinds[1], dtype, torch.tensor(0.03) if static else None)
    near(layer(x), given @ w.T + layer.bias.double())


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (compressed(arguments("channel", symmetric=False), TOKEN, torch.ones(200, 1)), "asymmetric float8 by channel"),
        (compressed(arguments("group", group_size=64), TOKEN, torch.ones(200, 5)), "symmetric float8 by group"),
        (compressed(arguments("channel"), INT_TOKEN, torch.ones(200, 1)), "int8 by token, dynamic"),
        (compressed(arguments("channel"), TOKEN, torch.ones(7, 1)), "weight_scale is (7, 1)"),
        (compressed(arguments("channel"), arguments("tensor"), torch.ones(200, 1)), "by tensor, static"),
        (compressed(arguments("channel", "int"), INT_TOKEN, torch.ones(200, 1), torch.int8,
                    weight_zero_point=torch.ones(200, 1, dtype=torch.int8)), "weights are"),
        (compressed(arguments("channel"), TOKEN, torch.ones(200, 1), torch.float32), "weight is torch.float32"),
        (compressed(None, None, torch.ones(200, 1)), "does not describe weights"),
        (compressed(arguments("channel"), TOKEN, None), "has no weight_scale"),
        (compressed(arguments("channel", "int"), INT_TOKEN, torch.ones(200, 1), torch.int8,
                    weight_zero_point=torch.ones(200, 1, dtype=torch.int8)).to("meta"), "no memory yet"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_other_schemes_are_left(layer, why):
    """By name, with what the scheme is."""
    assert why in nn.convert(torch.nn.ModuleDict({"proj": layer})).left["proj"]
