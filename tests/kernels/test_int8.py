# SPDX-License-Identifier: Apache-2.0
"""8-bit integers: sums are exact in int32, however they are added; scaled ones are rounded once, and saturate."""

import dataclasses

import pytest
import torch

from cutegemm import Gemm, GemmSpec, Tile, plan, problem
from cutegemm.dtypes import as_dtype
from cutegemm.errors import PlanError
from cutegemm.running.numerics.bounds import bound
from tests.support.integers import INT8, UINT8, drawn, emulated

pytestmark = pytest.mark.sliced


@pytest.mark.parametrize(
    ("types", "shape", "fields"),
    [
        ((INT8, INT8), (130, 72, 400), {}),
        ((UINT8, INT8), (1, 200, 1040), {}),
        ((INT8, UINT8), (130, 75, 401), {}),
        ((UINT8, UINT8), (130, 200, 1040), {"split_k": 2, "split_reduction": "launch"}),
        (
            (INT8, INT8),
            (130, 200, 1040),
            {"split_k": 2, "split_reduction": "cluster", "tile": Tile(128, 48, 128)},
        ),
        ((INT8, INT8), (300, 200, 400), {"scheduler": "stream_k", "sms": 3}),
        ((INT8, INT8), (130, 200, 400), {"schedule": "multistage"}),
        ((INT8, UINT8), (300, 96, 400), {"schedule": "pingpong", "sms": 2}),
    ],
)
def test_sums_are_exact(types, shape, fields):
    """Every pair of types, aligned or not, of one row, in splits, by every schedule: each bit of int32."""
    m, n, k = shape
    a, b = drawn(m, k, types[0], 1), drawn(n, k, types[1], 2).T
    d = emulated(GemmSpec(**fields), a, b)
    assert d.dtype == torch.int32 and torch.equal(d.long(), a.long() @ b.long())


def test_a_number_scales_sums_of_blocks_into_int32():
    """Scaled sums are fp32, which int32 takes rounded, times 1 as well."""
    a, b = drawn(70, 300, INT8, 1), drawn(24, 300, UINT8, 2).T
    spec = GemmSpec(scale_a=("block", 1, 128), scale_b="tensor", d_dtype="int32")
    powers = torch.tensor([1.0, 0.5, 0.25]).expand(70, 3)
    for factor in (1.0, 0.5):
        d = emulated(spec, a, b, scale_a=powers, scale_b=factor)
        exact = (a.double() * powers[0].repeat_interleave(128)[:300].double()) @ b.double() * factor
        assert torch.equal(d.double(), exact.round())


def test_large_sums_are_exact_and_saturate():
    """fp32 holds 24 bits of a sum; beyond 32 bits it is the largest integer."""
    a = torch.full((64, 33_152), 255, dtype=UINT8)
    b = torch.full((33_152, 8), 255, dtype=UINT8)
    b[33_025:, 0] = 0
    b[33_024, 0] = 7
    d = emulated(GemmSpec(swap=False, tile=Tile(64, 8, 128)), a, b)
    assert d[0, 0] == 255 * (33_024 * 255 + 7) and d[0, 1] == 2**31 - 1
    assert torch.equal(d.long(), (a.long() @ b.long()).clamp(max=2**31 - 1))


def test_deep_sums_saturate_under_the_default_plan(monkeypatch):
    """Partial sums of splits would wrap around as they are added. Scales multiply the saturated sum."""
    a = torch.full((1, 140_000), -128, dtype=INT8)
    assert plan(GemmSpec(), problem(1, 1, 131_071, dtype="int8", majors="kk")).config.splits > 1
    assert emulated(GemmSpec(), a, a.T).item() == 2**31 - 1
    scaled, named = GemmSpec(scale_a="tensor", d_dtype="fp32"), {"scale_a": 2.0**-24}
    assert emulated(scaled, a, a.T, **named).item() == Gemm(scaled).run(a, a.T, **named).item() == 128
    # saturates halfway, after which products of the other sign lead anywhere
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    d = Gemm(GemmSpec()).run(torch.cat([a, a], 1), torch.cat([a, -1 - a], 1).T, backend="emulator")
    assert d.item() != 140_000 * 128


def test_another_alpha_rounds():
    """alpha is fp32's: D is the nearest integer, to even."""
    a, b = drawn(64, 64, INT8, 3), drawn(64, 8, INT8, 4)
    d = emulated(GemmSpec(), a, b, alpha=0.5)
    assert torch.equal(d.double(), ((a.double() @ b.double()) / 2).round())


