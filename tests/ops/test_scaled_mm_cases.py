# SPDX-License-Identifier: Apache-2.0
"""What PyTorch tests of its own scaled products (test/test_scaled_matmul_cuda.py), asked of ours.

Restated from what the tests claim: kinds of scales, layouts, types of D, bias, exact sums of ones, identities, scales
that lie as cuBLAS wants them, empty extents, errors. Where torch refuses what we compute, the test says so. Each call
runs on the reference and on the emulator, and both are within the bounds of fp64.
"""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cutegemm
from cutegemm import Gemm, GemmSpec, emulator, plan, problem
from cutegemm import epilogue as epi
from cutegemm.errors import InputError
from cutegemm.running.numerics.bounds import bound

pytestmark = pytest.mark.sliced

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
BIAS = epi.bias()
ONE = torch.tensor(1.0)


def r(*shape, seed=0):
    """Normally distributed elements."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(a, b, scale_a, scale_b, kinds=("tensor", "tensor"), **more):
    """D of the reference, after the emulator's was found to be as near to fp64."""
    inputs = {name: more.pop(name) for name in ("bias",) if name in more}
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], **more)
    named = {"scale_a": scale_a, "scale_b": scale_b, **inputs}
    d = Gemm(spec).run(a, b, **named)
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings and run.d.dtype == d.dtype
    for found in (d, run.d):
        assert bound(spec.epilogue, a, b, named, {"d": found.dtype})["d"].complaint(found) is None
    return d


@pytest.mark.parametrize(
    ("majors", "d_dtype"), [("kk", "bf16"), ("kn", "fp16"), ("mk", "fp32"), ("mn", "bf16"), ("kk", "fp32")]
)
def test_any_pair_of_majors_with_a_scale_for_each_tensor(majors, d_dtype):
    """16 x 32 x 16, quantised by its largest element; on Hopper torch takes "kk" only."""
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(r(*x), "tensor") for x in ((16, 16), (32, 16)))
    a = a.T.contiguous().T if majors[0] == "m" else a.contiguous()
    b = b.T.contiguous() if majors[1] == "n" else b.contiguous().T
    assert product(a, b, scale_a, scale_b, d_dtype=d_dtype).shape == (16, 32)


def test_leading_dimensions_need_not_be_extents():
    """B's columns lie 64 elements apart, of which K is 16; 17 rows are no multiple of anything."""
    b = torch.empty_strided((16, 32), (1, 64), dtype=E4M3).copy_(r(16, 32, seed=1))
    product(r(16, 16).to(E4M3), b, ONE, ONE)
    for more in ({}, {"bias": torch.rand(16).bfloat16(), "epilogue": BIAS}):
        product(torch.rand(17, 16).to(E4M3), torch.rand(16, 16).to(E4M3).T, ONE, ONE, **more)


@pytest.mark.parametrize(("first", "bias"), [(1.0, 4.0), (0.0, -3.0)])
@pytest.mark.parametrize("d_dtype", ["bf16", "fp32"])
def test_a_bias_is_added_to_every_column(first, bias, d_dtype):
    """It alone differs, also where sums are zero and it is negative; torch refuses a bias of a D in fp32."""
    a, b = torch.full((16, 48), first).to(E4M3), torch.full((32, 48), 0.25).to(E4M3).T
    given = {"bias": torch.full((32,), bias).bfloat16(), "epilogue": BIAS}
    plain, d = (product(a, b, ONE, ONE, d_dtype=d_dtype, **x) for x in ({}, given))
    assert torch.equal(d, plain + bias) and (plain == 48 * 0.25 * first).all()


def test_d_in_fp8_is_rounded_once():
    """0.5 * 0.5 * 16 * 1.5 * 0.66 = 3.96, which e4m3 rounds to 4; B is e5m2."""
    a, b = torch.full((16, 16), 0.5).to(E4M3), torch.full((16, 16), 0.5).to(E5M2).T
    d = product(a, b, torch.tensor(1.5), torch.tensor(0.66), d_dtype="fp8_e4m3")
    assert d.dtype == E4M3 and (d.float() == 4).all()


@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_sums_of_equal_elements_are_exact(types):
    """K / 4 of halves, whatever the types; torch multiplies no two matrices of e5m2."""
    a, b = torch.full((64, 512), 0.5).to(types[0]), torch.full((136, 512), 0.5).to(types[1]).T
    d = product(a, b, torch.ones(64), torch.ones(136), ("row", "row"))
    assert (d == 512 / 4).all()


