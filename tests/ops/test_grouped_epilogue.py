# SPDX-License-Identifier: Apache-2.0
"""Gradients of products of groups through an epilogue, beside torch's in fp64."""

import itertools

import pytest
import torch

import cutegemm
from cutegemm import epilogue as epi
from cutegemm.errors import InputError, SpecError
from cutegemm.ops.groups import grouped_epilogue
from cutegemm.running.numerics.group_reference import bounds

BF16 = torch.bfloat16


@epi.define(gated="halves")
def halves(gate, up, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix):
    """A gate with a row for each group, a number for each row and a matrix."""
    return epi.silu(gate + bias) * up * scale + residual


@epi.define(gated="interleaved")
def interleaved(gate, up, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix):
    """The same of alternating columns, with a second output."""
    y = epi.silu(gate + bias) * up
    return epi.Output(d=y * scale + residual, hidden=epi.Store(y, "fp32"))


@epi.define
def plain(acc, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix):
    """Without a pair."""
    return epi.silu(acc + bias) * acc * scale + residual


def computed(kind, a, b, bias, scale, residual):
    """The same of one group by torch's own functions."""
    acc = a @ b
    gate, up = {
        halves: lambda: acc.chunk(2, -1),
        interleaved: lambda: (acc[..., ::2], acc[..., 1::2]),
        plain: lambda: (acc, acc),
    }[kind]()
    y = torch.nn.functional.silu(gate + bias) * up
    return y * scale[..., None] + residual, y


def drawn(form, kind):
    """a, b, ends and what the epilogue reads, fp64."""
    torch.manual_seed(0)
    n = 24
    wide = n if kind is plain else 2 * n
    m, k, lead = 50, 16, (3,) if form not in ("rows", "columns") else ()
    if form == "columns":
        # of 24 rows and 50 columns
        found = [torch.randn(3, n, k) * 0.3, torch.randn(k, m) * 0.3]
        given = torch.randn(m), torch.randn(3, n), torch.randn(n, m)
        return (
            [x.to(BF16).double() for x in found],
            torch.tensor([7, 7, 41]),
            [x.to(BF16).double() for x in given],
        )
    a = torch.randn(*((3, m, k) if form == "masked" else (m, 64) if form == "depth" else (m, k)))
    b = torch.randn(*((64, wide) if form == "depth" else (3, k, wide)))
    ends = torch.tensor({"rows": [7, 7, 41], "masked": [4, 0, 99], "depth": [20, 20, 64]}[form])
    given = torch.randn(3, n), torch.randn(*lead, m), torch.randn(*lead, m, n)
    return [x.to(BF16).double() for x in (a * 0.3, b * 0.3)], ends, [x.to(BF16).double() for x in given]


def by_groups(form, kind, a, b, ends, given):
    """Both outputs of every row of every group; zeros of the others."""
    bias, scale, residual = given
    if form == "columns":
        acc = torch.zeros(a.shape[1], b.shape[1], dtype=a.dtype)
        mine = torch.zeros(b.shape[1], dtype=torch.long)
        for group, (first, end) in enumerate(itertools.pairwise(bounds(ends, b.shape[1]).tolist())):
            acc = torch.cat([acc[:, :first], a[group] @ b[:, first:end], acc[:, end:]], 1)
            mine[first:end] = group
        y = torch.nn.functional.silu(acc + bias) * acc
        return [torch.where(torch.arange(b.shape[1]) < ends[-1], y * scale[mine].mT + residual, 0.0)]
    if form != "rows":
        parts = []
        for group, end in enumerate(ends.clamp(0, 64).tolist()):
            first = max([0, *ends.tolist()[:group]]) if form == "depth" else 0
            pair = (a[:, first:end], b[first:end]) if form == "depth" else (a[group], b[group])
            found = computed(kind, *pair, bias[group], scale[group], residual[group])
            inside = (torch.arange(a.shape[-2]) < (end if form == "masked" else 999))[:, None]
            parts.append([torch.where(inside, x, 0.0) for x in found])
        return [torch.stack(x) for x in zip(*parts)]
    rows, parts = bounds(ends, a.shape[0]).tolist(), []
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        of = slice(first, end)
        parts.append(computed(kind, a[of], b[group], bias[group], scale[of], residual[of]))
    rest = torch.zeros(a.shape[0] - rows[-1], bias.shape[1], dtype=torch.float64)
    return [torch.cat([*x, rest]) for x in zip(*parts)]


