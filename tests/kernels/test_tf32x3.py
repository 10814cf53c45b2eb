# SPDX-License-Identifier: Apache-2.0
"""`math="tf32x3"`: fp32 on the tensor cores, as three products of elements in two parts of tf32."""

import functools

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, plan, problem
from cutegemm import epilogue as epi
from cutegemm.errors import GemmError
from cutegemm.running.numerics.bounds import bound
from tests.support.tf32 import LONG, ODD, SMALL, drawn, emulated, error, operands
from tests.support.tf32 import complaint as complaint_of

pytestmark = pytest.mark.sliced

SPEC = GemmSpec(math="tf32x3")
# relative to the norm of D on randn: fp32's own error, and what three products are held to
FP32, TWICE = 1.6e-7, 2

complaint = functools.partial(complaint_of, "tf32x3")


@pytest.mark.parametrize(
    ("shape", "majors", "fields"),
    [
        (SMALL, "kk", {}),
        ((1, 200, 132), "kk", {"swap": True}),
        (LONG, "kk", {"schedule": "pingpong", "swizzle": "64B"}),
        (SMALL, "kk", {"schedule": "multistage", "swizzle": "none", "promote": None}),
        (SMALL, "kk", {"tile": Tile(64, 40, 16), "d_dtype": "bf16"}),
        (LONG, "kk", {"split_k": 2, "split_reduction": "launch"}),
        (LONG, "kk", {"promote": 64, "tile": Tile(128, 80, 32), "cluster": (2, 1)}),
        (LONG, "kk", {"promote": None, "tile": Tile(128, 72, 16)}),
        (SMALL, "kn", {}),
        (SMALL, "mk", {}),
        (ODD, "kk", {}),
        (ODD, "mn", {}),
        ((5, 7, 1), "kn", {}),
    ],
)
def test_results_are_those_of_three_products(shape, majors, fields):
    """Every schedule, swizzle, reduction, major and depth: D is within the bounds of fp64 sums."""
    a, b = operands(shape, majors)
    d = emulated(GemmSpec(math="tf32x3", **fields), a, b)
    assert d.dtype == (torch.bfloat16 if "d_dtype" in fields else torch.float32)
    promote = fields.get("promote", 32)
    assert complaint(a, b, d, shape[2] if promote is None else promote) is None


def test_errors_are_near_those_of_fp32():
    """Within twice fp32's, whatever the depth, for partial sums are promoted: truncated sums of all of K are not."""
    for depth in (75, 1000):
        a, b = operands((64, 40, depth))
        fields = {"math": "tf32x3", "tile": Tile(64, 40, 16), "swap": False}
        assert error(a, b, emulated(GemmSpec(**fields), a, b, races=False)) < TWICE * FP32 * 1.05
    assert error(a, b, emulated(GemmSpec(promote=None, **fields), a, b, races=False)) > 2 * TWICE * FP32


@pytest.mark.parametrize("tile", [(64, 32), (64, 64)], ids=str)
def test_scales_of_blocks_multiply_sums_of_three_products(tile):
    """With two sets of partial sums and with one: truncated sums of 128 elements, times powers of two."""
    m, n, k = 70, 40, 300
    a, b = operands((m, n, k))
    scale_a, scale_b = torch.exp2(torch.arange(3) - 1.0).expand(m, 3), torch.tensor([[0.5, -2.0, 1.0]])
    spec = GemmSpec(
        math="tf32x3",
        scale_a=("block", 1, 128),
        scale_b=("block", 128, 128),
        tile=Tile(*tile, 128),
        swap=False,
    )
    d = emulated(spec, a, b, scale_a=scale_a, scale_b=scale_b)
    factors = (scale_a[0] * scale_b[0]).repeat_interleave(128)[:k]
    assert error(a * factors, b, d) < 8 * FP32


def test_exponents_far_apart():
    """Elements from 2^-40 to 2^40: the bound is relative to the sum of magnitudes, as for equal ones."""
    a, b = operands(SMALL)
    for seed, x in enumerate((a, b)):
        generator = torch.Generator().manual_seed(seed)
        x *= torch.exp2(torch.randint(-40, 41, x.shape, generator=generator).float())
    assert complaint(a, b, emulated(SPEC, a, b)) is None


