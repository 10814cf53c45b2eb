# SPDX-License-Identifier: Apache-2.0
"""`matmul` and `linear` of operands of 8 bits: what `Gemm.run` gives and refuses, compiled and transformed too."""

import itertools

import pytest
import torch
import torch._dynamo.testing
from torch._subclasses.fake_tensor import FakeTensorMode

import cutegemm
from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import GemmError
from cutegemm.running.numerics.bounds import bound

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
KINDS = ("tensor", "row", ROWS, SQUARES)
BIAS_GELU = epi.bias_act("gelu")


def r(*shape, seed=0):
    """Normally distributed elements."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape, dtype=torch.int8):
    """Integers of a type."""
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype)


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)), ids=str)
def test_the_kind_follows_from_the_shape(kinds):
    """D is bit for bit what a run under a spec that names the kinds gives, and within its bounds."""
    x, w = r(130, 300), r(200, 300, seed=1)
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(t, kind) for t, kind in zip((x, w), kinds))
    named = {"scale_a": scale_a, "scale_b": scale_b}
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1])
    wanted = Gemm(spec).run(a, b.T, **named)
    for d in (
        cutegemm.matmul(a, b.T, **named),
        cutegemm.linear(a, b, **named),
        cutegemm.matmul(a, b.T, spec=spec, **named),
        cutegemm.linear(a, b, spec=GemmSpec(d_dtype="bf16"), **named),
        cutegemm.matmul(a, b.T, out=torch.empty(130, 200).bfloat16(), **named),
    ):
        assert d.dtype == torch.bfloat16 and torch.equal(d, wanted)
    assert bound(spec.epilogue, a, b.T, named, {"d": d.dtype})["d"].complaint(d) is None


@pytest.mark.parametrize(
    "kinds", [("row", "row"), (ROWS, SQUARES), ("tensor", ROWS), (SQUARES, "row")], ids=str
)
def test_leading_dimensions_fold(kinds):
    """Scales of x have its leading dimensions, but those of blocks of 128 rows, which count all rows."""
    x, w, bias = r(3, 50, 300), r(200, 300, seed=1), r(200, seed=2)
    a, scale_a = cutegemm.quantize(x.view(150, 300), kinds[0])
    b, scale_b = cutegemm.quantize(w, kinds[1])
    wanted = cutegemm.linear(a, b, bias, epilogue=BIAS_GELU, scale_a=scale_a, scale_b=scale_b)
    if kinds[0] in ("row", ROWS):
        scale_a = scale_a.unflatten(0, (3, 50))
    d = cutegemm.linear(a.view(3, 50, 300), b, bias, epilogue=BIAS_GELU, scale_a=scale_a, scale_b=scale_b)
    assert d.shape == (3, 50, 200) and torch.equal(d.view(150, 200), wanted)
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1])
    again = cutegemm.linear(
        a.view(3, 50, 300), b, bias, epilogue=BIAS_GELU, spec=spec, scale_a=scale_a, scale_b=scale_b
    )
    assert torch.equal(again, d)
    exact = torch.nn.functional.gelu(x @ w.T + bias)
    assert (d - exact).norm() < 0.06 * exact.norm()


@pytest.mark.parametrize("kind", ["tensor", ROWS, SQUARES], ids=str)
def test_a_vector_has_the_scales_of_a_row(kind):
    """x (K,) has no leading dimensions: blocks of 1 x 128 have a scale each, (K / 128,)."""
    (a, scale_a), (b, scale_b) = cutegemm.quantize(r(1, 300), kind), cutegemm.quantize(r(200, 300, seed=1))
    wanted = cutegemm.linear(a, b, scale_a=scale_a, scale_b=scale_b)[0]
    scale_a = scale_a[0] if kind == ROWS else scale_a
    assert torch.equal(cutegemm.linear(a[0], b, scale_a=scale_a, scale_b=scale_b), wanted)


def test_batches_have_their_scales():
    """Rows of each matrix of a batch, or shared ones; with C, alpha and beta."""
    x, w, c = r(3, 40, 256), r(3, 24, 256, seed=1), r(3, 40, 24, seed=2).bfloat16()
    for kind_a, kind_b in (("row", "row"), (ROWS, SQUARES)):
        (a, scale_a), (b, scale_b) = cutegemm.quantize(x, kind_a), cutegemm.quantize(w, kind_b)
        d = cutegemm.matmul(a, b.mT, c, alpha=2.0, beta=0.5, scale_a=scale_a, scale_b=scale_b)
        for i in range(3):
            one = cutegemm.matmul(
                a[i], b[i].T, c[i], alpha=2.0, beta=0.5, scale_a=scale_a[i], scale_b=scale_b[i]
            )
            assert torch.equal(d[i], one)
        shared = cutegemm.matmul(a, b[0].T, scale_a=scale_a, scale_b=scale_b[0])
        assert torch.equal(shared[0], cutegemm.matmul(a[0], b[0].T, scale_a=scale_a[0], scale_b=scale_b[0]))


@pytest.mark.parametrize("dtypes", [(torch.int8, torch.int8), (torch.uint8, torch.int8)], ids=str)
def test_integers_are_exact(dtypes):
    """int32 without scales, with torch's functions nowhere; scaled bf16; M from 1."""
    a, b = whole(5, 300, dtype=dtypes[0]), whole(40, 300, dtype=dtypes[1])
    exact = a.long() @ b.long().T
    for d in (cutegemm.matmul(a, b.T), cutegemm.linear(a, b), cutegemm.linear(a[None], b)[0]):
        assert d.dtype == torch.int32 and torch.equal(d.long(), exact)
    d = cutegemm.linear(a[:1], b, r(40), scale_a=0.5, scale_b=torch.full((40,), 2.0))
    assert d.dtype == torch.bfloat16 and torch.equal(d, (exact[:1] + r(40)).bfloat16())


