# SPDX-License-Identifier: Apache-2.0
"""Rows of groups that are weighed and added up where they go: rows of no group, given outputs, types."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import GemmError, InputError
from cutegemm.ops.groups import gathering
from cutegemm.ops.groups.gathering import gathers
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.results import Shapes
from cutegemm.running.numerics import group_reference

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
OFFS = torch.tensor([4, 4, 9])
torch.manual_seed(0)
A, B, WEIGHT = torch.randn(10, 16).to(BF16), torch.randn(3, 16, 24).to(BF16), torch.rand(10)


def call(**given):
    """Groups of ten rows, the last of which is no group's."""
    return cutegemm.grouped_mm(**{"a": A, "b": B, "offs": OFFS, "fallback": "reference"} | given)


@pytest.fixture
def full_of_garbage(monkeypatch):
    """New outputs hold what somebody else left there."""
    own = Shapes.allocate
    monkeypatch.setattr(Shapes, "allocate", lambda *x: own(*x).fill_(float("nan")))


@pytest.mark.parametrize("tail", ["zero", "undefined"])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_rows_of_no_group_are_not_added(tail, recorded, weight, full_of_garbage):
    """Whatever lies there, and wherever they would go."""
    b = B.clone().requires_grad_(recorded)
    scatter = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 0])
    found = call(b=b, scatter=scatter, weight=weight, tail=tail, out_dtype=torch.float32)
    told = call(out_dtype=torch.float32) * (1 if weight is None else weight[:, None])
    torch.testing.assert_close(found.detach(), told, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("scatter", [None, torch.arange(10)])
def test_the_weight_of_a_row_of_no_group_may_be_anything(recorded, scatter):
    """The row is zero, and so is the weight's gradient."""
    weight = WEIGHT.clone()
    weight[9] = float("nan")
    weight.requires_grad_(recorded)
    found = call(weight=weight, scatter=scatter)
    assert torch.all(found[9] == 0) and found.isfinite().all()
    if recorded:
        found.float().square().sum().backward()
        assert weight.grad.isfinite().all() and weight.grad[9] == 0


@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_weighed_rows_of_no_group_are_left_alone_on_request(dtype):
    """Also where torch weighs the rows, as of operands of 8 bits."""
    out = torch.full((10, 24), 7.0).to(BF16)
    b = B.mT.contiguous().to(dtype).mT
    assert call(a=A.to(dtype), b=b, weight=WEIGHT, out=out, tail="undefined") is out
    assert torch.all(out[9] == 7.0) and not torch.any(torch.all(out[:9] == 7.0, 1))


OUTS = {
    "columns": (lambda: torch.empty(10, 23).to(BF16), r"out\.shape=\(10, 23\): must be \(10, 24\)"),
    "one dimension": (lambda: torch.empty(10).to(BF16), r"out\.shape=\(10,\): must have 2 or 3 dimensions"),
    "expanded": (lambda: torch.empty(1, 24).to(BF16).expand(10, 24), "two elements of out share memory"),
    "a list": (lambda: [1.0], "out: must be a torch.Tensor, got list"),
    "another name": (lambda: {"e": torch.empty(10, 24)}, "out='e': the epilogue's outputs are d"),
    "integers": (lambda: torch.empty(10, 24).int(), r"out\.dtype=torch\.int32: must be float16"),
    "another device": (lambda: torch.empty(10, 24, device="meta"), r"out\.device='meta': must be a's device"),
    "a itself": (lambda: A, r"out\.shape=\(10, 16\): must be \(10, 24\)"),
    "a gradient": (lambda: torch.empty(10, 24).to(BF16).requires_grad_(), r"out\.requires_grad=True"),
    "the other sign": (lambda: torch.zeros(10, 24, dtype=torch.complex64).conj().imag, r"out\.is_neg\(\)"),
}


@pytest.mark.parametrize("name", OUTS)
def test_an_out_is_checked_as_that_of_any_run(name):
    """The messages are those of a call without scatter; nothing is written."""
    made, message = OUTS[name]
    with pytest.raises(InputError, match=message):
        call(scatter=torch.arange(10), out=made())


def test_an_out_overlaps_nothing_that_is_read():
    """But it may be C itself; a call that writes into a tensor has no gradient."""
    square = torch.randn(2, 16, 16).to(BF16)
    ends = torch.tensor([4, 10])
    x = A.clone()
    with pytest.raises(InputError, match="out: overlaps a in memory"):
        call(a=x, b=square, offs=ends, scatter=torch.arange(10), out=x)
    with pytest.raises(InputError, match="a call with out= has no gradient"):
        call(b=B.clone().requires_grad_(), scatter=torch.arange(10), out=torch.empty(10, 24).to(BF16))
    c = torch.ones(10, 24).to(BF16)
    told = call(c=c.clone())
    assert torch.equal(call(c=c, scatter=torch.arange(10), out={"d": c}), told) and torch.equal(c, told)


@pytest.mark.parametrize("kind", ["complex64", "bool", "int32", "float64", "float8_e4m3fn"])
@pytest.mark.parametrize("recorded", [False, True])
def test_weights_are_floating(kind, recorded):
    """An imaginary part would be lost, and a mask is not a weight."""
    weight = torch.ones(10).to(getattr(torch, kind))
    with pytest.raises(
        InputError, match=rf"weight\.dtype=torch\.{kind}: must be float16, bfloat16 or float32"
    ):
        call(b=B.clone().requires_grad_(recorded), weight=weight)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(9), r"weight\.shape=\(9,\): must be \(10,\), one weight per row"),
        (torch.ones(10, 1), r"weight\.shape=\(10, 1\): must be \(10,\)"),
        (torch.ones(10, device="meta"), r"weight\.device='meta': must be a's device, cpu"),
    ],
    ids=["shape", "dimensions", "device"],
)
def test_weights_are_checked_by_name(weight, message):
    """The error names the shape or the device, whichever is wrong."""
    with pytest.raises(InputError, match=message):
        call(weight=weight)


