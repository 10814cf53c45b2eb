# SPDX-License-Identifier: Apache-2.0
"""The kernels on a Hopper GPU, through `gemm.run`, against fp64.

A case is a spec with a memory layout per operand; shapes, scalars and data vary within it, so the kernels
of all cases are few and compile together, once, before the first test.
"""

import dataclasses
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm import GemmSpec, Tile
from cutegemm.compiling import kernel_cache
from cutegemm.errors import CheckError, CompileError, InputError
from cutegemm.gemm import Gemm, representative
from tests.support.kernel_cases import BF16, CASES, GEMMS, compile_all, described
from tests.support.numerics import assert_close
from tests.support.strategies import extents, scalars

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Every kernel of every case, compiled in parallel."""
    compile_all(gpu=True)


def check(case, shape, alpha=1.0, beta=None, batch=None, broadcast="") -> None:
    """Run a case at one shape and compare; D starts as poison and its surroundings must stay so."""
    a, b, c, d = case.tensors(shape, "cuda", batch, broadcast)
    if beta == 0 and c is not None:
        c.fill_(torch.nan)  # must not be read
    result = GEMMS[case.spec].run(a, b, c, out=d.view, alpha=alpha, beta=beta)
    assert result is d.view
    assert_close(result, a, b, c, alpha, (0.0 if c is None else 1.0) if beta is None else beta)
    assert d.untouched(), "elements around out were written"


# Extents of 2 and more: a vector has other majors than a matrix and so another kernel (see test_vectors).
SHAPES = st.tuples(extents(2, 400), extents(2, 400), extents(2, 300))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12)
@given(shape=SHAPES, alpha=scalars(), beta=scalars())
def test_every_path_at_any_shape(name, shape, alpha, beta):
    """Each spec and layout gives alpha A B + beta C for drawn shapes and scalars, and writes nothing else."""
    case = CASES[name]
    check(case, shape, alpha, beta if case.c is not None else None)


BATCHED = ("row, row", "col, col", "relayout both, odd D", "gather both", "shift both, odd D", "cluster 2x2",
           "store direct, D odd col", "multistage", "simt fp32, odd", "store tma, D col")  # fmt: skip


@pytest.mark.parametrize("name", BATCHED)
@settings(max_examples=6)
@given(shape=SHAPES, batch=st.integers(2, 5), broadcast=st.sampled_from(("", "a", "b", "c", "ab", "abc")))
def test_batches_and_broadcasts(name, shape, batch, broadcast):
    """Every batch gets its own product; a 2-D operand serves them all."""
    if set("ab") <= set(broadcast):
        broadcast = broadcast.replace("a", "")  # one operand must say how many batches there are
    check(CASES[name], shape, 1.0, 0.5, batch, broadcast)


@pytest.mark.parametrize(
    "shape", [(1, 300, 200), (300, 1, 200), (1, 1, 77), (130, 90, 1), (1, 1, 1), (5, 3, 4096)]
)
@pytest.mark.parametrize("name", ["row, row", "col, col", "relayout both, odd D", "simt fp32"])
def test_vectors(name, shape):
    """Extents of 1 are matrices like any other."""
    check(CASES[name], shape, 2.0, 0.5)


@pytest.mark.parametrize("shape", [(1023, 1025, 511), (4096, 256, 64), (136, 4099, 513), (2048, 2048, 2048)])
def test_the_planners_own_choice(shape):
    """A bare spec is right at sizes that fill the GPU, odd ones included."""
    gemm = cutegemm.build(GemmSpec())
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(5)
    a = torch.randn(m, k, device="cuda", dtype=BF16, generator=generator)
    b = torch.randn(k, n, device="cuda", dtype=BF16, generator=generator)
    c = torch.randn(m, n, device="cuda", dtype=BF16, generator=generator)
    assert_close(gemm.run(a, b), a, b)
    assert_close(gemm.run(a, b, c, alpha=2.0, beta=0.5), a, b, c, 2.0, 0.5)


@pytest.mark.parametrize("name", ["row, row", "relayout both, odd D", "multistage", "simt fp32"])
def test_no_k_gives_beta_c(name):
    """With K = 0 the product is zero: D is beta C, or zeros without C."""
    case = CASES[name]
    for shape in ((65, 130, 0), (3, 7, 0)):
        check(case, shape, 3.0, 0.5)
        check(dataclasses.replace(case, c=None), shape)


@pytest.mark.parametrize("shape", [(0, 8, 8), (5, 0, 8), (0, 0, 0)])
def test_empty_results(shape):
    """M = 0 or N = 0 gives an empty D."""
    a, b, c, _ = CASES["row, row"].tensors(shape, "cuda")
    assert GEMMS[CASES["row, row"].spec].run(a, b, c).shape == shape[:2]


@pytest.mark.parametrize(
    "name", ["row, row", "store staged, D odd", "store direct", "store tma, fp32", "multistage", "simt fp32"]
)
@settings(max_examples=4)
@given(shape=SHAPES)
def test_in_place(name, shape):
    """`out` may be C itself."""
    case = CASES[name]
    a, b, _, d = case.tensors(shape, "cuda")
    d.view.normal_()
    before = d.view.clone()
    GEMMS[case.spec].run(a, b, d.view, out=d.view, alpha=0.5, beta=2.0)
    assert_close(d.view, a, b, before, 0.5, 2.0)
    assert d.untouched()


@pytest.mark.parametrize(
    "name", ["row, row", "relayout both, odd D", "gather both", "multistage", "simt fp32"]
)
def test_special_values_stay_in_their_row_and_column(name):
    """A NaN in A reaches its row of D and an infinity in B its column; ragged edges import none from outside."""
    case = CASES[name]
    a, b, c, d = case.tensors((131, 77, 67), "cuda")
    a[5, 9], b[11, 13] = torch.nan, torch.inf
    GEMMS[case.spec].run(a, b, c, out=d.view)
    assert_close(d.view, a, b, c, 1.0, 1.0)
    finite = d.view.isfinite()
    finite[5, :], finite[:, 13] = True, True
    assert bool(finite.all()) and bool(d.view[5].isnan().all()) and d.untouched()


def test_scalars_are_run_time_values(monkeypatch):
    """Other values of alpha and beta compile nothing."""
    case = CASES["row, row"]
    check(case, (64, 64, 64), 1.0, 1.0)
    monkeypatch.setattr(kernel_cache, "compile_config", None)
    for alpha, beta in ((0.25, -3.0), (0.0, 0.0), (1e-3, 7.0)):
        check(case, (64, 64, 64), alpha, beta)


def test_the_declared_example():
    """The example of the documentation, odd sizes included, with an in-place run."""
    a = torch.randn(4095, 4097, device="cuda", dtype=BF16)
    b = torch.randn(4097, 1000, device="cuda", dtype=BF16)
    c = torch.randn(4095, 1000, device="cuda", dtype=BF16)
    gemm = cutegemm.build(GemmSpec())
    assert_close(gemm.run(a, b), a, b)
    assert_close(gemm.run(a, b, c, alpha=2.0, beta=0.5), a, b, c, 2.0, 0.5)
    gemm = cutegemm.build(
        GemmSpec(
            tile=Tile(128, 256, 64),
            cluster=(2, 1),
            stages=4,
            swizzle="128B",
            schedule="cooperative",
            raster=("m", 8),
        )
    )
    before = c.clone()
    gemm.run(a, b, c, alpha=2.0, beta=0.5, out=c)
    assert_close(c, a, b, before, 2.0, 0.5)
    assert "4096 x 4096 x 4096" in str(gemm)


def test_capture_and_replay():
    """A captured run replays on new data, re-layouts and workspace included."""
    for name in ("row, row", "relayout both, odd D"):
        case = CASES[name]
        a, b, c, d = case.tensors((200, 300, 100), "cuda")
        gemm = GEMMS[case.spec]
        gemm.run(a, b, c, out=d.view, beta=0.5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gemm.run(a, b, c, out=d.view, beta=0.5)
        for x in (a, b, c):
            x.normal_()
        d.view.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(d.view, a, b, c, 1.0, 0.5)


def test_capture_without_a_kernel_is_refused():
    """Compiling or loading during a capture is refused, naming `warm`; the stream stays usable."""
    gemm = Gemm(GemmSpec(tile=Tile(64, 48, 32)), representative(GemmSpec()))
    a, b, _, d = CASES["row, row"].tensors((64, 64, 64), "cuda")
    with pytest.raises(CompileError, match=r"gemm\.warm\(\[problem\]\)"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            gemm.run(a, b, out=d.view)
    torch.cuda.synchronize()
    assert d.unwritten()


def test_warm_then_capture():
    """After `warm` the first run of a kind may be captured."""
    gemm = Gemm(GemmSpec(tile=Tile(64, 80, 32)), representative(GemmSpec()))
    a, b, _, d = CASES["row, row"].tensors((64, 64, 64), "cuda")
    gemm.warm([described(a, b, None, d.view)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.run(a, b, out=d.view)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(d.view, a, b)


def test_several_threads():
    """Threads share a Gemm, each on its own stream."""
    case = CASES["row, row"]
    failures = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(20):
                    check(case, (100 + seed, 64 + i, 40), 1.0, 1.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_the_current_stream_is_used():
    """A run on a side stream comes after what that stream was doing."""
    case = CASES["relayout both, odd D"]
    a, b, c, d = case.tensors((500, 500, 500), "cuda")
    values = torch.randn_like(a)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles
        a.copy_(values)
        GEMMS[case.spec].run(a, b, c, out=d.view)
    stream.synchronize()
    assert_close(d.view, values, b, c, 1.0, 1.0)


def test_no_allocation_with_out():
    """With `out`, and `workspace` where one is needed, a run allocates nothing."""
    for name in ("row, row", "relayout both, odd D"):
        case = CASES[name]
        a, b, c, d = case.tensors((300, 200, 100), "cuda")
        gemm = GEMMS[case.spec]
        need = gemm.workspace_bytes(described(a, b, c, d.view))
        workspace = torch.empty(need, dtype=torch.uint8, device="cuda") if need else None
        gemm.run(a, b, c, out=d.view, workspace=workspace)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        gemm.run(a, b, c, out=d.view, workspace=workspace)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert_close(d.view, a, b, c, 1.0, 1.0)


def test_a_workspace_that_does_not_serve_is_refused():
    """Too small, on the CPU or off the 16-byte grid: refused before anything is launched."""
    case = CASES["relayout both, odd D"]
    a, b, c, d = case.tensors((300, 200, 100), "cuda")
    gemm = GEMMS[case.spec]
    need = gemm.workspace_bytes(described(a, b, c, d.view))
    rule = rf": must be {need} contiguous bytes on cuda:0$"
    for workspace in (
        torch.empty(need - 1, dtype=torch.uint8, device="cuda"),
        torch.empty(need, dtype=torch.uint8),
    ):
        with pytest.raises(InputError, match=rule):
            gemm.run(a, b, c, out=d.view, workspace=workspace)
    off = torch.empty(need + 8, dtype=torch.uint8, device="cuda")[8:]
    with pytest.raises(InputError, match="must be 16-byte aligned$"):
        gemm.run(a, b, c, out=d.view, workspace=off)
    torch.cuda.synchronize()
    assert d.unwritten()


def test_check_mode(monkeypatch, caplog):
    """CUTEGEMM_CHECK=1 logs the plan of a right result and raises on a wrong one."""
    monkeypatch.setenv("CUTEGEMM_CHECK", "1")
    gemm = Gemm(CASES["row, row"].spec, representative(GemmSpec()))
    a, b, c, d = CASES["row, row"].tensors((100, 50, 60), "cuda")
    with caplog.at_level("INFO", "cutegemm"):
        gemm.run(a, b, c, out=d.view, beta=0.5)
    assert "checked d of (100, 56)" in caplog.text and "warp_specialized" in caplog.text
    gemm.run(a, b, c.fill_(torch.nan), out=d.view, beta=0.0)
    checked = next(iter(gemm._kinds.values()))
    monkeypatch.setattr(type(checked.prepared), "__call__", lambda _, inputs, *rest: inputs[3].fill_(1e3))
    with pytest.raises(CheckError, match=r"5600 of 5600 elements are off"):
        gemm.run(a, b, torch.ones_like(c), out=d.view, beta=0.5)


def test_nothing_calls_torch_for_the_work(monkeypatch):
    """No run on the GPU reaches torch's matrix products, padding or contiguous copies."""

    def banned(*_, **__):
        raise AssertionError("a banned torch call")

    made = {
        name: CASES[name].tensors((150, 90, 70), "cuda")
        for name in ("row, row", "relayout strided", "simt fp32")
    }
    with monkeypatch.context() as patch:
        for name in ("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"):
            patch.setattr(torch, name, banned)
        patch.setattr(torch.nn.functional, "pad", banned)
        for name in ("contiguous", "matmul", "mm", "bmm", "clone", "__matmul__"):
            patch.setattr(torch.Tensor, name, banned)
        for name, (a, b, c, d) in made.items():
            Gemm(CASES[name].spec, representative(CASES[name].spec)).run(a, b, c, out=d.view)
    for a, b, c, d in made.values():
        assert_close(d.view, a, b, c, 1.0, 1.0)


def test_more_than_two_to_the_31_elements():
    """Offsets beyond 32 bits: the last rows of a tall D are right."""
    m, n, k = 70_001, 31_000, 16
    a = torch.randn(m, k, device="cuda", dtype=BF16)
    b = torch.randn(k, n, device="cuda", dtype=BF16)
    d = torch.full((m, n), torch.nan, device="cuda", dtype=BF16)
    GEMMS[CASES["row, row"].spec].run(a, b, out=d)
    for rows in (slice(0, 40), slice(69_270, 69_280), slice(m - 40, m)):
        assert_close(d[rows], a[rows], b)
    assert not bool(d[::997].isnan().any())
