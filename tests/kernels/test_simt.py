# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core kernel: its geometry, what it compiles to, and (on a GPU) its numbers."""

import dataclasses
import itertools
import re

import pytest

import cutegemm
from cutegemm import GemmSpec, emulator
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache, loader
from cutegemm.compiling.compiler import Artifact, record_launches
from cutegemm.config import (
    SimtTile,
    config_from_data,
)
from cutegemm.errors import PlanError
from cutegemm.gemm import Gemm, representative
from cutegemm.planning import planner, simt_tiles
from cutegemm.running.arguments.results import Partial
from tests.support.epilogues import assert_outputs_close, random_inputs
from tests.support.simt_configs import simt
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

torch = pytest.importorskip("torch")

compiled = kernel_cache.artifact
WALK = (8, 0, 1, 1, 1)  # panels of eight tiles; the rest is not read without reductions


ALIGNED = simt()


STRIDED = simt("strided", "strided", "strided", dtypes=("fp32", "fp32", "fp32", "fp32"), vector=(1, 1, 1))


def test_config_survives_serialisation():
    """A config read back from its data equals the original, vector widths and thread tile included."""
    config = simt(vector=(4, 2, 1), tile=(64, 64, 16), dtypes=("fp32", "fp32", "bf16", "fp8_e4m3"))
    config = dataclasses.replace(
        config, thread_tile=(4, 8), lanes_m=4, slices=2, split=8, unroll=2, residents=3
    )
    assert config_from_data(config.to_data()) == config
    assert config.threads == 2 * 128


TILES = {
    "large": {"tile": (128, 128, 8), "residents": 2, "staged": True},
    "cut": {"tile": (64, 64, 8), "residents": 4, "staged": True, "split": 4},
    "two slices": {
        "tile": (64, 128, 16),
        "residents": 2,
        "staged": True,
        "slices": 2,
        "ahead": 4,
        "split": 2,
    },
    "three of 336 rows": {"tile": (112, 128, 8), "thread_tile": (14, 8), "staged": True, "split": 2},
    "eight slices": {"tile": (64, 64, 32), "staged": True, "slices": 8, "ahead": 4},
    "shared out": {"tile": (64, 64, 16), "residents": 3, "slices": 2, "split": 4, "staged": False},
    "few rows": {
        "tile": (16, 64, 32),
        "thread_tile": (4, 8),
        "lanes_m": 4,
        "slices": 4,
        "split": 8,
        "stages": 4,
        "residents": 4,
        "staged": False,
    },
}


def copy_bytes(ptx: str) -> set[str]:
    """The sizes of a kernel's cp.async."""
    return set(re.findall(r"cp\.async\.\w+\.shared\.global \[[^]]*\], \[[^]]*\], (\d+)", ptx))


@pytest.mark.parametrize("a,b,d", [("k", "n", "n"), ("k", "k", "n"), ("m", "n", "n"), ("m", "k", "m")])
@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(
            "large",
            marks=pytest.mark.xfail(strict=True, reason="8 to 16 bytes of coordinates outside the k loop"),
        ),
        "cut",
        "shared out",
        "few rows",
    ],
)
def test_aligned_kernel_does_not_spill(tile, a, b, d):
    """Copies and fragments of 16 bytes, as many CTAs an SM as planned, one copy of the k loop, no spills."""
    config = dataclasses.replace(simt(a, b, d), **TILES[tile])
    kernel = compiled(config)
    own = config.thread_tile
    assert kernel.resources.frame_bytes == 0
    assert kernel.resources.registers * config.threads * config.residents <= 65536
    steps = config.tile[2] // config.slices if config.staged else 4
    assert kernel.resources.instructions["fma.f32"] == steps * own[0] * own[1]
    if config.staged:
        assert len(re.findall(r"ld\.global\.v4", kernel.ptx)) == kernel.resources.instructions["ld.global"]
    else:
        assert copy_bytes(kernel.ptx) == {"16"}
    assert len(re.findall(r"ld\.shared\S*\.v4", kernel.ptx)) == len(re.findall(r"ld\.shared", kernel.ptx))


@pytest.mark.parametrize("tile", ["two slices", "eight slices"])
def test_slices_spill_coordinates_at_most(tile):
    """Sixteen warps an SM leave 128 registers a thread: sums, fragments and addresses fit, a few words may not."""
    config = dataclasses.replace(simt("k", "k", "n"), **TILES[tile])
    kernel = compiled(config)
    assert kernel.resources.frame_bytes <= 16
    assert kernel.resources.registers * config.threads * config.residents <= 65536
    assert kernel.resources.instructions["fma.f32"] == config.tile[2] // config.slices * 64


