# SPDX-License-Identifier: Apache-2.0
"""The torch reference: every operation, input and reduction against torch code written out."""

import math

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import OPERATIONS, Graph, Node, Result
from cutegemm.running.numerics import reference
from tests.support.scales import ROWS, SHAPE, SQUARES, check, emulated, operands

NAN, INF = math.nan, math.inf


def random(*shape, seed=0):
    """Normally distributed, fp64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def eye(n):
    """A B under which the accumulator is A itself."""
    return torch.eye(n, dtype=torch.float64)


def test_every_operation_has_a_torch_form():
    """The table of operations has exactly those of the graph; random needs the shape and is apart."""
    assert {*reference.OPERATIONS, "random"} == set(OPERATIONS)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_inputs_broadcast_by_kind(batch):
    """A row serves every row of D, a column every column, batched or not; numbers serve every element."""

    @epi.define
    def all_kinds(acc, *, r: epi.Row, c: epi.Col, m: epi.Matrix, s: epi.Scalar):
        return epi.Output(d=acc * s + r + 2 * c + 4 * m)

    a, b = random(*batch, 5, 7), random(7, 4, seed=1)
    r, c, m = random(*batch, 4, seed=2), random(*batch, 5, seed=3), random(*batch, 5, 4, seed=4)
    for scalar in (0.5, torch.tensor(0.5)):
        got = reference.evaluate(all_kinds, a, b, {"r": r, "c": c, "m": m, "s": scalar}, torch.float64)
        expected = a @ b * 0.5 + r.reshape(*batch, 1, 4) + 2 * c.reshape(*batch, 5, 1) + 4 * m
        torch.testing.assert_close(got, {"d": expected})


def test_inputs_without_a_batch_serve_every_batch():
    """A plain row, column or matrix meets every batch of the product, and a plain B every batch of A."""

    @epi.define
    def graph(acc, *, r: epi.Row, c: epi.Col, m: epi.Matrix):
        return acc + r + c + m

    a, b, r, c, m = random(3, 5, 7), random(7, 4), random(4), random(5), random(5, 4)
    got = reference.evaluate(graph, a, b, {"r": r, "c": c, "m": m}, torch.float64)["d"]
    torch.testing.assert_close(got, a @ b + r + c[:, None] + m)


def test_an_output_of_inputs_alone_fills_the_matrix():
    """What does not depend on the accumulator is as large as D all the same."""
    graph = Graph((Node("acc"), Node("row", value="r")), (Result("d", 1), Result("s", 1, "sum", axis=0)))
    got = reference.evaluate(graph, random(5, 2), random(2, 3), {"r": torch.arange(3.0)}, torch.float32)
    assert got["d"].tolist() == 5 * [[0, 1, 2]] and got["s"].tolist() == [0, 5, 10]


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("axis", "dims"), [(0, -2), (1, -1), (None, (-2, -1))])
def test_reductions(batch, axis, dims):
    """Sum, max, absmax, sum of squares and logsumexp over rows, columns or all; batches stay apart."""

    @epi.define
    def graph(acc):
        return epi.Output(
            sum=epi.Sum(acc, axis),
            max=epi.Max(acc, axis, partial=True),
            absmax=epi.AbsMax(acc, axis),
            squares=epi.SumSquares(acc, axis, partial=True),
            lse=epi.LogSumExp(acc, axis),
        )

    a = random(*batch, 5, 4) - 1
    got = reference.evaluate(graph, a, eye(4), {}, torch.float64)
    expected = {
        "sum": a.sum(dims),
        "max": a.amax(dims),
        "absmax": a.abs().amax(dims),
        "squares": (a * a).sum(dims),
        "lse": a.exp().sum(dims).log(),
    }
    torch.testing.assert_close(got, expected)
    assert got["sum"].shape == (*batch, *{0: (4,), 1: (5,), None: ()}[axis])


def test_logsumexp_does_not_overflow():
    """Where exp alone would overflow."""
    graph = epi.define(lambda acc: epi.Output(lse=epi.LogSumExp(acc)))
    got = reference.evaluate(graph, 1000 + 0 * random(2, 2), eye(2), {}, torch.float64)["lse"]
    assert got.item() == pytest.approx(1000 + math.log(4))


@pytest.mark.parametrize(("axis", "shape"), [(0, (4,)), (1, (0,)), (None, ())])
def test_reductions_over_nothing(axis, shape):
    """The sum of no rows is 0, their maximum and log-sum-exp are -inf."""

    @epi.define
    def graph(acc):
        return epi.Output(sum=epi.Sum(acc, axis), max=epi.Max(acc, axis), lse=epi.LogSumExp(acc, axis))

    got = reference.evaluate(graph, random(0, 3), random(3, 4), {}, torch.float64)
    for name, value in {"sum": 0.0, "max": -INF, "lse": -INF}.items():
        assert got[name].shape == shape and (got[name] == value).all()


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_numbers_are_fp32_whatever_torchs_default_type(default, monkeypatch):
    """Scalars, constants and the scales of nothing, in a run and in the bound that checks it."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")

    @epi.define
    def graph(acc, *, s: epi.Scalar):
        return acc * s + 0.7

    gemm, a, b = Gemm(GemmSpec(epilogue=graph)), torch.ones(2, 1), torch.ones(1, 2)
    expected = gemm.run(a, b, s=0.1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert torch.equal(Gemm(gemm.spec).run(a, b, s=0.1), expected)
        _, scales = cutegemm.quantize(a[:0], "row")
    finally:
        torch.set_default_dtype(before)
    assert scales.dtype == torch.float32


def test_no_products_are_zero():
    """K = 0 gives an accumulator of zeros."""
    got = reference.evaluate(epi.bias(), random(2, 0), random(0, 3), {"bias": torch.ones(3)}, torch.float32)
    assert got["d"].tolist() == 2 * [[1, 1, 1]]


def test_partials_combine_to_the_reduction():
    """Reducing tiles and then their results is reducing all."""
    x = random(5, 12)
    for kind in ("sum", "max", "logsumexp"):
        tiles = torch.stack([reference.combine(kind, t, -1) for t in x.split(4, dim=1)], -1)
        torch.testing.assert_close(reference.combine(kind, tiles, -1), reference.combine(kind, x, (1,)))


def test_gated_products():
    """Gate and up are B's halves, or its even and odd columns."""
    a, b = random(3, 5), random(5, 8)
    product = a @ b
    for layout, gate, up in (
        ("halves", product[:, :4], product[:, 4:]),
        ("interleaved", product[:, ::2], product[:, 1::2]),
    ):
        graph = epi.define(gated=layout)(lambda gate, up: gate - 2 * up)
        torch.testing.assert_close(reference.evaluate(graph, a, b, {}, torch.float64)["d"], gate - 2 * up)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.float8_e4m3fn, [448.0, -448.0, 448.0, NAN, 0.0625]),
        (torch.float8_e5m2, [1024.0, -57344.0, 57344.0, NAN, 0.0625]),
        (torch.float16, [1000.0, -INF, INF, NAN, 0.0625]),
        (torch.bfloat16, [1000.0, -998_244_352.0, INF, NAN, 0.0625]),
    ],
)
def test_rounding(dtype, values):
    """To nearest even; fp8 holds what is too large, infinities included, at its largest; NaN stays."""
    x = torch.tensor([1000.0, -1e9, INF, NAN, 0.06250001], dtype=torch.float64)
    got = reference.round_to(x, dtype)
    assert got.dtype == dtype
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (4 * (0xFFFFFFFF,), 2 * (0xFFFFFFFF,), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    """The known answers of Random123's kat_vectors for philox4x32-10."""
    got = reference.philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(x) for x in got) == words