def test_the_kernel_gives_the_same():
    """The emulator runs what a GPU would."""
    (a, scale_a), (b, scale_b) = (
        cutegemm.quantize(r(20, 144), ROWS),
        cutegemm.quantize(r(40, 144, seed=1), SQUARES),
    )
    d, e = (
        cutegemm.linear(a, b, scale_a=scale_a, scale_b=scale_b, fallback=x) for x in ("emulator", "reference")
    )
    assert torch.allclose(d.float(), e.float(), rtol=0.02, atol=0.02)


@pytest.mark.sliced
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_calls_compile_into_one_graph(dynamic):
    """fullgraph, with the operands' making: the bits of the eager call; other extents do not compile again."""
    torch._dynamo.reset()
    w, bias = r(40, 256, seed=1), r(40, seed=2)
    (rows, scale_rows), (squares, scale_squares) = cutegemm.quantize(w), cutegemm.quantize(w, SQUARES)

    def f(x):
        a, scale_a = cutegemm.quantize(x)
        first = cutegemm.linear(a, rows, bias, epilogue=BIAS_GELU, scale_a=scale_a, scale_b=scale_rows)
        a, scale_a = cutegemm.quantize(x, ROWS)
        second = cutegemm.matmul(a, squares.T, scale_a=scale_a, scale_b=scale_squares)
        third = cutegemm.matmul(x.to(torch.int8), w.to(torch.int8).T)
        return first, second, third, cutegemm.linear(a, rows, scale_a=0.5, scale_b=scale_rows)

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend=counter)
    counts = []
    for m in (150, 170) if dynamic else (150,):
        x = r(m, 256)
        for one, other in zip(compiled(x), f(x)):
            assert one.dtype == other.dtype and torch.equal(one, other)
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = f(mode.from_tensor(x))
    assert [(y.shape, y.dtype, y.stride()) for y in fake] == [(y.shape, y.dtype, y.stride()) for y in f(x)]


