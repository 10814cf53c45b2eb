# SPDX-License-Identifier: Apache-2.0
"""One launch multiplies groups of B's columns by a matrix each: on the emulator, races on, beside torch's."""

import itertools

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.ops.groups.grouped import planned
from cutegemm.running.numerics.group_reference import bounds
from tests.support.groups import ENDS, Groups, drawn
from tests.support.numerics import assert_close
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

SMALL = {"tile": Tile(64, 64, 64), "sms": 3, "cluster": (1, 1)}
KERNELS = {
    "columns along the instruction's": {**SMALL, "swap": False},
    "columns along its rows": {**SMALL, "swap": True},
    "in turns": {**SMALL, "swap": False, "schedule": "pingpong"},
    "narrow": {**SMALL, "tile": Tile(64, 16, 64), "swap": False},
    "pairs share B": {**SMALL, "sms": 4, "cluster": (2, 1), "swap": False},
    "multistage": {**SMALL, "swap": False, "schedule": "multistage"},
}
M, N, K = 136, 200, 96


def operands(count, majors="kk"):
    """A matrix for each group, and columns of all groups."""
    a, b = drawn(count, M, K), drawn(N, K).T
    if majors[0] == "m":
        a = a.mT.contiguous().mT
    return a, b if majors[1] == "k" else b.contiguous()


def check_columns(spec, ends, a, b, major="n", told="offs", dtype=torch.int32, **named):
    """Every group is right, other columns are zeros or untouched, and the run has no findings."""
    numbers = torch.tensor(ends, dtype=dtype)
    d = torch.full((M, N) if major == "n" else (N, M), 7.0).bfloat16()
    d = d if major == "n" else d.T
    assert not emulator.run(Groups(spec, told, **named), a, b, numbers, d, options=RACES).findings
    places = bounds(numbers, N, int(told == "cu_seqlens")).tolist()
    for group, (first, end) in enumerate(itertools.pairwise(places)):
        if end > first:
            assert_close(d[:, first:end], a[group], b[:, first:end], alpha=named.get("alpha", 1.0))
    rest = torch.cat([d[:, : places[0]], d[:, places[-1] :]], 1)
    assert torch.all(rest == (7.0 if named.get("tail") == "undefined" else 0.0))


