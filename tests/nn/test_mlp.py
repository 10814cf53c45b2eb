# SPDX-License-Identifier: Apache-2.0
"""`nn.MLP` and `nn.SwiGLU`: values, gradients and state dicts of the torch modules they replace."""

import pytest
import torch
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.nn import functional as F

from cutegemm import nn
from cutegemm.errors import InputError
from cutegemm.ops import perceptron
from cutegemm.ops.serve import serve
from tests.support.torch_ops import BOUNDS, Alive, error


class Gated(torch.nn.Module):
    """A gated perceptron of three torch layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, hidden, bias=False)
        self.up_proj = torch.nn.Linear(width, hidden, bias=False)
        self.down_proj = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        """Down of silu(gate) times up."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def pair(name):
    """(ours, torch's) with equal weights; "alone" is without biases."""
    if name == "swiglu":
        ours, theirs = nn.SwiGLU(12, 16, fallback="reference"), Gated(12, 16)
    else:
        name, bias = name.removesuffix(" alone"), not name.endswith(" alone")
        act = {"gelu": torch.nn.GELU(), "relu": torch.nn.ReLU(), "gelu_tanh": torch.nn.GELU("tanh")}[name]
        ours = nn.MLP(12, 16, 8, name, bias=bias, fallback="reference")
        theirs = torch.nn.Sequential(torch.nn.Linear(12, 16, bias), act, torch.nn.Linear(16, 8, bias))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def flat_gradients(model):
    """All gradients of a model as one vector, in the order of torch's parameters."""
    if isinstance(model, nn.SwiGLU):
        return torch.cat([model.gate_up_weight.grad.flatten(), model.down_proj.weight.grad.flatten()])
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "gelu alone", "swiglu"])
def test_values_and_gradients_are_torchs(name, dtype):
    """Forward and all gradients against the torch modules in fp64, from one state dict."""
    torch.manual_seed(0)
    ours, theirs = pair(name)
    ours, theirs = ours.to(dtype), theirs.to(dtype).double()
    for shape in ((2, 3, 12), (12,)):
        ours.zero_grad()
        theirs.zero_grad()
        x = torch.randn(shape).to(dtype)
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        y, z = ours(a), theirs(b)
        assert error(y.detach(), z.detach()) <= BOUNDS[dtype]
        upstream = torch.randn(z.shape).to(dtype)
        y.backward(upstream)
        z.backward(upstream.double())
        assert error(a.grad, b.grad) <= BOUNDS[dtype]
        assert error(flat_gradients(ours), flat_gradients(theirs)) <= BOUNDS[dtype]


