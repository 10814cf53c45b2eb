# SPDX-License-Identifier: Apache-2.0
"""8-bit operands: sums that tensor cores keep in few bits are promoted to fp32, and operands are contiguous along K."""

import numpy as np
import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator, plan, problem
from cutegemm.emulator.numbers.tensor_core import Unit, accumulate
from cutegemm.epilogue import library
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import PlanError
from cutegemm.running.numerics.bounds import bound

pytestmark = pytest.mark.sliced

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def drawn(rows, cols, dtype, seed):
    """A matrix of normally distributed elements."""
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(dtype)


def emulated(spec, a, b, **named):
    """D on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings
    return run.d


@pytest.mark.parametrize(
    ("types", "fields"),
    [
        ((E4M3, E4M3), {}),
        ((E4M3, E5M2), {"tile": Tile(128, 64, 64), "schedule": "cooperative", "promote": 256}),
        ((E5M2, E4M3), {"tile": Tile(64, 72, 128), "schedule": "pingpong", "d_dtype": "fp32"}),
    ],
)
def test_results_are_those_of_fp64(types, fields):
    """Every pair of types, promoted never, after several stages and after one, with extents that no tile divides."""
    a, b = drawn(130, 400, types[0], 1), drawn(72, 400, types[1], 2).T
    d = emulated(GemmSpec(**fields), a, b)
    assert d.dtype == (torch.float32 if fields.get("d_dtype") else torch.bfloat16)
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


def test_long_sums_keep_their_bits():
    """1,024 products of one sign: truncated sums alone lose more than a percent, promoted ones a thousandth at most."""
    a, b = (drawn(*shape, E4M3, seed).abs() for shape, seed in (((64, 1024), 3), ((8, 1024), 4)))
    d = emulated(GemmSpec(tile=Tile(64, 8, 128), d_dtype="fp32", swap=False), a, b.T)
    exact = a.double() @ b.T.double()
    assert ((d.double() - exact).abs() / exact).max() < 1e-3


@pytest.mark.parametrize(
    ("promote", "fields"),
    [
        (64, {}),
        (256, {"tile": Tile(128, 64, 128)}),
        (512, {"tile": Tile(64, 72, 128), "schedule": "pingpong", "swap": False}),
        (256, {"tile": Tile(64, 64, 64), "stages": 1, "swap": False}),
        (256, {"tile": Tile(192, 24, 128), "sms": 2, "swap": False}),
    ],
)
def test_promotion_is_as_given(promote, fields):
    """Several stages between promotions, one of them in flight, and the last ones fewer; K no multiple of anything."""
    a, b = drawn(130, 600, E4M3, 11).abs(), drawn(72, 600, E4M3, 12).abs().T
    spec = GemmSpec(promote=promote, d_dtype="fp32", **fields)
    assert (
        plan(spec, problem(130, 72, 600, dtype="fp8", majors="kk", d_dtype="fp32")).config.promote == promote
    )
    d = emulated(spec, a, b)
    named = {"alpha": 1.0}
    limit = bound(linear_combination(False), a, b, named, {"d": d.dtype}, promote=promote)["d"]
    assert limit.complaint(d) is None


def test_a_longer_promotion_loses_more():
    """Sums of one sign: the error grows with the elements between promotions, and is largest where there are none."""
    a, b = (drawn(*shape, E4M3, seed).abs() for shape, seed in (((64, 2048), 13), ((8, 2048), 14)))
    exact, errors = a.double() @ b.T.double(), []
    for promote in (64, 128, 512, None):
        fields = {"tile": Tile(64, 8, min(promote or 128, 128)), "d_dtype": "fp32", "swap": False}
        d = emulated(GemmSpec(promote=promote, **fields), a, b.T)
        errors.append(((d.double() - exact).abs() / exact).mean().item())
    assert errors == sorted(errors) and errors[-1] > 4 * errors[1]


def test_other_types_are_promoted_where_that_is_asked_for():
    """bf16 sums of 128 elements are added up in fp32 registers."""
    a, b = drawn(64, 300, torch.bfloat16, 15), drawn(64, 300, torch.bfloat16, 16).T
    d = emulated(GemmSpec(promote=128), a, b)
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


def test_scales_of_tensors_are_the_epilogue_s():
    """D = acc * scale_a * scale_b, with scales that lie on the device."""
    a, b = drawn(64, 128, E4M3, 5), drawn(16, 128, E4M3, 6).T
    scales = {"scale_a": torch.tensor(0.5), "scale_b": torch.tensor(0.25)}
    d = emulated(GemmSpec(epilogue=library.scaled()), a, b, **scales)
    limit = bound(library.scaled(), a, b, scales, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


@pytest.mark.parametrize("load", ["relayout", "gather"])
@pytest.mark.parametrize(
    ("majors", "batch", "swap"), [("kn", (), False), ("mk", (), True), ("mn", (2,), False), ("kk", (), False)]
)
def test_operands_along_other_axes_are_turned(load, majors, batch, swap):
    """The instruction reads 8-bit operands along K only: others, and unaligned ones, are copied or gathered."""
    # memory begins behind a multiple of 16 bytes and ends with the last element
    a = drawn(1, batch[0] * 42 * 141 + 3 if batch else 42 * 141 + 3, E4M3, 7)[0, 3:].view(*batch, 42, 141)
    b = drawn(1, 141 * 27 + 7, E5M2, 8)[0, 7:].view(141, 27)
    a = a.view(*batch, 141, 42).mT if majors[0] == "m" else a
    b = b.view(27, 141).mT if majors[1] == "k" else b
    spec = GemmSpec(a_load=load, b_load=load, swap=swap)
    d = emulated(spec, a, b)
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_operands_along_other_axes_are_copied(dtype):
    """torch's plain `a @ b`, and what a backward pass multiplies: one launch transposes, and the plan says why."""
    for majors, turned in (("kn", "b"), ("mk", "a"), ("mn", "ab")):
        made = plan(GemmSpec(), problem(4096, 4096, 4096, dtype=dtype, majors=majors))
        assert [x.name for x in made.steps] == [f"relayout {' and '.join(turned)}", "gemm"]
        assert set(made.steps[0].config.units) == {"transposed"}
        assert sum("it is not contiguous along K" in x for x in made.reasons) == len(turned)
        assert {x.load for x in made.config.operands} == {"tma"}
    made = plan(GemmSpec(), problem(4096, 4096, 4096, dtype=dtype, majors="kk"))
    assert {x.load for x in made.config.operands} == {"tma"} and len(made.steps) == 1


