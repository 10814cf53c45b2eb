# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm` for torch: gradients, compilation with dynamic token counts, fake tensors, autocast."""

import functools
import inspect
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import InputError, PlanError
from cutegemm.running.numerics.group_reference import bounds, inside_groups
from tests.support.numerics import assert_close

BF16 = torch.bfloat16


def told(a, b, ends, c, bias, lead, alpha=2.0, beta=0.5):
    """The same in fp64 by torch's own functions, group by group."""
    if a.dim() == 3:
        # columns of groups are rows of the transposes' groups, and the bias is of columns
        found = told(b.mT, a.mT, ends, c.mT, torch.zeros(a.shape[0], a.shape[1]), lead, alpha, beta).mT
        inside = inside_groups(ends, b.shape[1], "columns", lead)
        return found + torch.where(inside, bias, 0.0)
    depth = b.dim() == 2
    rows = bounds(ends, a.shape[1 if depth else 0], lead).tolist()
    if depth:
        found = torch.stack([a[:, first:end] @ b[first:end] for first, end in itertools.pairwise(rows)])
        return alpha * found + beta * c + bias[:, None]
    parts = [torch.zeros(rows[0], b.shape[2], dtype=a.dtype)]
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        parts.append(alpha * a[first:end] @ b[group] + beta * c[first:end] + bias[group])
    parts.append(torch.zeros(a.shape[0] - rows[-1], b.shape[2], dtype=a.dtype))
    return torch.cat(parts)


SHAPES = {
    "rows": [(50, 24), (3, 24, 40), (50, 40), (3, 40)],
    "columns": [(3, 40, 24), (24, 50), (40, 50), (50,)],
    "depth": [(24, 50), (50, 40), (3, 24, 40), (3, 40)],
}


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("name", ["offs", "cu_seqlens"])
def test_gradients_of_everything(form, name):
    """Of A, B, C and a bias for each group; with an empty group, and rows of none before and after."""
    lead = int(name == "cu_seqlens")
    torch.manual_seed(0)
    ends = torch.tensor([2] * lead + [7, 7, 41])
    ours = [torch.randn(x).to(BF16).requires_grad_() for x in SHAPES[form]]
    wanted = [x.detach().double().requires_grad_() for x in ours]
    a, b, c, bias = ours
    how = {name: ends, "c": c, "bias": bias, "alpha": 2.0, "beta": 0.5, "fallback": "reference"}
    d = cutegemm.grouped_mm(a, b, **how)
    e = told(*wanted[:2], ends, *wanted[2:], lead)
    above = torch.randn_like(d)
    d.backward(above)
    e.backward(above.double())
    torch.testing.assert_close(d.double(), e, rtol=1e-2, atol=1e-2)
    for x, y in zip(ours, wanted, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-2, atol=2e-2)


def test_gradients_of_what_is_added_have_the_precision_of_d():
    """With D in fp32 the gradients of c and a bias are the incoming one, not rounded to the operands' type."""
    a, b, offs = torch.randn(50, 24).to(BF16), torch.randn(3, 24, 40).to(BF16), torch.tensor([7, 7, 50])
    for rows in ((40,), (3, 40)):
        c, bias = torch.randn(50, 40).requires_grad_(), torch.randn(rows).requires_grad_()
        d = cutegemm.grouped_mm(a, b, offs, c=c, bias=bias, out_dtype=torch.float32, fallback="reference")
        above = torch.randn_like(d)
        d.backward(above)
        assert torch.equal(c.grad, above)
        told = above.double().sum(0) if len(rows) == 1 else torch.stack([above[:7].sum(0), above[7:].sum(0)])
        found = bias.grad if len(rows) == 1 else bias.grad[::2]
        torch.testing.assert_close(found.double(), told.double(), rtol=1e-4, atol=1e-4)


def test_fp32_groups_and_their_gradients_are_tf32():
    """A CPU refuses what a GPU does; the gradients have the spec's `math`."""
    a, b, offs = torch.randn(50, 24), torch.randn(3, 24, 40), torch.tensor([7, 7, 50])
    with pytest.raises(PlanError, match="math='auto': groups are multiplied by tensor cores.*'tf32'"):
        cutegemm.grouped_mm(a, b, offs, fallback="reference")
    a, b = a.requires_grad_(), b.requires_grad_()
    d = cutegemm.grouped_mm(a, b, offs, spec=GemmSpec(math="tf32"), fallback="reference")
    for x, y in zip(torch.autograd.grad(d.sum(), (a, b)), (a, b), strict=True):
        assert x.shape == y.shape and x.any()
    batches = torch.randn(3, 8, 24).requires_grad_()
    call = {"counts": torch.tensor([8, 0, 3]), "spec": GemmSpec(math="tf32"), "fallback": "reference"}
    cutegemm.grouped_mm(batches, b, **call).sum().backward()
    assert batches.grad[0].any() and not batches.grad[1].any()