@pytest.mark.parametrize("name", ["gelu", "gelu alone", "swiglu"])
def test_state_dicts_go_both_ways(name):
    """Keys and values are those of torch's modules, strictly, in both directions."""
    ours, theirs = pair(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    again = pair(name)[0]
    assert not torch.equal(next(iter(again.state_dict().values())), next(iter(ours.state_dict().values())))
    again.load_state_dict(theirs.state_dict())
    for x, y in zip(again.state_dict().values(), ours.state_dict().values()):
        assert torch.equal(x, y)


def test_an_activation_that_is_none_is_refused():
    """The names are listed."""
    with pytest.raises(InputError, match="activation='swish': must be one of gelu, gelu_tanh, relu, silu"):
        nn.MLP(4, 8, activation="swish")


def test_what_no_kernel_multiplies_is_left_to_torch():
    """A model that became fp64 after it was made or converted; a named fallback still refuses it."""
    for name in ("gelu", "gelu alone", "swiglu"):
        ours, theirs = pair(name)
        theirs.double()
        with pytest.raises(InputError, match="float64"):
            ours.double()(torch.randn(3, 12).double())
        for module in ours.modules():
            module.fallback = "torch"
        x = torch.randn(3, 12).double()
        assert torch.allclose(ours(x), theirs(x), atol=1e-12)
        ours(x).sum().backward()
        theirs(x).sum().backward()
        assert torch.allclose(flat_gradients(ours), flat_gradients(theirs), atol=1e-10)


def adapter(model):
    """A layer of the user's own around the first one."""
    model[0] = torch.nn.Sequential(model[0], torch.nn.Identity())


def activation(model):
    """Another one."""
    model[1] = torch.nn.Tanh()


def approximate(model):
    """The activation becomes the approximation by tanh."""
    model[1].approximate = "tanh"


def first_forward(model):
    """The first layer's forward is replaced."""
    model[0].forward = lambda x: torch.nn.Linear.forward(model[0], x) + 1.0


def hook(model):
    """A hook changes what the activation gives."""
    model[1].register_forward_hook(lambda module, x, y: y + 1.0)


def longer(model):
    """Another layer behind the others."""
    model.append(torch.nn.Tanh())


def shorter(model):
    """Without the last layer."""
    del model[2]


@pytest.mark.parametrize("change", [adapter, activation, approximate, first_forward, hook, longer, shorter])
def test_layers_that_were_changed_are_called(change):
    """A perceptron is a torch.nn.Sequential, whatever becomes of its layers."""
    ours, theirs = pair("gelu")
    x = torch.randn(3, 12)
    for model in (ours, theirs):
        change(model)
    y, z = ours(x), theirs(x)
    assert torch.allclose(y, z, atol=1e-6)
    assert torch.allclose(ours[:2](x), theirs[:2](x), atol=1e-6) and type(ours[:2]) is torch.nn.Sequential


@pytest.mark.parametrize(
    "made", [lambda: nn.MLP(8, 16, fallback="reference"), lambda: nn.SwiGLU(8, 16, fallback="reference")]
)
def test_hooks_of_all_modules_see_the_layers(made):
    """torch has hooks for all modules, which profilers use; a layer that is not called would not be counted."""
    model, x, seen = made(), torch.randn(3, 8, requires_grad=True), []

    def double(module, args, y):
        seen.append(module)
        return y * 2 if isinstance(module, torch.nn.Linear) else None

    expected = model(x)
    handle = torch.nn.modules.module.register_module_forward_hook(double)
    try:
        y = model(x)
    finally:
        handle.remove()
    layers = [z for z in model.modules() if not isinstance(z, nn.SwiGLU)]
    assert set(layers) <= set(seen)
    if isinstance(model, nn.SwiGLU):
        assert torch.allclose(y, expected * 2, atol=1e-6)
    else:
        assert torch.allclose(y, model[2](F.gelu(model[0](x) * 2)) * 2, atol=1e-6)


def test_biases_that_come_or_go_are_seen():
    """A layer that is given or loses its bias later runs layer by layer: what the epilogue reads is fixed."""
    x = torch.randn(3, 8)
    for bias in (False, True):
        model = nn.MLP(8, 16, bias=bias, fallback="reference")
        model[0].bias = None if bias else torch.nn.Parameter(torch.randn(16))
        assert torch.allclose(model(x), model[2](F.gelu(model[0](x))), atol=1e-6)


def test_constant_weights_are_refused_in_training():
    """And taken in evaluation."""
    x = torch.randn(3, 8)
    for made in (nn.MLP(8, 16, constant_weights=True), nn.SwiGLU(8, 16, constant_weights=True)):
        with pytest.raises(InputError, match="training"):
            made(x)
        made.eval()(x)


@pytest.mark.sliced
@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_the_compiled_kernels_learn(name):
    """A training step in the emulator: six products, in one of which the gradients of both layers meet."""
    torch.manual_seed(0)
    options = {"dtype": torch.bfloat16, "fallback": "emulator"}
    ours = nn.SwiGLU(16, 24, **options) if name == "swiglu" else nn.MLP(16, 24, 8, name, **options)
    theirs = Gated(16, 24)
    if name == "gelu":
        theirs = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 8))
    theirs.load_state_dict(ours.state_dict())
    theirs.double()
    x = torch.randn(3, 8, 16).bfloat16()
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, z = ours(a), theirs(b)
    upstream = torch.randn(z.shape).bfloat16()
    y.backward(upstream)
    z.backward(upstream.double())
    assert error(y.detach(), z.detach()) <= BOUNDS[torch.bfloat16]
    assert error(a.grad, b.grad) <= BOUNDS[torch.bfloat16]
    assert error(flat_gradients(ours), flat_gradients(theirs)) <= BOUNDS[torch.bfloat16]


def bytes_kept(model, x):
    """Bytes that a forward keeps for its backward, without parameters."""
    known, sizes = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(t):
        if t.untyped_storage().data_ptr() not in known:
            sizes[t.untyped_storage().data_ptr()] = t, t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        model(x).sum().backward()
    return sum(n for _, n in sizes.values())


@pytest.mark.parametrize("name", ["gelu", "gelu alone", "swiglu"])
def test_a_step_launches_six_products_and_keeps_what_torch_keeps(name, monkeypatch):
    """No launch beside the products of the two layers and their gradients; not a byte more is saved than torch's."""
    ours, theirs = pair(name)
    launched = []
    monkeypatch.setattr(
        perceptron, "served", lambda program, *rest: launched.append(program) or serve(program, *rest)
    )
    x = torch.randn(5, 12)
    assert bytes_kept(ours, x) <= bytes_kept(theirs, x)
    # x needs no gradient here
    assert len(launched) == 5
    ours(x.requires_grad_()).sum().backward()
    assert len(launched) == 11


