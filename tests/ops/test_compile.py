# SPDX-License-Identifier: Apache-2.0
"""torch.compile, export and checkpointing: one graph, no break, the same values and gradients."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.nn.conversion import convert

GELU = epi.bias_act("gelu")


@epi.define
def several(acc, *, bias: epi.Row, s: epi.Scalar, seed: epi.Integer, offset: epi.Integer):
    """Several outputs, numbers and integers."""
    h = epi.dropout(acc * s + bias, 0.3, seed, offset)
    return epi.Output(d=epi.tanh(h), amax=epi.AbsMax(h))


@pytest.fixture(autouse=True)
def fresh():
    """No compiled code of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(x, w, b):
    """A linear layer with gelu."""
    return cutegemm.linear(x, w, b, epilogue=GELU, fallback="reference")


FUNCTIONS = {
    "layer": (layer, ((4, 5, 12), (7, 12), (7,))),
    "matmul": (lambda a, b, c: cutegemm.matmul(a, b, c, alpha=2.0, beta=0.5, fallback="reference"),
               ((9, 12), (12, 7), (9, 7))),
    "torch": (lambda a, b: cutegemm.matmul(a, b, alpha=2.0), ((9, 12), (12, 7))),
    "torch, alpha of a tensor": (lambda a, b, s: cutegemm.matmul(a, b, alpha=s.float()), ((9, 12), (12, 7), ())),
    "alpha of a tensor": (lambda a, b, s: cutegemm.matmul(a, b, alpha=s.float(), fallback="reference"),
                          ((9, 12), (12, 7), ())),
    "by spec": (lambda x, w: cutegemm.linear(x, w, spec=nn.linear.CONSTANT, fallback="reference"), ((5, 12), (8, 12))),
}  # fmt: skip


@pytest.mark.sliced
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_compiles_into_one_graph(name, dynamic):
    """fullgraph: values and gradients bit for bit those of the eager call."""
    f, shapes = FUNCTIONS[name]
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    tensors = [torch.randn(shape).bfloat16() for shape in shapes]
    mine, theirs = ([x.clone().requires_grad_() for x in tensors] for _ in range(2))
    compiled(*mine).sum().backward()
    f(*theirs).sum().backward()
    assert torch.equal(compiled(*tensors), f(*tensors))
    for x, y in zip(mine, theirs):
        assert torch.equal(x.grad, y.grad)


def test_sizes_and_numbers_that_change_compile_twice():
    """A dimension, and a seed, become dynamic when they change once; outputs have names."""
    compiles = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=compiles)
    def f(x, w, b, seed):
        out = cutegemm.linear(x, w, b, epilogue=several, s=0.5, seed=seed, offset=0, fallback="reference")
        return out.d, out.amax

    w, b = torch.randn(7, 12), torch.randn(7)
    for rows, seed in ((3, 1), (4, 2), (5, 3), (6, 4)):
        x = torch.randn(rows, 2, 12)
        d, amax = f(x, w, b, seed)
        out = cutegemm.linear(x, w, b, epilogue=several, s=0.5, seed=seed, offset=0, fallback="reference")
        assert torch.equal(d, out.d) and torch.equal(amax, out.amax)
    assert compiles.frame_count <= 2


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: cutegemm.matmul(a, b, spec=cutegemm.GemmSpec(split_k=2), fallback="reference"),
        lambda a, b: cutegemm.linear(a, b.mT, spec=cutegemm.GemmSpec(), fallback="reference"),
    ],
    ids=["matmul", "linear"],
)
def test_a_spec_is_made_outside_the_graph(f):
    """One that torch.compile traces is no object yet; the error says where to make it."""
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError, match="outside the compiled function"):
        torch.compile(f, fullgraph=True, backend="eager")(torch.randn(9, 16), torch.randn(16, 8))


def test_out_is_functionalised():
    """The rest of the graph and the caller both see what is written into a given tensor."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(a, b, out):
        cutegemm.matmul(a, b, out, beta=1.0, out=out, fallback="reference")
        return out + 1

    a, b, out = torch.randn(9, 12), torch.randn(12, 7), torch.ones(9, 7)
    y = f(a, b, out)
    assert torch.allclose(out, a @ b + 1, atol=1e-5) and torch.equal(y, out + 1)


class Block(torch.nn.Module):
    """A perceptron and a layer."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.MLP(12, 16, fallback="reference")
        self.gated = nn.SwiGLU(12, 16, fallback="reference")
        self.last = nn.Linear(12, 7, fallback="reference")

    def forward(self, x):
        """One after the other."""
        return self.last(self.gated(x + self.mlp(x)))


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_exports(strict):
    """torch.export with a dynamic batch: the program computes what the module does."""
    model, x = Block(), torch.randn(3, 5, 12)
    dims = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    program = torch.export.export(model, (x,), dynamic_shapes=dims, strict=strict)
    other = torch.randn(9, 5, 12)
    assert torch.equal(program.module()(other), model(other))
    assert sum("cutegemm.gemm" in str(n.target) for n in program.graph.nodes) == 5


def test_a_block_may_be_checkpointed_compiled_and_deterministic():
    """Recomputed in the backward, compiled whole, under deterministic algorithms: the same gradients."""
    torch.manual_seed(0)
    model, x = Block(), torch.randn(3, 12)

    def gradients(run):
        model.zero_grad()
        run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.use_deterministic_algorithms(True)
    try:
        found = [
            gradients(lambda x: checkpoint(model, x, use_reentrant=False)),
            gradients(lambda x: checkpoint(compiled, x, use_reentrant=False)),
            gradients(compiled),
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    for one in found:
        assert all(torch.equal(x, y) for x, y in zip(one, expected))


def test_flat_views_serve_as_weights():
    """Parameters that are views of one flat buffer, as sharded training makes them, at any offset."""
    flat = torch.randn(3 + 7 * 12 + 7).requires_grad_()
    w, b = flat[3:87].view(7, 12), flat[87:]
    x = torch.randn(5, 12)
    layer(x, w, b).sum().backward()
    w2, b2 = w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    layer(x, w2, b2).sum().backward()
    assert torch.equal(flat.grad[3:87].view(7, 12), w2.grad) and torch.equal(flat.grad[87:], b2.grad)
    assert not flat.grad[:3].any()


def test_a_converted_model_compiles():
    """convert, then torch.compile: torch's own functions where there is no Hopper GPU, in one graph."""
    model = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    x = torch.randn(4, 12)
    expected = model(x)
    convert(model)
    assert torch.allclose(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
