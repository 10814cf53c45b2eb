# SPDX-License-Identifier: Apache-2.0
"""The functions and modules on a Hopper GPU: forward, backward, compiled, in a CUDA graph, on another stream."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.ops import entry_points
from cutegemm.running.backends import shortcut
from tests.support.torch_ops import BOUNDS, assert_same, error

pytestmark = pytest.mark.gpu
GELU = epi.bias_act("gelu")
SHAPES = ((4, 64, 128), (96, 128), (96,))


def r(*shape):
    """Random bf16 elements on the GPU."""
    return torch.randn(shape, device="cuda").bfloat16()


def layer(x, w, b):
    """A linear layer with gelu."""
    return cutegemm.linear(x, w, b, epilogue=GELU, fallback="error")


CASES = {
    "matmul": (lambda a, b: cutegemm.matmul(a, b, fallback="error"), torch.matmul, ((64, 128), (128, 96))),
    "c": (lambda a, b, c: cutegemm.matmul(a, b, c, alpha=2.0, beta=0.5, fallback="error"),
          lambda a, b, c: 2 * a @ b + c / 2, ((64, 128), (128, 96), (64, 96))),
    "bmm": (lambda a, b: cutegemm.bmm(a, b, fallback="error"), torch.bmm, ((3, 64, 128), (3, 128, 96))),
    "linear": (lambda x, w, b: cutegemm.linear(x, w, b, fallback="error"), F.linear, SHAPES),
    "gelu": (layer, lambda x, w, b: F.gelu(F.linear(x, w, b)), SHAPES),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name):
    """D and all gradients within bf16's bounds of torch in fp64."""
    torch.manual_seed(0)
    ours, theirs, shapes = CASES[name]
    assert_same(ours, theirs, *(r(*s) for s in shapes))


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_a_perceptron_learns_as_torchs(name):
    """Values and gradients of the fused forward and backward, against torch's modules in fp64."""
    torch.manual_seed(0)
    if name == "gelu":
        ours = nn.MLP(128, 192, fallback="error")
    else:
        ours = nn.SwiGLU(128, 192, fallback="error")
    ours.to("cuda", torch.bfloat16)
    x, upstream = r(2, 48, 128).requires_grad_(), r(2, 48, 128)
    exact = {key: p.detach().double().requires_grad_() for key, p in ours.named_parameters()}
    x64 = x.detach().double().requires_grad_()
    if name == "gelu":
        w = list(exact.values())
        y64 = F.linear(F.gelu(F.linear(x64, w[0], w[1])), w[2], w[3])
    else:
        gate, up = F.linear(x64, exact["gate_up_weight"]).chunk(2, -1)
        y64 = F.linear(F.silu(gate) * up, exact["down_proj.weight"])
    y = ours(x)
    assert error(y.detach(), y64.detach()) < BOUNDS[torch.bfloat16]
    y.backward(upstream)
    y64.backward(upstream.double())
    assert error(x.grad, x64.grad) < BOUNDS[torch.bfloat16]
    for key, p in ours.named_parameters():
        assert error(p.grad, exact[key].grad) < BOUNDS[torch.bfloat16], key


@pytest.mark.parametrize("gradient", [False, True], ids=["", "with gradients"])
@pytest.mark.parametrize("name", ["matmul", "bmm", "linear"])
def test_later_calls_take_a_shortcut_and_give_the_same_bits(name, gradient):
    """Results, on new contents too, and gradients of the second and third call of a kind; the shortcut is there."""
    ours, _, shapes = CASES[name]
    # extents that no other test has
    tensors = [r(*(x + 8 if x > 4 else x for x in s)).requires_grad_(gradient) for s in shapes]
    found = []
    for _ in range(3):
        y = ours(*tensors)
        found.append([y.detach(), *(torch.autograd.grad(y.sum(), tensors) if gradient else ())])
    assert all(torch.equal(x, z) for later in found[1:] for x, z in zip(found[0], later))
    with torch.no_grad():
        tensors[0].mul_(2.0)
    if name != "linear":
        assert torch.equal(ours(*tensors), 2 * found[0][0])
    program = entry_points._PLAIN if name != "linear" else entry_points._BIASED
    key = (tensors[0].shape, tensors[1].shape)
    known = [x for k, x in program.gemm.shortcuts.recent.items() if k[:2] == key]
    assert known and all(x is not shortcut.none for x in known)