@pytest.mark.parametrize("kind", [halves, interleaved, plain], ids=["halves", "interleaved", "plain"])
@pytest.mark.parametrize("form", ["rows", "masked", "depth", "columns"])
def test_gradients_through_an_epilogue(form, kind):
    """Of A, B and every input, with an empty group and rows of none."""
    if form in ("depth", "columns") and kind is not plain:
        pytest.skip("groups along K and of columns have no gated pairs")
    (a, b), ends, given = drawn(form, kind)
    wanted = [x.requires_grad_() for x in (a, b, *given)]
    ours = [x.detach().to(BF16 if i < 2 else torch.float32).requires_grad_() for i, x in enumerate(wanted)]
    named = dict(zip(("bias", "scale", "residual"), ours[2:], strict=True))
    how = {"counts" if form == "masked" else "offs": ends}
    found = cutegemm.grouped_mm(*ours[:2], **how, epilogue=kind, **named, fallback="reference")
    told = by_groups(form, kind, *wanted[:2], ends, wanted[2:])
    pairs = [(found, told[0])] if kind is not interleaved else [(found.d, told[0]), (found.hidden, told[1])]
    for x, y in pairs:
        torch.testing.assert_close(x.double(), y, rtol=2e-2, atol=2e-2)
    above = [torch.randn_like(y) for _, y in pairs]
    torch.autograd.backward([x for x, _ in pairs], [g.to(x.dtype) for (x, _), g in zip(pairs, above)])
    torch.autograd.backward([y for _, y in pairs], above)
    for x, y in zip(ours, wanted, strict=True):
        assert (x.grad.double() - y.grad).norm() <= 0.02 * y.grad.norm()


@pytest.mark.parametrize("tail", ["zero", "undefined"])
@pytest.mark.parametrize("form", ["rows", "masked", "columns"])
def test_gradients_do_not_depend_on_rows_of_no_group(form, tail):
    """Whatever these rows hold, in what is read and in the incoming gradient: the bits are those with zeros there."""
    (a, b), ends, (bias, scale, residual) = drawn(form, plain)
    told = {"counts" if form == "masked" else "offs": ends}
    mine = torch.arange(50) < (ends[:, None] if form == "masked" else ends[-1])
    mine = mine if form == "columns" else mine[..., None]
    found = []
    for rest in (0.0, float("nan")):
        of_rows = [torch.where(mine, x, rest) for x in ((b if form == "columns" else a), residual)]
        given = (a, of_rows[0]) if form == "columns" else (of_rows[0], b)
        scales = scale if form == "columns" else torch.where(mine[..., 0], scale, rest)
        leaves = [x.to(BF16).requires_grad_() for x in (*given, bias, scales, of_rows[1])]
        named = dict(zip(("bias", "scale", "residual"), leaves[2:], strict=True))
        d = cutegemm.grouped_mm(*leaves[:2], **told, epilogue=plain, **named, tail=tail, fallback="reference")
        above = torch.where(mine, torch.sin(torch.arange(d.numel())).view(d.shape), rest)
        found.append(torch.autograd.grad(d, leaves, above.to(d.dtype)))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_a_gradient_of_a_row_for_each_group_is_added_in_fp32():
    """In bf16 a sum of ones stops at 256."""
    a, b, bias = torch.zeros(3000, 16).to(BF16), torch.zeros(2, 16, 8).to(BF16), torch.zeros(2, 8).to(BF16)
    call = {"epilogue": epi.bias(), "bias": bias.requires_grad_(), "fallback": "reference"}
    cutegemm.grouped_mm(a, b, torch.tensor([1000, 3000]), **call).sum().backward()
    assert torch.equal(bias.grad[:, 0].float(), torch.tensor([1000.0, 2000.0]).to(BF16).float())


def test_no_groups_have_gradients():
    """All are zero, also of a row for each group."""
    a, b, bias = torch.randn(7, 16).to(BF16), torch.empty(0, 16, 8).to(BF16), torch.empty(0, 8)
    leaves = [x.requires_grad_() for x in (a, b, bias)]
    call = {"epilogue": epi.bias(), "bias": bias, "fallback": "reference"}
    d = cutegemm.grouped_mm(a, b, torch.empty(0).int(), **call)
    assert d.shape == (7, 8) and not d.any()
    for x, y in zip(torch.autograd.grad(d.sum(), leaves), leaves, strict=True):
        assert x.shape == y.shape and not x.any()


def test_what_is_recorded_is_what_is_not():
    """The value does not depend on whether a gradient is wanted, but for one rounding of the accumulator."""
    (a, b), ends, given = drawn("rows", halves)
    named = dict(zip(("bias", "scale", "residual"), (x.float() for x in given), strict=True))
    call = {"epilogue": halves, "offs": ends, **named, "fallback": "reference", "out_dtype": torch.float32}
    plainly = cutegemm.grouped_mm(a.to(BF16), b.to(BF16), **call)
    recorded = cutegemm.grouped_mm(a.to(BF16).requires_grad_(), b.to(BF16), **call)
    assert recorded.requires_grad and recorded.dtype == torch.float32
    torch.testing.assert_close(recorded, plainly, rtol=2e-2, atol=2e-2)


