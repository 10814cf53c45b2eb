# SPDX-License-Identifier: Apache-2.0
"""Scales of operands, of each kind, beside fp64: sums of blocks of K times their scales, in every kernel that adds."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, plan, problem
from cutegemm import epilogue as epi
from cutegemm.compiling.compiler import compile_config
from cutegemm.compiling.resources import sass
from cutegemm.config.shared import SharedPlan, staggers
from cutegemm.epilogue.scaling import PLAIN
from cutegemm.errors import GemmError
from tests.support.profile import cases
from tests.support.scales import E4M3, KINDS, ROWS, SHAPE, SQUARES, check, drawn, emulated, operands, scale

pytestmark = pytest.mark.sliced


@pytest.mark.parametrize(
    "kinds",
    [
        *itertools.product((ROWS, SQUARES), (ROWS, SQUARES)),
        ("tensor", ROWS),
        (ROWS, "row"),
        ("row", SQUARES),
        (SQUARES, "tensor"),
        ("row", "tensor"),
    ],
    ids=str,
)
def test_every_kind_of_both(kinds):
    """Extents that no block and no tile divides, K among them; a kernel of the planner's choice."""
    a, b, named = operands(SHAPE, kinds)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype="fp32")
    check(spec, a, b, emulated(spec, a, b, **named), named)


@pytest.mark.parametrize(
    ("kinds", "shape", "fields"),
    [
        ((ROWS, SQUARES), (130, 200, 1040), {"split_k": 3}),
        ((ROWS, SQUARES), (130, 200, 1040), {"split_k": 2, "split_reduction": "launch"}),
        ((SQUARES, ROWS), (200, 400, 512), {"scheduler": "stream_k", "sms": 3, "swap": False}),
        ((ROWS, SQUARES), (300, 400, 400), {"scheduler": "dynamic", "sms": 2, "swap": False}),
        ((SQUARES, ROWS), (300, 200, 400), {"schedule": "pingpong", "sms": 2, "tile": Tile(128, 24, 128)}),
        ((ROWS, SQUARES), (130, 400, 272), {"tile": Tile(128, 80, 128), "cluster": (2, 1), "swap": False}),
        ((SQUARES, SQUARES), (300, 400, 272), {"tile": Tile(128, 192, 128), "swap": False}),
        ((SQUARES, ROWS), (50, 300, 400), {"tile": Tile(24, 128, 128), "swap": True}),
        ((ROWS, ROWS), (300, 40, 400), {"tile": Tile(256, 16, 128), "consumers": 2, "swap": False}),
        ((ROWS, ROWS), (300, 100, 400), {"tile": Tile(192, 24, 128), "sms": 2, "swap": False}),
        ((ROWS, ROWS), (300, 100, 272), {"tile": Tile(256, 96, 128), "sms": 1, "swap": False}),
        ((ROWS, ROWS), (200, 100, 272), {"tile": Tile(192, 96, 128), "sms": 1, "swap": False}),
        ((ROWS, ROWS), (200, 200, 272), {"tile": Tile(128, 160, 128), "sms": 1, "swap": False}),
    ],
)
def test_every_way_of_adding(kinds, shape, fields):
    """Splits, tile schedulers, clusters, tiles that straddle blocks, several passes over rows, operands swapped,
    three warpgroups that issue in turn.
    """
    a, b, named = operands(shape, kinds, seed=4)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype="fp32", **fields)
    check(spec, a, b, emulated(spec, a, b, **named), named)


@settings(max_examples=cases(3, 100))
@given(
    st.tuples(st.integers(1, 160), st.integers(1, 160), st.integers(1, 400)),
    st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    st.integers(0, 1000),
)
def test_any_problem(shape, kinds, seed):
    """Drawn extents and kinds: the planner's kernel, odd leading dimensions too, gives what torch's reference does."""
    a, b, named = operands(shape, kinds, seed)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1])
    check(spec, a, b, emulated(spec, a, b, **named), named)
    check(spec, a, b, Gemm(spec).run(a, b, **named), named)


