# SPDX-License-Identifier: Apache-2.0
"""`math="tf32"`: fp32 operands on the tensor cores, of elements rounded to 10 fraction bits, added in fp32."""

import functools

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, plan, problem
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import GemmError
from cutegemm.running.numerics.bounds import bound
from cutegemm.running.numerics.reference import taken
from tests.support.tf32 import LONG, ODD, SMALL, drawn, emulated, error, operands
from tests.support.tf32 import complaint as complaint_of

pytestmark = pytest.mark.sliced

TF32 = GemmSpec(math="tf32")
IGNORED = 13  # low bits of an fp32 element
MOST = 4e-4  # of the error: 2.9e-4 of rounded elements, 7.7e-4 of cut ones

complaint = functools.partial(complaint_of, "tf32")


@pytest.mark.parametrize(
    ("shape", "majors", "fields"),
    [
        (SMALL, "kk", {}),
        ((1, 200, 132), "kk", {"swizzle": "none"}),
        (LONG, "kk", {"schedule": "pingpong", "swizzle": "64B"}),
        (SMALL, "kk", {"schedule": "multistage", "swizzle": "32B"}),
        (SMALL, "kk", {"tile": Tile(64, 40, 8), "d_dtype": "bf16"}),
        (LONG, "kk", {"split_k": 2, "split_reduction": "launch"}),
        (LONG, "kk", {"scheduler": "stream_k", "sms": 3, "tile": Tile(128, 72, 32)}),
        (LONG, "kk", {"promote": 64, "tile": Tile(128, 72, 32)}),
        (SMALL, "kn", {}),
        (SMALL, "mn", {"a_load": "relayout", "b_load": "relayout"}),
        (SMALL, "mk", {"a_load": "gather", "swap": True}),
        (ODD, "kk", {"a_load": "gather"}),
        (ODD, "mn", {}),
        ((5, 7, 1), "kn", {}),
    ],
)
def test_results_are_those_of_rounded_elements(shape, majors, fields):
    """Every schedule, swizzle, reduction, major and load: D is within the bounds of fp64 sums of rounded elements."""
    a, b = operands(shape, majors)
    d = emulated(GemmSpec(math="tf32", **fields), a, b)
    assert d.dtype == (torch.bfloat16 if "d_dtype" in fields else torch.float32)
    assert complaint(a, b, d) is None


def test_elements_are_rounded():
    """Operands rounded before give the same bits; the error is that of rounding, and cut elements miss its bounds."""
    a, b = operands(SMALL)
    d = emulated(TF32, a, b)
    assert torch.equal(d, emulated(TF32, taken(a, IGNORED), taken(b, IGNORED)))
    assert error(a, b, d) < MOST
    cut = ((x.view(torch.int32) & -(1 << IGNORED)).view(x.dtype) for x in (a, b))
    assert complaint(a, b, torch.matmul(*cut)) is not None
    limit = bound(linear_combination(False), a, b, {"alpha": 1.0}, {"d": d.dtype})["d"]
    assert limit.complaint(d) is not None


@pytest.mark.parametrize("load", ["tma", "gather"])
def test_halves_are_rounded_to_even(load):
    """A times the identity is A as it is multiplied: halves of a last place, signs, subnormals, infinities and NaN."""
    one = 2.0**-10  # tf32's last place at 1
    given = [
        1 + one / 2,
        1 + 1.5 * one,
        1 + 0.5001 * one,
        -1 - one / 2,
        -1 - 1.5 * one,
        2 - one / 4,
        3e38,
        2.0**-130,
    ]
    expected = [1.0, 1 + 2 * one, 1 + one, -1.0, -1 - 2 * one, 2.0]
    a = torch.zeros(8, 8)
    a[0], a[1, 1], a[2, 2] = torch.tensor(given), float("inf"), float("nan")
    d = emulated(GemmSpec(math="tf32", a_load=load), a[:1], torch.eye(8))[0]
    wanted = taken(torch.tensor(given), IGNORED)
    assert torch.equal(d, wanted) and wanted[:6].tolist() == expected
    special = emulated(GemmSpec(math="tf32", a_load=load), a[1:3], torch.ones(8, 8))
    assert special[0].isinf().all() and special[1].isnan().all()


def test_an_epilogue_and_a_batch():
    """A batch that shares B, with a bias and an activation."""
    a, b, bias = drawn(2, 40, 64), drawn(24, 64, seed=1).T, drawn(24, seed=2)
    graph = epi.bias_act("relu")
    d = emulated(GemmSpec(math="tf32", epilogue=graph), a, b, bias=bias)
    limits = bound(graph, a, b.expand(2, -1, -1), {"bias": bias}, {"d": d.dtype}, arithmetic="tf32")
    assert limits["d"].complaint(d) is None