def test_a_compiled_call_has_the_gradient():
    """In one graph."""
    (a, b), ends, given = drawn("rows", halves)
    a, b = a.to(BF16).requires_grad_(), b.to(BF16).requires_grad_()
    named = dict(zip(("bias", "scale", "residual"), (x.float() for x in given), strict=True))

    def called(a, b):
        return cutegemm.grouped_mm(a, b, ends, epilogue=halves, **named, fallback="reference").float().sum()

    told = torch.autograd.grad(called(a, b), (a, b))
    found = torch.autograd.grad(torch.compile(called, backend="aot_eager", fullgraph=True)(a, b), (a, b))
    for x, y in zip(found, told, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


def test_what_cannot_be():
    """No gradient of what is written into a given tensor, none of what nobody reads or gives."""
    a, b = torch.randn(8, 16).to(BF16).requires_grad_(), torch.randn(2, 16, 8).to(BF16)
    ends = torch.tensor([3, 8])
    with pytest.raises(InputError, match="out"):
        cutegemm.grouped_mm(
            a, b, ends, epilogue=epi.act("gelu"), out=torch.empty(8, 8).to(BF16), fallback="reference"
        )
    for given, message in [
        ({}, "bias.*missing"),
        ({"bias": [1.0]}, "bias"),
        ({"bias": torch.zeros(9)}, "bias"),
        ({"bias": torch.zeros(8), "scale": 2.0}, "scale"),
    ]:
        with pytest.raises(InputError, match=message):
            cutegemm.grouped_mm(a, b, ends, epilogue=epi.bias(), **given, fallback="reference")
    with pytest.raises(SpecError, match="epilogue"):
        cutegemm.grouped_mm(a, b, ends, epilogue="gelu", fallback="reference")
    with pytest.raises(SpecError, match="the spec already has an epilogue"):
        spec = cutegemm.GemmSpec(epilogue=epi.act("relu"))
        cutegemm.grouped_mm(a, b, ends, epilogue=epi.act("gelu"), spec=spec, fallback="reference")
    with pytest.raises(InputError, match="unknown='...': the epilogue reads nothing"):
        cutegemm.grouped_mm(a, b, ends, epilogue=epi.swiglu(), unknown=a, fallback="reference")
    with pytest.raises(InputError, match=r"b\.shape=\(2, 16, 7\): a gated pair needs an even number"):
        cutegemm.grouped_mm(a, b[..., :7], ends, epilogue=epi.swiglu(), fallback="reference")


def test_a_repeated_call_makes_no_program(monkeypatch):
    """The programs of a call with gradients are made once, and names are checked in each call."""
    a, b = torch.randn(8, 16).to(BF16).requires_grad_(), torch.randn(2, 16, 8).to(BF16)
    call = {"offs": torch.tensor([3, 8]), "epilogue": epi.act("gelu"), "fallback": "reference"}
    told = cutegemm.grouped_mm(a, b, **call)
    monkeypatch.setattr(grouped_epilogue, "made", None)
    assert torch.equal(cutegemm.grouped_mm(a, b, **call), told)
    with pytest.raises(InputError, match="unknown='...': the epilogue reads nothing"):
        cutegemm.grouped_mm(a, b, **call, unknown=a)


@pytest.mark.parametrize("form", ["rows", "masked"])
def test_what_dropout_drops_depends_on_the_place_in_d(form):
    """Groups of one matrix drop what the product of all rows does, whatever their ends."""
    a, b = torch.ones(40, 16).to(BF16), torch.ones(16, 24).to(BF16)
    dropout = epi.dropout_residual(0.5)
    named = {"bias": torch.zeros(24), "residual": torch.zeros(40, 24), "seed": 7, "offset": 3}
    told = {"offs": torch.tensor([13, 40])}
    if form == "masked":
        a, told = a.view(2, 20, 16), {"counts": torch.tensor([20, 20])}
        named["residual"] = named["residual"].view(2, 20, 24)
    call = {"epilogue": dropout, "fallback": "reference", **named}
    found = cutegemm.grouped_mm(a, b.expand(2, -1, -1), **told, **call)
    assert torch.equal(found, cutegemm.matmul(a, b, **call)) and 0.4 < (found == 0).float().mean() < 0.6


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("form", ["columns", "along K"])
def test_gated_pairs_that_groups_do_not_have(form, recorded):
    """The error names the field, the forms that have them and what to call instead; nothing is written."""
    shapes = ((3, 48, 16), (16, 10), (48, 10)) if form == "columns" else ((48, 10), (10, 16), (3, 48, 8))
    a, b, out = (torch.ones(x, dtype=BF16) for x in shapes)
    more = {} if recorded else {"out": out}
    rule = (
        "have no gated pairs: groups of rows and masked groups have; multiply without an epilogue and apply"
    )
    for layout in ("halves", "interleaved"):
        gate = epi.define(lambda gate, up: gate * up, gated=layout)
        with pytest.raises(
            InputError, match=f"^epilogue.gated='{layout}': groups (of|along) {form.split()[-1]} {rule}"
        ):
            cutegemm.grouped_mm(
                a.requires_grad_(recorded),
                b,
                torch.tensor([4, 4, 9]),
                epilogue=gate,
                fallback="reference",
                **more,
            )
    assert torch.all(out == 1.0)