@pytest.mark.parametrize("kinds", [(ROWS, SQUARES), (SQUARES, ROWS)], ids=str)
def test_scales_may_be_exponents(kinds):
    """ue8m0, by type or as bytes: the bits that fp32 scales of the same value give; 0 is 2**-127, 255 is NaN."""
    a, b, named = operands(SHAPE, kinds)
    draw = torch.Generator().manual_seed(3)
    given = {k: torch.randint(120, 134, x.shape, generator=draw, dtype=torch.uint8) for k, x in named.items()}
    given["scale_a"][0, 1], given["scale_b"][1, 2], given["scale_b"][0, 0] = 0, 1, 255
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype="fp32")
    d = emulated(spec, a, b, **given)
    check(spec, a, b, d, given)
    numbers = {
        k: torch.where(x == 255, torch.nan, 2.0 ** (x.double() - 127)).float() for k, x in given.items()
    }
    for other in (
        numbers,
        {k: x.view(torch.float8_e8m0fnu) for k, x in given.items()},
        {"scale_a": given["scale_a"].T.contiguous().T, "scale_b": numbers["scale_b"]},
    ):
        assert d.isnan().any() and torch.equal(
            emulated(spec, a, b, **other).nan_to_num(7.0), d.nan_to_num(7.0)
        )


def test_scales_lie_as_libraries_have_them():
    """One kernel, the same bits: torch's column-major ones, DeepGEMM's padded rows, weights' with K blocks padded."""
    a, b, named = operands(SHAPE, (ROWS, SQUARES))
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES)
    expected = emulated(spec, a, b, **named)
    m, blocks = named["scale_a"].shape
    padded = torch.full((blocks, -(-m // 4) * 4), torch.nan)
    padded[:, :m] = named["scale_a"].T
    longer = torch.full((named["scale_b"].shape[0], 8), torch.nan)
    longer[:, :blocks] = named["scale_b"]
    for scale_a, scale_b in (
        (named["scale_a"].T.contiguous().T, longer[:, :blocks]),
        (padded.T[:m], longer[:, :4]),
        (padded.T[:m], named["scale_b"].T.contiguous().T),
    ):
        assert torch.equal(emulated(spec, a, b, scale_a=scale_a, scale_b=scale_b), expected)


def test_batches_have_scales_of_their_own_or_share_them():
    """A scale for each batch of A's, one for all of B's."""
    a, b = drawn(3, 70, 272, seed=8), drawn(40, 272, seed=9).T
    named = {"scale_a": scale(ROWS, 70, 272, 1, (3,)), "scale_b": scale(SQUARES, 40, 272, 2)}
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES)
    check(spec, a, b, emulated(spec, a, b, **named), named)


@pytest.mark.sliced(False)
@pytest.mark.parametrize(("fields", "counts"), [({}, range(1, 5)), ({"tile": Tile(128, 176, 128)}, [11])])
def test_the_planner_avoids_wide_tiles_of_many_scales(fields, counts):
    """A tile of 176 columns has eleven groups of 16, which lie in one block wherever it begins; it may be given."""
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES, d_dtype="bf16", swap=False, **fields)
    asked = problem(2048, 7168, 4096, dtype="fp8", majors="kk", d_dtype="bf16", epilogue=spec.epilogue)
    config = plan(spec, asked, database=False).config
    assert config.scales_of(config.epilogue.scales[1]) in counts


@pytest.mark.parametrize("kinds", [(ROWS, SQUARES), (ROWS, ROWS)], ids=str)
def test_wgmmas_of_a_stage_follow_one_another(kinds):
    """Threads wait once for each row of wgmmas that they scale, not after every wgmma (ptxas C7511)."""
    spec = GemmSpec(
        scale_a=kinds[0], scale_b=kinds[1], tile=Tile(256, 64, 128), consumers=2, swap=False, d_dtype="bf16"
    )
    config = plan(spec, problem(1024, 1024, 1024, dtype="fp8", majors="kk", epilogue=spec.epilogue)).config
    code = sass(compile_config(config).cubin)
    assert code.count("QGMMA") == 2 * 4 and code.count("WARPGROUP.DEPBAR") == 2


def test_scales_of_columns_are_read_before_the_wgmmas_in_words():
    """Four columns or two rows at once; no read comes between the WGMMAs of a stage, which would wait for it."""
    spec = GemmSpec(
        scale_a=ROWS, scale_b=ROWS, tile=Tile(128, 128, 128), consumers=2, swap=False, d_dtype="bf16"
    )
    config = plan(spec, problem(1024, 1024, 1024, dtype="fp8", majors="kk", epilogue=spec.epilogue)).config
    assert staggers(config) and not staggers(
        dataclasses.replace(config, epilogue=PLAIN, inputs=(), promote=0)
    )
    code = sass(compile_config(config).cubin)
    first, *rest = code.split("QGMMA")
    assert first.count("LDS.128") == 8 and not any("LDS" in x for x in rest[:-1])


def test_every_thread_that_loads_scales_arrives_on_a_stage():
    """Three warps beside TMA's thread; with gathered operands beside the producer's 128 threads."""
    for load, arrivals in (("auto", 1 + 96), ("gather", 128 + 96)):
        spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES, a_load=load, b_load=load)
        made = plan(spec, problem(256, 256, 512, dtype="fp8", majors="kk", epilogue=spec.epilogue))
        gathered = SharedPlan.of(made.config)
        assert gathered.barrier("full").arrivals == arrivals + made.config.copies * made.config.gathers