@pytest.mark.parametrize("tile", ["large", "shared out"])
def test_strided_kernel_does_not_spill(tile):
    """Element copies through three unknown strides per operand still fit the registers."""
    config = simt("strided", "strided", "strided", vector=(1, 1, 1))
    residents = max(1, TILES[tile]["residents"] // 2)
    kernel = compiled(dataclasses.replace(config, **TILES[tile] | {"residents": residents}))
    assert kernel.resources.frame_bytes == 0
    assert not re.findall(r"st\.global\.v", kernel.ptx)


def test_elements_one_by_one_are_stored_in_fours():
    """Where lines begin at any element, a tile of 112 rows loads single elements and stores four neighbours at once;
    a thread's pairs of rows and fours of columns come by one load each, without spills."""
    config = dataclasses.replace(simt("k", "k", vector=(1, 1, 1)), **TILES["three of 336 rows"])
    kernel = compiled(config)
    assert kernel.resources.frame_bytes == 0 and kernel.resources.instructions["fma.f32"] == 8 * 14 * 8
    before_sums = kernel.ptx[: kernel.ptx.rindex("ld.global")]
    assert set(re.findall(r"st\.shared\S*", before_sums)) == {"st.shared.v4.b32"}
    assert set(re.findall(r"ld\.shared\S*", before_sums)) == {"ld.shared.v2.b32", "ld.shared.v4.b32"}


def test_addresses_are_64_bit():
    """Offsets are products of 64-bit strides: no 32-bit product is widened into an address."""
    assert "mad.lo.s64" in compiled(STRIDED).ptx or "mul.lo.s64" in compiled(STRIDED).ptx
    assert "mul.wide.s32" not in compiled(STRIDED).ptx


def test_one_cta_per_tile_in_a_line():
    """The grid is linear over tiles and batches, so that neither n nor the batch meets the limit of 65,535."""
    kernel = compiled(ALIGNED)
    shape = (129, 300, 64, 70_000, 70_000, 1)
    arguments = ((4096,) * 3, shape, (64, 1, 0) * 3, (1.0,), WALK, 0)
    (launch,) = record_launches(kernel.obj, kernel.ptx, arguments)
    assert launch.grid == (2 * 3 * 70_000, 1, 1)
    assert launch.block == (256, 1, 1)


def test_shares_that_do_not_divide_are_refused():
    """A tile smaller than one vector per thread names the field and the nearest legal value."""
    with pytest.raises(
        PlanError, match=r"vector=\(8, 4, 4\): 256 threads .*nearest legal value: \(4, 4, 4\)"
    ):
        simt(dtypes=("fp16", "fp32", None, "fp32"), vector=(8, 4, 4))
    with pytest.raises(PlanError, match=r"tile=\(96, 128, 8\): along m"):
        simt(tile=(96, 128, 8))


FP32 = torch.float32


def emulated(monkeypatch, tile, operands, *, graph=None, races=True, **call):
    """A run of one tile on the emulator: (what `emulator.run` gives, the Gemm)."""
    monkeypatch.setattr(simt_tiles, "choose", lambda *_, **__: SimtTile(**tile))
    planner._planned.cache_clear()
    spec = GemmSpec(a_dtype="fp32") if graph is None else GemmSpec(a_dtype="fp32", epilogue=graph)
    gemm = Gemm(spec, representative(spec))
    made = cutegemm.emulator.run(gemm, *operands, options=cutegemm.emulator.Options(races=races), **call)
    assert made.findings == []
    return made.d


def factor(rows, cols, row_major, batch=()):
    """A random fp32 matrix of either major."""
    return torch.randn(*batch, rows, cols) if row_major else torch.randn(*batch, cols, rows).mT


def assert_close(d, a, b, c=None, alpha=1.0, beta=0.0):
    """D against fp64, within a few roundings of the sum of magnitudes."""
    exact = alpha * (a.double() @ b.double()) + (0.0 if c is None else beta * c.double())
    scale = abs(alpha) * (a.double().abs() @ b.double().abs()) + (
        0.0 if c is None else abs(beta) * c.double().abs()
    )
    assert ((d.double() - exact).abs() <= 8 * EPSILON["fp32"] * scale + 1e-30).all()


@pytest.mark.parametrize(
    "tile,a,b,shape",
    [
        ("shared out", "k", "k", (70, 68, 100)),
        ("shared out", "m", "n", (72, 68, 35)),
        ("shared out", "k", "n", (65, 67, 33)),
        ("few rows", "k", "k", (9, 68, 292)),
        ("few rows", "k", "n", (17, 65, 131)),
        ("large", "m", "k", (68, 132, 20)),
        ("cut", "k", "n", (65, 67, 61)),
        ("cut", "k", "k", (68, 68, 20)),
        ("two slices", "k", "k", (68, 132, 92)),
        ("eight slices", "k", "n", (65, 67, 67)),
        ("three of 336 rows", "k", "k", (115, 131, 37)),
    ],
)
def test_tiles_and_shares_match_fp64(monkeypatch, tile, a, b, shape):
    """Every layout of a stage, every way to copy, K shared out and not, ragged in all extents; without a race."""
    m, n, k = shape
    torch.manual_seed(m + n + k)
    x, y, c = factor(m, k, a == "k"), factor(k, n, b == "n"), torch.randn(m, n)
    d = emulated(monkeypatch, TILES[tile], (x, y, c), alpha=1.5, beta=-0.5)
    assert_close(d, x, y, c, 1.5, -0.5)


def test_shared_sums_in_place_and_batched(monkeypatch):
    """D may be C itself, and a batch may share its B, where a cluster shares K; K may be less than its CTAs need."""
    torch.manual_seed(3)
    a, b, c = torch.randn(2, 20, 40), torch.randn(40, 36), torch.randn(2, 20, 36)
    before = c.clone()
    d = emulated(monkeypatch, TILES["few rows"], (a, b, c), alpha=2.0, beta=1.0, out=c)
    assert d is c
    assert_close(d, a, b, before, 2.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_integers_are_rounded_to_the_nearest(dtype):
    """As the tensor cores' epilogue rounds them, ties to even, and saturated."""
    a = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.75, 300.0, -300.0, 22.53]]).T.contiguous()
    d = emulator.run(Gemm(GemmSpec(schedule="simt", d_dtype=dtype)), a, torch.ones(1, 8)).d
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    assert torch.equal(d, a.round().clamp(low, high).expand(8, 8).to(dtype))


