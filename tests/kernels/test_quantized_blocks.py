# SPDX-License-Identifier: Apache-2.0
"""D in 8 bits with a scale for each block: what `quantize` makes of the fp32 value, from the epilogue."""

import functools
import math

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator, plan, problem
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import GemmError
from cutegemm.running.numerics.bounds import bound
from tests.support.scales import E4M3, ROWS, SQUARES, drawn

pytestmark = pytest.mark.sliced

E8M0 = torch.float8_e8m0fnu
BF16 = torch.bfloat16


@functools.cache
def graphs(kind, dtype="fp8_e4m3", scale_dtype="fp32", gated=None):
    """An epilogue that quantises a value, and one that stores the value in fp32."""

    def value(*acc, bias):
        return epi.silu(acc[0]) * acc[1] + bias if gated else epi.relu(acc[0] + bias)

    def quantised(*acc, bias):
        q = epi.quantize(value(*acc, bias=bias), kind, dtype, scale_dtype)
        return epi.Output(d=q.values, scale=q.scale)

    return tuple(_annotated(f, gated) for f in (quantised, value))


def _annotated(f, gated):
    """The graph of a function of accumulators and a bias."""

    def plain(acc, *, bias: epi.Row):
        return f(acc, bias=bias)

    def pair(gate, up, *, bias: epi.Row):
        return f(gate, up, bias=bias)

    return epi.define(pair if gated else plain, gated=gated)


def bits(x):
    """What equal tensors share; NaN of fp32 is any NaN."""
    x = x.contiguous()
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x.nan_to_num(-1.0).view(torch.int32)


def same(found, wanted):
    """Values and scales."""
    return all(
        x.dtype == y.dtype and torch.equal(bits(x), bits(y))
        for x, y in zip((found.d, found.scale), wanted, strict=True)
    )