def test_the_epilogue_sees_scaled_sums():
    """A bias after scales; a gated pair whose A has blocks."""
    a, b, named = operands((130, 80, 272), (ROWS, SQUARES))
    named["bias"] = torch.randn(80)
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES, epilogue=epi.bias_act("relu"))
    check(spec, a, b, emulated(spec, a, b, **named), named)
    a, b, named = operands((130, 80, 272), (ROWS, "tensor"))
    for swap in (False, True):
        spec = GemmSpec(scale_a=ROWS, scale_b="tensor", epilogue=epi.swiglu(), swap=swap)
        check(spec, a, b, emulated(spec, a, b, **named), named)


def test_nan_reaches_what_it_scales_and_nothing_else():
    """NaN of one block is NaN of its rows."""
    a, b, named = operands(SHAPE, (ROWS, SQUARES))
    named["scale_a"][7, 2] = torch.nan
    d = emulated(GemmSpec(scale_a=ROWS, scale_b=SQUARES), a, b, **named)
    assert d[7].isnan().all() and d.isnan().sum() == d.shape[1]


def test_types_of_more_bits_may_have_scales_of_blocks():
    """bf16 sums of 128 elements are scaled as those of fp8 are."""
    a, b, named = operands((64, 64, 272), (ROWS, SQUARES))
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES)
    d = emulated(spec, a.bfloat16(), b.bfloat16(), **named)
    check(spec, a.bfloat16(), b.bfloat16(), d, named)


def test_a_spec_with_scales_is_the_same_again():
    """Fields replaced, or read back from its own epilogue: the scales are applied once."""
    spec = GemmSpec(scale_a="row", scale_b=SQUARES)
    again = dataclasses.replace(spec, tile=Tile(64, 64, 128))
    assert again.epilogue == spec.epilogue
    assert GemmSpec(scale_a="row", scale_b=["block", 128, 128]) == spec
    both = GemmSpec(scale_a="row", scale_b="row").epilogue
    assert str(both) == "d = acc * scale_a * scale_b" and both == epi.scaled("both")


REFUSED = [
    (
        {"scale_a": "rows"},
        "scale_a='rows': must be 'tensor', 'row', ('block', 1, 128) or ('block', 128, 128)",
    ),
    ({"scale_b": ("block", 128)}, "scale_b=('block', 128): must be 'tensor', 'row', ('block', 1, 128)"),
    ({"scale_b": None}, "scale_b=None: must be"),
    (
        {"scale_a": ROWS, "promote": 256},
        "promote=256: block scales multiply partial sums of 128 elements of K",
    ),
    ({"scale_a": ROWS, "promote": None}, "promote=None: block scales multiply partial sums of 128"),
    (
        {"scale_b": "row", "epilogue": epi.swiglu()},
        "scale_b='row': a gated pair has one scale for B; nearest legal value: 'tensor'",
    ),
    (
        {"scale_a": ROWS, "epilogue": epi.scaled("row")},
        "scale_a=('block', 1, 128): the epilogue has another input or output of this name",
    ),
]


