# SPDX-License-Identifier: Apache-2.0
"""One launch multiplies groups, whose ends lie in memory: on the emulator, races on, beside the reference."""

import itertools

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.errors import InputError, PlanError
from cutegemm.ops.groups.grouped import planned
from cutegemm.running.grouped_mm import GroupedGemm
from tests.support.groups import (
    ENDS,
    GPU_SHAPES,
    SMALL,
    SWAPPED,
    Groups,
    OnGpu,
    check_depth,
    check_groups,
    drawn,
)
from tests.support.numerics import assert_close
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

KERNELS = {
    "cooperative": {**SMALL, "schedule": "cooperative"},
    "tokens along columns": {**SWAPPED, "schedule": "cooperative"},
}


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups_are_disjoint_whatever_their_ends(name, ends):
    """Ends that decrease or lie outside count as the nearest row that they may be; rows of no group become zeros."""
    check_groups(GemmSpec(**KERNELS[name]), ends, (200, 72, 64))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ends_come_in_every_form(dtype):
    """With the first group's begin before them, in 32 and 64 bits, of which all count; rows before it are zeros too."""
    large = [5, 90, -(2**33), 2**32 + 7] if dtype is torch.int64 else [5, 90, -7, 2**31 - 1]
    check_groups(GemmSpec(**KERNELS["cooperative"]), large, told="cu_seqlens", dtype=dtype)


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
def test_rows_of_no_group_are_left_alone_on_request(name):
    """tail="undefined" writes nothing there."""
    check_groups(GemmSpec(**KERNELS[name]), [3, 100, 150], told="cu_seqlens", tail="undefined")


def test_what_the_spec_leaves_open_is_chosen():
    """The planner's own tile, stages and cluster for few rows a group."""
    check_groups(GemmSpec(sms=4), ENDS["uneven"], (200, 72, 128))


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
def test_an_epilogue_has_a_row_for_each_group(name):
    """A bias each, C, alpha and beta; D in another type and over C itself."""
    spec, ends = GemmSpec(**KERNELS[name]), torch.tensor(ENDS["uneven"])
    a, b, c, bias = drawn(200, 96), drawn(4, 96, 136), drawn(200, 136).float(), drawn(4, 136).float()
    named = {"alpha": 2.0, "beta": 0.5, "bias": bias}
    told = cutegemm.grouped_mm(
        a, b, ends, c=c.clone(), **named, out_dtype=torch.float32, fallback="reference"
    )
    found = c.clone()
    run = emulator.run(Groups(spec, c=found, **named), a, b, ends, found, options=RACES)
    assert not run.findings
    torch.testing.assert_close(found, told, rtol=1e-5, atol=1e-4)


def test_gated_pairs_in_groups():
    """A gate and its linear part in halves of each group's matrix; columns of the epilogue are of all rows."""
    from cutegemm.epilogue import functions as fn

    @epi.define(gated="interleaved")
    def swiglu(gate, up, *, scale: epi.Col):
        return gate * fn.sigmoid(gate) * up * scale

    a, b, scale = drawn(200, 96), drawn(4, 96, 256), drawn(200).float()
    ends = torch.tensor(ENDS["uneven"])
    spec = GemmSpec(schedule="cooperative", sms=3, cluster=(1, 1))
    told = cutegemm.grouped_mm(a, b, ends, epilogue=swiglu, scale=scale, fallback="reference")
    found = torch.empty_like(told)
    assert not emulator.run(
        Groups(spec, epilogue=swiglu, scale=scale), a, b, ends, found, options=RACES
    ).findings
    torch.testing.assert_close(found, told, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
def test_masked_groups_are_the_first_rows_of_batches(name):
    """Counts outside a batch count as none or all; the other rows become zeros."""
    a, b, counts = drawn(5, 80, 96), drawn(5, 96, 136), [0, 80, -3, 999, 33]
    d = torch.full((5, 80, 136), 7.0).bfloat16()
    spec = GemmSpec(**KERNELS[name])
    assert not emulator.run(Groups(spec, "counts"), a, b, torch.tensor(counts), d, options=RACES).findings
    for group, count in enumerate(max(0, min(x, 80)) for x in counts):
        if count:
            assert_close(d[group, :count], a[group, :count], b[group])
        assert torch.all(d[group, count:] == 0)


@pytest.mark.parametrize("name", ["uneven", "decreasing and outside"])
def test_groups_along_k(name):
    """Both operands hold rows of tokens, as in a weight's gradient."""
    check_depth(GemmSpec(tile=Tile(64, 64, 64), sms=3), drawn(200, 72).T, drawn(200, 136), ENDS[name])


# most of 300 groups are empty: the next rows are a few groups on, beyond 32 and beyond 128 others
DISTANT = [sum(end <= x for end in (0, 2, 5, 40, 41, 80, 230, 299)) * 9 for x in range(300)]


@pytest.mark.parametrize("name", ["cooperative", "tokens along columns"])
def test_distant_groups_are_found(name):
    """By the search for a CTA's first work tile and by those for its next ones."""
    check_groups(GemmSpec(**KERNELS[name]), DISTANT, (80, 72, 64))


def test_distant_groups_along_k_are_found():
    """Those that have rows, among many that are beta * C."""
    check_depth(GemmSpec(tile=Tile(64, 64, 64), sms=132), drawn(80, 64).T, drawn(80, 64), DISTANT)


def test_what_lies_beside_a_group_along_k_does_not_reach_it():
    """Elements of K of no group are NaN in both operands."""
    a, b = drawn(200, 72).T, drawn(200, 136)
    a[:, 70:] = float("nan")
    b[70:] = float("inf")
    d = torch.empty(2, 72, 136)
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3)
    assert not emulator.run(Groups(spec), a, b, torch.tensor([3, 70]), d, options=RACES).findings
    assert_close(d[1], a[:, 3:70], b[3:70])


