# SPDX-License-Identifier: Apache-2.0
"""`quantize` and `dequantize` beside the arithmetic that they state, in fp64, group by group."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import cutegemm
from cutegemm import Gemm, GemmSpec
from cutegemm.errors import GemmError
from tests.support.profile import cases

ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
KINDS = ("tensor", "row", ROWS, SQUARES)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
TYPES = tuple(LARGEST)
SMALLEST = 2.0**-126


def groups(kind, shape):
    """The index of each group of a matrix, and where its scale lies."""
    m, k = shape
    if kind == "tensor":
        yield (slice(None), slice(None)), ()
    elif kind == "row":
        yield from (((slice(i, i + 1), slice(None)), (i,)) for i in range(m))
    else:
        for i in range(0, m, kind[1]):
            for j in range(0, k, 128):
                yield (slice(i, i + kind[1]), slice(j, j + 128)), (i // kind[1], j // 128)


def nearest(x, dtype):
    """fp64 values to the nearest of a type, ties to even, saturated; NaN stays, and is the integer 0."""
    if dtype == torch.int8:
        return numpy.nan_to_num(x.round(), nan=0.0).clip(-128, 127)
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    # even ones have even bit patterns, and stand at even places of the ascending half
    half = numpy.unique(every[every.isfinite() & (every >= 0)].numpy())
    y = numpy.abs(x)
    above = numpy.searchsorted(half, y).clip(0, len(half) - 1)
    below = (above - 1).clip(0)
    up, down = half[above] - y, y - half[below]
    place = numpy.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return numpy.where(numpy.isnan(x), x, numpy.copysign(half[place], x))


def expected(x, kind, dtype, exponents=False):
    """Values and scales of a matrix as they are stated."""
    given, largest = x.double().numpy(), LARGEST[dtype]
    values, scales = numpy.empty_like(given), {}
    for place, at in groups(kind, given.shape):
        part = given[place]
        finite = numpy.isfinite(part)
        amax = numpy.abs(part[finite]).max(initial=0.0)
        scale = numpy.float32(max(amax / largest, SMALLEST) if amax else 1.0)
        if exponents:
            # frexp gives a power of two one exponent more than its own
            mantissa, exponent = numpy.frexp(scale)
            scale = numpy.float32(2.0) ** (exponent - (mantissa == 0.5))
        if dtype == torch.int8 and not finite.all():
            scale = numpy.float32("nan")
        quotient = numpy.where(finite, part, numpy.nan) / numpy.float64(scale)
        values[place], scales[at] = (
            nearest(quotient.astype(numpy.float32).astype(numpy.float64), dtype),
            scale,
        )
    return values, scales


def check(x, kind, dtype):
    """A quantised matrix is what is stated, bit for bit."""
    found = cutegemm.quantize(x, kind, dtype)
    values, scales = expected(x, kind, dtype)
    assert (
        found.values.shape == x.shape and found.values.dtype == dtype and found.scale.dtype == torch.float32
    )
    assert not x.numel() or (found.values.stride(1) == 1 and (len(x) < 2 or found.values.stride(0) % 16 == 0))
    assert numpy.array_equal(found.values.double().numpy(), values, equal_nan=True)
    for at, scale in scales.items():
        assert numpy.array_equal(found.scale[at].numpy(), scale, equal_nan=True), at
    assert found.scale.numel() == max(len(scales), kind == "tensor")
    back = cutegemm.dequantize(found.values, found.scale, kind)
    wide = numpy.empty_like(values)
    for place, at in groups(kind, values.shape):
        with numpy.errstate(over="ignore"):
            wide[place] = (values[place] * numpy.float64(scales[at])).astype(numpy.float32)
    assert numpy.array_equal(back.double().numpy(), wide, equal_nan=True)


@settings(max_examples=cases(40, 600), deadline=None)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 300)),
    st.sampled_from(KINDS),
    st.sampled_from(TYPES),
    st.sampled_from((torch.float16, torch.bfloat16, torch.float32)),
    st.floats(-45, 38),
    st.booleans(),
    st.integers(0, 1000),
)
def test_values_and_scales_are_those_that_are_stated(shape, kind, dtype, given_type, exponent, turned, seed):
    """Any extents and magnitudes, subnormal and overflowing ones too, in rows or columns."""
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=draw).double() * 10.0**exponent).to(given_type)
    check(x.T if turned else x, kind, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_special_values(kind, dtype):
    """Zeros, NaN, infinities, subnormals and the largest numbers, beside ordinary ones and alone in a group."""
    x = torch.randn(260, 300, generator=torch.Generator().manual_seed(1))
    x[3, 7], x[5, 200], x[5, 2], x[130, 131] = (
        torch.nan,
        torch.inf,
        -torch.inf,
        torch.finfo(torch.float32).max,
    )
    x[9], x[10], x[11], x[12] = 0.0, 1e-45, torch.nan, -torch.inf
    x[128:, 256:] = 0.0
    x[13] = torch.linspace(-3e-40, 3e-40, 300)
    check(x, kind, dtype)
    if dtype != torch.int8:
        found = cutegemm.quantize(x, kind, dtype).values.float()
        assert torch.equal(found.isnan(), ~x.isfinite())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", [ROWS, SQUARES], ids=str)
def test_scales_may_be_exponents(kind, dtype):
    """ue8m0: the next powers of two, also of zeros, tiny numbers and NaN; a run and `dequantize` take them."""
    x = torch.randn(260, 300, generator=torch.Generator().manual_seed(1))
    x[3, 7], x[4], x[5], x[128:, 256:], x[6] = torch.nan, 1e-40, 448.0, 0.0, 1e30
    values, scales = expected(x, kind, dtype, True)
    found = cutegemm.quantize(x, kind, dtype, scale_dtype=torch.float8_e8m0fnu)
    assert found.scale.dtype == torch.float8_e8m0fnu
    assert numpy.array_equal(found.values.double().numpy(), values, equal_nan=True)
    numbers = (
        torch.tensor([scales[at] for at in numpy.ndindex(*found.scale.shape)]).float().view(found.scale.shape)
    )
    assert numpy.array_equal(found.scale.float(), numbers, equal_nan=True)
    for scale in (found.scale, found.scale.view(torch.uint8)):
        again = cutegemm.quantize(x, kind, dtype, scale=scale)
        assert numpy.array_equal(again.values.float(), found.values.float(), equal_nan=True)
        back, wanted = (cutegemm.dequantize(found.values, s, kind) for s in (scale, numbers))
        assert numpy.array_equal(back, wanted, equal_nan=True)
        d, e = (cutegemm.matmul(found.values, found.values.T, scale_a=s, scale_b=s) for s in (scale, numbers))
        assert numpy.array_equal(d.float(), e.float(), equal_nan=True)
    twin = cutegemm.quantize(x, kind, dtype, scale_dtype=torch.float8_e8m0fnu, transposed=True)[1]
    assert twin.scale.dtype == torch.float8_e8m0fnu and twin.values.shape == (300, 260)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 5), (2, 5, 0), (0, 5, 5)])
def test_nothing_has_scales_of_one(kind, shape):
    """Tensors without elements give values without elements, and ones where there are scales."""
    values, scale = cutegemm.quantize(torch.empty(shape), kind)
    assert values.shape == shape and values.dtype == torch.float8_e4m3fn and (scale == 1).all()
    assert cutegemm.dequantize(values, scale, kind).shape == shape


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_batches_are_matrices(kind):
    """A batch has the scales of its matrices; one for all if it is the tensor's."""
    x = torch.randn(3, 130, 200)
    values, scale = cutegemm.quantize(x, kind)
    if kind == "tensor":
        assert scale == x.abs().amax() / 448
        return
    for i in range(3):
        one = cutegemm.quantize(x[i], kind)
        assert torch.equal(values[i].float(), one.values.float()) and torch.equal(scale[i], one.scale)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_transposed_twin_is_the_transpose_quantised(kind, dtype):
    """x.mT, bit for bit, with rows that TMA reads."""
    empty = (torch.empty(0, 40), torch.empty(40, 0), torch.empty(2, 0, 5))
    for x in (torch.randn(130, 200), torch.randn(2, 37, 141).bfloat16(), *empty):
        own, twin = cutegemm.quantize(x, kind, dtype, transposed=True)
        for found, wanted in (
            (own, cutegemm.quantize(x, kind, dtype)),
            (twin, cutegemm.quantize(x.mT, kind, dtype)),
        ):
            assert torch.equal(found.values.float(), wanted.values.float())
            assert torch.equal(found.scale, wanted.scale)
            assert found.values.stride() == wanted.values.stride() and found.values.stride(-1) == 1
            assert found.values.stride(-2) % 16 == 0 or not x.numel()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_given_scales_are_divisors(kind):
    """Values beyond their range saturate. Scales of blocks may be padded to four; a number is a scale of the tensor."""
    x = torch.randn(130, 200)
    own = cutegemm.quantize(x, kind)
    scale = torch.nn.functional.pad(own.scale, (0, 2)) if isinstance(kind, tuple) else own.scale
    again = cutegemm.quantize(x, kind, scale=scale)
    assert torch.equal(again.values.float(), own.values.float()) and torch.equal(again.scale, own.scale)
    small = cutegemm.quantize(x, kind, torch.int8, scale=own.scale * 1e-3)
    assert small.values.max() == 127 and small.values.min() == -128
    if kind == "tensor":
        assert torch.equal(
            cutegemm.quantize(x, scale=0.25, kind="tensor").values.float(), (x / 0.25).to(TYPES[0]).float()
        )
        assert cutegemm.dequantize(own.values, 2.0, "tensor", "fp16").dtype == torch.float16