@pytest.mark.parametrize(
    "tile,name",
    [
        *itertools.product(["two slices", "shared out", "few rows"], ["softmax_partials", "swiglu"]),
        ("three of 336 rows", "softmax_partials"),
    ],
)
def test_epilogues_over_shared_sums(monkeypatch, name, tile):
    """Reductions and gated pairs see each sum once, whole, whoever holds its parts."""
    graph = {"softmax_partials": epi.softmax_partials(), "swiglu": epi.swiglu("halves")}[name]
    torch.manual_seed(5)
    a, b = torch.randn(20, 70), torch.randn(70, 80)
    inputs = random_inputs(
        graph, (20, 40 if graph.gated else 80), torch.Generator().manual_seed(1), (FP32, FP32)
    )
    if tile == "three of 336 rows":
        # such a tile takes elements one by one along k
        a, b = a[:, 1:], factor(70, 80, False)[1:]
    got = emulated(monkeypatch, TILES[tile], (a, b), graph=graph, races=False, **inputs)
    named = {"d": got} if isinstance(got, torch.Tensor) else vars(got)
    found = {key: x.finish() if isinstance(x, Partial) else x for key, x in named.items()}
    assert_outputs_close(found, graph, a, b, inputs)


def test_gated_pairs_of_few_columns_are_all_stored():
    """fp32 pairs of a narrow B take a tile whose threads own columns of both halves; one that has none is refused."""
    graph = epi.swiglu("halves")
    torch.manual_seed(9)
    a, b = torch.randn(3, 12), torch.randn(40, 12).T
    spec = GemmSpec(a_dtype="fp32", epilogue=graph)
    out = torch.full((3, 20), float("nan"))
    made = cutegemm.emulator.run(Gemm(spec, representative(spec)), a, b, out=out, options=RACES)
    assert made.findings == []
    assert_outputs_close({"d": out}, graph, a, b, {})
    config = cutegemm.plan(spec, cutegemm.problem(3, 40, 12, dtype="fp32", epilogue=graph)).config
    with pytest.raises(PlanError, match=r"thread_tile=\(8, 4\): .* columns has none of a pair's second half"):
        dataclasses.replace(config, tile=(64, 16, 32), thread_tile=(8, 4), lanes_m=8)


def test_pairs_of_rows_reach_a_column_major_d(monkeypatch):
    """Two neighbouring rows of a thread lie side by side in D, aligned for four or not; without a cut of K, too."""
    torch.manual_seed(7)
    tile = TILES["three of 336 rows"] | {"split": 1}
    for m in (116, 113):
        a, b = factor(m, 21, True), factor(21, 130, False)
        out = torch.full((130, m), float("nan")).mT
        assert_close(emulated(monkeypatch, tile, (a, b), out=out), a, b)


TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def matrix(batch, rows, cols, kind, row_major=True):
    """A random matrix (batch, rows, cols)."""
    extents = (batch, rows, cols) if row_major else (batch, cols, rows)
    x = torch.randn(extents, device="cuda").to(TORCH[kind])
    return x if row_major else x.transpose(1, 2)


EPSILON = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}


GUARD = 64  # poisoned elements on either side of D