def emulated(spec, a, b, **named):
    """The outputs on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings
    return run.d


def both(kind, dtype, scale_dtype, gated, operands, shape, fields):
    """The outputs of the kernel, and what `quantize` makes of the fp32 value of a kernel that adds alike."""
    m, n, k = shape
    a, b = (drawn(*x, seed=i).to(operands) for i, x in enumerate(((m, k), (n, k))))
    bias = torch.randn(n // (2 if gated else 1), generator=torch.Generator().manual_seed(3))
    bias[3], bias[-2] = math.inf, math.nan
    quantised, value = graphs(kind, dtype, scale_dtype, gated)
    found = emulated(GemmSpec(epilogue=quantised, **fields), a, b.T, bias=bias)
    h = emulated(GemmSpec(epilogue=value, d_dtype="fp32", **{"swap": False} | fields), a, b.T, bias=bias)
    exponents = E8M0 if scale_dtype == "ue8m0" else torch.float32
    return found, cutegemm.quantize(h, kind, dtype, scale_dtype=exponents)


SMALL = {"tile": Tile(64, 128, 64)}
SQUARE = {"tile": Tile(128, 128, 64)}


@pytest.mark.parametrize(
    ("kind", "dtype", "scale_dtype", "operands", "shape", "fields"),
    [
        (ROWS, "fp8_e4m3", "fp32", E4M3, (130, 272, 256), SMALL),
        (ROWS, "int8", "fp32", E4M3, (130, 272, 256), SMALL),
        (ROWS, "fp8_e5m2", "ue8m0", BF16, (260, 300, 144), {**SMALL, "schedule": "pingpong", "sms": 2}),
        (ROWS, "fp8_e4m3", "fp32", BF16, (130, 300, 256), {"tile": Tile(128, 256, 64)}),
        (ROWS, "fp8_e4m3", "fp32", BF16, (130, 300, 256), {**SQUARE, "schedule": "multistage"}),
        (
            ROWS,
            "fp8_e4m3",
            "fp32",
            E4M3,
            (130, 300, 1024),
            {**SMALL, "split_k": 2, "split_reduction": "launch"},
        ),
        (
            ROWS,
            "fp8_e4m3",
            "fp32",
            E4M3,
            (130, 300, 1024),
            {**SMALL, "split_k": 2, "split_reduction": "cluster"},
        ),
        (SQUARES, "fp8_e4m3", "fp32", E4M3, (130, 272, 256), {**SQUARE, "sms": 1}),
        (SQUARES, "int8", "ue8m0", BF16, (260, 300, 144), {"tile": Tile(256, 128, 64), "sms": 1}),
        (SQUARES, "fp8_e5m2", "fp32", BF16, (130, 300, 144), {"tile": Tile(128, 256, 64)}),
        (
            SQUARES,
            "fp8_e4m3",
            "fp32",
            E4M3,
            (130, 300, 1024),
            {**SQUARE, "split_k": 4, "split_reduction": "workspace"},
        ),
        (SQUARES, "fp8_e4m3", "fp32", E4M3, (130, 300, 1024), {**SQUARE, "scheduler": "stream_k", "sms": 4}),
    ],
)
def test_bits_are_those_of_quantize(kind, dtype, scale_dtype, operands, shape, fields):
    """Types, schedules, splits, passes; rows and columns that end inside a block; infinities and NaN."""
    assert same(*both(kind, dtype, scale_dtype, None, operands, shape, fields))


@pytest.mark.parametrize("kind", [ROWS, SQUARES], ids=str)
@pytest.mark.parametrize("gated", ["halves", "interleaved"])
def test_gated_pairs(kind, gated):
    """Blocks are those of D's columns, of which there are half as many as of B's."""
    assert same(*both(kind, "fp8_e4m3", "fp32", gated, BF16, (130, 400, 144), {"tile": Tile(128, 256, 64)}))


def test_other_outputs_and_a_matrix_beside_them():
    """A residual that TMA loads, the value in 16 bits, and its maximum."""

    @epi.define
    def layer(acc, *, c: epi.Matrix):
        h = acc + c
        q = epi.quantize(h)
        return epi.Output(scale=q.scale, h=epi.Store(h, dtype="fp32"), d=q.values, most=epi.AbsMax(h, axis=1))

    a, b, c = (
        torch.randn(x, generator=torch.Generator().manual_seed(1)).bfloat16()
        for x in ((130, 144), (144, 272), (130, 272))
    )
    found = emulated(GemmSpec(epilogue=layer, **SMALL), a, b, c=c)
    assert same(found, cutegemm.quantize(found.h, ROWS)) and torch.equal(found.most, found.h.abs().amax(1))


def test_two_layers_without_a_launch_between():
    """What one GEMM stores the next one reads as it lies: the bits of a fp32 result that `quantize` reads between."""
    quantised, value = graphs(ROWS)
    fields = {"scale_a": ROWS, "scale_b": SQUARES}
    x, w1, w2 = (
        torch.randn(s, generator=torch.Generator().manual_seed(1))
        for s in ((130, 256), (272, 256), (72, 272))
    )
    (a, scale_a), (b, scale_b), (c, scale_c) = (
        cutegemm.quantize(t, k) for t, k in ((x, ROWS), (w1, SQUARES), (w2, SQUARES))
    )
    named = {"scale_a": scale_a, "scale_b": scale_b, "bias": torch.zeros(272)}
    tile = {"tile": Tile(64, 128, 128), "swap": False}
    first = emulated(GemmSpec(epilogue=quantised, **fields, **tile), a, b.T, **named)
    h = emulated(GemmSpec(epilogue=value, d_dtype="fp32", **fields, **tile), a, b.T, **named)
    values, scale = cutegemm.quantize(h, ROWS)
    last = GemmSpec(**fields)
    y = emulated(last, first.d, c.T, scale_a=first.scale, scale_b=scale_c)
    assert torch.equal(y, emulated(last, values, c.T, scale_a=scale, scale_b=scale_c))
    exact = (x @ w1.T).relu() @ w2.T
    assert (y - exact).norm() < 0.08 * exact.norm()


@pytest.mark.sliced(False)
@pytest.mark.parametrize("kind", [ROWS, SQUARES], ids=str)
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "int8"])
@pytest.mark.parametrize("scale_dtype", ["fp32", "ue8m0"])
def test_the_reference_and_what_checks_it(kind, dtype, scale_dtype):
    """Batches of the reference are within the bounds; another scale or value is not."""
    graph = graphs(kind, dtype, scale_dtype)[0]
    a, b, bias = torch.randn(2, 130, 64), torch.randn(64, 272), torch.randn(272)
    a[0, :128] *= 1e-42
    d = Gemm(GemmSpec(epilogue=graph)).run(a.bfloat16(), b.bfloat16(), bias=bias)
    assert d.scale.shape == ((2, 130, 3) if kind == ROWS else (2, 2, 3)) and d.scale.stride(1) == 1
    bounds = bound(
        graph, a.bfloat16(), b.bfloat16(), {"bias": bias}, {"d": d.d.dtype, "scale": d.scale.dtype}
    )
    assert bounds["d"].complaint(d.d) is None and bounds["scale"].complaint(d.scale) is None
    wrong = d.d.float()
    wrong[1, 5, 7] += 40
    assert bounds["d"].complaint(wrong) and bounds["scale"].complaint(d.scale.float() * 2)


@pytest.mark.sliced(False)
def test_a_block_that_may_be_zeros_has_either_scale():
    """Sums that cancel: the scale 1 of zeros, or the small one of their errors."""
    graph = graphs(ROWS)[0]
    a, b = torch.tensor([[1.0, -1.0] * 32] * 2).bfloat16(), torch.ones(64, 128).bfloat16()
    types = {"d": torch.float8_e4m3fn, "scale": torch.float32}
    bounds = bound(graph, a, b, {"bias": torch.zeros(128)}, types)
    for scale, wrong in ((1.0, False), (1e-9, False), (2.0, True)):
        assert bool(bounds["scale"].complaint(torch.full((2, 1), scale))) is wrong
    assert bounds["d"].complaint(torch.full((2, 128), 448.0)) is None


@pytest.mark.sliced(False)
def test_text_and_data():
    """The text is Python of the language; data without blocks are what they were before there were any."""

    @epi.define
    def twice(acc):
        q, r = epi.quantize(acc + 1.0), epi.quantize(acc, SQUARES, "int8", "ue8m0")
        return epi.Output(d=q.values, scale=q.scale, e=r.values, exponents=r.scale)

    lines = str(twice).splitlines()
    assert lines == [
        "t0 = acc + 1.0",
        "d = quantize(t0, ('block', 1, 128), 'fp8_e4m3').values",
        "scale = quantize(t0, ('block', 1, 128), 'fp8_e4m3').scale",
        "e = quantize(acc, ('block', 128, 128), 'int8', 'ue8m0').values",
        "exponents = quantize(acc, ('block', 128, 128), 'int8', 'ue8m0').scale",
    ]

    def read(acc):
        known = {**vars(epi), "acc": acc}
        for line in lines:
            exec(line, known)
        return epi.Output(**{x.name: known[x.name] for x in twice.outputs})

    assert epi.define(read) == twice == Graph.from_data(twice.to_data())
    assert set(epi.bias().to_data()["outputs"][0]) == {
        "name",
        "node",
        "kind",
        "dtype",
        "major",
        "axis",
        "partial",
    }


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda acc: epi.quantize(acc, "row"),
            "kind='row': is known when all tiles of D are; store D, and quantise it",
        ),
        (
            lambda acc: epi.quantize(acc, ("block", 64, 128)),
            "kind=('block', 64, 128): must be ('block', 1, 128) or ('block', 128, 128)",
        ),
        (lambda acc: epi.quantize(3.0), "value=3.0: must be a value of this epilogue"),
        (
            lambda acc: epi.quantize(acc, ROWS, "bf16"),
            "dtype='bf16': must be one of fp8_e4m3, fp8_e5m2, int8",
        ),
        (
            lambda acc: epi.quantize(acc, scale_dtype="fp16"),
            'scale_dtype=\'fp16\': must be "fp32" or "ue8m0"',
        ),
        (
            lambda acc: epi.quantize(acc).scale + 1.0,
            "epilogue='_OfBlocks': an output cannot take part in arithmetic",
        ),
        (
            lambda acc: epi.backward(graphs(ROWS)[0]),
            "epilogue.d='quantize': values of 8 bits and their scales have no gradient",
        ),
    ],
)
def test_the_language_refuses(call, told):
    """Kinds and types that no tile can have, and whatever an output cannot be."""
    with pytest.raises(GemmError) as e:
        epi.define(lambda acc: epi.Output(d=call(acc)))
    assert str(e.value).startswith(told)


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("kind", "fields", "extents", "told"),
    [
        (
            ROWS,
            {"swap": True},
            {},
            "swap=True: D's transpose has blocks of 128 rows, not of columns; nearest legal value: False",
        ),
        (
            ROWS,
            {"tile": Tile(128, 192, 64)},
            {},
            "tile.n=192: a CTA stores whole blocks of 128 columns; nearest legal value: 256",
        ),
        (
            SQUARES,
            {"tile": Tile(64, 128, 64)},
            {},
            "tile.m=64: two warpgroups share the 128 rows of a block; nearest legal value: 128",
        ),
        (
            SQUARES,
            {"schedule": "pingpong"},
            {},
            "schedule='pingpong': two warpgroups share the 128 rows of a block",
        ),
        (
            SQUARES,
            {"consumers": 3},
            {},
            "consumers=3: two warpgroups share the 128 rows of a block; nearest legal value: 2",
        ),
        (
            SQUARES,
            {"split_k": 2, "split_reduction": "launch"},
            {},
            "split_reduction='launch': a block of 128 rows is quantised by the warpgroups that multiply it",
        ),
        (SQUARES, {"batch_invariant": True}, {}, "batch_invariant=True: blocks of 128 rows share a scale"),
        (
            ROWS,
            {},
            {"k": 0},
            "epilogue.d=('block', 1, 128): kernels of the tensor cores quantise blocks: K is 0",
        ),
        (
            ROWS,
            {},
            {"dtype": "fp32"},
            "epilogue.d=('block', 1, 128): kernels of the tensor cores quantise blocks: fp32",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(kind, fields, extents, told):
    """Tiles, schedules and splits that do not hold a block, named by the field that was given."""
    graph = graphs(kind)[0]
    with pytest.raises(GemmError) as e:
        plan(
            GemmSpec(epilogue=graph, **fields),
            problem(**{"m": 256, "n": 256, "k": 1024, "epilogue": graph} | extents),
        )
    assert str(e.value).startswith(told)


@pytest.mark.sliced(False)
def test_functions_of_torch():
    """`linear` unfolds the scales with D; compiled, and as what the next layer takes. There is no gradient."""
    torch._dynamo.reset()
    graph = graphs(ROWS)[0]
    (b, scale_b), (c, scale_c) = (cutegemm.quantize(torch.randn(s), SQUARES) for s in ((384, 256), (72, 384)))
    bias = torch.randn(384)

    def layers(x):
        h = cutegemm.linear(x, b, bias, epilogue=graph, scale_a=0.5, scale_b=scale_b)
        return h.d, h.scale, cutegemm.linear(h.d, c, scale_a=h.scale, scale_b=scale_c)

    x = torch.randn(2, 3, 50, 256).to(E4M3)
    d, scale, y = layers(x)
    assert d.shape == (2, 3, 50, 384) and scale.shape == (2, 3, 50, 3) and y.shape == (2, 3, 50, 72)
    flat = layers(x.flatten(0, -2))
    assert torch.equal(bits(d).view(300, 384), bits(flat[0])) and torch.equal(scale.reshape(300, 3), flat[1])
    given = {"d": torch.empty_like(d), "scale": torch.empty(3, 2, 3, 50).movedim(0, -1)}
    cutegemm.linear(x, b, bias, epilogue=graph, scale_a=0.5, scale_b=scale_b, out=given)
    assert torch.equal(bits(given["d"]), bits(d)) and torch.equal(given["scale"], scale)
    for wrong in (torch.empty(2, 3, 50, 3), torch.empty(3, 300).mT):
        with pytest.raises(GemmError, match="scale"):
            cutegemm.linear(
                x, b, bias, epilogue=graph, scale_a=0.5, scale_b=scale_b, out=given | {"scale": wrong}
            )
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")(x)
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(compiled[:2], (d, scale)))
    assert torch.equal(compiled[2], y) and compiled[1].stride() == scale.stride()
    mapped = torch.vmap(lambda row: cutegemm.matmul(row, b.mT.to(BF16), epilogue=graph, bias=bias).scale)
    wide = x[0].to(BF16)
    assert torch.equal(mapped(wide), cutegemm.matmul(wide, b.mT.to(BF16), epilogue=graph, bias=bias).scale)
    with pytest.raises(GemmError, match="have no gradient"):
        cutegemm.linear(wide.requires_grad_(), b.to(BF16), bias.to(BF16), epilogue=graph)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [ROWS, SQUARES], ids=str)
@pytest.mark.parametrize("shape", [(512, 768, 4096), (300, 200, 272), (1, 4096, 7168)], ids=str)
def test_results_on_a_gpu(kind, shape):
    """Within the bounds of fp64, and where one kernel adds alike the bits of `quantize`."""
    m, n, k = shape
    quantised, value = graphs(kind)
    a, b, bias = drawn(m, k).cuda(), drawn(n, k, seed=1).cuda().T, torch.randn(n, device="cuda")
    d = Gemm(GemmSpec(epilogue=quantised)).run(a, b, bias=bias)
    types = {"d": d.d.dtype, "scale": torch.float32}
    for name, x in bound(quantised, a, b, {"bias": bias}, types).items():
        assert x.complaint(getattr(d, name)) is None
    fields = {"tile": Tile(128, 128, 128), "swap": False, "split_k": 1}
    found = Gemm(GemmSpec(epilogue=quantised, **fields)).run(a, b, bias=bias)
    h = Gemm(GemmSpec(epilogue=value, d_dtype="fp32", **fields)).run(a, b, bias=bias)
    assert same(found, cutegemm.quantize(h, kind))
