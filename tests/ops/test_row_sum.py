# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by index: the op beside torch's functions, its gradient, and who calls the kernel."""

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad

from cutegemm.errors import InputError
from cutegemm.nn import MoE
from cutegemm.ops.groups import gathering, row_sum
from cutegemm.running.backends.helper_launch import on_emulator
from cutegemm.running.numerics import group_reference

BF16 = torch.bfloat16


def given(terms=2, dtype=BF16, index=torch.int32):
    """A matrix and indices of its rows, some of them equal."""
    draw = torch.Generator().manual_seed(terms)
    x = torch.randn(11, 16, generator=draw).to(dtype)
    return x, torch.randint(0, 11, (7, terms), generator=draw).to(index)


def by_torch(x, index):
    """The sum in torch."""
    return torch.embedding(x, index).sum(1)


@pytest.fixture
def emulated(monkeypatch):
    """Kernels that would run on a Hopper GPU run in the emulator; returns the configs of its launches."""
    made = []

    def launch(config, groups, tensors):
        made.append(config)
        on_emulator(config, groups, tensors)

    monkeypatch.setattr(row_sum, "hopper", lambda device: True)
    monkeypatch.setattr(row_sum, "on_gpu", launch)
    return made


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_the_op_obeys_torchs_rules(terms, index):
    """Its description, its gradient and its schema."""
    x, index = given(terms, torch.float64, index)
    torch.library.opcheck(torch.ops.cutegemm.sum_rows, (x.requires_grad_(), index))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_the_op_that_adds_rows_obeys_torchs_rules(index):
    """Its description, its gradient and its schema; rows with indices out of range are dropped."""
    x, target = torch.randn(5, 16, requires_grad=True), torch.tensor([2, 0, 2, -1, 3], dtype=index)
    torch.library.opcheck(torch.ops.cutegemm.add_rows, (x, target, 3))
    found = row_sum.added(x, target, 3)
    torch.testing.assert_close(found, torch.stack([x[1], 0 * x[1], x[0] + x[2]]))
    assert not torch.autograd.grad(found.sum(), x)[0][3:].any()