@pytest.mark.parametrize("d_dtype", ["bf16", "fp16", "fp32", "int8", "uint8"])
def test_scaled_sums(d_dtype):
    """Scales of rows and of blocks; D rounded, and saturated where it holds integers. NaN is 0 there."""
    a, b = drawn(130, 400, INT8, 5), drawn(72, 400, INT8, 6).T
    draw = torch.Generator().manual_seed(7)
    for kinds, shapes in ((("row", "row"), ((130,), (72,))), ((("block", 1, 128), "tensor"), ((130, 4), ()))):
        named = {f"scale_{x}": torch.rand(shape, generator=draw) * 0.3 for x, shape in zip("ab", shapes)}
        named["scale_a"].view(-1)[:1] = torch.nan
        spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype=d_dtype)
        d = emulated(spec, a, b, **named)
        complaint = bound(spec.epilogue, a, b, named, {"d": d.dtype})["d"].complaint(d[:])
        assert complaint is None, complaint
        assert d.dtype.is_floating_point or (d[0] == 0).all() and d.max() == torch.iinfo(d.dtype).max


def test_a_scaled_d_is_bf16_by_default():
    """Without an epilogue D is int32."""
    fused = GemmSpec(scale_a="tensor", scale_b="tensor")
    assert problem(64, 64, 64, dtype="int8").d.dtype.value == "int32"
    assert problem(64, 64, 64, dtype="int8", epilogue=fused.epilogue).d.dtype.value == "bf16"
    d = Gemm(fused).run(drawn(8, 8, INT8, 1), drawn(8, 8, INT8, 2), scale_a=1.0, scale_b=1.0)
    assert d.dtype == torch.bfloat16


@pytest.mark.sliced(False)
@pytest.mark.parametrize("dtype", ["int8", "bf16", "float8_e4m3fn"])
@pytest.mark.parametrize("c_dtype", [None, "fp16"])
def test_a_problem_says_the_type_that_a_run_gives_d(dtype, c_dtype):
    """Sums of integers are int32; with C added they are bf16, as those of fp8."""
    kind = getattr(torch, {"bf16": "bfloat16"}.get(dtype, dtype))
    a, b = torch.ones(8, 16).to(kind), torch.ones(16, 8).to(kind)
    c = () if c_dtype is None else (torch.ones(8, 8).half(),)
    d = Gemm(GemmSpec()).run(a, b, *c, beta=1.0 if c else 0.0)
    assert problem(8, 8, 16, dtype=dtype, c_dtype=c_dtype).d.dtype == as_dtype(d.dtype)


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"split_k": 2, "split_reduction": "atomic"},
            "split_reduction='atomic': atomics add fp32 sums, not those of integers; nearest legal value: 'workspace'",
        ),
        (
            {"tile": Tile(128, 40, 128), "swap": False},
            "tile.n=40: no wgmma of int8 and int8 has 40 columns; nearest legal value: 32",
        ),
        (
            {"schedule": "simt"},
            "schedule='simt': int8 operands run on tensor cores; nearest legal value: 'auto'",
        ),
        (
            {"promote": 128},
            "promote=128: sums of products of int8 are exact, and would not be in fp32; nearest legal value: 'auto'",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(fields, told):
    """A reduction, a width or a schedule that integers cannot have."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), problem(256, 256, 1024, dtype="int8", majors="kk"))
    assert str(e.value).splitlines()[0] == told


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("fields", "field", "nearest"),
    [
        ({"split_k": 2}, "split_k=2", "1"),
        ({"scheduler": "stream_k"}, "scheduler='stream_k'", "'persistent'"),
        ({"cluster": (1, 1, 2)}, "cluster=(1, 1, 2)", "(1, 1)"),
    ],
)
@pytest.mark.parametrize(
    ("types", "deepest"), [(("int8", "int8"), 131_071), (("uint8", "int8"), 65_793), (("uint8",) * 2, 33_025)]
)
def test_splits_of_sums_that_may_saturate_are_refused(fields, field, nearest, types, deepest):
    """Up to the depth at which the largest products fill 32 bits they are served."""
    shallow, deep = (
        dataclasses.replace(x, b=dataclasses.replace(x.b, dtype=types[1]))
        for x in (problem(64, 64, k, dtype=types[0], majors="kk") for k in (deepest, deepest + 1))
    )
    plan(GemmSpec(**fields), shallow)
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), deep)
    assert str(e.value).splitlines()[0] == (
        f"{field}: sums of {deepest + 1:,} products may exceed int32, where they saturate; those of splits saturate "
        f"apart; nearest legal value: {nearest}"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("types", [(x, y) for x in (INT8, UINT8) for y in (INT8, UINT8)], ids=str)
@pytest.mark.parametrize("shape", [(512, 512, 4096), (1, 1000, 784), (300, 200, 75)], ids=str)
def test_results_on_a_gpu(types, shape):
    """Every pair of types by TMA and copied, of one row and of long sums: each bit."""
    m, n, k = shape
    a, b = drawn(m, k, types[0], 9), drawn(n, k, types[1], 10).T
    assert torch.equal(Gemm(GemmSpec()).run(a.cuda(), b.cuda()).cpu().long(), a.long() @ b.long())