def test_nothing_to_multiply():
    """Without groups rows are zeros; without rows or columns nothing is written, along K without depth all is zero."""
    none, ends = torch.zeros(0, 8, 16).bfloat16(), torch.zeros(0).int()
    assert torch.all(cutegemm.grouped_mm(drawn(3, 8), none, ends, fallback="emulator") == 0)
    assert cutegemm.grouped_mm(
        drawn(0, 8), drawn(2, 8, 16), torch.zeros(2).int(), fallback="emulator"
    ).shape == (0, 16)
    d = cutegemm.grouped_mm(drawn(3, 0), drawn(0, 16), torch.zeros(2).int(), fallback="emulator")
    assert d.shape == (2, 3, 16) and torch.all(d == 0)


def test_a_call_takes_no_memory_beside_d():
    """Groups of any form take none; a reduction takes one partial result for each row and each tile's columns."""
    a, b, ends = drawn(200, 96), drawn(4, 96, 136), torch.tensor(ENDS["uneven"])
    for x, y in ((a, b), (a.T, drawn(200, 136)), (drawn(4, 136, 96), a.T), (drawn(4, 40, 96), b)):
        made = planned(x, y, ends, GemmSpec(sms=4))
        assert made.workspace_bytes == made.counter_bytes == 0 and len(made.steps) == 1
    gemm = GroupedGemm(
        GemmSpec(**SMALL), epi.define(lambda acc: epi.Output(d=acc, lse=epi.LogSumExp(acc, axis=1)))
    )
    made = gemm.plan(a, b, cutegemm.Groups(offs=ends), {})
    assert 0 <= made.workspace_bytes - 8 * 200 * 3 < 256
    assert [x.name for x in made.steps] == ["gemm", "finish lse"]