def test_fp32_is_exact_by_default():
    """Without the field, or with "exact", fp32 operands run on the CUDA cores."""
    asked = problem(4096, 4096, 4096, dtype="fp32", majors="kk")
    assert {plan(x, asked).config.family for x in (GemmSpec(), GemmSpec(math="exact"))} == {"simt"}
    made = plan(TF32, asked)
    assert made.config.family == "warp_specialized" and made.config.arithmetic == "tf32"
    assert made.config.tile[2] == 32 and {x.swizzle for x in made.config.operands} == {"128B"}
    assert plan(GemmSpec(math="exact"), problem(64, 64, 64)).config.arithmetic == "exact"


def test_operands_along_other_axes_are_turned():
    """wgmma reads tf32 along K only: one launch copies what lies otherwise, and the plan says why."""
    for majors, turned in (("kn", "b"), ("mk", "a"), ("mn", "ab")):
        made = plan(TF32, problem(4096, 4096, 4096, dtype="fp32", majors=majors))
        assert [x.name for x in made.steps] == [f"relayout {' and '.join(turned)}", "gemm"]
        assert sum("it is not contiguous along K" in x for x in made.reasons) == len(turned)
        assert all(x.k_major and x.load == "tma" for x in made.config.operands)


def test_groups_of_rows():
    """A grouped GEMM takes the field, too."""
    a, b = drawn(90, 64), drawn(2, 24, 64, seed=1).mT
    d = cutegemm.grouped_mm(a, b, torch.tensor([37, 90], dtype=torch.int32), spec=TF32, fallback="emulator")
    assert complaint(a[:37], b[0], d[:37]) is None and complaint(a[37:], b[1], d[37:]) is None
    rows = torch.arange(90, dtype=torch.int32).flip(0)
    again = cutegemm.grouped_mm(
        a.flip(0), b, torch.tensor([37, 90], dtype=torch.int32), rows=rows, spec=TF32, fallback="emulator"
    )
    assert torch.equal(again, d)


def test_gradients_are_tf32_products():
    """A layer of tf32 has gradients of tf32, whose operands lie along other axes."""
    x, w, g = drawn(40, 36), drawn(24, 36, seed=1), drawn(40, 24, seed=2)
    x.requires_grad_(), w.requires_grad_()
    y = cutegemm.linear(x, w, spec=TF32, fallback="emulator")
    y.backward(g)
    with torch.no_grad():
        assert complaint(x, w.T, y) is None
        assert complaint(g, w, x.grad) is None and complaint(g.T, x, w.grad) is None
        assert not torch.allclose(x.grad, g @ w, rtol=1e-5, atol=1e-5)


def test_compiled_calls_take_the_field():
    """torch.compile records the call with fakes, and runs what the call runs."""
    x, w = drawn(5, 36), drawn(24, 36, seed=1)
    call = lambda a, b: cutegemm.matmul(a, b.T, spec=TF32, fallback="emulator")
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(x, w), call(x, w))


@pytest.mark.parametrize(
    ("fields", "dtype", "told"),
    [
        ({"math": "tf16"}, "fp32", "math='tf16': must be one of exact, tf32"),
        ({}, "bf16", "math='tf32': multiplies fp32 operands, and A is bf16; nearest legal value: 'exact'"),
        (
            {"a_dtype": "fp8"},
            "fp8",
            "math='tf32': multiplies fp32 operands, and A is fp8_e4m3; nearest legal value: 'exact'",
        ),
        (
            {"schedule": "simt"},
            "fp32",
            "schedule='simt': math=\"tf32\" runs on tensor cores; nearest legal value: 'auto'",
        ),
        (
            {"tile": Tile(128, 128, 36)},
            "fp32",
            "tile.k=36: must be a multiple of 8; nearest legal value: 32",
        ),
        (
            {"promote": 12},
            "fp32",
            "promote=12: must be a multiple of the 8 elements of K that an instruction multiplies, or None; "
            "nearest legal value: 16",
        ),
        (
            {"b_load": "tma"},
            "fp32",
            "b_load='tma': TMA cannot address B: it is not contiguous along K; nearest legal value: 'relayout'",
        ),
        (
            {"b_load": "cp_async"},
            "fp32",
            "b_load='cp_async': math=\"tf32\" rounds elements as they are loaded, which copies of bytes do not; "
            "nearest legal value: 'relayout'",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(fields, dtype, told):
    """A type, a schedule, a depth or a load that the arithmetic cannot have."""
    with pytest.raises(GemmError) as e:
        plan(GemmSpec(**{"math": "tf32"} | fields), problem(256, 256, 256, dtype=dtype, majors="kn"))
    assert str(e.value).splitlines()[0].startswith(told)


@pytest.mark.gpu
@pytest.mark.parametrize("majors", ["kk", "kn", "mn"])
@pytest.mark.parametrize("shape", [(512, 512, 4096), (1, 1000, 784), (300, 200, 75)], ids=str)
def test_results_on_a_gpu(shape, majors):
    """By TMA, by threads and copied, of one row and of long sums, within the bounds of fp64."""
    a, b = (x.cuda() for x in operands(shape, majors))
    d = Gemm(TF32).run(a, b)
    assert error(a, b, d) < MOST
    assert complaint(a, b, d) is None