@pytest.mark.parametrize("d_dtype", ["fp16", "bf16", "fp32"])
def test_scales_of_rows_and_a_bias(d_dtype):
    """Quantised by rows and columns, against the product of what was quantised: a cosine of 0.999."""
    x, w, bias = r(64, 512), r(136, 512, seed=1), r(136, seed=2)
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(y, "row") for y in (x, w))
    d = product(a, b.T, scale_a, scale_b, ("row", "row"), bias=bias, epilogue=BIAS, d_dtype=d_dtype)
    wanted = x @ w.T + bias
    assert torch.nn.functional.cosine_similarity(d.float().flatten(), wanted.flatten(), dim=0) > 0.999


def lying(scale, kind):
    """Scales of blocks as torch wants them: of rows' blocks with unit stride along rows, others padded to four."""
    if kind == ROWS:
        return scale.T.contiguous().T
    return torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4))[:, : scale.shape[1]]


BLOCKS = [(ROWS, ROWS), (SQUARES, ROWS), (ROWS, SQUARES), (SQUARES, SQUARES)]


@pytest.mark.parametrize("kinds", BLOCKS, ids=str)
@pytest.mark.parametrize("d_dtype", ["bf16", "fp32"])
def test_scales_of_blocks(kinds, d_dtype):
    """Random elements, cubed too, whose scales lie as cuBLAS wants them; torch lacks squares times squares."""
    for (m, n, k), power in (((136, 144, 384), 1), ((130, 128, 128), 3)):
        (a, scale_a), (b, scale_b) = (
            cutegemm.quantize(r(x, k, seed=x).pow(power), kind) for x, kind in zip((m, n), kinds)
        )
        scales = lying(scale_a, kinds[0]), lying(scale_b, kinds[1])
        product(a, b.T, *scales, kinds, d_dtype=d_dtype)