@pytest.mark.parametrize("name", ["rows", "scatter", "weight", "offs", "counts", "cu_seqlens"])
def test_a_misspelt_argument_is_suggested(name):
    """Also those that only groups have."""
    with pytest.raises(InputError, match=f"nearest legal value: '{name}'"):
        call(**{f"{name}_": torch.arange(10)})


def test_a_new_d_has_the_type_that_was_asked_for():
    """In every form of groups and on every way of adding up; a given D has a type of its own."""
    batches = torch.randn(3, 8, 16).to(BF16)
    fp32, spec = torch.float32, GemmSpec(d_dtype="fp32")
    for given in (
        {"a": batches, "offs": None},
        {"a": batches, "offs": None, "bias": torch.zeros(3, 24)},
        {"a": batches, "offs": None, "epilogue": epi.act("relu")},
        {"scatter": torch.arange(10)},
        {"weight": WEIGHT},
        {},
    ):
        assert call(**given).dtype == BF16
        assert call(**given, out_dtype=fp32).dtype == call(**given, spec=spec).dtype == fp32
        out = call(**given)
        with pytest.raises(GemmError, match=r"out\.dtype=torch\.bfloat16: out_dtype is torch\.float32"):
            call(**given, out=out, out_dtype=fp32)
        with pytest.raises(GemmError, match=r"out_dtype=torch\.float16: must equal the spec's d_dtype"):
            call(**given, spec=spec, out_dtype=torch.float16)
    eight = A.to(E4M3), B.mT.contiguous().to(E4M3).mT
    assert call(a=eight[0], b=eight[1], scatter=torch.arange(10)).dtype == BF16
    whole = call(a=batches, offs=None, out_dtype=fp32)
    torch.testing.assert_close(whole, batches.float() @ B.float())
    compiled = torch.compile(
        lambda a: call(a=a, offs=None, out_dtype=fp32), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(batches), whole)


def test_a_mapped_call_writes_into_no_given_tensor():
    """As without scatter."""
    batch = torch.stack([A, A])
    for more in ({}, {"scatter": torch.arange(10)}, {"weight": WEIGHT}):
        with pytest.raises(InputError, match="vmap does not support out="):
            torch.func.vmap(lambda a, more=more: call(a=a, out=torch.zeros(10, 24).to(BF16), **more))(batch)


