# SPDX-License-Identifier: Apache-2.0
"""Gradients of the op against torch's in fp64: operands, epilogues' inputs, batches; what has none is refused."""

import itertools

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch._vmap_internals import _vmap
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import cutegemm
from cutegemm import GemmSpec, nn
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.ops import dispatch
from cutegemm.ops.gradients import gradient
from cutegemm.ops.perceptron import perceptron as fused
from cutegemm.ops.products import made
from cutegemm.ops.program import PLAIN
from cutegemm.ops.serve import serve
from tests.support.torch_ops import assert_same, error


def r(*shape):
    """Random elements."""
    return torch.randn(shape)


def linear(graph, **named):
    """Our linear layer with an epilogue, by positional tensors."""
    names = list(graph.tensors)
    return lambda x, w, *rest: cutegemm.linear(
        x, w, epilogue=graph, fallback="reference", **dict(zip(names, rest)), **named
    )


def glu(activation, layout):
    """torch's gated pair."""

    def of(x, w):
        y = F.linear(x, w)
        gate, up = y.chunk(2, -1) if layout == "halves" else (y[..., ::2], y[..., 1::2])
        return activation(gate) * up

    return of


@epi.define
def mixed(acc, *, bias: epi.Row, scale: epi.Col, rest: epi.Matrix, s: epi.Scalar):
    """Every kind of input in one formula."""
    return epi.tanh(acc * s + bias) * scale + rest * rest


def torch_mixed(y, bias, scale, rest, s):
    """`mixed` of a product, by torch."""
    return torch.tanh(y * s + bias) * scale[..., None] + rest * rest


def plain(*args, **named):
    """matmul through the op."""
    return cutegemm.matmul(*args, fallback="reference", **named)


