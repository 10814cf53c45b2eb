# SPDX-License-Identifier: Apache-2.0
"""Groups under torch's transforms: its contract (`opcheck`), vmap, torch.func, forward mode, `out=` compiled."""

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.ops.groups.group_gradient import PLAIN
from cutegemm.ops.products import made

OPS = torch.ops.cutegemm.grouped_mm
OFFS = torch.tensor([4, 4, 9])


def drawn(*shape):
    """bf16 elements that are small, so that sums of them are exact in fp32."""
    return torch.randint(-3, 4, shape).bfloat16()


def calls():
    """Name -> (overload, arguments, keyword arguments)."""
    plain = made(PLAIN[False, False], None, "matrix", (), "reference").text
    whole = made(PLAIN[True, True], None, "matrix", (), "reference").text
    several = epi.define(lambda acc: epi.Output(d=acc, h=epi.Store(acc, "fp32")))
    many = made(several, None, "matrix", (), "reference").text
    a, b = drawn(10, 16), drawn(3, 16, 24)
    grads = [x.clone().requires_grad_() for x in (a, b, drawn(10, 24), torch.randn(24))]
    how = ([], "rows:offs:zero")
    return {
        "plain": (OPS.default, (*grads[:2], OFFS, [], [2.0], [], plain, how[1]), {}),
        "c and bias": (OPS.default, (*grads[:2], OFFS, grads[2:], [2.0, 0.5], [], whole, how[1]), {}),
        "along K": (
            OPS.default,
            (
                grads[0].detach().T.clone().requires_grad_(),
                grads[2],
                OFFS,
                [],
                [1.0],
                [],
                plain,
                "depth:offs:zero",
            ),
            {},
        ),
        "many": (OPS.many, (a, b, OFFS, [], [], [], many, how[1]), {}),
        "out": (
            OPS.out,
            (a, b, OFFS, [], [2.0], [], plain, how[1]),
            {"out": [torch.empty(10, 24).bfloat16()]},
        ),
    }


@pytest.mark.parametrize("name", ["plain", "c and bias", "along K", "many", "out"])
def test_the_op_keeps_torchs_contract(name):
    """opcheck: schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes."""
    op, args, kwargs = calls()[name]
    found = torch.library.opcheck(op, args, kwargs)
    assert set(found.values()) == {"SUCCESS"}


def ours(a, b, offs=OFFS):
    """Groups of rows by the op."""
    return cutegemm.grouped_mm(a, b, offs, fallback="reference")


def theirs(a, b, offs=OFFS):
    """The same from every row's product with every group's matrix."""
    rows = torch.arange(a.shape[0])
    begins = torch.cat([offs.new_zeros(1), offs[:-1]])
    mine = (rows[:, None] >= begins) & (rows[:, None] < offs)
    return (torch.einsum("mk,gkn->mgn", a, b) * mine[..., None].to(a.dtype)).sum(1)


A, B = drawn(10, 16), drawn(3, 16, 24)
MAPS = {
    "rows": ((0, None, None), (drawn(4, 10, 16), B, OFFS)),
    "columns of rows": ((2, None, None), (drawn(10, 16, 4), B, OFFS)),
    "weights": ((None, 0, None), (A, drawn(4, 3, 16, 24), OFFS)),
    "ends": ((None, None, 0), (A, B, torch.tensor([[4, 4, 9], [0, 10, 10], [1, 2, 3]]))),
    "all": ((0, 1, 1), (drawn(2, 10, 16), drawn(3, 2, 16, 24), torch.tensor([[4, 1], [4, 5], [9, 10]]))),
}


@pytest.mark.parametrize("name", MAPS)
def test_vmap_takes_a_batch(name):
    """Any argument may have it, also the ends, which then differ from element to element."""
    dims, tensors = MAPS[name]
    found, told = torch.vmap(ours, dims)(*tensors), torch.vmap(theirs, dims)(*tensors)
    assert torch.equal(found, told.to(found.dtype))


def test_vmap_of_several_outputs_and_of_no_elements():
    """An attribute each; a batch of none has their shapes."""
    graph = epi.define(lambda acc: epi.Output(d=acc, h=epi.Store(acc, "fp32")))

    def both(a):
        found = cutegemm.grouped_mm(a, B, OFFS, epilogue=graph, fallback="reference")
        return found.d, found.h

    a = drawn(4, 10, 16)
    d, h = torch.vmap(both)(a)
    assert torch.equal(d, torch.vmap(theirs, (0, None))(a, B)) and h.dtype == torch.float32
    assert [x.shape for x in torch.vmap(both)(a[:0])] == [(0, 10, 24)] * 2
    call = lambda a, out: cutegemm.grouped_mm(a, B, OFFS, out=out, fallback="reference")
    with pytest.raises(InputError, match="out='...': vmap does not support out="):
        torch.vmap(call)(a, drawn(4, 10, 24))