def test_indices_that_are_not_contiguous():
    """The rows that they name are copied, whatever the backend; the kernel takes contiguous indices alone."""
    rows = torch.arange(20)
    assert [gathers(A, B, x, None, "emulator") for x in (rows[:10], rows[::2])] == [True, False]
    assert torch.equal(call(rows=rows[::2]), call(rows=rows[::2].clone()))


@pytest.mark.parametrize(
    ("tokens", "each", "layer", "kernel"),
    [
        (256, 2, (8, 28672, 4096), True),
        (4096, 2, (8, 28672, 4096), False),
        (4096, 1, (32, 4096, 7168), False),
        (16384, 8, (128, 1536, 2048), True),
    ],
)
def test_the_faster_way_is_chosen_once(tokens, each, layer, kernel, monkeypatch):
    """A copy is longer than what it saves where the product is short; a repeated call plans nothing."""
    groups, n, k = layer
    # memory that is never written
    a, b = torch.empty(tokens, k, dtype=BF16), torch.empty(groups, n, k, dtype=BF16).mT
    rows = torch.zeros(tokens * each, dtype=torch.int32)
    monkeypatch.setattr(gathering, "_pays", Memo())
    assert gathers(a, b, rows, None, "emulator") is kernel
    monkeypatch.delattr(gathering, "GroupedGemm")
    assert gathers(a, b, rows, None, "emulator") is kernel
    assert gathers(a, b, rows, GemmSpec(a_load="cp_async"), "emulator")
    assert gathers(a.requires_grad_(), b, rows, None, "emulator")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(57, 200), (200, 57), (30, 30), (5, 0)], ids=str)
def test_a_copy_in_words_has_the_bits_of_the_reference(shape, dtype, monkeypatch):
    """Rows in blocks, or beside a row of zeros; an index out of range gives zeros even where A has a NaN."""
    monkeypatch.setattr(gathering, "BLOCK", 1000)
    tokens, count = shape
    for kind in (BF16, E4M3, torch.int8, torch.float32):
        a = torch.randn(tokens, 64).mul(9).to(kind)[:, 16:48]
        if kind is BF16:
            a[0] = a[-1] = float("nan")
        rows = torch.randint(-3, tokens + 3, (count,)).to(dtype)
        rows[:2] = torch.tensor([torch.iinfo(dtype).min, tokens])[:count]
        found, told = gathering._copied(a, rows), group_reference.gathered(a, rows)
        assert torch.equal(found.view(torch.uint8), told.view(torch.uint8))
        assert torch.equal(gathering.gathered(a, rows).view(torch.uint8), told.view(torch.uint8))


@pytest.mark.parametrize("count", [6, 14])
@pytest.mark.parametrize("way", ["without out", "compiled"])
def test_gradients_of_sums_of_fewer_or_more_rows_than_results(way, count):
    """Beside torch's in fp64. In eager mode `out` is refused, and the error names the call that has the gradients."""
    torch._dynamo.reset()
    tensors = [x.clone().requires_grad_() for x in (A, B, WEIGHT)]
    rows, scatter = torch.tensor([3, 1, 1, 9, 0, 2, 5, 5, 8, 4]), torch.arange(10) * 7 % count

    def ours(a, b, weight, **out):
        return call(a=a, b=b, rows=rows, weight=weight, **out)

    def theirs(a, b, weight):
        each = torch.cat([a[rows[:4]] @ b[0], a[rows[4:9]] @ b[2], a.new_zeros(1, 24)]) * weight[:, None]
        return each.new_zeros(count, 24).index_add(0, scatter, each)

    out = torch.full((count, 24), 7.0).to(BF16)
    rule = (
        "the first 6 of its 10 rows are the same sums"
        if count < 10
        else "it has 10 rows; for 14 rows leave out scatter and add them by torch.index_add"
    )
    with pytest.raises(
        InputError, match=f"out='...': a call with out= has no gradient; .* without out: {rule}"
    ):
        ours(*tensors, scatter=scatter, out=out)
    assert torch.all(out == 7.0)
    if way == "compiled":
        made = torch.compile(ours, backend="aot_eager", fullgraph=True)
        found = made(*tensors, scatter=scatter, out=out)
    elif count < 10:
        found = ours(*tensors, scatter=scatter)[:count]
    else:
        found = torch.zeros(count, 24).index_add(0, scatter, ours(*tensors).float())
    wide = [x.detach().double().requires_grad_() for x in tensors]
    told, above = theirs(*wide), torch.randn(count, 24)
    assert found.shape == told.shape and (found - told).norm() <= 0.01 * told.norm()
    for x, y in zip(
        torch.autograd.grad(found, tensors, above.to(found.dtype)),
        torch.autograd.grad(told, wide, above.double()),
        strict=True,
    ):
        assert (x - y).norm() <= 0.02 * y.norm()