CASES = {
    "matmul": (plain, torch.matmul, ((9, 12), (12, 7))),
    "alpha, beta": (lambda a, b, c: plain(a, b, c, alpha=2.0, beta=0.5), lambda a, b, c: 2 * a @ b + c / 2,
                    ((9, 12), (12, 7), (9, 7))),
    "batches": (plain, torch.matmul, ((3, 9, 12), (3, 12, 7))),
    "one b": (plain, torch.matmul, ((3, 9, 12), (12, 7))),
    "one a": (plain, torch.matmul, ((9, 12), (3, 12, 7))),
    "batch of one": (plain, torch.matmul, ((1, 9, 12), (3, 12, 7))),
    "b of one": (plain, torch.matmul, ((3, 9, 12), (1, 12, 7))),
    "linear": (lambda x, w, b: cutegemm.linear(x, w, b, fallback="reference"), F.linear, ((2, 3, 12), (7, 12), (7,))),
    "linear of a vector": (lambda x, w, b: cutegemm.linear(x, w, b, fallback="reference"), F.linear,
                           ((12,), (7, 12), (7,))),
    "gelu": (linear(epi.bias_act("gelu")), lambda x, w, b: F.gelu(F.linear(x, w, b)), ((2, 3, 12), (7, 12), (7,))),
    "residual": (linear(epi.bias_act_residual("relu")), lambda x, w, b, c: F.relu(F.linear(x, w, b)) + c,
                 ((6, 12), (7, 12), (7,), (6, 7))),
    "swiglu": (linear(epi.swiglu()), glu(F.silu, "halves"), ((2, 3, 12), (8, 12))),
    "geglu": (linear(epi.geglu("interleaved")), glu(F.gelu, "interleaved"), ((5, 12), (8, 12))),
    "every input": (linear(mixed, s=0.5), lambda x, w, *rest: torch_mixed(F.linear(x, w), *rest, 0.5),
                    ((2, 3, 12), (7, 12), (7,), (2, 3), (2, 3, 7))),
    "a batch of inputs": (lambda a, b, *rest: plain(a, b, epilogue=mixed, **dict(zip(("bias", "scale", "rest"), rest)),
                                                    s=0.5),
                          lambda a, b, bias, *rest: torch_mixed(a @ b, bias[:, None], *rest, 0.5),
                          ((3, 9, 12), (12, 7), (3, 7), (3, 9), (3, 9, 7))),
    "inputs of all batches": (lambda a, b, *rest: plain(a, b, epilogue=mixed,
                                                        **dict(zip(("bias", "scale", "rest"), rest)), s=0.5),
                              lambda a, b, *rest: torch_mixed(a @ b, *rest, 0.5),
                              ((3, 9, 12), (12, 7), (7,), (9,), (9, 7))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name, dtype):
    """D and the gradients of all it reads, within the type's bounds of torch in fp64."""
    torch.manual_seed(0)
    ours, theirs, shapes = CASES[name]
    assert_same(ours, theirs, *(r(*shape).to(dtype) for shape in shapes))


def test_a_scalar_tensor_has_a_gradient():
    """A scalar passed as a 0-d tensor is differentiated; as a number it is none of autograd's."""
    for fallback in ("torch", "reference"):
        assert_same(
            lambda a, b, c, *by: cutegemm.matmul(a, b, c, alpha=by[0], beta=by[1], fallback=fallback),  # noqa: B023
            lambda a, b, c, *by: by[0] * (a @ b) + by[1] * c,
            *(r(*shape) for shape in ((9, 12), (12, 7), (9, 7), (), ())),
        )
    x, w, bias, scale, rest = r(5, 12), r(7, 12), r(7), r(5), r(5, 7)
    assert_same(
        lambda s, x: linear(mixed, s=s)(x, w, bias, scale, rest),
        lambda s, x: torch_mixed(F.linear(x, w.double()), bias.double(), scale.double(), rest.double(), s),
        torch.tensor(0.5), x,
    )  # fmt: skip


@epi.define
def two(acc, *, bias: epi.Row):
    """Two stored outputs and a reduction."""
    h = epi.silu(acc + bias)
    return epi.Output(d=h * 2.0, pre=acc + bias, amax=epi.AbsMax(h))


@pytest.mark.parametrize("used", ["d", "pre", "both"])
def test_the_gradients_of_several_outputs_add(used):
    """Each stored output brings its own; one that is not used brings nothing; a reduction has none."""

    def both(d, pre):
        return {"d": d, "pre": pre, "both": d + pre}[used]

    def ours(x, w, b):
        out = linear(two)(x, w, b)
        assert not out.amax.requires_grad
        return both(out.d, out.pre)

    def theirs(x, w, b):
        pre = F.linear(x, w, b)
        return both(2 * F.silu(pre), pre)

    assert_same(ours, theirs, r(2, 3, 12), r(7, 12), r(7))


def test_dropout_repeats_in_the_gradient():
    """The same seed and offset drop the same elements on the way back."""
    x, w, bias, rest = r(64, 12), r(7, 12), r(7), r(64, 7)
    y = linear(epi.dropout_residual(0.5), seed=3, offset=4)(x, w, bias, rest.requires_grad_())
    kept = (y - rest).detach() != 0
    assert 0.3 < kept.float().mean() < 0.7
    bias.requires_grad_()
    linear(epi.dropout_residual(0.5), seed=3, offset=4)(x, w, bias, rest).sum().backward()
    assert torch.allclose(bias.grad, 2.0 * kept.sum(0))


def test_only_what_is_needed_is_computed_and_saved(monkeypatch):
    """A gradient of the weight alone saves no weight; one that is a factor launches and saves nothing beside."""
    x, w = r(5, 12), r(7, 12).requires_grad_()
    y = cutegemm.linear(x, w, fallback="reference")
    assert [tuple(t.shape) for t in y.grad_fn.saved_tensors if t is not None] == [(5, 12)]
    plan = gradient.plan_gradient(made(epi.bias_act("relu"), None, "linear", (), None), True, ("bias",))
    assert plan.saved == ("saved_acc",) and plan.read == ("bias",)
    for graph in (epi.bias(), epi.residual()):
        plan = gradient.plan_gradient(made(graph, None, "linear", (), None), True, ())
        assert plan.saved == () and plan.forward.graph == graph


@pytest.mark.parametrize("needs", itertools.product((True, False), repeat=3), ids=str)
@pytest.mark.parametrize("graph", [epi.bias(), epi.bias_act("gelu")], ids=["bias", "gelu"])
def test_no_needless_product_is_run(graph, needs, monkeypatch):
    """A product for each of x and W whose gradient is wanted, also where others require one that nobody asks for."""
    shapes, launches = ((5, 12), (7, 12), (7,)), []
    monkeypatch.setattr(dispatch, "served", lambda *args: launches.append(args[0]) or serve(*args))
    fused = int(graph != epi.bias())
    for required in (needs, (True,) * 3):
        if not any(needs):
            continue
        tensors = [r(*shape).requires_grad_(x) for shape, x in zip(shapes, required)]
        y = linear(graph)(*tensors)
        wanted = [x for x, asked in zip(tensors, needs) if asked]
        launches.clear()
        found = torch.autograd.grad(y, wanted, torch.ones_like(y))
        # beside the products, of an activation the launch that gives the accumulator's gradient
        assert len(launches) == sum(needs[:2]) + fused
        assert [g.shape for g in found] == [x.shape for x in wanted]


def test_what_was_saved_is_free_when_it_was_read(monkeypatch):
    """The accumulator before the products, x before its own gradient; all stays where the graph is kept."""
    x, w = r(5, 12).requires_grad_(), r(7, 12).requires_grad_()
    stored, launches = [], []

    def pack(t):
        stored.append((tuple(t.shape), StorageWeakRef(t.untyped_storage())))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = linear(epi.act("gelu"))(x * 1.0, w)

    def served(*args):
        launches.append({shape for shape, ref in stored if not ref.expired()})
        return serve(*args)

    monkeypatch.setattr(dispatch, "served", served)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    every = {(5, 12), (7, 12), (5, 7)}
    assert launches == [every] * 2
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, dx)
    assert launches[2:] == [every, {(5, 12), (7, 12)}, {(7, 12)}]


