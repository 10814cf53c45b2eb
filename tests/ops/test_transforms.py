# SPDX-License-Identifier: Apache-2.0
"""The op under torch's transforms: its contract (`opcheck`), vmap, torch.func, autocast, devices without memory."""

import io
import itertools

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.errors import InputError
from cutegemm.ops.products import made
from cutegemm.ops.program import PLAIN, PLAIN_WITH_C, Program, decode, kept
from cutegemm.ops.transforms.sharding import cuts
from cutegemm.running.arguments.results import Outputs
from tests.support.torch_ops import error

OPS = torch.ops.cutegemm.gemm


def r(*shape):
    """Random elements, with a gradient."""
    return torch.randn(shape).requires_grad_()


@epi.define
def several(acc, *, bias: epi.Row, s: epi.Scalar, seed: epi.Integer, offset: epi.Integer):
    """Two stored outputs and a reduction, of a tensor, a scalar tensor and two integers."""
    h = epi.dropout(acc + bias, 0.3, seed, offset)
    return epi.Output(d=epi.tanh(h * s), h=h, amax=epi.AbsMax(h, axis=1))


def _merged(form):
    """A gated pair that also gives its accumulators, side by side."""
    graph = epi.define(gated="halves")(
        lambda gate, up: epi.Output(d=epi.silu(gate) * up, left=epi.Store(gate), right=epi.Store(up))
    )
    return kept(Program(cutegemm.GemmSpec(), graph, form, merged=("left", "right")))


def calls():
    """Name -> (overload, arguments, keyword arguments)."""
    plain, with_c = (made(x, None, "matrix", (), None).text for x in (PLAIN, PLAIN_WITH_C))
    layer = made(epi.bias_act("gelu"), None, "linear", (), None).text
    more = made(several, None, "linear", ("s",), None).text
    a, b = torch.randn(9, 12), torch.randn(12, 7)
    merged = _merged("linear")
    return {
        "plain": (OPS.default, (r(9, 12), r(12, 7), [], [2.0], [], plain), {}),
        "batch, c": (OPS.default, (r(3, 9, 12), r(12, 7), [r(3, 9, 7)], [2.0, 0.5], [], with_c), {}),
        "layer": (OPS.default, (r(2, 3, 12), r(7, 12), [r(7)], [], [], layer), {}),
        "many": (OPS.many, (r(2, 3, 12), r(7, 12), [r(7), r()], [], [5, 6], more), {}),
        "merged": (OPS.many, (torch.randn(2, 3, 12), torch.randn(14, 12), [], [], [], merged.text), {}),
        "many of one": (OPS.many, (r(9, 12), r(12, 7), [], [2.0], [], plain), {}),
        "out": (OPS.out, (a, b, [], [2.0], [], plain), {"out": [torch.empty(9, 7)]}),
    }


@pytest.mark.parametrize("name", ["plain", "batch, c", "layer", "many", "merged", "many of one", "out"])
def test_the_op_keeps_torchs_contract(name):
    """opcheck: schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes."""
    op, args, kwargs = calls()[name]
    found = torch.library.opcheck(op, args, kwargs)
    assert set(found.values()) == {"SUCCESS"}


def test_outputs_may_lie_side_by_side():
    """Two stores are one tensor, in values and as fakes have it; it is made by the call, and not differentiated."""
    x, w = torch.randn(2, 3, 12), torch.randn(14, 12)
    for form, b in (("linear", w), ("matrix", w.t())):
        program = _merged(form)
        assert program.outputs == ("d", "left") and decode(program.text) is program
        a = x if form == "linear" else x[0]
        args = (a, b, [], [], [], program.text)
        d, both = OPS.many(*args)
        gate, up = F.linear(a, w).chunk(2, -1)
        assert error(d, F.silu(gate) * up) < 1e-5 and error(both, F.linear(a, w)) < 1e-5
        with FakeTensorMode() as mode:
            fakes = OPS.many(mode.from_tensor(a), mode.from_tensor(b), *args[2:])
        assert [(t.shape, t.stride()) for t in fakes] == [(t.shape, t.stride()) for t in (d, both)]
        with pytest.raises(InputError, match="out: merged outputs share one tensor"):
            OPS.out(*args, out=[d, both])
        with pytest.raises(InputError, match="has no gradient"):
            OPS.many(a.clone().requires_grad_(), *args[1:])
    assert not [x for x, _ in cuts(_merged("linear"), [(2, 3, 12), (14, 12)])[1:] if x[0] == 2]