@pytest.mark.parametrize("way", ["eager", "compiled", "torch.func"])
def test_the_gradient_of_equal_indices_is_added_in_fp32(way):
    """2,000 ones in bf16 would add up to 256; indices out of range add nothing."""
    torch._dynamo.reset()
    b, rows = torch.eye(16).to(BF16)[None], torch.full((2003,), 1)
    rows[[3, 50, 2002]] = torch.tensor([-1, 2, 0])

    def of(a):
        return call(a=a, b=b, offs=torch.tensor([2003]), rows=rows).float().sum()

    a = torch.ones(2, 16).to(BF16)
    if way == "torch.func":
        found = torch.func.grad(of)(a)
    else:
        made = torch.compile(of, backend="aot_eager", fullgraph=True) if way == "compiled" else of
        (found,) = torch.autograd.grad(made(a.requires_grad_()), a)
    assert torch.equal(found, torch.tensor([[1.0], [2000.0]]).expand(2, 16).to(BF16))


def described(run, a, index):
    """A call on fake tensors, within their mode and outside."""
    mode = FakeTensorMode()
    x, b, offs, index = (mode.from_tensor(t) for t in (a, B, OFFS, index))
    given = {"b": b, "offs": offs, "a": x, "rows": index, "scatter": index}
    assert call(**given).shape == (10, 24)
    with mode:
        return call(**given)


UNREAD = {
    "compiled": lambda run, *x: torch.compile(run, fullgraph=True, backend="aot_eager")(*x),
    "exported": lambda run, *x: torch.export.export(Called(run), x).module()(*x),
    "fake": described,
    "traced": lambda run, *x: make_fx(run)(*x)(*x),
    "mapped": lambda run, a, index: torch.vmap(run, (None, 0))(a, torch.stack([index, index]))[0],
}


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, run):
        super().__init__()
        self.forward = run


@pytest.mark.parametrize("way", UNREAD)
def test_indices_that_the_host_cannot_read_are_not_checked(way, monkeypatch):
    """CUTEGEMM_CHECK=1 names a bad index of real tensors, and lets traced, described and mapped calls pass."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    torch._dynamo.reset()
    index = torch.arange(10)

    def run(a, index):
        return call(a=a, rows=index, scatter=index)

    found = UNREAD[way](run, A, index)
    assert found.shape == (10, 24) and (way == "fake" or torch.equal(found, run(A, index)))
    index[7] = 10
    for one in ("rows", "scatter"):
        with pytest.raises(InputError, match=rf"{one}\[7\]=10: must be in \[0, 10\)"):
            call(**{one: index})
    with pytest.raises(InputError, match=r"rows\[7\]=10"):
        torch.func.grad(lambda a: run(a, index).float().sum())(A)


def test_rows_of_nothing_have_scales():
    """Indices of an A without rows are all outside."""
    a, b = torch.empty(0, 16).to(E4M3), B.mT.contiguous().to(E4M3).mT
    scales = {"scale_a": torch.empty(0), "scale_b": torch.ones(3, 24)}
    found = call(a=a, b=b, rows=torch.arange(10), **scales)
    assert found.shape == (10, 24) and not found.any()