def test_matrices_have_gradients_as_they_lie():
    """A transposed weight has a transposed gradient, which autograd keeps without a copy."""
    for turned in (False, True):
        b = torch.randn(3, 24, 40).to(BF16)
        b = (b.mT.contiguous().mT if turned else b).requires_grad_()
        cutegemm.grouped_mm(
            torch.randn(9, 24).to(BF16), b, torch.tensor([2, 2, 7]), fallback="reference"
        ).sum().backward()
        assert b.grad.stride() == b.stride() and b.grad[0].any() and not b.grad[1].any()


def test_gradients_of_masked_groups():
    """Rows that no group has neither give nor take one, though they are not numbers."""
    a, b = torch.randn(3, 16, 24).to(BF16), torch.randn(3, 24, 40).to(BF16).requires_grad_()
    counts = torch.tensor([4, 0, 99])
    inside = (torch.arange(16) < counts[:, None])[..., None]
    a = torch.where(inside, a, float("nan")).requires_grad_()
    d = cutegemm.grouped_mm(a, b, counts=counts, fallback="reference")
    above = torch.randn_like(d)
    d.backward(above)
    kept, zero = torch.where(inside, above, 0), torch.where(inside, a.detach(), 0)
    for group in range(3):
        assert_close(a.grad[group], kept[group], b.detach()[group].mT)
        assert_close(b.grad[group], zero[group].mT, kept[group])


def test_one_compilation_serves_every_number_of_tokens():
    """torch.compile with dynamic shapes: no break of the graph, nothing compiled again, gradients as in eager mode."""

    def layer(a, b, offs, bias):
        return cutegemm.grouped_mm(a, b, offs, bias=bias, fallback="reference").relu()

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, counts = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter), set()
    for tokens in (17, 33, 64):
        a, b = torch.randn(tokens, 24).to(BF16), torch.randn(3, 24, 40).to(BF16)
        offs, bias = torch.tensor([3, 4, tokens]), torch.randn(3, 40)
        both = []
        for function in (compiled, layer):
            x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
            function(x, w, offs, bias).sum().backward()
            both.append((x.grad, w.grad))
        for x, y in zip(*both, strict=True):
            torch.testing.assert_close(x, y)
        counts.add(counter.frame_count)
    assert len(counts) == 1