def test_outputs_are_described_from_layouts_alone():
    """Fake and meta tensors: shapes, types and strides of a run; a wrong shape is refused as a run refuses it."""
    spec = cutegemm.GemmSpec(d_dtype="fp32", d_major="m")
    graph = epi.define(lambda acc: epi.Output(d=acc, h=epi.Store(acc, "fp8_e4m3"), top=epi.Max(acc, axis=1)))

    def call(device):
        a, b = (torch.zeros(s, device=device, dtype=torch.bfloat16) for s in ((2, 9, 12), (7, 12)))
        out = cutegemm.linear(a, b, spec=spec, epilogue=graph, fallback="reference")
        assert type(out.d) is type(a) and out.d.device == a.device
        with pytest.raises(InputError, match="so weight must be \\(N, 12\\)"):
            cutegemm.linear(a, b[:, :5], fallback="reference")
        return [(x.shape, x.stride(), x.dtype) for x in (out.d, out.h, out.top)]

    real = call("cpu")
    assert real[0] == ((2, 9, 7), (9, 1, 18), torch.float32)
    with FakeTensorMode():
        assert call("cpu") == real
    assert call("meta") == real


@pytest.mark.parametrize("major", ["n", "m"])
def test_fakes_have_the_strides_of_a_run_at_extents_of_one_and_odd_ones(major):
    """Also of leading dimensions that unfold, and of a batch of matrices."""
    spec = cutegemm.GemmSpec(d_major=major)

    def layer(x, w):
        return cutegemm.linear(x, w, spec=spec, fallback="reference")

    def product(x, w):
        return cutegemm.matmul(x, w.t(), spec=spec, fallback="reference")

    leads = ((), (1,), (5,), (1, 1), (1, 5), (5, 1), (3, 5), (1, 1, 1), (3, 1, 5))
    for lead, n in itertools.product(leads, (1, 5)):
        x, w = torch.randn(*lead, 12), torch.randn(n, 12)
        for call in (layer, product) if 0 < len(lead) < 3 else (layer,):
            real = call(x, w)
            found = {"meta": call(x.to("meta"), w.to("meta"))}
            for name, shapes in (("fake", None), ("symbolic", ShapeEnv())):
                with FakeTensorMode(shape_env=shapes) as mode:
                    found[name] = call(mode.from_tensor(x), mode.from_tensor(w))
            for name, y in found.items():
                assert (y.shape, y.stride()) == (real.shape, real.stride()), (lead, n, name)


def layer(x, w, b):
    """A linear layer with gelu through the op."""
    return cutegemm.linear(x, w, b, epilogue=_GELU, fallback="reference")


def expected(x, w, b):
    """The same by torch."""
    return F.gelu(F.linear(x, w, b))


_GELU = epi.bias_act("gelu")
MAPS = {
    "x": ((0, None, None), ((4, 5, 12), (7, 12), (7,))),
    "x's columns": ((2, None, None), ((5, 12, 4), (7, 12), (7,))),
    "weights": ((None, 0, None), ((5, 12), (4, 7, 12), (7,))),
    "all": ((0, 0, 0), ((4, 3, 5, 12), (4, 7, 12), (4, 7))),
    "bias": ((None, None, 0), ((5, 12), (7, 12), (4, 7))),
    "weights of a vector": ((None, 0, 0), ((12,), (4, 7, 12), (4, 7))),
}


@pytest.mark.parametrize("name", MAPS)
def test_vmap_takes_a_batch(name):
    """Mapped operands become a batch or more rows; the result is torch's."""
    dims, shapes = MAPS[name]
    tensors = [torch.randn(shape) for shape in shapes]
    assert error(torch.vmap(layer, dims)(*tensors), torch.vmap(expected, dims)(*tensors)) < 1e-5