@pytest.mark.parametrize("kinds", [("tensor", "row"), (ROWS, SQUARES), ("row", ROWS)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_run_takes_them(kinds, dtype):
    """`Gemm.run` multiplies what `quantize` returns, and D is near the product of what was quantised."""
    x, w = torch.randn(70, 300), torch.randn(90, 300)
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(t, kind, dtype) for t, kind in zip((x, w), kinds))
    d = Gemm(GemmSpec(scale_a=kinds[0], scale_b=kinds[1], d_dtype="fp32")).run(
        a, b.T, scale_a=scale_a, scale_b=scale_b
    )
    back = (
        cutegemm.dequantize(a, scale_a, kinds[0]).double()
        @ cutegemm.dequantize(b, scale_b, kinds[1]).double().T
    )
    assert torch.allclose(d.double(), back, rtol=1e-4, atol=1e-3)
    # each factor is off by at most half of the last of its bits
    bits = 4 if dtype == torch.float8_e4m3fn else 3
    assert (d - x @ w.T).norm() <= 2 * 2.0**-bits * (x @ w.T).norm()


@pytest.mark.sliced
@pytest.mark.parametrize(("kind", "dynamic"), [("tensor", False), (ROWS, False), (SQUARES, True)], ids=str)
def test_it_compiles_into_one_graph(kind, dynamic):
    """fullgraph, bits of the eager call, with the twin; fake tensors have the same extents, types and strides."""
    torch._dynamo.reset()

    def both(x):
        own, twin = cutegemm.quantize(x, kind, transposed=True)
        return own, twin, cutegemm.dequantize(own.values, own.scale, kind, torch.bfloat16)

    x, called = torch.randn(70, 150), []

    def backend(graph, inputs):
        called.extend(node.target for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    wanted = both(x)
    found = torch.compile(both, fullgraph=True, dynamic=dynamic, backend=backend)(x)
    # which runs the kernel on a GPU
    assert called.count(torch.ops.cutegemm.quantize) == 1
    with FakeTensorMode() as mode:
        fake = both(mode.from_tensor(x))
    for outputs in (found, fake):
        for one, other in zip(
            torch.utils._pytree.tree_leaves(outputs), torch.utils._pytree.tree_leaves(wanted)
        ):
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    for one, other in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted)):
        assert torch.equal(one.float(), other.float())


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "row", "1x128", "128x128"])
def test_the_op_is_as_compilers_expect(kind, twin):
    """Its schema, and fake results like real ones, of batches, exponents and a given scale as well."""
    calls = [(torch.randn(70, 150), None, False), (torch.randn(2, 3, 130).mT, None, "x" in kind)]
    calls += [(torch.randn(6, 40), torch.tensor(0.5), False)] if kind == "tensor" else []
    for x, scale, exponents in calls:
        args = (x, kind, torch.float8_e4m3fn, scale, exponents, twin)
        torch.library.opcheck(
            torch.ops.cutegemm.quantize.default, args, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"kind": "column"}, "kind"),
        ({"kind": ("block", 64, 128)}, "kind"),
        ({"dtype": torch.uint8}, "dtype"),
        ({"dtype": "bf16"}, "dtype"),
        ({"dtype": torch.float8_e4m3fnuz}, "dtype"),
        ({"scale": torch.ones(3)}, "scale.shape"),
        ({"scale": torch.ones(4).double()}, "scale.dtype"),
        ({"scale": torch.ones(4, device="meta")}, "scale.device"),
        ({"kind": "tensor", "scale": 1e300}, "scale"),
        ({"kind": "tensor", "scale": -(10**400)}, "scale"),
        ({"kind": ROWS, "scale": torch.ones(4, 6)}, "scale.shape"),
        ({"kind": ROWS, "scale": torch.ones(4, 1), "scale_dtype": torch.float8_e8m0fnu}, "scale.dtype"),
        ({"scale": torch.ones(4), "transposed": True}, "transposed"),
        ({"scale_dtype": torch.float16}, "scale_dtype"),
        ({"scale_dtype": torch.float8_e8m0fnu}, "scale_dtype"),
        ({"x": torch.ones(4)}, "x.shape"),
        ({"x": torch.ones(4, 5, requires_grad=True)}, "x.requires_grad"),
        ({"x": torch.ones(4, 5, dtype=torch.float64)}, "x.dtype"),
    ],
    ids=str,
)
def test_what_is_refused(named, field):
    """Each by the name of the argument."""
    with pytest.raises(GemmError) as e:
        cutegemm.quantize(**({"x": torch.ones(4, 5)} | named))
    assert e.value.field == field


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"values": torch.ones(4, 5)}, "values.dtype"),
        ({"scale": torch.ones(5)}, "scale.shape"),
        ({"scale": 3.0}, "scale"),
        ({"dtype": "fp8"}, "dtype"),
    ],
    ids=str,
)
def test_what_dequantize_refuses(named, field):
    """Each by the name of the argument."""
    with pytest.raises(GemmError) as e:
        cutegemm.dequantize(
            **({"values": torch.ones(4, 5, dtype=torch.int8), "scale": torch.ones(4)} | named)
        )
    assert e.value.field == field