@pytest.mark.sliced(False)
@pytest.mark.parametrize(("fields", "told"), REFUSED)
def test_a_spec_refuses_what_no_kernel_has(fields, told):
    """Kinds, promotions and epilogues that scales exclude."""
    with pytest.raises(GemmError) as e:
        GemmSpec(**fields)
    assert str(e.value).startswith(told)


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"scale_a": None}, "scale_a: missing; the mainloop multiplies by it, one scale per block"),
        ({"scale": torch.ones(1)}, "scale='...': the epilogue reads scale_a, scale_b"),
        ({"scale_a": torch.ones(1, 130, 4)}, "scale_a.shape=(1, 130, 4): must be (130, 4), one for each"),
        ({"scale_a": torch.ones(130)}, "scale_a.shape=(130,): must have 2 or 3 dimensions"),
        (
            {"scale_a": torch.ones(130, 3)},
            "scale_a.shape=(130, 3): must be (130, 4), one for each 1 x 128 of A, M x K",
        ),
        (
            {"scale_b": torch.ones(4, 2)},
            "scale_b.shape=(4, 2): must be (2, 4), one for each 128 x 128 of B, N x K",
        ),
        ({"scale_b": torch.ones(2, 4, dtype=torch.float64)}, "scale_b.dtype=torch.float64: must be float32"),
        ({"scale_b": torch.ones(2, 4, device="meta")}, "scale_b.device='meta': must be a's device, cpu"),
    ],
)
def test_a_run_refuses_scales_that_do_not_fit(changed, told):
    """Missing, too many, of the wrong rank, shape, type or device; nothing is written."""
    a, b, named = operands(SHAPE, (ROWS, SQUARES))
    out = torch.full(SHAPE[:2], 7.0, dtype=torch.bfloat16)
    with pytest.raises(GemmError) as e:
        Gemm(GemmSpec(scale_a=ROWS, scale_b=SQUARES)).run(a, b, out=out, **named | changed)
    assert str(e.value).startswith(told) and (out == 7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_scales_of_rows_may_have_16_bits(dtype):
    """As compressed-tensors stores them: the bits that the same numbers give in fp32."""
    a, b, named = operands(SHAPE, ("row", "row"))
    spec, narrow = GemmSpec(scale_a="row", scale_b="row"), {name: x.to(dtype) for name, x in named.items()}
    assert torch.equal(
        emulated(spec, a, b, **narrow), emulated(spec, a, b, **{k: x.float() for k, x in narrow.items()})
    )


@pytest.mark.sliced(False)
@pytest.mark.parametrize("types", [(E4M3, E4M3), (torch.int8, torch.uint8)], ids=str)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"scale_a": torch.ones(8).to(E4M3)},
            "scale_a.dtype=torch.float8_e4m3fn: must be float16,",
        ),
        (
            {"scale_a": torch.ones(8, dtype=torch.int32)},
            "scale_a.dtype=torch.int32: must be float16,",
        ),
        ({"scale_b": True}, "scale_b=True: must be a number or a 0-d fp32 tensor"),
        ({"scale_b": torch.ones((), dtype=torch.bool)}, "scale_b.dtype=torch.bool: must be float32"),
    ],
)
def test_scales_are_floating_point_numbers(types, changed, told):
    """Integers would be multiplied in 32 bits, values of 8 bits are operands, and a truth value is a mistake."""
    a, b = (torch.ones(8, 16).to(x) for x in types)
    for call in (Gemm(GemmSpec(scale_a="row", scale_b="tensor")).run, cutegemm.matmul):
        with pytest.raises(GemmError) as e:
            call(a, b.T, **{"scale_a": torch.ones(8), "scale_b": 1.0} | changed)
        assert str(e.value).startswith(told)


def test_cuda_cores_have_no_scales_of_blocks():
    """fp32 operands are refused, an empty K is not: there is nothing to scale."""
    spec = GemmSpec(scale_a=ROWS, scale_b="tensor")
    with pytest.raises(GemmError) as e:
        plan(spec, problem(64, 64, 64, dtype="fp32", epilogue=spec.epilogue))
    told = (
        "scale_a=('block', 1, 128): scales of blocks multiply partial sums of the tensor cores: fp32 operands"
    )
    assert str(e.value).startswith(told) and "nearest legal value: 'row'" in str(e.value)
    a, b, named = operands((64, 8, 0), (ROWS, "tensor"))
    assert (emulated(spec, a, b, **named) == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)), ids=str)
@pytest.mark.parametrize(
    "shape", [(512, 384, 2048), (16, 1000, 784), (300, 200, 75), (1, 4096, 7168)], ids=str
)
def test_results_on_a_gpu(kinds, shape):
    """Every pair of kinds, by TMA and gathered, of few rows and of long sums, within the bounds of fp64."""
    a, b, named = operands(shape, kinds)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1])
    d = Gemm(spec).run(a.cuda(), b.cuda(), **{name: x.cuda() for name, x in named.items()})
    check(spec, a, b, d.cpu(), named)


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [(ROWS, SQUARES), (SQUARES, ROWS), (ROWS, ROWS)], ids=str)
@pytest.mark.parametrize("shape", [(512, 384, 2048), (16, 1000, 784)], ids=str)
def test_exponents_on_a_gpu(kinds, shape):
    """ue8m0 scales give the bits of fp32 scales of the same value."""
    a, b, named = operands(shape, kinds)
    draw = torch.Generator().manual_seed(3)
    given = {k: torch.randint(120, 134, x.shape, generator=draw, dtype=torch.uint8) for k, x in named.items()}
    numbers = {k: (2.0 ** (x.double() - 127)).float() for k, x in given.items()}
    gemm = Gemm(GemmSpec(scale_a=kinds[0], scale_b=kinds[1]))
    run = lambda scales: gemm.run(a.cuda(), b.cuda(), **{k: x.cuda() for k, x in scales.items()}).cpu()
    check(gemm.spec, a, b, run(given), given)
    assert torch.equal(run(given), run(numbers))