def test_special_values_are_those_of_fp32():
    """Infinities and NaN, by zeros, by elements with empty low parts, by each other; any NaN; what overflows."""
    inf, nan = float("inf"), float("nan")
    a, b = torch.ones(16, 8), torch.ones(8, 8)
    a[:12, 0] = torch.tensor([inf, -inf, nan, 0.0, -0.0, 1.0, -2.0, 3e38, -3e38, 1.1, 1e-30, 7.0])
    a.view(torch.int32)[12, 0] = 0x7F800001
    b[0] = torch.tensor([1.0, -1.0, 0.0, inf, -inf, nan, 1.1, 3e38])
    d, expected = emulated(SPEC, a, b), (a.double() @ b.double()).float()
    same = (d == expected) | d.isnan() & expected.isnan()
    assert (same | expected.isfinite() & ((d - expected).abs() <= 1e-6 * expected.abs())).all()
    assert expected.isnan().any() and expected.isinf().any()
    zeros = emulated(SPEC, torch.zeros(16, 8), b.nan_to_num(0.0, 0.0, 0.0))
    assert (zeros == 0).all()


def test_an_epilogue_and_a_batch():
    """A batch that shares B, with a bias and an activation."""
    a, b, bias = drawn(2, 40, 64), drawn(24, 64, seed=1).T, drawn(24, seed=2)
    graph = epi.bias_act("relu")
    d = emulated(GemmSpec(math="tf32x3", epilogue=graph), a, b, bias=bias)
    limits = bound(graph, a, b.expand(2, -1, -1), {"bias": bias}, {"d": d.dtype}, arithmetic="tf32x3")
    assert limits["d"].complaint(d) is None


def test_a_plan_copies_both_operands_in_one_launch():
    """Parts lie side by side along K; partial sums are promoted every 32 elements of it."""
    for majors in ("kk", "mn"):
        made = plan(SPEC, problem(512, 256, 1000, dtype="fp32", majors=majors))
        assert [x.name for x in made.steps][:2] == ["relayout a and b", "gemm"]
        assert sum('math="tf32x3" multiplies parts of its elements' in x for x in made.reasons) == 2
        assert made.config.promote == 32 and all(x.k_major and x.load == "tma" for x in made.config.operands)
        assert made.workspace_bytes >= (512 + 256) * 1000 * 2 * 4


def test_gradients_are_products_of_parts():
    """A layer's gradients take the field, too."""
    x, w, g = drawn(40, 36), drawn(24, 36, seed=1), drawn(40, 24, seed=2)
    x.requires_grad_(), w.requires_grad_()
    y = cutegemm.linear(x, w, spec=SPEC, fallback="emulator")
    y.backward(g)
    with torch.no_grad():
        assert complaint(x, w.T, y) is None
        assert complaint(g, w, x.grad) is None and complaint(g.T, x, w.grad) is None


@pytest.mark.parametrize(
    ("fields", "dtype", "told"),
    [
        ({}, "bf16", "math='tf32x3': multiplies fp32 operands, and A is bf16; nearest legal value: 'exact'"),
        (
            {"schedule": "simt"},
            "fp32",
            "schedule='simt': math=\"tf32x3\" runs on tensor cores; nearest legal value: 'auto'",
        ),
        (
            {"tile": Tile(128, 128, 24)},
            "fp32",
            "tile.k=24: must be a multiple of 16; nearest legal value: 32",
        ),
        (
            {"promote": 24},
            "fp32",
            "promote=24: must be a multiple of the 16 elements of K that an instruction multiplies, or None; "
            "nearest legal value: 32",
        ),
        (
            {"a_load": "tma"},
            "fp32",
            "a_load='tma': math=\"tf32x3\" multiplies parts of its elements, which a copy makes; "
            "nearest legal value: 'relayout'",
        ),
        (
            {"b_load": "gather"},
            "fp32",
            "b_load='gather': math=\"tf32x3\" multiplies parts of its elements, which a copy makes; "
            "nearest legal value: 'relayout'",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(fields, dtype, told):
    """A type, a schedule, a depth, a promotion or a load that the arithmetic cannot have."""
    with pytest.raises(GemmError) as e:
        plan(GemmSpec(**{"math": "tf32x3"} | fields), problem(256, 256, 256, dtype=dtype, majors="kk"))
    assert str(e.value).splitlines()[0].startswith(told)


def test_groups_are_refused():
    """Parts are made by a launch of its own, which groups do not have."""
    with pytest.raises(
        GemmError, match="a copy before cuts elements into parts, and groups are not copied before"
    ):
        ends = torch.tensor([37, 90], dtype=torch.int32)
        cutegemm.grouped_mm(drawn(90, 64), drawn(2, 24, 64).mT, ends, spec=SPEC, fallback="emulator")


@pytest.mark.gpu
@pytest.mark.parametrize("majors", ["kk", "kn", "mn"])
@pytest.mark.parametrize("shape", [(512, 512, 8192), (1, 1000, 784), (300, 200, 75)], ids=str)
def test_results_on_a_gpu(shape, majors):
    """Copied from every major, of one row and of long sums: bounds of fp64, and an error near fp32's."""
    a, b = (x.cuda() for x in operands(shape, majors))
    d = Gemm(SPEC).run(a, b)
    assert complaint(a, b, d) is None and error(a, b, d) < 5e-7