def launch(kernel: Artifact, tensors, shape, scalars):
    """Run a compiled kernel on (L, rows, cols) tensors a (m x k), b (n x k), c or None, d; alpha, and beta with c."""
    a, b, c, d = tensors
    present = [x for x in tensors if x is not None]
    strides = tuple(s for x in present for s in (x.stride(1), x.stride(2), x.stride(0)))
    shape = (*shape, *(() if c is None else (c.shape[0],)))
    stream = torch.cuda.current_stream().cuda_stream
    addresses = tuple(x.data_ptr() for x in present)
    loader.load(kernel.obj)(addresses, shape, strides, scalars[: len(present) - 2], WALK, stream)
    torch.cuda.synchronize()


def solve(config, m, n, k, batch=1, *, scalars=(1.0, 0.0), broadcast_b=False, operands=None):
    """Run, and compare with fp64: elementwise within a rounding of D plus sqrt(k) roundings of the sum."""
    if operands is None:
        a = matrix(batch, m, k, config.a.dtype.value, config.a.major != "m")
        b = matrix(1 if broadcast_b else batch, n, k, config.b.dtype.value, config.b.major != "n")
    else:
        a, b = operands
    c = None
    if config.inputs:
        c = matrix(batch, m, n, config.inputs[0].dtype.value, config.d.major != "m")
    buffer = torch.full(
        (batch * m * n + 2 * GUARD,), float("nan"), device="cuda", dtype=TORCH[config.d.dtype.value]
    )
    inner = buffer[GUARD : GUARD + batch * m * n]
    d = inner.view(batch, n, m).transpose(1, 2) if config.d.major == "m" else inner.view(batch, m, n)
    launch(compiled(config), (a, b, c, d), (m, n, k, batch, a.shape[0], b.shape[0]), scalars)
    exact = scalars[0] * (a.double() @ b.double().transpose(1, 2))
    scale = abs(scalars[0]) * (a.double().abs() @ b.double().abs().transpose(1, 2))
    if c is not None:
        exact = exact + scalars[1] * c.double()
        scale = scale + abs(scalars[1]) * c.double().abs()
    bound = EPSILON[config.d.dtype.value] * exact.abs() + 8 * EPSILON["fp32"] * (k**0.5 + 1) * scale + 1e-30
    assert ((d.double() - exact).abs() <= bound).all()
    assert buffer[:GUARD].isnan().all() and buffer[-GUARD:].isnan().all()
    return d


@pytest.mark.gpu
@pytest.mark.parametrize("a,b,d", [("k", "n", "n"), ("k", "k", "n"), ("m", "n", "n"), ("m", "k", "m")])
@pytest.mark.parametrize("m,n,k", [(128, 128, 8), (132, 260, 44), (4, 4, 4), (1024, 512, 768)])
def test_vector_kernel_matches_fp64(a, b, d, m, n, k):
    """Aligned fp32 in every combination of majors, ragged in vectors."""
    solve(simt(a, b, d), m, n, k, scalars=(1.5, 0.0))


@pytest.mark.gpu
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (67, 131, 33), (129, 1, 17), (3, 5, 0), (255, 257, 259)])
@pytest.mark.parametrize("kind,out", [("fp32", "fp32"), ("bf16", "fp16"), ("fp16", "bf16")])
def test_odd_shapes_match_fp64(m, n, k, kind, out):
    """Element loads for any extents, mixed dtypes, C, a batch with broadcast B; K = 0 gives beta * C."""
    config = simt("k", "n", "n", dtypes=(kind, kind, "fp32", out), vector=(1, 1, 1), tile=(64, 128, 8))
    solve(config, m, n, k, batch=3, scalars=(-1.0, 2.0), broadcast_b=True)


@pytest.mark.gpu
def test_views_without_unit_stride():
    """Every second row and every third column of larger matrices."""
    config = simt("strided", "strided", "n", vector=(1, 1, 1))
    a = torch.randn(2, 300, 240, device="cuda")[:, ::2, ::3]
    b = torch.randn(2, 400, 160, device="cuda")[:, 1::3, ::2]
    solve(config, 150, 133, 80, batch=2, operands=(a, b))


@pytest.mark.gpu
def test_nan_spreads_only_along_its_row():
    """A NaN in the last row of A reaches that row of D alone."""
    a, b = torch.randn(1, 130, 40, device="cuda"), torch.randn(1, 70, 40, device="cuda")
    a[0, 129, 39] = float("nan")
    d = torch.zeros(1, 130, 70, device="cuda")
    kernel = compiled(simt("k", "k", vector=(4, 4, 1)))
    launch(kernel, (a, b, None, d), (130, 70, 40, 1, 1, 1), (1.0, 0.0))
    assert d[0, 129].isnan().all()
    assert not d[0, :129].isnan().any()