@pytest.mark.parametrize("kinds", BLOCKS, ids=str)
def test_scales_of_blocks_reach_their_blocks_alone(kinds):
    """Identities give an identity; ones give K, but for the rows and columns of a block whose scale is four."""
    eye = torch.eye(256)
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(eye, kind) for kind in kinds)
    assert torch.equal(product(a, b.T, scale_a, scale_b, kinds).float(), eye)
    m, n, k = 256, 256, 512
    a, b = torch.ones(m, k).to(E4M3), torch.ones(n, k).to(E4M3).T
    scale_a, scale_b = (torch.ones(-(-x // kind[1]), k // 128) for x, kind in zip((m, n), kinds))
    assert (product(a, b, scale_a, scale_b, kinds) == k).all()
    scale_a[0, 0], scale_b[-1, -1] = 4, 4
    d = product(a, b, scale_a, scale_b, kinds, d_dtype="fp32")
    wanted = torch.full((m, n), float(k))
    wanted[: kinds[0][1]] += 3 * 128
    wanted[:, -kinds[1][1] :] += 3 * 128
    assert torch.equal(d, wanted)


@pytest.mark.parametrize("empty", range(3))
def test_empty_extents(empty):
    """Without rows or columns D is empty. Without K its sums are zeros, which scales multiply: torch gives zeros for
    infinite ones, we NaN.
    """
    m, n, k = (0 if x == empty else 32 for x in range(3))
    a, b = torch.zeros(m, k).to(E4M3), torch.zeros(n, k).to(E4M3).T
    d = Gemm(GemmSpec(scale_a="tensor", scale_b="tensor")).run(a, b, scale_a=ONE, scale_b=ONE)
    assert d.shape == (m, n) and d.dtype == torch.bfloat16 and not d.any()
    infinite = torch.tensor(-math.inf)
    d = Gemm(GemmSpec(scale_a="tensor", scale_b="tensor")).run(a, b, scale_a=infinite, scale_b=infinite)
    assert d.isnan().all()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_one_scale_may_have_dimensions(shape):
    """torch's scale of a whole operand has one or two; every way in gives what a number gives."""
    a, b = r(64, 256).to(E4M3), r(136, 256, seed=1).to(E4M3).T
    spec = GemmSpec(scale_a="tensor", scale_b="tensor")
    named = {"scale_a": torch.full(shape, 0.25), "scale_b": torch.full(shape, -3.0)}
    wanted = Gemm(spec).run(a, b, scale_a=0.25, scale_b=-3.0)
    assert torch.equal(product(a, b, *named.values()), wanted)
    own = epi.scaled("tensor")
    calls = (
        lambda a, b, **x: cutegemm.matmul(a, b, **x),
        lambda a, b, **x: cutegemm.linear(a, b.T, **x),
        lambda a, b, **x: cutegemm.matmul(a, b, spec=spec, **x),
        lambda a, b, **x: cutegemm.matmul(a, b, epilogue=own, **x),
        lambda a, b, **x: cutegemm.grouped_mm(a, b[None], torch.tensor([64]), **x),
    )
    for call in calls:
        assert torch.equal(call(a, b, **named), wanted)
        with FakeTensorMode() as mode:
            x, y, *scales = map(mode.from_tensor, (a, b, *named.values()))
            fake = call(x, y, **dict(zip(named, scales)))
        assert (fake.shape, fake.dtype) == (wanted.shape, wanted.dtype)


def test_one_scale_with_dimensions_compiles():
    """fullgraph, for functions that infer the kind and for a spec that names it."""
    a, b = r(64, 256).to(E4M3), r(136, 256, seed=1).to(E4M3).T
    spec = GemmSpec(scale_a="tensor", scale_b="tensor")

    def f(a, b, one, other):
        named = {"scale_a": one, "scale_b": other}
        return cutegemm.matmul(a, b, **named), cutegemm.linear(a, b.T, spec=spec, **named)

    torch._dynamo.reset()
    scales = torch.full((1,), 0.25), torch.full((1, 1), -3.0)
    found = torch.compile(f, fullgraph=True, backend="aot_eager")(a, b, *scales)
    assert all(torch.equal(x, y) for x, y in zip(found, f(a, b, *scales), strict=True))


def test_one_row_has_one_scale_of_rows():
    """(1,) is the scale of the only row of A, or of all of B: the same number either way."""
    a, b = r(1, 256).to(E4M3), r(136, 256, seed=1).to(E4M3).T
    d = cutegemm.matmul(a, b, scale_a=torch.full((1,), 0.25), scale_b=torch.full((1,), 2.0))
    assert torch.equal(d, cutegemm.matmul(a, b, scale_a=0.25, scale_b=2.0))


@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
def test_one_given_scale_quantizes_and_dequantizes(shape):
    """A calibrated scale of torch's shape is used as one of no dimensions is, and returned as that."""
    x, scale = r(64, 256), torch.full(shape, 0.25)
    wanted = cutegemm.quantize(x, "tensor", scale=0.25)
    found = cutegemm.quantize(x, "tensor", scale=scale)
    assert torch.equal(found.values.float(), wanted.values.float()) and found.scale.shape == ()
    back = cutegemm.dequantize(found.values, scale, "tensor")
    assert torch.equal(back, cutegemm.dequantize(*wanted, "tensor"))


ONLY_ONE = "must be (), (1,) or (1, 1), one number for the whole operand; nearest legal value: ()"


@pytest.mark.parametrize(
    ("kinds", "scale_a", "scale_b", "told"),
    [
        (("tensor", "tensor"), ONE, torch.ones(2), f"scale_b.shape=(2,): {ONLY_ONE}"),
        (("tensor", "tensor"), torch.ones(1, 1, 1), ONE, f"scale_a.shape=(1, 1, 1): {ONLY_ONE}"),
        (("row", "row"), torch.ones(64), torch.ones(137), "scale_b.shape=(137,): must be (136,)"),
        (("row", "row"), torch.ones(64), torch.ones(136, 1), "scale_b.shape=(136, 1): must be (136,)"),
        (("row", "row"), torch.ones(63), torch.ones(136), "scale_a.shape=(63,): must be (64,)"),
    ],
)
def test_scales_of_other_shapes_are_refused(kinds, scale_a, scale_b, told):
    """One number too many, a column instead of a row: before anything is computed."""
    a, b = torch.ones(64, 128).to(E4M3), torch.ones(136, 128).to(E4M3).T
    with pytest.raises(InputError) as e:
        Gemm(GemmSpec(scale_a=kinds[0], scale_b=kinds[1])).run(a, b, scale_a=scale_a, scale_b=scale_b)
    assert str(e.value).splitlines()[0] == told


def test_every_other_scale_of_a_vector():
    """torch wants scales of rows without gaps; ours may have any strides."""
    a, b = r(64, 128).to(E4M3), r(136, 128, seed=1).to(E4M3).T
    scales = torch.rand(64, 3)[:, 1], torch.rand(272)[::2]
    d = product(a, b, *scales, ("row", "row"))
    assert torch.equal(d, product(a, b, *(x.contiguous() for x in scales), ("row", "row")))


def test_fewer_multiprocessors():
    """torch keeps SMs free by a setting of the process, which a profile shows; a spec says it."""
    spec = GemmSpec(scale_a="row", scale_b="row")
    asked = problem(8192, 8192, 2048, dtype="fp8", majors="kk", epilogue=spec.epilogue)
    for sms in (132, 66):
        made = plan(GemmSpec(scale_a="row", scale_b="row", sms=sms), asked)
        assert made.clusters * made.config.cluster_size <= sms