@pytest.fixture
def two_threads():
    """torch computes with two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_are_added_in_their_order(compiled, two_threads):
    """The bits of a loop over rows, however many threads torch uses, also where Inductor compiles the call."""
    torch._dynamo.reset()
    y, index = torch.randn(4000, 16), torch.randint(0, 3, (4000,))
    told = torch.zeros(3, 16)
    for row, place in zip(y, index.tolist()):
        told[place] += row
    of = torch.compile(row_sum.added, fullgraph=True) if compiled else row_sum.added
    assert all(torch.equal(of(y, index, 3), told) for _ in range(10))


@pytest.mark.parametrize("of", [lambda x, i: row_sum.added(x, i, 4), row_sum.rows_of], ids=["added", "rows"])
def test_the_ops_are_mapped(of):
    """By a call for each element of a batch, of rows, of indices, and of gradients."""
    x, index = torch.randn(3, 5, 8), torch.tensor([3, 1, 3, 9, 0])
    assert torch.equal(torch.vmap(of, (0, None))(x, index), torch.stack([of(y, index) for y in x]))
    indices = torch.stack([index, index.flip(0)], 1)
    told = torch.stack([of(x[0], index), of(x[0], index.flip(0))])
    assert torch.equal(torch.vmap(of, (None, 1))(x[0], indices), told)
    each = torch.vmap(torch.func.grad(lambda y: of(y, index).square().sum()))(x)
    told = torch.stack([torch.func.grad(lambda y: of(y, index).square().sum())(y) for y in x])
    assert torch.equal(each, told)


def test_a_gradient_of_the_ops_has_a_gradient():
    """The cube of a sum has a second gradient, by each of the two recorded ops; out-of-range indices take no part."""
    y, index = torch.rand(5, 8).requires_grad_(), torch.tensor([3, 1, 3, 9, 0])
    for of, inside in ((lambda x: row_sum.rows_of(x, index), [1, 1, 0, 2, 0]), (lambda x: x, [1] * 5)):
        (first,) = torch.autograd.grad(
            row_sum.added(of(y), torch.arange(5), 5).pow(3).sum(), y, create_graph=True
        )
        (second,) = torch.autograd.grad(first.sum(), y)
        torch.testing.assert_close(second, 6 * torch.tensor(inside)[:, None] * y.detach())


def test_compiled_autograd_takes_the_ops():
    """A backward pass that torch.compile traces gives the gradient of one that it does not."""
    torch._dynamo.reset()
    x, index = torch.randn(5, 8).requires_grad_(), torch.tensor([3, 1, 3, 9, 0])
    y = row_sum.added(row_sum.rows_of(x, index), index, 4).square().sum()
    (told,) = torch.autograd.grad(y, x, retain_graph=True)
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        y.backward()
    assert torch.equal(x.grad, told)


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("of", [row_sum.row_sum, torch.ops.cutegemm.sum_rows], ids=["function", "op"])
def test_gradients_are_torchs(of, terms):
    """A row that several sums have adds their gradients; in fp32, rounded once, by the op."""
    x, index = given(terms, torch.float32)
    above = torch.randn(7, 16)
    found, told = (
        torch.autograd.grad(f(y := x.clone().requires_grad_(), index), y, above) for f in (of, by_torch)
    )
    torch.testing.assert_close(found, told)


def test_compiled_code_calls_the_op():
    """One operator of one graph, whose result is eager mode's."""
    graphs = []

    def backend(graph, _):
        graphs.append([x.target for x in graph.graph.nodes if x.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    x, index = given()
    compiled = torch.compile(row_sum.row_sum, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x, index), row_sum.row_sum(x, index))
    (called,) = graphs
    assert torch.ops.cutegemm.sum_rows in called and torch.embedding not in called


@pytest.mark.parametrize("compiled", [False, True])
def test_transforms_see_torchs_functions(compiled):
    """vmap, forward mode and torch.func.grad differentiate and map what torch computes, also in compiled code."""
    torch._dynamo.reset()
    made = torch.compile(backend="eager", fullgraph=True) if compiled else lambda f: f
    x, index = given(2, torch.float32)
    batch = torch.stack([x, 2 * x])
    found = made(lambda y: torch.vmap(row_sum.row_sum, (0, None))(y, index))(batch)
    assert torch.equal(found[1], 2 * by_torch(x, index))
    _, tangent = made(lambda y: torch.func.jvp(lambda z: row_sum.row_sum(z, index), (y,), (y,)))(x)
    assert torch.equal(tangent, by_torch(x, index))
    of = made(lambda y: torch.func.grad(lambda z: row_sum.row_sum(z, index).square().sum())(y))
    assert torch.equal(of(x), torch.func.grad(lambda y: by_torch(y, index).square().sum())(x))


UNFIT = {
    "columns apart": lambda x, index: (x.repeat_interleave(2, 1)[:, ::2], index),
    "rows of part of a word": lambda x, index: (x[:, :12], index),
    "an odd pitch": lambda x, index: (torch.cat([x, x[:, :3]], 1)[:, :16], index),
    "an odd address": lambda x, index: (torch.cat([x, x], 1)[:, 1:17], index),
    "too many terms": lambda x, index: (x, index.repeat(1, 9)),
    "indices apart": lambda x, index: (x, index.repeat_interleave(2, 1)[:, ::2]),
    "small indices": lambda x, index: (x, index.to(torch.int16)),
    "fp64": lambda x, index: (x.double(), index),
    "sums of bytes": lambda x, index: (x.to(torch.int8), index),
    "no rows": lambda x, index: (x[:0], index[:0]),
    "no sums": lambda x, index: (x, index[:0]),
    "no columns": lambda x, index: (x[:, :0], index),
    "no terms": lambda x, index: (x, index[:, :0]),
    "a negated view": lambda x, index: (torch._neg_view(x), index),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_the_kernel_does_not_support_is_torchs(name, emulated):
    """Types, layouts and empty tensors; nothing is launched."""
    x, index = UNFIT[name](*given())
    assert not row_sum.fits(x, index) and row_sum.fits(*given())
    if index.dtype != torch.int16 and x.is_floating_point():
        assert torch.equal(row_sum.row_sum(x, index), by_torch(x, index))
    assert not emulated


def test_a_recorded_call_launches_nothing(emulated):
    """Its gradient is torch's."""
    x, index = given()
    row_sum.row_sum(x.requires_grad_(), index).sum().backward()
    assert x.grad.any() and not emulated
    with torch.no_grad():
        row_sum.row_sum(x, index)
    assert len(emulated) == 1


def test_a_grid_of_too_many_ctas_is_torchs(monkeypatch):
    """CTAs are counted in 31 bits."""
    x, index = given()
    monkeypatch.setattr(row_sum, "_ctas", lambda *_: 2**31)
    assert not row_sum.fits(x, index)


def test_rows_are_gathered_by_the_kernel(emulated, monkeypatch):
    """A may have any type; an index outside gives zeros even where A has a NaN."""
    monkeypatch.delattr(gathering, "_copied")
    for kind in (BF16, torch.int8, torch.float8_e4m3fn, torch.float32):
        a = torch.randn(9, 64).mul(9).to(kind)[:, 16:48]
        if kind is BF16:
            a[0] = a[-1] = float("nan")
        for dtype in (torch.int32, torch.int64):
            rows = torch.tensor([-1, 3, 9, 8, 0, torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)
            found, told = gathering.gathered(a, rows), group_reference.gathered(a, rows)
            assert torch.equal(found.view(torch.uint8), told.view(torch.uint8))
    assert {(x.terms, x.wide) for x in emulated} == {(1, False), (1, True)} and len(emulated) == 8


def test_recorded_rows_are_gathered_by_the_kernel(emulated, monkeypatch):
    """Below autograd, with the bits of torch's functions; so is the gradient."""
    a, rows = torch.randn(9, 32).to(BF16), torch.tensor([-1, 3, 9, 8, 3, 3])
    above = torch.randn(6, 32).to(BF16)

    def both():
        found = gathering.gathered(x := a.clone().requires_grad_(), rows)
        return found, *torch.autograd.grad(found, x, above)

    found = both()
    assert [x.terms for x in emulated] == [1]
    monkeypatch.undo()
    assert all(map(torch.equal, found, both()))


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
def test_a_mixture_sums_by_the_kernel(recorded, emulated, monkeypatch):
    """The sum of tokens' rows and their copies, with gradients and without: bits of torch's."""
    torch.manual_seed(0)
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference")
    x = torch.randn(19, 32).bfloat16()

    def results():
        with torch.set_grad_enabled(recorded):
            y = moe(leaf := x.clone().requires_grad_(recorded))
        return (y, *torch.autograd.grad(y.square().sum(), (leaf, *moe.parameters()))) if recorded else (y,)

    found = results()
    # forward: a copy and a sum; their gradients: a sum and a copy. Without gradients the launch gathers, here by a copy
    assert [x.terms for x in emulated] == ([1, 2, 1, 2] if recorded else [1, 2])
    monkeypatch.undo()
    for y, z in zip(found, results(), strict=True):
        assert torch.equal(y, z)


def test_an_exported_mixture_is_differentiated_by_transforms():
    """Its program calls torch's functions, which every transform knows."""
    torch.manual_seed(0)
    moe, x = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference"), torch.randn(7, 32).bfloat16()
    exported = torch.export.export(moe, (x,)).module()
    assert "sum_rows" not in str(exported.graph)
    found, told = (torch.func.grad(lambda y, f=f: f(y).float().square().sum())(x) for f in (exported, moe))
    torch.testing.assert_close(found, told, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    "call", [torch.ops.cutegemm.sum_rows, torch.compile(row_sum.row_sum, backend="eager")]
)
def test_tangents_are_refused(call):
    """They would be lost."""
    x, index = given()
    with forward_ad.dual_level(), pytest.raises(InputError, match="x: has a tangent"):
        call(forward_ad.make_dual(x, torch.ones_like(x)), index)


@pytest.mark.gpu
def test_compiled_code_has_the_kernels_bits():
    """Eager mode's, on a GPU."""
    x, index = (y.cuda() for y in given(8))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(row_sum.row_sum)(x, index), row_sum.launched(x, index))


@pytest.mark.gpu
def test_a_gpu_adds_rows_in_their_order():
    """The bits of the CPU, where many rows have the same index, and where some are out of range."""
    y, index = torch.randn(4000, 48), torch.randint(-1, 4, (4000,))
    found = [row_sum.added(y.cuda(), index.cuda(), 3) for _ in range(3)]
    assert all(torch.equal(x.cpu(), row_sum.added(y, index, 3)) for x in found)
