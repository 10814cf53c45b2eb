# SPDX-License-Identifier: Apache-2.0
"""What a fused run returns: outputs by name and in order, new tensors as the epilogue wants them, partial results."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.gemm import Gemm, representative
from cutegemm.planning.planner import plan
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import describe
from cutegemm.running.arguments.results import TORCH_DTYPE, Outputs, Partial, Shapes
from cutegemm.running.numerics.reference import combine

BF16, FP32 = torch.bfloat16, torch.float32


@epi.define
def everything(acc, *, c: epi.Matrix):
    """Matrices of both majors and other types between reductions, finished and partial, of every kind and axis."""
    h = acc + c
    return epi.Output(
        total=epi.Sum(h),
        pre=epi.Store(h, dtype="fp32", major="m"),
        top=epi.Max(h, axis=0, partial=True),
        d=h,
        rows=epi.LogSumExp(h, axis=1, partial=True),
        small=epi.Store(acc, dtype="fp8_e5m2"),
        norm=epi.LogSumExp(h, axis=1),
        whole=epi.LogSumExp(acc, partial=True),
        sums=epi.Sum(acc, partial=True),
    )


def shapes_of(a, b, c, outs=None, fields=None):
    """The plan of a call of `everything`, and how its outputs are allocated and shown."""
    call = describe(everything, Request(a, b, {"c": c}, outs or {}))
    chosen = plan(GemmSpec(epilogue=everything, **(fields or {})), call.problem)
    return chosen, Shapes(everything, call, chosen, torch.device("cpu"))


def run(a, b, c, **options):
    """`everything` on the reference backend."""
    spec = GemmSpec(epilogue=everything)
    return Gemm(spec, representative(spec)).run(a, b, c=c, **options)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_outputs_are_named_and_ordered(lead):
    """The attributes are the epilogue's outputs in its order, of the right shapes, types and strides."""
    a, b, c = torch.randn(*lead, 6, 5).bfloat16(), torch.randn(5, 7).bfloat16(), torch.randn(6, 7).bfloat16()
    got = run(a, b, c)
    assert type(got) is Outputs and list(vars(got)) == [x.name for x in everything.outputs]
    assert (got.d.dtype, got.pre.dtype, got.small.dtype) == (BF16, FP32, torch.float8_e5m2)
    assert got.d.shape == got.pre.shape == got.small.shape == (*lead, 6, 7)
    assert got.pre.mT.is_contiguous() and got.d.is_contiguous() and got.small.is_contiguous()
    assert got.total.shape == lead and got.norm.shape == (*lead, 6) and got.norm.dtype is FP32
    assert type(got.top) is Partial and got.top.finish().shape == (*lead, 7)
    assert (
        got.rows.finish().shape == (*lead, 6) and got.whole.finish().shape == got.sums.finish().shape == lead
    )
    h = a.float() @ b.float() + c.float()
    torch.testing.assert_close(got.total, h.sum((-2, -1)))
    torch.testing.assert_close(got.top.finish(), h.amax(-2))
    torch.testing.assert_close(got.rows.finish(), h.logsumexp(-1))
    torch.testing.assert_close(got.norm, got.rows.finish())


def test_given_outputs_come_back_and_the_rest_is_new():
    """What `out` names is written and returned, and is the very tensor."""
    a, b, c = torch.randn(6, 5), torch.randn(5, 7), torch.randn(6, 7)
    pre, total = torch.full((7, 6), math.nan).t(), torch.full((), math.nan)
    got = run(a, b, c, out={"pre": pre, "total": total, "d": None})
    assert got.pre is pre and got.total is total and got.d is not None
    torch.testing.assert_close(pre, a @ b + c)
    torch.testing.assert_close(total, (a @ b + c).sum())


def test_d_alone_comes_back_bare():
    """An epilogue whose only output is d returns a tensor; one other output, even alone, is an attribute."""
    a, b = torch.randn(6, 5), torch.randn(5, 7)
    bare, other = epi.define(lambda acc: acc), epi.define(lambda acc: epi.Output(y=acc))
    got = {}
    for graph in (bare, other):
        spec = GemmSpec(epilogue=graph)
        got[graph] = Gemm(spec, representative(spec)).run(a, b)
    assert torch.equal(got[bare], got[other].y) and isinstance(got[other], Outputs)