@pytest.mark.parametrize("shapes", [((64, 16384), (16384, 136)), ((1001, 1003), (1003, 1005))])
def test_later_calls_of_several_launches_give_the_same_bits(shapes):
    """Splits of K and copies of operands, by their shortcuts: on the same contents, and doubled ones."""
    a, b = (r(*s) for s in shapes)
    found = [cutegemm.matmul(a, b, fallback="error") for _ in range(3)]
    assert all(torch.equal(x, found[0]) for x in found)
    assert torch.equal(cutegemm.matmul(2 * a, b, fallback="error"), 2 * found[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_later_steps_of_a_perceptron_give_the_same_bits(compiled):
    """Launches that store two matrices and add up a bias's gradient, eager and as op calls of compiled code."""
    torch._dynamo.reset()
    mlp, x, g = nn.MLP(128, 192, fallback="error").to("cuda", torch.bfloat16), r(64, 128), r(64, 128)
    run = torch.compile(mlp) if compiled else mlp
    found = []
    for _ in range(4):
        given = x.clone().requires_grad_()
        y = run(given)
        found.append([y.detach(), *torch.autograd.grad(y, [given, *mlp.parameters()], g)])
    assert all(torch.equal(z, w) for later in found[1:] for z, w in zip(found[0], later, strict=True))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_layer_compiles(mode):
    """One graph, with Inductor and in its CUDA graphs: bits of the eager call, forward and backward."""
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    tensors = [r(*s) for s in SHAPES]
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        mine, theirs = ([x.clone().requires_grad_() for x in tensors] for _ in range(2))
        y, z = compiled(*mine), layer(*theirs)
        assert torch.equal(y, z)
        y.sum().backward()
        z.sum().backward()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(mine, theirs))


def test_a_training_step_is_captured():
    """Forward and backward replay in a CUDA graph on new contents of the same memory."""
    model = nn.MLP(128, 192, fallback="error").to("cuda", torch.bfloat16)
    x = r(64, 128)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        y.sum().backward()
    x.copy_(r(64, 128))
    graph.replay()
    found = y.detach().clone(), [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    expected = model(x)
    expected.sum().backward()
    assert torch.equal(found[0], expected)
    assert all(torch.equal(g, p.grad) for g, p in zip(found[1], model.parameters()))


def test_another_stream_is_followed():
    """Launches go to the current stream, and those of the backward to the forward's."""
    x, w = r(2048, 2048), r(2048, 2048).requires_grad_()
    expected = cutegemm.linear(x * 2, w, fallback="error")
    expected.sum().backward()
    wanted, w.grad = w.grad, None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        # a launch on another stream would not wait for this
        torch.cuda._sleep(20_000_000)
        late.copy_(x * 2)
        y = cutegemm.linear(late, w, fallback="error")
        loss = y.sum()
    loss.backward()
    stream.synchronize()
    torch.cuda.synchronize()
    assert torch.equal(y, expected) and torch.equal(w.grad, wanted)


def test_constant_weights_and_a_model_say_nothing():
    """A converted model runs our kernels without a note, in bits that do not change from run to run."""
    model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 128))
    model.to("cuda", torch.bfloat16).eval()
    x = r(32, 128)
    expected = model(x)
    nn.convert(model, constant_weights=True, fallback="error")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        first = model(x)
        assert error(first, expected.detach()) < BOUNDS[torch.bfloat16]
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.equal(model(x), first)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("bias", [False, True])
def test_repeated_scaled_calls(bias):
    """Calls after the first take a shortcut, and give what the spec's kernels give, of other tensors too."""
    add = {"bias": r(96)} if bias else {}
    spec = cutegemm.GemmSpec(scale_a="row", scale_b="row", **({"epilogue": epi.bias()} if bias else {}))
    gemm = cutegemm.Gemm(spec)
    for _ in range(3):
        (a, rows), (b, columns) = cutegemm.quantize(r(48, 256)), cutegemm.quantize(r(96, 256))
        named = {"scale_a": rows, "scale_b": columns}
        d = cutegemm.linear(a, b, **add, **named, fallback="error")
        assert torch.equal(d, gemm.run(a, b.T, **named, **add))


@pytest.mark.parametrize("recipe", ["row", "block"])
def test_fp8_layers(recipe):
    """Forward and backward beside the same on a CPU, whose operands have the same bits."""
    tensors = r(3, 40, 256), r(96, 256), r(3, 40, 96)
    found = []
    for device in ("cuda", "cpu"):
        x, w, above = (t.detach().to(device) for t in tensors)
        x.requires_grad_(), w.requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = cutegemm.linear(x, w, fp8=recipe)
        y.backward(above)
        found.append([t.detach().cpu().double() for t in (y, x.grad, w.grad)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