def test_vmap_of_a_batched_product_is_a_larger_batch():
    """matmul maps over operands of two and of three dimensions, with several outputs."""
    a, b = torch.randn(3, 2, 4, 12), torch.randn(2, 12, 7)
    graph = epi.row_max()

    def ours(a, b):
        out = cutegemm.matmul(a, b, epilogue=graph, fallback="reference")
        return out.d, out.row_max

    d, rows = torch.vmap(ours, (0, None))(a, b)
    assert error(d, a @ b) < 1e-5 and error(rows, (a @ b).amax(-1)) < 1e-5


def test_vmap_refuses_a_scalar_of_its_own_for_every_batch():
    """One number serves a product; and a call with out= has no batching rule."""
    graph = epi.softmax_apply()
    x = torch.randn(4, 5, 5)
    with pytest.raises(InputError, match="torch.vmap='scale': a scalar must be the same for the whole batch"):
        torch.vmap(
            lambda x, s: cutegemm.matmul(x, x, epilogue=graph, scale=s, lse=x[0], fallback="reference")
        )(x, torch.randn(4))
    call = lambda x, out: cutegemm.matmul(x, x, out=out, fallback="reference")
    with pytest.raises(InputError, match="out='...': vmap does not support out="):
        torch.vmap(call)(x, torch.empty(4, 5, 5))


def test_gradients_of_torch_func():
    """func.grad, its vmap (a gradient per sample) and jacrev agree with torch's."""
    x, w, b = torch.randn(3, 5, 12), torch.randn(7, 12), torch.randn(7)
    for f in (
        lambda g: torch.func.grad(lambda w: g(x, w, b).sum())(w),
        lambda g: torch.vmap(torch.func.grad(lambda w, x: g(x, w, b).sum()), (None, 0))(w, x),
        lambda g: torch.vmap(torch.func.grad(lambda w, x: g(x, w, b).sum()), (None, 0))(w, x[:, 0]),
        lambda g: torch.func.jacrev(lambda w: g(x[0], w, b))(w),
        # called after the transform has ended
        lambda g: torch.func.vjp(lambda x: g(x, w, b), x)[1](torch.ones(3, 5, 7))[0],
    ):
        assert error(f(layer), f(expected)) < 1e-5


def test_autocast_is_followed():
    """Operands are cast to the region's type, inputs of the epilogue are not; gradients come back in fp32."""
    x, w, b = (torch.randn(s).requires_grad_() for s in ((5, 12), (7, 12), (7,)))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, w, b)
        z = cutegemm.matmul(x, w.t(), fallback="reference")
        # which torch's autocast leaves alone, too
        with pytest.raises(InputError, match=r"a.dtype=torch.float64"):
            cutegemm.matmul(x.double(), w.t().double(), fallback="reference")
    assert y.dtype == z.dtype == torch.bfloat16
    y.float().sum().backward()
    assert w.grad.dtype == torch.float32
    w64 = w.detach().double().requires_grad_()
    expected(x.detach().double(), w64, b.detach().double()).sum().backward()
    assert error(w.grad, w64.grad) < 2e-2


@pytest.mark.parametrize("fallback", ["torch", "reference"])
def test_c_keeps_its_type_under_autocast_and_d_has_the_operands(fallback):
    """This holds for a C that all batches share, and for factors that are tensors."""
    a, b, c, two = torch.randn(3, 5, 12), torch.randn(12, 7), torch.randn(5, 7), torch.tensor(2.0)
    with torch.autocast("cpu", torch.bfloat16):
        shared = cutegemm.matmul(a, b, c, fallback=fallback)
        scaled = cutegemm.matmul(a[0], b, c, alpha=two, fallback=fallback)
    assert shared.dtype == scaled.dtype == torch.bfloat16
    assert error(shared.float(), (a @ b + c).double()) < 2e-2
    assert error(scaled.float(), (2 * a[0] @ b + c).double()) < 2e-2


