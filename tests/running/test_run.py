# SPDX-License-Identifier: Apache-2.0
"""`gemm.run` on CPU tensors: the reference backend keeps every promise that the kernels keep."""

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cutegemm
from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph, Node, Result
from cutegemm.errors import CompileError, InputError
from cutegemm.gemm import Gemm, representative
from cutegemm.plans.kernel_plan import launch_arguments
from cutegemm.running import run
from cutegemm.running.arguments.results import Partial
from cutegemm.running.backends import launcher
from tests.support.gpu_path import on_the_gpu
from tests.support.memory import Layout
from tests.support.numerics import assert_close
from tests.support.strategies import extents, scalars

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = st.tuples(extents(0, 130), extents(0, 130), extents(0, 130))
LAYOUTS = st.builds(
    Layout,
    row_major=st.booleans(),
    unit=st.sampled_from((1, 1, 2)),
    pad=st.sampled_from((0, 8)),
    aligned=st.booleans(),
    offset=st.sampled_from((0, 0, 1, 4)),
)


def gemm_of(**fields) -> Gemm:
    """A Gemm of which nothing is compiled."""
    spec = GemmSpec(**fields)
    return Gemm(spec, representative(spec))


BARE = gemm_of()


@st.composite
def calls(draw):
    """(a, b, c, guarded out, alpha, beta): any shapes, layouts, types and broadcasts."""
    m, n, k = draw(SHAPES)
    batch = draw(st.sampled_from((None, None, 0, 1, 3)))
    dtype = draw(st.sampled_from((BF16, FP16, FP32)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    lead = () if batch is None else (batch,)
    flat = draw(st.sampled_from(("", "a", "b", "c"))) if batch is not None else ""
    a = draw(LAYOUTS).random((*(() if flat == "a" else lead), m, k), dtype, generator)
    b = draw(LAYOUTS).random((*(() if flat == "b" else lead), k, n), dtype, generator)
    c = None
    if draw(st.booleans()):
        c_dtype = draw(st.sampled_from((dtype, FP32)))
        c = draw(LAYOUTS).random((*(() if flat == "c" else lead), m, n), c_dtype, generator)
    out = draw(LAYOUTS).make((*lead, m, n), draw(st.sampled_from((dtype, FP32))))
    beta = draw(st.none() | scalars()) if c is not None else draw(st.sampled_from((None, 0.0)))
    return a, b, c, out, draw(scalars()), beta


@given(calls())
def test_any_call_matches_fp64(call):
    """alpha A B + beta C within the bound, in the tensor given, and nothing around it written."""
    a, b, c, out, alpha, beta = call
    if beta == 0 and c is not None:
        c.fill_(torch.nan)
    got = BARE.run(a, b, c, out=out.view, alpha=alpha, beta=beta)
    assert got is out.view and out.untouched()
    assert_close(got, a, b, c, alpha, (1.0 if c is not None else 0.0) if beta is None else beta)


@given(calls())
def test_a_new_result_has_the_right_shape_and_type(call):
    """Without `out` the result is a new tensor of A's type, equal to what `out` would have received."""
    a, b, c, out, alpha, beta = call
    got = BARE.run(a, b, c, alpha=alpha, beta=beta)
    assert got.shape == out.view.shape and got.dtype == a.dtype and got.device == a.device
    assert_close(got, a, b, c, alpha, (1.0 if c is not None else 0.0) if beta is None else beta)


@pytest.mark.parametrize("shape", [(0, 7, 5), (7, 0, 5), (0, 0, 0), (7, 5, 0)])
@pytest.mark.parametrize("beta", [None, 0.0, 0.5])
def test_empty_extents(shape, beta):
    """M = 0 or N = 0 gives an empty D, K = 0 gives beta C."""
    m, n, k = shape
    c = torch.randn(m, n)
    got = BARE.run(torch.randn(m, k), torch.randn(k, n), c, beta=beta)
    assert got.shape == (m, n)
    assert torch.equal(got, c * (1.0 if beta is None else beta))


@given(SHAPES, scalars(), scalars())
def test_in_place(shape, alpha, beta):
    """`out` may be C itself, as in BLAS."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(1)
    a, b = (Layout().random(s, BF16, generator) for s in ((m, k), (k, n)))
    out = Layout(aligned=False).make((m, n), BF16)
    out.view.copy_(torch.randn(m, n, generator=generator))
    before = out.view.clone()
    assert BARE.run(a, b, out.view, out=out.view, alpha=alpha, beta=beta) is out.view
    assert_close(out.view, a, b, before, alpha, beta)
    assert out.untouched()


def test_d_dtype_decides_the_type_of_a_new_result():
    """A spec's d_dtype is D's type when nothing else says it, and contradicts another `out`."""
    a, b = torch.randn(4, 5, dtype=BF16), torch.randn(5, 6, dtype=BF16)
    gemm = gemm_of(d_dtype="fp32")
    assert gemm.run(a, b).dtype is FP32
    with pytest.raises(cutegemm.GemmError, match="^d_dtype='fp32': the problem's D is bf16"):
        gemm.run(a, b, out=torch.empty(4, 6, dtype=BF16))


def test_accumulation_is_in_fp32():
    """A sum that 16-bit accumulation would lose is kept: 4096 ones and one 1/2 ulp steps."""
    a = torch.ones(1, 4096, dtype=FP16)
    got = gemm_of(d_dtype="fp32").run(a, torch.ones(4096, 1, dtype=FP16))
    assert got.item() == 4096.0
    assert BARE.run(a.to(BF16), torch.full((4096, 1), 1.0078125, dtype=BF16)).item() == 4128.0


def test_another_epilogue_graph():
    """The spec's graph decides what D is: here acc - c * acc."""
    nodes = (Node("acc"), Node("matrix", value="c"), Node("mul", (0, 1)), Node("sub", (0, 2)))
    gemm = gemm_of(epilogue=Graph(nodes, (Result("d", 3),)))
    a, b, c = torch.randn(6, 4), torch.randn(4, 5), torch.randn(6, 5)
    torch.testing.assert_close(gemm.run(a, b, c), a @ b - c * (a @ b))


def test_named_backends():
    """The reference may be named; the GPU may not be named for CPU tensors."""
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert torch.equal(BARE.run(a, b, backend="reference"), BARE.run(a, b))
    with pytest.raises(InputError, match="^backend='gpu'"):
        BARE.run(a, b, backend="gpu")


def test_a_kind_of_call_is_prepared_once(monkeypatch):
    """Calls that differ in addresses and scalars alone share their preparation; other shapes do not."""
    gemm = gemm_of()
    prepared = []
    original = run.prepare
    monkeypatch.setattr(run, "prepare", lambda *call: prepared.append(call) or original(*call))
    for _ in range(3):
        gemm.run(torch.randn(16, 16), torch.randn(16, 16), torch.randn(16, 16), alpha=0.5, beta=2.0)
    assert len(prepared) == 1
    gemm.run(torch.randn(17, 16), torch.randn(16, 16))
    gemm.run(torch.randn(16, 16), torch.randn(16, 16), torch.randn(16, 16), beta=0.0)
    assert len(prepared) == 3


@epi.define
def ROW_ONLY(acc, *, bias: epi.Row):  # noqa: N802
    """No numbers."""
    return acc + bias


@epi.define
def DEVICE(acc, *, x: epi.Scalar, y: epi.Scalar, seed: epi.Integer):  # noqa: N802
    """Numbers only, one of them an integer."""
    return epi.Output(d=acc * x + y, pre=epi.where(epi.random(seed, seed) < 0.5, acc, y))


@epi.define
def REDUCED(acc, *, c: epi.Matrix, x: epi.Scalar):  # noqa: N802
    """Finished and partial reductions."""
    h = acc * x + c
    return epi.Output(d=h, rows=epi.Sum(h, axis=1), top=epi.Max(h, partial=True))


@epi.define
def PARTIAL(acc):  # noqa: N802
    """No workspace, yet an address that is no output's."""
    return epi.Output(d=acc, top=epi.Max(acc, partial=True))


LAUNCHED = {
    "a partial reduction": (PARTIAL, {}, {}),
    "plain": (None, {}, {}),
    "plain, with c": (None, {"c": torch.ones(40, 72, dtype=BF16), "beta": 0.5}, {}),
    "re-laid-out": (None, {}, {"a_load": "relayout"}),
    "no numbers": (ROW_ONLY, {"bias": torch.ones(72)}, {}),
    "numbers": (DEVICE, {"x": 2.0, "y": 3.0, "seed": 4}, {}),
    "a scalar on the device": (DEVICE, {"x": torch.tensor(2.0), "y": 3.0, "seed": 4}, {}),
    "reductions": (REDUCED, {"c": torch.ones(40, 72), "x": 0.5}, {}),
    "reductions, re-laid-out": (REDUCED, {"c": torch.ones(40, 72), "x": 0.5}, {"b_load": "relayout"}),
}


@pytest.mark.parametrize("given_out", [False, True])
@pytest.mark.parametrize("name", LAUNCHED)
def test_what_is_launched_is_what_the_plan_says(name, given_out, monkeypatch):
    """A run on the GPU passes each kernel exactly the arguments that `launch_arguments` gives, its fast path too."""
    graph, named, fields = LAUNCHED[name]
    made, launched = on_the_gpu(monkeypatch)
    gemm = gemm_of(**fields) if graph is None else gemm_of(epilogue=graph, **fields)
    a, b = torch.ones(40, 24, dtype=BF16), torch.ones(24, 72, dtype=BF16)
    out = torch.empty(40, 72, dtype=BF16) if given_out else None
    workspace = torch.empty(1 << 20, dtype=torch.uint8)
    result = gemm.run(a, b, **named, out=out, workspace=workspace)
    found = {"d": result} if isinstance(result, torch.Tensor) else dict(vars(result))
    assert not given_out or found["d"] is out
    (chosen,) = made
    found = {k: v.values if isinstance(v, Partial) else v for k, v in found.items()}
    given = {k: v for k, v in named.items() if isinstance(v, torch.Tensor)}
    addresses = {k: v.data_ptr() for k, v in {"a": a, "b": b, **given, **found}.items()}
    wanted = list(launch_arguments(chosen, addresses, workspace.data_ptr(), {"alpha": 1.0} | named, 77))
    assert (
        [config for config, _ in launched]
        == [config for config, _ in wanted]
        == [x.config for x in chosen.steps]
    )
    for (_, got), (_, want) in zip(launched, wanted, strict=True):
        assert got == want


def test_overlaps_are_refused_on_the_gpus_path(monkeypatch):
    """Before anything is launched: outputs over one another, an input, or a scalar; a matrix input itself is fine."""
    _, launched = on_the_gpu(monkeypatch)
    memory = torch.ones(400, dtype=torch.float32)
    a, b = torch.ones(6, 5), torch.ones(5, 7)

    @epi.define
    def two(acc, *, c: epi.Matrix, x: epi.Scalar):
        return epi.Output(d=acc * x + c, pre=acc, rows=epi.Sum(acc, axis=1))

    gemm, c, x = gemm_of(epilogue=two), memory[:42].view(6, 7), memory[50]
    named = {"c": c, "x": x}
    gemm.run(a, b, **named, out={"d": c, "pre": memory[100:142].view(6, 7), "rows": memory[200:206]})
    count = len(launched)
    assert count == 2
    for outs, message in (
        ({"d": c, "pre": memory[41:83].view(6, 7), "rows": memory[200:206]}, "pre: overlaps c in memory"),
        ({"d": c, "pre": memory[45:87].view(6, 7), "rows": memory[200:206]}, "pre: overlaps x in memory"),
        (
            {"d": c, "pre": memory[100:142].view(6, 7), "rows": memory[136:142]},
            "rows: overlaps pre in memory",
        ),
        ({"d": c, "pre": memory[100:142].view(6, 7), "rows": memory[0:6]}, "rows: overlaps c in memory"),
        ({"d": memory[141:183].view(6, 7), "pre": memory[100:142].view(6, 7)}, "pre: overlaps out in memory"),
    ):
        for _ in range(2):
            with pytest.raises(InputError) as e:
                gemm.run(a, b, **named, out=outs)
            assert str(e.value).startswith(message)
    assert len(launched) == count


def test_compile_during_capture_is_refused(monkeypatch):
    """A kernel that is not ready while a CUDA graph is captured is refused, naming `warm`."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CompileError, match=r"gemm\.warm\(\[problem\]\)"):
        launcher.function_for(gemm_of().plan.config, 0)


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_another_architecture_is_refused(monkeypatch, capability):
    """A GPU that is not a Hopper is refused by name and capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    with pytest.raises(cutegemm.errors.HardwareError) as e:
        launcher.device_of(torch.device("cuda:0"))
    version = ".".join(map(str, capability))
    assert str(e.value) == f"cuda:0 is Some GPU, compute capability {version}: kernels need 9.0 (Hopper)"


BANNED = {
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "pad",
    "contiguous",
    "linear",
    "dot",
    "__matmul__",
}


# what `matmul` and `linear` do where there is no Hopper GPU
# the fallback, and `quantize`, which makes operands and multiplies nothing
BY_TORCH = (
    Path("ops", "fallback.py"),
    Path("ops", "quantized", "made.py"),
    Path("ops", "quantized", "kernel.py"),
    Path("running", "numerics", "eight_bits.py"),
)


def test_only_the_reference_multiplies():
    """No module but the reference, the fallback, `quantize` and the command line, which compares with torch, calls its
    products, padding or copies, nor uses @.
    """
    root = Path(cutegemm.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        here = path.relative_to(root)
        if path.name == "reference.py" or here in BY_TORCH or here.parts[0] in ("cli", "emulator"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in BANNED
            )
            if called or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
                found.append(f"{path.name}:{node.lineno}")
    assert found == []