def test_gradients_of_torch_func():
    """func.grad, its vmap (a gradient per sample), jacrev and a batch of incoming gradients agree with torch's."""
    samples, above = drawn(2, 10, 16), drawn(2, 10, 24)

    def batch_of_gradients(f):
        b = B.clone().requires_grad_()
        return torch.autograd.grad(f(A, b), b, above, is_grads_batched=True)[0]

    for f in (
        lambda g: torch.func.grad(lambda b: g(A, b).float().sum())(B),
        lambda g: torch.func.grad(lambda a: g(a, B).float().sum())(A),
        lambda g: torch.vmap(torch.func.grad(lambda b, a: g(a, b).float().sum()), (None, 0))(B, samples),
        lambda g: torch.func.jacrev(lambda b: g(A, b).float().sum(0))(B),
        batch_of_gradients,
    ):
        torch.testing.assert_close(f(ours), f(theirs), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("recorded", [False, True])
def test_forward_mode_is_refused(recorded):
    """By torch.func.jvp and by dual tensors: the tangent would be lost."""
    b = B.clone().requires_grad_(recorded)
    with pytest.raises(
        InputError, match=r"b: has a tangent: forward-mode gradients \(jvp\) are not supported"
    ):
        torch.func.jvp(lambda w: ours(A, w), (B,), (B,))
    with forward_ad.dual_level(), pytest.raises((InputError, RuntimeError), match="jvp"):
        ours(A, forward_ad.make_dual(b, B))


def test_gradients_have_gradients():
    """A penalty on the gradient has torch's gradient, for groups of rows, of columns and along K."""

    def penalty(f, *tensors):
        inputs = [x.clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(f(*inputs).float().square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.float().square().sum() for x in first), inputs)

    def along_k(a, b):
        return cutegemm.grouped_mm(a.mT, b, OFFS, fallback="reference")

    def told_along_k(a, b):
        return torch.stack([a[x:y].mT @ b[x:y] for x, y in ((0, 4), (4, 4), (4, 9))])

    columns = (lambda a, b: ours(b.mT, a.mT).mT, theirs, (A, B))
    for f, g, tensors in ((ours, theirs, (A, B)), (along_k, told_along_k, (A, drawn(10, 24))), columns):
        wide = [x.double() for x in tensors]
        for x, y in zip(penalty(f, *tensors), penalty(g, *wide), strict=True):
            assert (x.double() - y).norm() <= 0.02 * y.norm()


@epi.define
def _own(acc, *, bias: epi.Row):
    """An epilogue that no other test uses, so that its gradient is planned in the test."""
    return epi.gelu(acc * 0.37 + bias)


SHAPES = {
    "rows": ((10, 16), (3, 16, 24), {"offs": OFFS}),
    "columns": ((3, 24, 16), (16, 10), {"offs": OFFS}),
    "along K": ((24, 10), (10, 16), {"offs": OFFS}),
    "masked": ((3, 10, 16), (3, 16, 24), {"counts": OFFS}),
    "masked in tf32": ((3, 10, 16), (3, 16, 24), {"counts": OFFS, "spec": GemmSpec(math="tf32")}),
    "c and bias": (
        (10, 16),
        (3, 16, 24),
        {"offs": OFFS, "c": torch.randn(10, 24), "bias": torch.randn(3, 24)},
    ),
    "epilogue": ((10, 16), (3, 16, 24), {"offs": OFFS, "epilogue": _own, "bias": torch.randn(3, 24)}),
    "routed": (
        (10, 16),
        (3, 16, 24),
        {
            "offs": OFFS,
            "rows": torch.arange(10).flip(0),
            "scatter": torch.arange(10) // 2,
            "weight": torch.rand(10),
        },
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_compiled_autograd_takes_groups(name):
    """A backward pass that torch.compile traces, before any other one, gives the bits of one that it does not."""
    torch._dynamo.reset()
    a, b, more = SHAPES[name]
    dtype = torch.float32 if "spec" in more else torch.bfloat16
    given = {x: y.clone().requires_grad_() for x, y in more.items() if x in ("c", "bias", "weight")}
    leaves = [torch.randn(x).to(dtype).requires_grad_() for x in (a, b)] + list(given.values())

    def loss():
        found = cutegemm.grouped_mm(*leaves[:2], **more | given, fallback="reference")
        return found.float().square().sum()

    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        loss().backward()
    for x, told in zip(leaves, torch.autograd.grad(loss(), leaves), strict=True):
        assert torch.equal(x.grad, told)


@pytest.mark.parametrize("form", ["alone", "mapping"])
def test_out_compiles(form):
    """A weight's gradient is added to what is there, in one graph, which the rest of the graph and the caller see."""

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def step(x, dy, grad):
        out = grad if form == "alone" else {"d": grad}
        cutegemm.grouped_mm(x.mT, dy, OFFS, c=grad, beta=1.0, out=out, fallback="reference")
        return grad + 1

    grad = torch.ones(3, 16, 24)
    seen, dy = step(A, drawn(10, 24), grad), drawn(10, 24)
    before = grad.clone()
    assert torch.equal(seen, grad + 1) and not torch.equal(grad, torch.ones_like(grad))
    step(A, dy, grad)
    told = [A[x:y].float().mT @ dy[x:y].float() for x, y in ((0, 4), (4, 4), (4, 9))]
    torch.testing.assert_close(grad, before + torch.stack(told))
    with pytest.raises(InputError, match="every output"):
        torch.compile(lambda: cutegemm.grouped_mm(A, B, OFFS, out=[grad], fallback="reference"))()


def test_what_out_overwrites_is_noticed():
    """Through the dispatcher autograd learns that a tensor which it saved has changed."""
    x, saved = torch.randn(10, 24).requires_grad_(), torch.randn(10, 24).bfloat16()
    y = x * saved
    op, args, _ = calls()["out"]
    op(*args, out=[saved])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