def test_writing_into_out_is_seen_by_autograd():
    """A tensor that autograd saved and the op has overwritten is noticed."""
    x = torch.randn(4, 4).requires_grad_()
    saved = torch.randn(4, 4)
    y = x * saved
    op, args, _ = calls()["out"]
    op(torch.randn(4, 12), torch.randn(12, 4), *args[2:], out=[saved])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_operations_are_counted_as_torchs():
    """A perceptron forward and backward, and products of every form and batch, have as many FLOP as torch counts."""

    def counted(f, *shapes):
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        with FlopCounterMode(display=False) as counter:
            f(*tensors).sum().backward()
        return counter.get_total_flops()

    ours = nn.MLP(12, 16, fallback="reference")
    theirs = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 12))
    assert counted(ours, (2, 5, 12)) == counted(theirs, (2, 5, 12)) == 6 * 2 * 10 * 12 * 16
    for shapes in (
        ((3, 9, 12), (3, 12, 7)),
        ((3, 9, 12), (12, 7)),
        ((9, 12), (3, 12, 7)),
        ((1, 9, 12), (3, 12, 7)),
    ):
        found = counted(lambda a, b: cutegemm.matmul(a, b, fallback="reference"), *shapes)
        assert found == 3 * 2 * 3 * 9 * 12 * 7


class Several(torch.nn.Module):
    """A product with two outputs."""

    def forward(self, a, b):
        """Both, as one object."""
        return cutegemm.matmul(a, b, epilogue=_ROWS, fallback="reference")


_ROWS = epi.row_max()


def exported(f, a, b):
    """The results of a program that was written and read."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(f, (a, b)), file)
    file.seek(0)
    return torch.export.load(file).module()(a, b)


WAYS = {
    "eager": lambda f, a, b: f(a, b),
    "vmap": lambda f, a, b: torch.vmap(f, (0, None))(a, b),
    "checkpoint": lambda f, a, b: checkpoint(f, a, b, use_reentrant=False),
    "export": exported,
    "compile": lambda f, a, b: torch.compile(f, fullgraph=True, backend="aot_eager")(a, b),
}


@pytest.mark.parametrize("name", WAYS)
def test_several_outputs_are_a_tree(name):
    """Transforms find the tensors in them, and give them back as they were."""
    a, b = torch.randn(3, 9, 12), torch.randn(12, 7)
    found = WAYS[name](Several(), a, b)
    leaves, tree = torch.utils._pytree.tree_flatten(found)
    assert type(found) is Outputs and [tuple(x.shape) for x in leaves] == [(3, 9, 7), (3, 9)]
    assert error(found.d, a @ b) < 1e-5 and error(found.row_max, (a @ b).amax(-1)) < 1e-5
    assert type(torch.utils._pytree.tree_unflatten(leaves, tree)) is Outputs


@pytest.mark.parametrize("name", ("functional", "zeros", "of a subclass"))
def test_what_the_dispatcher_handles_below_autograd_is_left_to_it(name):
    """A call without a gradient runs directly only if a device's implementation is all that is left to run."""
    a, b, text = torch.randn(9, 12), torch.randn(12, 7), made(PLAIN, None, "matrix", (), None).text
    if name == "zeros":
        x = torch._efficientzerotensor((9, 12))
        assert torch.equal(OPS.default(x, b, [], [1.0], [], text), torch.zeros(9, 7))
    elif name == "functional":
        torch._enable_functionalization(reapply_views=True)
        try:
            d = OPS.default(*map(torch._to_functional_tensor, (a, b)), [], [1.0], [], text)
        finally:
            torch._disable_functionalization()
        assert torch._is_functional_tensor(d)
        torch.testing.assert_close(torch._from_functional_tensor(d), a @ b)
    else:
        # the groups' ends are no operand
        ends = torch.tensor([4, 9], dtype=torch.int32)
        a, b = a.bfloat16(), b.bfloat16()
        how = [], [1.0], [], text, "rows:offs:zero"
        d = torch.ops.cutegemm.grouped_mm(a, b.expand(2, 12, 7), TwoTensor(ends, ends), *how)
        assert type(d) is TwoTensor
        torch.testing.assert_close(d.a, a @ b)


def test_gradients_of_fakes_may_have_symbolic_extents():
    """Outside their mode, too: extents that are no key of a cache."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(r(9, 12), symbolic_context=context, source=ConstantSource("x"))
    weight = mode.from_tensor(r(7, 12), symbolic_context=context, source=ConstantSource("weight"))
    y = cutegemm.linear(x, weight, fallback="reference")
    assert [g.shape for g in torch.autograd.grad(y.sum(), [x, weight])] == [x.shape, weight.shape]