def test_random_depends_on_place_seed_and_offset():
    """The counter is (column, row, batch, offset), the key (seed, 0); negative integers count modulo 2^32."""
    graph = epi.define(_uniform)
    a, b = torch.zeros(2, 3, 1), torch.zeros(1, 4)
    for seed, offset in ((0, 0), (7, 3), (-1, -2)):
        inputs = {"seed": seed, "offset": torch.tensor(offset, dtype=torch.int32)}
        got = reference.evaluate(graph, a, b, inputs, torch.float32)["d"]
        for batch in range(2):
            for row in range(3):
                for col in range(4):
                    counter = tuple(torch.tensor(x % 2**32) for x in (col, row, batch, offset))
                    word = reference.philox(counter, (torch.tensor(seed % 2**32), torch.tensor(0)))[0]
                    assert got[batch, row, col].item() == (int(word) >> 8) / 2**24
        alone = reference.evaluate(graph, a[0], b, inputs, torch.float32)["d"]
        assert torch.equal(alone, got[0])  # a product without a batch is the first
    assert (
        reference.evaluate(graph, a, b, {"seed": 0, "offset": 0}, torch.float32)["d"][0, 0, 0]
        == (0x6627E8D5 >> 8) / 2**24
    )


def test_random_numbers_of_a_transposed_matrix_are_those_of_ds_elements():
    """Of a swapped graph the matrix has D's columns as rows."""
    seed, offset = torch.tensor(7), torch.tensor(3)
    plain = reference.uniform(seed, offset, (2, 3, 5), "cpu")
    assert torch.equal(reference.uniform(seed, offset, (2, 5, 3), "cpu", swapped=True), plain.mT)