def test_one_compilation_serves_every_number_of_routed_rows():
    """`rows`, `scatter` and `weight` of a symbolic count compile once, too."""

    def layer(a, b, offs, rows, scatter, weight):
        # in fp32, since a compiled call rounds results before they are weighted
        how = {"out_dtype": torch.float32, "fallback": "reference"}
        return cutegemm.grouped_mm(a, b, offs, rows=rows, scatter=scatter, weight=weight, **how)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (17, 33, 64):
        a, b = torch.randn(9, 24).to(BF16), torch.randn(3, 24, 40).to(BF16)
        index = torch.randint(0, 9, (2, tokens))
        given = a, b, torch.tensor([3, 4, tokens]), index[0], index[1], torch.rand(tokens)
        torch.testing.assert_close(compiled(*given), layer(*given), rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


def test_what_has_no_memory_is_described():
    """Fake tensors of every form of groups give the shape and the type of D."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b, ends = torch.empty(7, 24, dtype=BF16), torch.empty(3, 24, 40, dtype=BF16), torch.zeros(3).int()
        assert cutegemm.grouped_mm(a, b, ends, fallback="reference").shape == (7, 40)
        found = cutegemm.grouped_mm(a.T, a, ends, out_dtype=torch.float32, fallback="reference")
        assert (found.shape, found.dtype) == ((3, 24, 24), torch.float32)
        assert cutegemm.grouped_mm(b, a.new_empty(40, 9), ends, fallback="reference").shape == (24, 9)
        batches = torch.empty(3, 5, 24, dtype=BF16)
        assert cutegemm.grouped_mm(batches, b, counts=ends, fallback="reference").shape == (3, 5, 40)


def test_autocast_halves_the_operands():
    """fp32 operands become the region's type."""
    a, b = torch.randn(7, 24), torch.randn(3, 24, 40)
    with torch.autocast("cpu", BF16):
        assert cutegemm.grouped_mm(a, b, torch.tensor([1, 2, 7]), fallback="reference").dtype is BF16


def test_batches_without_groups_are_a_batched_product():
    """The fourth form, with a bias too."""
    a, b, bias = torch.randn(3, 5, 24).to(BF16), torch.randn(3, 24, 40).to(BF16), torch.randn(3, 40)
    torch.testing.assert_close(cutegemm.grouped_mm(a, b, fallback="reference"), a @ b)
    found = cutegemm.grouped_mm(a, b, bias=bias, fallback="reference")
    torch.testing.assert_close(found, (a.float() @ b.float() + bias[:, None]).to(BF16))


def test_a_gradient_that_there_is_none_of():
    """With out."""
    a, b = torch.randn(7, 24).to(BF16).requires_grad_(), torch.randn(3, 24, 40).to(BF16)
    with pytest.raises(InputError, match="out"):
        cutegemm.grouped_mm(
            a, b, torch.zeros(3).int(), out=torch.empty(7, 40, dtype=BF16), fallback="reference"
        )


def test_rows_are_gathered_weighed_and_added_where_they_go():
    """An index outside reads zeros and adds nothing; gradients of everything, beside fp64."""
    torch.manual_seed(1)
    a, b = torch.randn(6, 24).to(BF16), torch.randn(3, 24, 40).to(BF16)
    rows, offs = torch.tensor([0, 5, 5, -1, 9, 2]), torch.tensor([2, 2, 6], dtype=torch.int32)
    scatter, weight = torch.tensor([1, 1, 0, 3, 2, 7]), torch.rand(6)
    ours = [x.clone().requires_grad_() for x in (a, b, weight)]
    wanted = [x.double().requires_grad_() for x in (a, b, weight)]
    found = cutegemm.grouped_mm(
        ours[0], ours[1], offs, rows=rows, scatter=scatter, weight=ours[2],
        out_dtype=torch.float32, fallback="reference",
    )  # fmt: skip
    parts = []
    for i, row in enumerate(rows.tolist()):
        x = wanted[0][row] if 0 <= row < 6 else wanted[0].new_zeros(24)
        parts.append((x @ wanted[1][0 if i < 2 else 2]) * wanted[2][i])
    zero = parts[0] * 0
    told = torch.stack([parts[2], parts[0] + parts[1], parts[4], parts[3], zero, zero])
    torch.testing.assert_close(found.double(), told, rtol=1e-2, atol=3e-2)
    above = torch.randn_like(found)
    found.backward(above)
    told.backward(above.double())
    for x, y in zip(ours, wanted, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("kind", ["plain", "with c", "with a bias", "an epilogue", "with out"])
def test_rows_are_weighed_before_they_are_rounded(kind, scattered):
    """By the epilogue, in fp32, whatever else the call reads; sums of rows are rounded once."""
    a, b = torch.randn(6, 24).to(BF16), torch.randn(3, 24, 40).to(BF16)
    offs, weight, c = torch.tensor([2, 2, 6]), torch.rand(6), torch.randn(6, 40).to(BF16)
    bias, out = torch.randn(3, 40), torch.empty(6, 40).to(BF16)
    more = {
        "plain": {"alpha": 0.3}, "with c": {"c": c, "beta": 0.7}, "with a bias": {"bias": bias},
        "an epilogue": {"epilogue": epi.bias_act("relu"), "bias": bias}, "with out": {"out": out},
    }[kind]  # fmt: skip
    told = torch.cat([a[:2].double() @ b[0].double(), a[2:].double() @ b[2].double()])
    told *= more.get("alpha", 1.0)
    told += more.get("beta", 0.0) * c.double()
    if "bias" in more:
        told += bias.double()[[0, 0, 2, 2, 2, 2]]
    told = (told.relu() if kind == "an epilogue" else told) * weight.double()[:, None]
    if scattered:
        more["scatter"] = torch.tensor([1, 1, 0, 3, 2, 0])
        told = torch.zeros_like(told).index_add_(0, more["scatter"], told)
    found = cutegemm.grouped_mm(a, b, offs, weight=weight, **more, fallback="reference")
    assert found.dtype is BF16 and (kind != "with out" or found is out)
    torch.testing.assert_close(found.double(), told, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("kind", "wanted"), [("fp8", BF16), ("int8", torch.int32)])
def test_weighed_rows_of_8_bits_are_of_the_type_of_any_others(kind, wanted, scattered):
    """D was of the operands' type, which cut integers and fp8; what is asked for is saturated, after everything."""
    a, b = torch.full((6, 32), 3), torch.full((1, 32, 16), 4)
    dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    given = {"weight": torch.ones(6)} | ({"scatter": torch.tensor([0, 0, 1, 2, 3, 9])} if scattered else {})
    called = functools.partial(
        cutegemm.grouped_mm, a.to(dtype), b.to(dtype), torch.tensor([6]), **given, fallback="reference"
    )
    told = torch.full((6, 16), 3 * 4 * 32.0)
    if scattered:
        told *= torch.tensor([2, 1, 1, 1, 0, 0])[:, None]
    found = called()
    assert found.dtype is wanted and torch.equal(found.float(), told)
    assert torch.equal(called(out_dtype="int8").float(), told.clamp(max=127))


def test_rows_of_the_wrong_kind(monkeypatch):
    """Refused by name; an index outside too where calls are checked."""
    a, b, offs = torch.randn(6, 24).to(BF16), torch.randn(3, 24, 40).to(BF16), torch.tensor([2, 2, 6])
    for given, message in (
        ({"rows": torch.rand(6)}, r"rows\.dtype=torch\.float32: must be int32 or int64"),
        ({"scatter": torch.zeros(5).int()}, r"scatter\.shape.*must be \(6,\)"),
        ({"weight": torch.rand(5)}, "weight"),
    ):
        with pytest.raises(InputError, match=message):
            cutegemm.grouped_mm(a, b, offs, **given, fallback="reference")
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    with pytest.raises(InputError, match=r"rows\[1\]=9"):
        cutegemm.grouped_mm(a, b, offs, rows=torch.tensor([0, 9, 1, 1, 1, 1]), fallback="reference")


def test_scales_of_8_bit_groups_compile_once_for_every_number_of_tokens():
    """Their kinds follow from shapes, which may be symbols."""

    def layer(a, b, offs, scale_a, scale_b):
        return cutegemm.grouped_mm(a, b, offs, scale_a=scale_a, scale_b=scale_b, fallback="reference")

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, counts = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter), set()
    for tokens in (17, 33, 64):
        a, b = (torch.randn(x).to(torch.float8_e4m3fn) for x in ((tokens, 256), (3, 40, 256)))
        given = b.mT, torch.tensor([3, 4, tokens]), torch.rand(tokens, 2), torch.rand(3, 1, 2)
        assert torch.equal(compiled(a, *given), layer(a, *given))
        counts.add(counter.frame_count)
    assert len(counts) == 1


FORMS = {
    "rows": ((96, 64), (3, 64, 48)),
    "columns": ((3, 48, 64), (64, 96)),
    "along K": ((48, 96), (96, 64)),
    "batches": ((3, 48, 64), (3, 64, 32)),
}


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="torch has none")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_torchs_own(form):
    """The same call, the same result, shape and type."""
    a, b = (torch.randn(x).to(BF16) for x in FORMS[form])
    offs = None if form == "batches" else torch.tensor([16, 16, 96], dtype=torch.int32)
    told, found = torch.nn.functional.grouped_mm(a, b, offs=offs), cutegemm.grouped_mm(a, b, offs=offs)
    assert (found.shape, found.dtype) == (told.shape, told.dtype)
    torch.testing.assert_close(found, told, rtol=1e-2, atol=2e-2)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch has none")
@pytest.mark.parametrize("form", FORMS)
def test_the_replacement_of_torchs_own_has_its_positions(form):
    """The function of docs/pytorch.md: the names and the order of torch's optional arguments, and its results."""
    page, names = (Path(__file__).parents[2] / "docs/pytorch.md").read_text(), {"cutegemm": cutegemm}
    exec(re.search(r"def in_place_of_torch(.*\n)+?\n", page)[0], names)
    replacement = names["in_place_of_torch"]
    theirs = [x.name for x in torch.ops.aten._grouped_mm.default._schema.arguments]
    assert [*inspect.signature(replacement).parameters][2:] == theirs[2:]
    a, b = (torch.randn(x).to(BF16) for x in FORMS[form])
    offs = None if form == "batches" else torch.tensor([16, 16, 96], dtype=torch.int32)
    told, found = (f(a, b, offs, None, BF16) for f in (torch._grouped_mm, replacement))
    torch.testing.assert_close(found, told, rtol=1e-2, atol=2e-2)
