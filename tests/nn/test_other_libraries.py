# SPDX-License-Identifier: Apache-2.0
"""Layers that transformers and compressed-tensors store in 8 bits: taken over by `convert`, or left with a reason."""

import copy
import enum
from types import SimpleNamespace

import pytest
import torch

import cutegemm
from cutegemm import nn
from tests.support.stored_layers import near, through

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)


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


def shifted(x, symmetric, axes):
    """int8 rows, or a whole tensor, and back, in fp64: compressed-tensors' range from the least to the greatest."""
    if symmetric:
        return through(x, "row", torch.int8)
    low, high = x.float().amin(axes, True).clamp(max=0), x.float().amax(axes, True).clamp(min=0)
    scale = (high - low) / torch.tensor(255.0)
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return ((x.float() / scale + zero).round().clamp(-128, 127) - zero).double() * scale.double()


SHIFTED = {
    "inputs": (arguments("channel", "int"), arguments("token", "int", dynamic=True, symmetric=False)),
    "whole inputs": (arguments("channel", "int"), arguments("tensor", "int", dynamic=True, symmetric=False)),
    "static inputs": (arguments("channel", "int"), arguments("tensor", "int", symmetric=False)),
    "weights": (arguments("channel", "int", symmetric=False), INT_TOKEN),
    "weights alone": (arguments("channel", "int", symmetric=False), None),
    "both": (
        arguments("tensor", "int", symmetric=False),
        arguments("token", "int", dynamic=True, symmetric=False),
    ),
}


def asymmetric(name):
    """A layer of int8 with zero points, an input beside zero, the dequantised weight, and a function of the input's."""
    torch.manual_seed(1)
    weights, inputs = SHIFTED[name]
    rows = (1,) if weights.strategy == "tensor" else (200, 1)
    more = {}
    if not weights.symmetric:
        more["weight_zero_point"] = torch.randint(-40, 40, rows, dtype=torch.int8)
    if name == "static inputs":
        more |= {
            "input_scale": torch.tensor([0.03]),
            "input_zero_point": torch.tensor([-77], dtype=torch.int8),
        }
    scale = torch.rand(rows).add(0.5).to(BF16)
    layer = compressed(weights, inputs, scale, torch.int8, **more)
    zero = more.get("weight_zero_point", torch.zeros(rows))
    w = (layer.weight.double() - zero.double()) * scale.double()

    def given(x):
        if inputs is None:
            return x.double()
        if name == "static inputs":
            return ((x.float() / 0.03 - 77).round().clamp(-128, 127) + 77).double() * torch.tensor(
                0.03
            ).double()
        return shifted(x, inputs.symmetric, (-2, -1) if inputs.strategy == "tensor" else (-1,))

    return layer, torch.randn(40, 300).add(2).to(BF16), w, given


@pytest.mark.parametrize("name", SHIFTED)
def test_int8_layers_with_zero_points(name):
    """Zero points of weights, inputs or both, static or dynamic: results are near fp64, and names stay."""
    layer, x, w, given = asymmetric(name)
    names = sorted(layer.state_dict())
    held = torch.nn.ModuleDict({"proj": layer})
    assert nn.convert(held).converted == ("proj",) and sorted(layer.state_dict()) == names
    for dtype in (BF16, torch.float32):
        # a weight alone is dequantised in the input's type
        own = w.to(dtype).double() if SHIFTED[name][1] is None else w
        near(copy.deepcopy(layer).to(dtype)(x.to(dtype)), given(x) @ own.T + layer.bias.double())
    x.requires_grad_()
    g = torch.randn(40, 200, dtype=BF16)
    layer(x).backward(g)
    near(x.grad, g.double() @ w.to(BF16).double())


def test_sums_follow_a_loaded_weight():
    """Zero points of the input multiply them, so a state dict must not leave those of the weight before."""
    layer, x, _, given = asymmetric("inputs")
    nn.convert(torch.nn.ModuleDict({"proj": layer}))
    other = layer.state_dict()
    other["weight"] = other["weight"].flip(0)
    layer.load_state_dict(other)
    w = layer.weight.double() * layer.weight_scale.double()[:, None]
    near(layer(x), given(x) @ w.T + layer.bias.double())


@pytest.mark.parametrize("rows", [0, 1])
def test_zero_points_of_few_or_odd_rows(rows):
    """No rows; one row of zeros, of infinities, of a large range: 0 has no error, what is not finite gives NaN."""
    layer, x, w, _ = asymmetric("inputs")
    nn.convert(torch.nn.ModuleDict({"proj": layer}))
    assert layer(x[:rows]).shape == (rows, 200)
    assert torch.equal(layer(torch.zeros(rows, 300, dtype=BF16)), layer.bias.expand(rows, 200))
    x = torch.zeros(3, 300)
    x[0, 0], x[1, 1], x[2, 2], x[2, 3] = torch.inf, torch.nan, 3e38, -3e38
    y = layer.float()(x)
    assert y[:2].isnan().all() and not y[2].isnan().any()


@pytest.mark.parametrize("name", ["inputs", "both"])
def test_zero_points_compile(name):
    """One graph with the eager call's bits, with and without a gradient."""
    layer, x, _, _ = asymmetric(name)
    nn.convert(torch.nn.ModuleDict({"proj": layer}))
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
    x.requires_grad_()
    assert torch.equal(*(torch.autograd.grad(of(x).sum(), x)[0] for of in (compiled, layer)))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (compressed(arguments("channel", "int", symmetric=False), INT_TOKEN, torch.ones(200, 1), torch.int8),
         "has no weight_zero_point"),
        (compressed(arguments("channel", "int", symmetric=False), INT_TOKEN, torch.ones(200, 1), torch.int8,
                    weight_zero_point=torch.ones(7, 1, dtype=torch.int8)), "weight_zero_point is (7, 1)"),
        (compressed(arguments("channel", "int"), arguments("tensor", "int", symmetric=False), torch.ones(200, 1),
                    torch.int8, input_scale=torch.ones(1)), "has no input_zero_point"),
        (compressed(arguments("block", "int", block_structure=[128, 128], symmetric=False), None, torch.ones(2, 3),
                    torch.int8), "scales of blocks exclude zero points"),
        (compressed(arguments("channel", symmetric=False), TOKEN, torch.ones(200, 1)), "asymmetric float8 by channel"),
        (compressed(arguments("group", group_size=64), TOKEN, torch.ones(200, 5)), "symmetric float8 by group"),
        (compressed(arguments("channel"), INT_TOKEN, torch.ones(200, 1)), "int8 by token, dynamic"),
        (compressed(arguments("channel"), TOKEN, torch.ones(7, 1)), "weight_scale is (7, 1)"),
        (compressed(arguments("channel"), arguments("tensor"), torch.ones(200, 1)), "by tensor, static"),
        (compressed(arguments("channel", "int"), INT_TOKEN, torch.ones(200, 1), torch.int8,
                    weight_zero_point=torch.ones(200, 1, dtype=torch.int8)), "a symmetric scheme has no zero points"),
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