def test_wide_outputs_have_gradients_in_the_operands_types():
    """D in fp32 of bf16 operands: its gradient is rounded to theirs before the products."""
    a, b = (x.bfloat16().requires_grad_() for x in (r(9, 12), r(12, 7)))
    d = plain(a, b, spec=GemmSpec(d_dtype="fp32"))
    assert d.dtype == torch.float32
    d.sum().backward()
    assert a.grad.dtype == torch.bfloat16
    assert error(a.grad, b.double().sum(1).expand(9, 12)) < 1e-2


def test_an_operand_of_many_batches_has_a_gradient_rounded_once():
    """The products of all batches are added in fp32: the error in bf16 is that of one rounding."""
    torch.manual_seed(0)
    a, b = torch.randn(64, 32).bfloat16().requires_grad_(), torch.randn(256, 32, 3).bfloat16()
    upstream = torch.randn(256, 64, 3).bfloat16()
    plain(a, b).backward(upstream)
    exact = (upstream.double() @ b.double().mT).sum(0)
    assert error(a.grad, exact) <= 1.05 * error(exact.bfloat16(), exact)


def test_an_output_is_no_view():
    """Leading dimensions are unfolded without a view: what hooks a module's output may change it in place."""
    y = cutegemm.linear(r(2, 3, 12), r(7, 12).requires_grad_(), fallback="reference")
    assert not y._is_view()


def test_the_compiled_kernels_compute_the_gradient():
    """Forward and backward of a layer with gelu, every product and the launch between them in the emulator."""
    torch.manual_seed(0)
    graph = epi.bias_act("gelu")
    assert_same(
        lambda x, w, b: cutegemm.linear(x, w, b, epilogue=graph, fallback="emulator"),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        *(r(*s).bfloat16() for s in ((24, 16), (8, 16), (8,))),
    )


def test_double_backward_is_refused():
    """A gradient of the gradient would be wrong, or none: it raises, in autograd and in torch.func."""
    x, w = r(5, 12), r(7, 12).requires_grad_()
    layer = linear(epi.bias_act("gelu"))
    (g,) = torch.autograd.grad(layer(x, w, r(7)).sum(), w, create_graph=True)
    with pytest.raises(InputError, match="double backward .* is not supported"):
        g.sum().backward()
    bias = r(7)
    inner = torch.func.grad(lambda w: layer(x, w, bias).sum())
    with pytest.raises(InputError, match="double backward"):
        torch.func.grad(lambda w: inner(w).sum())(w.detach())


def penalised(f, x):
    """A gradient of a loss and of the norm of its gradient; torch leaves out ways back that it does not see."""
    x = x.detach().requires_grad_()
    loss = f(x)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    return torch.autograd.grad(loss + g.square().sum(), x)


TWICE = {
    "penalty": penalised,
    "hessian": torch.autograd.functional.hessian,
    "func.hessian": lambda f, x: torch.func.hessian(f)(x),
    "func.jacrev": lambda f, x: torch.func.jacrev(torch.func.jacrev(f))(x),
    "jvp of grad": lambda f, x: torch.func.jvp(torch.func.grad(f), (x,), (x,)),
}


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("name", TWICE)
def test_no_second_derivative_is_left_out(name, frozen):
    """However it is asked for, it is refused, and not taken for zero; a perceptron's too, and of frozen weights."""
    w, x = r(12, 12).requires_grad_(not frozen), r(5, 12)
    plain_layer, gelu, mlp = (
        linear(PLAIN, alpha=1.0),
        linear(epi.bias_act("gelu")),
        nn.MLP(12, 8, fallback="reference"),
    )
    mlp.requires_grad_(not frozen)
    for f in (
        lambda x: plain_layer(x, w).square().sum(),
        lambda x: gelu(x, w, w[0]).sum(),
        lambda x: mlp(x).sum(),
    ):
        with pytest.raises(InputError, match="double backward|has a tangent"):
            TWICE[name](f, x)


def test_a_gradient_that_is_recorded_depends_on_what_it_is_made_of():
    """With frozen weights the gradient of x is a constant of the graph, as in torch."""
    x, w, b = r(5, 12).requires_grad_(), r(12, 7), r(7)
    (g,) = torch.autograd.grad(linear(epi.bias())(x, w.t(), b).sum(), x, create_graph=True)
    assert not g.requires_grad and error(g, w.sum(1).expand(5, 12)) < 1e-5