def test_transforms():
    """torch's checks of the op; vmap over batches with their scales; autocast leaves 8 bits alone."""
    (a, scale_a), (b, scale_b) = cutegemm.quantize(r(3, 20, 256), ROWS), cutegemm.quantize(r(40, 256, seed=1))
    wanted = cutegemm.matmul(a, b.T, scale_a=scale_a, scale_b=scale_b)
    mapped = torch.vmap(lambda x, s: cutegemm.matmul(x, b.T, scale_a=s, scale_b=scale_b))(a, scale_a)
    assert torch.equal(mapped, wanted)
    # x with leading dimensions of its own, which its scales have too
    mapped = torch.vmap(lambda x, s: cutegemm.linear(x, b, scale_a=s, scale_b=scale_b))(
        a[:, None], scale_a[:, None]
    )
    assert torch.equal(mapped[:, 0], wanted)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(cutegemm.linear(a, b, scale_a=scale_a, scale_b=scale_b), wanted)
    meta = cutegemm.linear(*(x.to("meta") for x in (a, b)), scale_a=scale_a.to("meta"), scale_b=2.0)
    assert (meta.shape, meta.dtype, meta.device.type) == ((3, 20, 40), torch.bfloat16, "meta")


def test_a_bias_has_a_gradient_and_nothing_else():
    """Its gradient is the sum of rows; an operand or a scale that needs one is refused by its name."""
    (a, scale_a), (b, scale_b) = cutegemm.quantize(r(20, 64)), cutegemm.quantize(r(40, 64, seed=1))
    bias = r(40).requires_grad_()
    cutegemm.linear(a, b, bias, scale_a=scale_a, scale_b=scale_b).sum().backward()
    assert torch.equal(bias.grad, torch.full((40,), 20.0))
    cutegemm.linear(whole(4, 16), whole(40, 16), bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((40,), 24.0))
    for field, given in (
        ("x", {"x": a.clone().requires_grad_()}),
        ("weight", {"weight": b.clone().requires_grad_()}),
        ("scale_b", {"scale_b": scale_b.clone().requires_grad_()}),
    ):
        good = {"x": a, "weight": b, "scale_a": scale_a, "scale_b": scale_b}
        with pytest.raises(GemmError) as e:
            cutegemm.linear(**(good | given))
        assert e.value.field == f"{field}.requires_grad"
        with torch.no_grad():
            cutegemm.linear(**(good | given))
    with pytest.raises(GemmError):
        cutegemm.matmul(a.clone().requires_grad_(), b.T)


A8, B8 = (r(16, 256, seed=i).to(E4M3) for i in (0, 1))


@pytest.mark.parametrize("fallback", ["torch", "reference"])
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"a": A8.bfloat16()}, "b.dtype"),
        ({"b": B8.T.bfloat16()}, "b.dtype"),
        ({"b": whole(256, 16)}, "b.dtype"),
        ({"a": A8.to(torch.float8_e4m3fnuz)}, "a.dtype"),
        ({"scale_a": torch.ones(15)}, "scale_a.shape"),
        ({"scale_b": torch.ones(16, 1)}, "scale_b.shape"),
        ({"scale_b": torch.ones(16, 5)}, "scale_b.shape"),
        ({"scale_a": torch.ones(16, 2).bfloat16()}, "scale_a.dtype"),
        ({"scale_a": torch.ones(16, device="meta")}, "scale_a.device"),
        ({"scale_a": "1"}, "scale_a"),
        ({"spec": GemmSpec(scale_a="row", scale_b="row")}, "scale_a"),
        ({"spec": GemmSpec(scale_a="row"), "scale_a": torch.ones(16, 2)}, "scale_a.shape"),
        ({"spec": GemmSpec(promote=96), "scale_a": torch.ones(16, 2)}, "promote"),
        ({"spec": GemmSpec(tile=cutegemm.Tile(128, 128, 32)), "scale_a": torch.ones(16, 2)}, "tile.k"),
        ({"b": B8.T[:255]}, "b.shape"),
        ({"scales": torch.ones(16)}, "scales"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_cpu_refuses_what_a_gpu_does(given, field, fallback):
    """By the argument's name, whoever would compute it."""
    with pytest.raises(GemmError) as e:
        cutegemm.matmul(**({"a": A8, "b": B8.T, "fallback": fallback} | given))
    assert e.value.field == field