@pytest.mark.parametrize("major", ["n", "m"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_kernel_follows_the_columns(name, major):
    """Empty groups, groups of one column and of several tiles, whichever way D lies."""
    check_columns(GemmSpec(**KERNELS[name]), ENDS["uneven"], *operands(4), major, alpha=2.0)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups_are_disjoint_whatever_their_ends(ends):
    """Ends that decrease or lie outside count as the nearest column; columns of no group become zeros."""
    check_columns(GemmSpec(**KERNELS["narrow"]), ends, *operands(len(ends)))


@pytest.mark.parametrize("majors", ["kk", "kn", "mk", "mn"])
def test_operands_lie_anyhow(majors):
    """TMA begins at any column of a B that is contiguous along K; threads gather another one. Nothing is copied."""
    a, b = operands(4, majors)
    check_columns(GemmSpec(sms=3, tile=Tile(64, 64, 64), cluster=(1, 1)), ENDS["uneven"], a, b)
    assert planned(a, b, torch.tensor(ENDS["uneven"])).config.b.load == (
        "tma" if majors[1] == "k" else "gather"
    )


def test_ends_come_in_every_form():
    """With the first group's begin before them, in 64 bits; columns of no group are left alone on request."""
    spec = GemmSpec(**KERNELS["columns along the instruction's"])
    ends = [5, 90, -(2**33), 2**32 + 7]
    check_columns(spec, ends, *operands(3), told="cu_seqlens", dtype=torch.int64)
    check_columns(spec, [3, 100, 150], *operands(2), told="cu_seqlens", tail="undefined")


@epi.define
def everything(
    acc, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix, seed: epi.Integer, at: epi.Integer
):
    """A number for each column, one for each row of a group's matrix, a matrix, and what depends on the place in D."""
    return epi.dropout(acc * scale + bias, 0.5, seed, at) + residual


@pytest.mark.parametrize("name", ["columns along the instruction's", "columns along its rows"])
@pytest.mark.parametrize("own", [False, True])
def test_an_epilogue_has_a_column_for_each_group(name, own):
    """And rows and matrices that lie as D's columns do."""
    ends, (a, b) = torch.tensor(ENDS["uneven"]), operands(4)
    named = {
        "bias": drawn(N).float(), "scale": drawn(4, M) if own else drawn(M), "residual": drawn(M, N), "seed": 5,
        "at": 3, "epilogue": everything,
    }  # fmt: skip
    told = cutegemm.grouped_mm(a, b, ends, **named, out_dtype=torch.float32, fallback="reference")
    found = torch.full_like(told, 7.0)
    run = emulator.run(Groups(GemmSpec(**KERNELS[name]), **named), a, b, ends, found, options=RACES)
    assert not run.findings
    torch.testing.assert_close(found, told, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["columns along the instruction's", "columns along its rows"])
def test_operands_of_8_bits_have_scales(name):
    """One for each row of a group's A and column of B, or for blocks: 128 x 128 of A, 1 x 128 of B's columns."""
    ends, eight = torch.tensor(ENDS["uneven"]), torch.float8_e4m3fn
    a, b = drawn(4, M, 256).to(eight), drawn(N, 256).to(eight).T
    for scale_a, scale_b in (
        (torch.rand(4, M), torch.rand(N)),
        (torch.rand(4, 2, 2) + 0.5, torch.rand(N, 2) + 0.5),
    ):
        named = {"scale_a": scale_a, "scale_b": scale_b}
        told = cutegemm.grouped_mm(a, b, ends, **named, fallback="reference")
        found = torch.empty_like(told)
        spec = GemmSpec(sms=3, swap=KERNELS[name]["swap"])
        assert not emulator.run(Groups(spec, **named), a, b, ends, found, options=RACES).findings
        torch.testing.assert_close(found, told, rtol=2e-2, atol=2e-2)


def test_nothing_to_multiply():
    """Without groups columns are zeros; without columns or rows nothing is written."""
    none, ends = torch.zeros(0, 16, 8).bfloat16(), torch.zeros(0).int()
    assert torch.all(cutegemm.grouped_mm(none, drawn(8, 3), ends, fallback="emulator") == 0)
    for shape, columns in (((2, 16, 8), 0), ((2, 0, 8), 3)):
        ends = torch.zeros(2).int()
        found = cutegemm.grouped_mm(drawn(*shape), drawn(8, columns), ends, fallback="emulator")
        assert found.shape == (shape[1], columns)


A, B = torch.zeros(2, 64, 64).bfloat16(), torch.zeros(64, 64).bfloat16()
REFUSED = {
    "too few ends": ({"offs": torch.zeros(1).int()}, r"offs\.shape.*must be \(2,\)"),
    "counts": ({"offs": None, "counts": torch.zeros(2).int()}, r"counts=\(2,\): groups of rows, of columns"),
    "another K": ({"b": B[:5]}, r"b\.shape.*must have 64 rows \(K\)"),
    "indices": ({"rows": torch.zeros(3).int()}, "rows: needs groups of rows"),
    "a scatter": ({"scatter": torch.zeros(3).int()}, "scatter: needs groups of rows"),
    "a gated pair": ({"epilogue": epi.swiglu()}, "groups of columns have no gated pairs"),
    "a column of each group": (
        {
            "epilogue": everything,
            "bias": B[0],
            "scale": torch.zeros(3, 64),
            "residual": B,
            "seed": 1,
            "at": 0,
        },
        r"scale\.shape.*each of 2 groups",
    ),
    "blocks of columns": (
        {"a": A.to(torch.float8_e4m3fn), "b": B.to(torch.float8_e4m3fn), "scale_b": torch.ones(1, 1)},
        "groups may start in blocks of columns",
    ),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name, recorded):
    """Refused before anything is written, with a gradient too."""
    given, message = REFUSED[name]
    given = {"a": A, "b": B, "offs": torch.zeros(2).int(), **given}
    if given["a"].dtype == torch.bfloat16:
        given["a"] = given["a"].clone().requires_grad_(recorded)
    with pytest.raises(InputError, match=message):
        cutegemm.grouped_mm(**given, fallback="emulator")


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 8, 128])
@pytest.mark.parametrize("shape", [(72, 64, 16), (1536, 2048, 1000), (4096, 768, 4096)])
def test_groups_of_columns_on_the_gpu(shape, groups):
    """The planner's kernels give every group's product and zero the columns behind the last one, also when replayed."""
    m, k, n = shape
    draw = torch.Generator("cuda").manual_seed(n + groups)
    a = torch.randn(groups, m, k, generator=draw, device="cuda").bfloat16()
    b = torch.randn(n, k, generator=draw, device="cuda").bfloat16().T
    ends, d = (
        torch.zeros(groups, dtype=torch.int32, device="cuda"),
        torch.empty(m, n, device="cuda").bfloat16(),
    )
    cutegemm.grouped_mm(a, b, ends, out=d, fallback="error")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutegemm.grouped_mm(a, b, ends, out=d, fallback="error")
    for _ in range(3):
        cuts = torch.randint(0, n + 1, (groups,), generator=draw, device="cuda").sort().values
        ends.copy_(cuts)
        graph.replay()
        for group, (first, end) in enumerate(itertools.pairwise([0, *cuts.tolist()])):
            if end > first:
                assert_close(d[:, first:end], a[group], b[:, first:end])
        assert torch.all(d[:, cuts[-1] :] == 0.0)