def test_unaligned_operands_are_copied_by_rows():
    """Rows at no multiples of 16 bytes, one operand along K and one along N, in one launch; far below bf16's time."""
    made = plan(GemmSpec(), problem(1023, 1023, 1023, dtype="fp8", majors="kk"))
    assert made.steps[0].config.units == ("col", "row")
    made = plan(GemmSpec(), problem(1023, 1023, 1023, dtype="fp8", majors="kn"))
    assert made.steps[0].config.units == ("col", "transposed")
    assert made.why.taken.us < 0.9 * plan(GemmSpec(), problem(1023, 1023, 1023)).why.taken.us


def test_an_operand_of_few_bytes_may_be_gathered():
    """Where a launch more costs more than what threads gather: the cost model chooses, and `why` lists both."""
    made = plan(GemmSpec(), problem(64, 8, 64, dtype="fp8", majors="kn"))
    assert [x.name for x in made.steps] == ["gemm"]
    assert {dict(x.fields).get("b_load") for x in made.why.weighed} == {"gather", "relayout"}


@pytest.mark.parametrize("kinds", [("row", "tensor"), (("block", 1, 128), ("block", 128, 128))], ids=str)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_scales_lie_as_they_are_where_operands_are_copied(kinds, batch):
    """Both operands along other axes than K, which no block divides: copies and scales do not meet."""
    a, b = drawn(64, 300, E4M3, 17), drawn(300, 75, E4M3, 18)
    a = a.mT.contiguous().mT.expand(*batch, -1, -1)
    free = (64, 75)
    shapes = [
        () if x == "tensor" else (free[i],) if x == "row" else (-(-free[i] // x[1]), 3)
        for i, x in enumerate(kinds)
    ]
    draw = torch.Generator().manual_seed(19)
    scales = {f"scale_{x}": torch.rand(y, generator=draw) + 0.5 for x, y in zip("ab", shapes, strict=True)}
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], a_load="relayout", b_load="relayout")
    d = emulated(spec, a, b, **scales)
    limit = bound(spec.epilogue, a, b.expand(*batch, -1, -1), scales, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


def test_pack_turns_operands_once():
    """What was packed is loaded by TMA: along K if nothing else is said."""
    b = drawn(141, 27, E4M3, 8)
    packed = cutegemm.pack(b, "b")
    assert torch.equal(packed.float(), b.float()) and packed.stride(0) == 1 and packed.stride(1) % 128 == 0
    made = plan(
        GemmSpec(),
        problem(128, 27, 141, dtype="fp8", a=cutegemm.pack(drawn(128, 141, E4M3, 1), "a"), b=packed),
    )
    assert {x.load for x in made.config.operands} == {"tma"} and len(made.steps) == 1


def test_stages_are_128_bytes_deep():
    """Depth follows from bytes: a stage of 8-bit operands of a large GEMM is 128 elements deep."""
    config = plan(GemmSpec(), problem(4096, 4096, 4096, dtype="fp8", majors="kk")).config
    assert config.tile[2] == 128 and {x.swizzle for x in config.operands} == {"128B"}


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("dtype", "promote"), [("bf16", 256), ("fp8_e4m3", 256), ("fp16", 128), ("fp32", 128)]
)
def test_coarse_outputs_are_promoted_half_as_often(dtype, promote):
    """Eight significant bits hide the error of sums over 256 elements; a reduction in fp32 does not."""
    kind = {"dtype": "fp8", "majors": "kk", "d_dtype": dtype}
    assert plan(GemmSpec(d_dtype=dtype), problem(64, 64, 2048, **kind)).config.promote == promote
    reduced = library.row_max()
    kind["epilogue"] = reduced
    assert (
        plan(GemmSpec(d_dtype=dtype, epilogue=reduced), problem(64, 64, 2048, **kind)).config.promote == 128
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tile": Tile(64, 72, 128), "schedule": "pingpong", "sms": 1},
        {"tile": Tile(64, 72, 128), "schedule": "multistage"},
        {"d_dtype": "fp8_e4m3", "tile": Tile(128, 40, 64), "schedule": "cooperative"},
    ],
    ids=str,
)
def test_short_sums_of_coarse_outputs_stay_in_the_tensor_cores(fields):
    """Bit for bit the instruction's sums of one sign, rounded once; promoted sums have other bits, and bounds too."""
    a, b = drawn(130, 500, E4M3, 23).abs(), drawn(72, 500, E4M3, 24).abs()
    d = emulated(GemmSpec(swap=False, **fields), a, b.T, alpha=0.25)
    factors = (torch.nn.functional.pad(x.float(), (0, 12))[None].numpy() for x in (a, b))
    sums = accumulate(*factors, np.zeros((1, 130, 72), np.float32), Unit("e4m3", "f32", 32))[0]
    assert torch.equal(d.float(), (torch.from_numpy(sums) * 0.25).to(d.dtype).float())
    promoted = emulated(GemmSpec(promote=256, **fields | {"schedule": "cooperative"}), a, b.T, alpha=0.25)
    assert not torch.equal(d.float(), promoted.float())
    limits = [
        bound(linear_combination(False), a, b.T, {"alpha": 0.25}, {"d": d.dtype}, promote=x)["d"]
        for x in (0, None, 256)
    ]
    assert [x.complaint(d) is None for x in limits] == [True, True, False]


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ((16, 70, 1000), {"tile": Tile(64, 32, 128)}),  # 8 stages
        ((16, 64, 896), {"tile": Tile(64, 32, 128)}),  # 7 stages
        ((64, 72, 128), {"tile": Tile(64, 64, 128), "schedule": "pingpong", "sms": 1}),  # one stage a tile
        ((130, 72, 384), {"tile": Tile(64, 64, 128), "schedule": "pingpong", "sms": 1}),
        ((64, 136, 640), {"tile": Tile(64, 64, 128), "split_k": 2}),
        ((64, 136, 96), {"tile": Tile(64, 64, 32), "promote": 32}),  # one instruction a stage
        ((64, 136, 300), {"tile": Tile(64, 32, 96), "promote": 96}),  # three
    ],
)
def test_lone_warpgroups_promote_one_stage_while_they_multiply_the_next(shape, fields):
    """Two sets of partial sums, of tiles that one warpgroup computes: any number of stages, races on."""
    m, n, k = shape
    a, b = drawn(m, k, E4M3, 21), drawn(n, k, E4M3, 22).T
    spec = GemmSpec(**{"promote": 128, "swap": False, "d_dtype": "fp32", **fields})
    assert plan(spec, problem(m, n, k, dtype="fp8", majors="kk", d_dtype="fp32")).config.partial_sets == 2
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": torch.float32}, promote=spec.promote)
    assert limit["d"].complaint(emulated(spec, a, b)) is None


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"schedule": "simt"},
            "schedule='simt': fp8_e4m3 operands run on tensor cores; nearest legal value: 'auto'",
        ),
        (
            {"schedule": "multistage"},
            "schedule='multistage': partial sums are promoted to fp32, which needs a producer; "
            "nearest legal value: 'cooperative'",
        ),
        (
            {"a_load": "shift"},
            "a_load='shift': fp8_e4m3 operands are loaded by TMA, copied first or gathered by threads; "
            "nearest legal value: 'tma'",
        ),
        (
            {"tile": Tile(64, 64, 256), "promote": 128},
            "tile.k=256: must divide the 128 elements of K after which partial sums are promoted; nearest legal value: "
            "128",
        ),
        (
            {"tile": Tile(128, 256, 128), "swap": False},
            "tile.n=256: 2 consumer warpgroups hold 256 accumulators per thread, more than 208; "
            "nearest legal value: 208",
        ),
        (
            {"promote": 48},
            "promote=48: must be a multiple of the 32 elements of K that an instruction multiplies; "
            "nearest legal value: 64",
        ),
        (
            {"promote": 64, "tile": Tile(128, 128, 128)},
            "tile.k=128: must divide the 64 elements of K after which partial sums are promoted; nearest legal value: "
            "64",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(fields, told):
    """A load, a schedule or a tile that 8-bit operands cannot have."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), problem(256, 256, 2048, dtype="fp8", majors="kk"))
    assert str(e.value).splitlines()[0] == told


@pytest.mark.gpu
@pytest.mark.parametrize("majors", ["kn", "mk", "mn", "kk"])
@pytest.mark.parametrize("shape", [(512, 512, 4096), (16, 1000, 784), (301, 203, 75)], ids=str)
def test_copied_operands_on_a_gpu(majors, shape):
    """Every pair of majors, aligned and not, within the bounds of fp64; memory ends with the last element."""
    m, n, k = shape
    a = drawn(k, m, E4M3, 20).cuda().T if majors[0] == "m" else drawn(m, k, E4M3, 20).cuda()
    b = drawn(n, k, E4M3, 21).cuda().T if majors[1] == "k" else drawn(k, n, E4M3, 21).cuda()
    d = Gemm(GemmSpec(a_load="relayout", b_load="relayout")).run(a, b)
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None


@pytest.mark.gpu
@pytest.mark.parametrize("types", [(x, y) for x in (E4M3, E5M2) for y in (E4M3, E5M2)], ids=str)
@pytest.mark.parametrize("shape", [(512, 512, 4096), (16, 1000, 784), (300, 200, 75)], ids=str)
def test_results_on_a_gpu(types, shape):
    """Every pair of types by TMA and gathered, of few rows and of long sums, within the bounds of fp64."""
    m, n, k = shape
    a, b = drawn(m, k, types[0], 9).cuda(), drawn(n, k, types[1], 10).cuda().T
    d = Gemm(GemmSpec()).run(a, b)
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is None