@pytest.mark.parametrize("trained", [False, True])
def test_forward_mode_is_refused(trained):
    """A tangent would be lost: it raises, also where autograd records the call, and where it writes into a tensor."""
    x, w, out = r(5, 12).requires_grad_(trained), r(7, 12), torch.zeros(5, 7)
    refused = pytest.raises(InputError, match="forward-mode gradients .jvp. are not supported")
    with refused:
        torch.func.jvp(lambda w: cutegemm.linear(x, w, fallback="reference"), (w,), (w,))
    with torch.autograd.forward_ad.dual_level():
        for given in (None, out):
            with refused:
                cutegemm.linear(x, torch.autograd.forward_ad.make_dual(w, w), out=given, fallback="reference")


def test_out_has_no_gradient():
    """A call that writes into a given tensor is refused where autograd records."""
    a, b = r(9, 12).requires_grad_(), r(12, 7)
    with pytest.raises(InputError, match="a call with out= has no gradient"):
        plain(a, b, out=torch.empty(9, 7))
    with torch.no_grad():
        plain(a, b, out=torch.empty(9, 7))


def perceptron(x, w, b, last):
    """Two layers whose gradients are fused."""
    return fused(x, w, b, epi.bias_act("gelu"), last, fallback="reference")


BATCHED = {
    name: CASES[name] for name in ("matmul", "one b", "b of one", "gelu", "swiglu", "a batch of inputs")
}
BATCHED["perceptron"] = (
    perceptron, lambda x, w, b, last: F.linear(F.gelu(F.linear(x, w, b)), last), ((2, 3, 12), (7, 12), (7,), (5, 7))
)  # fmt: skip


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_gradients_at_once(name):
    """is_grads_batched=True, and vmap over autograd.grad, give for each upstream gradient what a call alone gives."""
    ours, theirs, shapes = BATCHED[name]
    tensors = [r(*shape).requires_grad_() for shape in shapes]
    y, expected = ours(*tensors), theirs(*tensors)
    upstream = r(4, *y.shape)
    exact = torch.autograd.grad(expected, tensors, upstream, is_grads_batched=True)
    found = torch.autograd.grad(y, tensors, upstream, is_grads_batched=True, retain_graph=True)
    mapped = torch.vmap(lambda g: torch.autograd.grad(y, tensors, g, retain_graph=True))(upstream)
    for x, mine, other in zip(exact, found, mapped):
        assert error(mine, x) < 1e-5 and error(other, x) < 1e-5


def test_a_batch_of_gradients_of_some_outputs_of_several():
    """An output that is not used brings nothing; a gradient of the batch is refused where a single one's is."""
    x, w, bias = r(5, 12), r(7, 12).requires_grad_(), r(7)
    out = linear(two)(x, w, bias)
    upstream = r(4, 5, 7)
    (found,) = torch.autograd.grad(out.pre, w, upstream, is_grads_batched=True, retain_graph=True)
    assert error(found, upstream.mT @ x) < 1e-5
    (found,) = torch.autograd.grad(out.pre, w, upstream, is_grads_batched=True, create_graph=True)
    assert error(found, upstream.mT @ x) < 1e-5
    with pytest.raises(InputError, match="double backward"):
        found.sum().backward()


@pytest.mark.sliced
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("name", ["matmul", "gelu", "perceptron"])
def test_compiled_autograd_takes_our_nodes(name):
    """A backward pass that torch.compile traces gives the gradients of one that it does not."""
    ours, _, shapes = BATCHED[name]
    tensors = [r(*shape).requires_grad_() for shape in shapes]
    y = ours(*tensors)
    expected = torch.autograd.grad(y, tensors, torch.ones_like(y), retain_graph=True)
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        y.sum().backward()
    for x, exact in zip(tensors, expected):
        assert error(x.grad, exact) < 1e-5


def test_maps_within_maps_of_gradients_are_refused():
    """Neither of two nested maps of torch's older kind knows the other: the error names the rule and a way out."""
    w = r(7, 12).requires_grad_()
    y = cutegemm.linear(r(5, 12), w, fallback="reference")

    def pull(g):
        return torch.autograd.grad(y, w, g, retain_graph=True)[0]

    with pytest.raises(
        InputError, match=r"is_grads_batched=True: nested maps are not supported: .* torch.func.jacrev"
    ):
        _vmap(_vmap(pull))(r(2, 3, 5, 7))
    assert torch.vmap(torch.vmap(pull))(r(2, 3, 5, 7)).shape == (2, 3, 7, 12)