REFUSED = {
    "a major that TMA cannot begin anywhere in": (
        {"a": "T", "spec": GemmSpec(a_load="tma")},
        r"a_load='tma'.*groups begin at any element",
    ),
    "ends of another type": ({"offs": torch.zeros(2)}, r"offs\.dtype"),
    "too few ends": ({"offs": torch.zeros(1).int()}, r"offs\.shape.*must be \(2,\)"),
    "too few starts": (
        {"offs": None, "cu_seqlens": torch.zeros(2).int()},
        r"cu_seqlens\.shape.*must be \(3,\)",
    ),
    "two kinds of ends": ({"cu_seqlens": torch.zeros(3).int()}, "must not be given with offs"),
    "no ends": ({"offs": None}, "offs"),
    "D over A": ({"out": "a"}, "overlaps a"),
    "beta without C": ({"beta": 2.0}, "needs c"),
    "a bias for another number of groups": ({"bias": torch.zeros(3, 64)}, r"bias\.shape.*each of 2 groups"),
    "another tail": ({"tail": "none"}, "tail"),
    "splits": ({"spec": GemmSpec(split_k=2)}, "split_k"),
    "a name that nothing reads": ({"scale": 2.0}, "scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name):
    """Refused before anything is written."""
    given, message = REFUSED[name]
    a = torch.zeros(64, 64).bfloat16()
    given = {"a": a, "b": torch.zeros(2, 64, 64).bfloat16(), "offs": torch.zeros(2).int(), **given}
    given["a"] = a.T if given["a"] == "T" else a
    if given.get("out") == "a":
        given["out"] = a
    with pytest.raises((InputError, PlanError), match=message):
        cutegemm.grouped_mm(**given, fallback="emulator")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES)
@pytest.mark.parametrize("groups", [1, 8, 128])
@pytest.mark.parametrize("tail", ["zero", "undefined"])
def test_groups_on_the_gpu(shape, groups, tail):
    """The planner's kernels give every group's product and zero the rows behind the last one, also when replayed."""
    on = OnGpu(shape, groups)
    graph = on.captured(tail=tail)
    for _ in range(3):
        rows = on.moved()
        graph.replay()
        for group, (first, end) in enumerate(itertools.pairwise(rows)):
            if end > first:
                assert_close(on.d[first:end], on.a[first:end], on.b[group])
        assert torch.all(on.d[rows[-1] :] == (7.0 if tail == "undefined" else 0.0))


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 8, 128])
@pytest.mark.parametrize("shape", [(1536, 2048, 16), (256, 512, 4096), (1536, 2048, 3000)])
def test_groups_along_k_on_the_gpu(shape, groups):
    """A weight's gradient for each group, added to what is there in fp32."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(m + groups)
    a = torch.randn(k, m, generator=generator, device="cuda").bfloat16().T
    b = torch.randn(k, n, generator=generator, device="cuda").bfloat16()
    cuts = torch.randint(0, k + 1, (groups,), generator=torch.Generator().manual_seed(k)).sort().values
    rows = [0, *cuts.tolist()]
    d = torch.ones(groups, m, n, device="cuda")
    cutegemm.grouped_mm(a, b, cuts.cuda(), c=d, out=d, fallback="error")
    for group, (first, end) in enumerate(itertools.pairwise(rows)):
        told = a[:, first:end].double() @ b[first:end].double() + 1.0
        torch.testing.assert_close(d[group].double(), told, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count_on_the_gpu():
    """A and D of 2.25e9 elements, 4.5 GB each: rows before and behind the 2^31st element, and a group along K."""
    rows, width, place = 2_200_000, 1024, 2**31 // 1024
    if torch.cuda.mem_get_info()[0] < 11e9:
        pytest.skip("too little memory")
    a = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
    for part in a.split(100_000):
        part.normal_()
    b = torch.randn(3, width, width, device="cuda").bfloat16()
    ends = [1_000_000, place + 50, rows - 9]
    d = torch.full_like(a, 7.0)
    cutegemm.grouped_mm(a, b, torch.tensor(ends, device="cuda"), out=d, fallback="error")
    for first, end, group in (
        (0, 9, 0),
        (place - 100, place + 50, 1),
        (place + 50, place + 150, 2),
        (rows - 99, rows - 9, 2),
    ):
        assert_close(d[first:end], a[first:end], b[group])
    assert torch.all(d[-9:] == 0)
    # groups along K begin beyond 2^31 elements, too
    told = torch.tensor([0, place + 50, place + 550], device="cuda")
    found = cutegemm.grouped_mm(a.T, d, told, out_dtype=torch.float32, fallback="error")
    assert torch.all(found[0] == 0)
    last = slice(place + 50, place + 550)
    torch.testing.assert_close(found[2].double(), a[last].double().T @ d[last].double(), rtol=1e-3, atol=1.0)


@pytest.mark.gpu
def test_most_groups_along_k_are_empty_on_the_gpu():
    """Their tiles are zeros, those between them are not, in bf16 that TMA stores; again when replayed."""
    a, b = (
        torch.randn(300, 1536, device="cuda").bfloat16().T,
        torch.randn(300, 2048, device="cuda").bfloat16(),
    )
    ends = torch.zeros(128, dtype=torch.int32, device="cuda")
    d = torch.empty(128, 1536, 2048, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    cutegemm.grouped_mm(a, b, ends, out=d, fallback="error")
    with torch.cuda.graph(graph):
        cutegemm.grouped_mm(a, b, ends, out=d, fallback="error")
    for seed in range(3):
        counts = torch.zeros(128, dtype=torch.int64)
        counts[torch.randperm(128, generator=torch.Generator().manual_seed(seed))[:5]] = 60
        ends.copy_(counts.cumsum(0))
        d.fill_(7.0)
        graph.replay()
        for group, end in enumerate(counts.cumsum(0).tolist()):
            if counts[group]:
                assert_close(d[group], a[:, end - 60 : end], b[end - 60 : end])
            else:
                assert torch.all(d[group] == 0.0)