def _uniform(acc, *, seed: epi.Integer, offset: epi.Integer):
    return acc + epi.random(seed, offset)


def test_dropout_keeps_its_rate():
    """A share p is dropped, the rest scaled by 1 / (1 - p); within four standard deviations."""

    @epi.define
    def graph(acc, *, seed: epi.Integer, offset: epi.Integer):
        return epi.dropout(acc, 0.3, seed, offset)

    a, b = torch.ones(512, 1), torch.ones(1, 512)
    got = [reference.evaluate(graph, a, b, {"seed": 3, "offset": x}, torch.float64)["d"] for x in (0, 0, 1)]
    assert set(got[0].unique().tolist()) == {0.0, 1 / 0.7}
    share = (got[0] == 0).double().mean().item()
    assert abs(share - 0.3) < 4 * (0.3 * 0.7) ** 0.5 / 512
    assert torch.equal(got[0], got[1]) and not torch.equal(got[0], got[2])


@pytest.mark.sliced
@pytest.mark.parametrize("kinds", [(ROWS, SQUARES), (SQUARES, "tensor")], ids=str)
def test_the_reference_multiplies_partial_sums_too(kinds):
    """Extreme scales: where a kernel is finite, infinite or NaN the CPU's reference is, and the fp64 that checks both.

    Elements times one scale alone would leave fp32, or meet infinity as zeros.
    """
    a, b, named = operands(SHAPE, kinds)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype="fp32")
    if kinds[1] == SQUARES:
        # of every second block of K
        named["scale_a"][:, ::2], named["scale_b"][:, ::2] = 2.0**126, 2.0**-126
        # products that leave fp32 in both directions
        named["scale_a"][3, 1], named["scale_b"][0, 1] = 2.0**127, 2.0**127
        named["scale_a"][4, 1], named["scale_b"][1, 1] = 2.0**-100, 2.0**-100
    else:
        named["scale_a"][1, 2] = torch.inf
    d = emulated(spec, a, b, **named)
    check(spec, a, b, d, named)
    expected = Gemm(spec).run(a, b, **named)
    check(spec, a, b, expected, named)
    assert torch.equal(expected.isnan(), d.isnan()) and torch.equal(expected.isinf(), d.isinf())
    if kinds[1] == SQUARES:
        # as exponents: 254 is 2**127
        given = {k: torch.full(x.shape, 127, dtype=torch.uint8) for k, x in named.items()}
        given["scale_a"][:, 0], given["scale_b"][:, 0], given["scale_a"][5, 2] = 254, 1, 255
        found = emulated(spec, a, b, **given)
        check(spec, a, b, found, given)
        expected = Gemm(spec).run(a, b, **given)
        assert torch.equal(expected.isnan(), found.isnan()) and torch.equal(expected.isinf(), found.isinf())