@pytest.mark.parametrize("fields", [{}, {"tile": Tile(64, 64, 64)}, {"schedule": "simt"}], ids=str)
@pytest.mark.parametrize("lead", [(), (3,)])
def test_partial_results_have_a_part_for_every_tile(lead, fields):
    """What is allocated for partial results holds what the plan's launch writes; what is shown is a view of it."""
    a, b, c = (
        torch.randn(*lead, 150, 5).bfloat16(),
        torch.randn(5, 200).bfloat16(),
        torch.randn(150, 200).bfloat16(),
    )
    p, shapes = shapes_of(a, b, c, fields=fields)
    rows, cols = p.partial_width
    parts = (-(-150 // rows), -(-200 // cols), p.tiles[0] * p.tiles[1] * p.config.partials_per_tile)
    batch = math.prod(lead)
    made = {x.name: shapes.allocate(x) for x in shapes.wanted}
    assert made["top"].shape == (1, parts[0], batch, 200) and made["rows"].shape == (2, parts[1], batch, 150)
    assert made["whole"].shape == (2, batch, parts[2]) and made["sums"].shape == (1, batch, parts[2])
    assert all(made[x].is_contiguous() and made[x].dtype is FP32 for x in ("top", "rows", "whole", "sums"))
    for x in made.values():
        x.copy_(torch.arange(x.numel()).reshape(x.shape) % 97)
    got = shapes.present(made)
    assert got.top.values.shape == (parts[0], *lead, 200) and got.top.sums is None and got.top.width == rows
    assert got.rows.values.shape == got.rows.sums.shape == (parts[1], *lead, 150) and got.rows.width == cols
    assert got.whole.values.shape == got.whole.sums.shape == (parts[2], *lead) and got.whole.width == (
        rows,
        cols,
    )
    assert torch.equal(got.rows.sums.flatten(), made["rows"][1].flatten())
    for part in (0, parts[2] - 1):
        for number, shown in enumerate((got.whole.values, got.whole.sums)):
            assert torch.equal(shown[part].reshape(batch), made["whole"][number, :, part])
    assert got.d is made["d"] and got.norm is made["norm"]


@pytest.mark.parametrize("shape", [(0, 7, 5), (6, 0, 5), (0, 0, 5)])
@pytest.mark.parametrize("lead", [(), (2,), (0,)])
def test_reductions_over_an_empty_d(shape, lead):
    """Where nothing is launched a sum is 0, a maximum and a logsumexp -inf; partial ones are one part of these."""
    m, n, k = shape
    a, b, c = torch.randn(*lead, m, k), torch.randn(k, n), torch.randn(m, n)
    p, shapes = shapes_of(a, b, c)
    assert p.steps == ()
    made = {x.name: shapes.allocate(x) for x in shapes.wanted}
    shapes.fill_empty(made)
    got, expected = shapes.present(made), run(a, b, c)
    for name in ("total", "norm"):
        assert torch.equal(getattr(got, name), getattr(expected, name))
    for name in ("top", "rows", "whole", "sums"):
        shown, wanted = getattr(got, name), getattr(expected, name)
        assert shown.values.shape == wanted.values.shape and shown.values.shape[0] == 1 and shown.width == 0
        assert torch.equal(shown.finish(), wanted.finish())


def test_no_k_is_no_empty_d():
    """With K = 0 everything is reduced over C."""
    got = run(torch.randn(6, 0), torch.randn(0, 7), torch.full((6, 7), 2.0))
    assert got.total.item() == 84.0 and got.top.finish().tolist() == [2.0] * 7


NUMBERS = st.sampled_from((0.0, 1.0, -3.5, 80.0, -200.0, math.inf, -math.inf))


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 3))
def test_finishing_partials_reduces_everything(rows, each):
    """Sums, maxima and logsumexps of groups of rows finish as those of all rows, infinities included."""
    values = torch.tensor(rows)
    groups = torch.split(values, each)
    for kind in ("sum", "max"):
        parts = torch.stack([combine(kind, x, 0) for x in groups])
        torch.testing.assert_close(
            Partial(kind, parts, None, each).finish(), combine(kind, values, 0), equal_nan=True
        )
    tops = torch.stack([x.amax(0) for x in groups])
    terms = (torch.where(x == top, 0.0, x - top).exp().sum(0) for x, top in zip(groups, tops, strict=True))
    finished = Partial("logsumexp", tops, torch.stack(list(terms)), each).finish()
    torch.testing.assert_close(finished, combine("logsumexp", values, 0))


def test_the_references_partials_finish_as_the_whole():
    """Their one part is everything; a logsumexp's has sums beside its values, no other has."""
    a, b = torch.randn(6, 5), torch.randn(5, 7)
    got = run(a, b, torch.zeros(6, 7))
    for name, reduce in (("top", "max"), ("rows", "logsumexp"), ("whole", "logsumexp"), ("sums", "sum")):
        shown = getattr(got, name)
        assert (shown.sums is not None) is (reduce == "logsumexp")
        axis = {"top": 0, "rows": 1}.get(name, (0, 1))
        wanted = getattr(torch, "amax" if reduce == "max" else reduce)(a.double() @ b.double(), axis)
        torch.testing.assert_close(shown.finish().double(), wanted, rtol=1e-4, atol=1e-4)


def test_every_type_has_a_torch_type():
    """fp8 included."""
    assert {x.itemsize for x in TORCH_DTYPE.values()} == {1, 2, 4}
    assert all(x.bytes == y.itemsize for x, y in TORCH_DTYPE.items())


def test_a_partial_is_frozen():
    """It is a record of what the tiles gave."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Partial("sum", torch.zeros(1), None, 16).kind = "max"