@pytest.mark.parametrize(("name", "most"), [("gelu", 2), ("gelu alone", 2), ("swiglu", 4)])
def test_a_step_holds_no_matrix_that_nobody_reads_again(name, most, monkeypatch):
    """While a hidden layer's gradient is computed, only it and what it reads are alive of that layer's matrices."""
    width, hidden, rows = 8, 64, 256
    options = {"fallback": "reference"}
    if name == "swiglu":
        model = nn.SwiGLU(width, hidden, **options)
    else:
        model = nn.MLP(width, hidden, bias=name == "gelu", **options)
    alive = Alive()
    monkeypatch.setattr(perceptron, "served", alive.watched(serve))
    y = model(torch.randn(rows, width).requires_grad_())
    y.backward(torch.ones_like(y))
    # other results than those are less than one of them
    assert most <= alive.most / (4 * rows * hidden) < most + 1


@pytest.mark.parametrize("name", ["gelu", "gelu alone", "swiglu"])
def test_a_compiled_step_launches_as_many(name):
    """Two products in the forward's graph and four in the backward's, with the bits of the eager call."""
    ours, x = pair(name)[0], torch.randn(2, 5, 12).requires_grad_()
    torch._dynamo.reset()
    graphs = AotEagerAndRecordGraphs()
    found = {}
    for how, run in (("eager", ours), ("compiled", torch.compile(ours, fullgraph=True, backend=graphs))):
        ours.zero_grad()
        y = run(x)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
        y.backward(torch.ones_like(y))
        found[how] = y, dx, flat_gradients(ours)
    assert all(torch.equal(a, b) for a, b in zip(*found.values()))
    counts = [
        sum("cutegemm.gemm" in str(n.target) for n in g.graph.nodes)
        for g in (graphs.fw_graphs[0], graphs.bw_graphs[0])
    ]
    assert counts == [2, 4]
    # gate and up lie side by side from the start
    assert not any("cat" in str(n.target) for n in graphs.bw_graphs[0].graph.nodes)


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_a_perceptron_follows_autocast_and_freezing(name):
    """Under autocast gradients come in the parameters' type; frozen parameters have none, the others theirs."""
    torch.manual_seed(0)
    ours, theirs = pair(name)
    theirs.double()
    x = torch.randn(5, 12)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    theirs(x.double()).square().sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {torch.float32}
    assert error(flat_gradients(ours), flat_gradients(theirs)) <= BOUNDS[torch.bfloat16]
    first, *rest = ours.parameters()
    whole = [p.grad.clone() for p in rest]
    ours.zero_grad()
    first.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        ours(x).float().square().sum().backward()
    assert first.grad is None and all(error(p.grad, g) <= 1e-2 for p, g in zip(rest, whole))


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_a_perceptron_without_memory_has_a_shape(name):
    """On the meta device with gradients, which has no autocast; also inside another device's region."""
    ours, theirs = (model.to("meta") for model in pair(name))
    x = torch.randn(3, 12, device="meta", requires_grad=True)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = ours(x)
        assert y.is_meta and y.shape == theirs(x).shape and y.dtype == torch.float32
        y.sum().backward()
    assert x.grad.is_meta


def test_a_perceptrons_gradient_is_not_differentiated():
    """Double backward is refused, as of every product."""
    ours, x = pair("gelu")[0], torch.randn(5, 12).requires_grad_()
    (g,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    with pytest.raises(InputError, match="double backward"):
        g.sum().backward()


def test_a_perceptron_maps():
    """vmap of it and of its gradient, compiled and not: the layers' own ops."""
    ours, theirs = pair("gelu")
    x = torch.randn(4, 3, 12)

    def per_sample(model):
        state = {name: p.detach() for name, p in model.named_parameters()}

        def loss(state, x):
            return torch.func.functional_call(model, state, (x,)).square().sum()

        return lambda x: torch.vmap(torch.func.grad(loss), (None, 0))(state, x)

    expected = per_sample(theirs)(x)
    torch._dynamo.reset()
    for run in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        for found, wanted in zip(run(per_sample(ours))(x).values(), expected.values()):
            assert error(found, wanted) < BOUNDS[torch.float32]
        y = run(lambda x: torch.vmap(lambda x: ours(x))(x))(x)
        assert error(y.detach(), theirs(x).detach()) < BOUNDS[torch.float32]
