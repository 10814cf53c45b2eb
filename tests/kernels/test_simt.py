# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core kernel: its geometry, what it compiles to, and (on a GPU) its numbers."""

import functools
import re

import pytest

from cutegemm import loader
from cutegemm.compile import Artifact, compile_config, record_launches
from cutegemm.config import MatrixConfig, OutputConfig, SimtConfig, config_from_data
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue import linear_combination
from cutegemm.errors import CompileError

torch = pytest.importorskip("torch")


def simt(a="k", b="n", d="n", *, dtypes=("fp32", "fp32", None, "fp32"), tile=(128, 128, 8), vector=(4, 4, 4)):
    """A config from majors, dtypes of (A, B, C, D), tile and vector widths."""
    kinds = [None if x is None else as_dtype(x) for x in dtypes]
    return SimtConfig(
        a=MatrixConfig(dtype=kinds[0], major=a),
        b=MatrixConfig(dtype=kinds[1], major=b),
        inputs=() if kinds[2] is None else (MatrixConfig(dtype=kinds[2], major=d),),
        outputs=(OutputConfig(dtype=kinds[3], major=d),),
        tile=tile,
        vector=vector,
        epilogue=linear_combination(kinds[2] is not None),
    )


compiled = functools.lru_cache(None)(compile_config)

WALK = (8, 0, 1, 1, 1)  # panels of eight tiles; the rest is not read without reductions
ALIGNED = simt()
STRIDED = simt("strided", "strided", "strided", dtypes=("fp32", "fp32", "fp32", "fp32"), vector=(1, 1, 1))


def test_config_survives_serialisation():
    """A config read back from its data equals the original, vector widths and thread tile included."""
    config = simt(vector=(4, 2, 1), tile=(64, 64, 16), dtypes=("fp32", "fp32", "bf16", "fp8_e4m3"))
    assert config_from_data(config.to_data()) == config
    assert config.threads == 64


@pytest.mark.parametrize("major", ["k", "m"])
@pytest.mark.parametrize("rows,depth,vector,threads", [
    (128, 8, 4, 256), (128, 8, 1, 256), (64, 16, 8, 64), (128, 8, 1, 64), (256, 8, 4, 256),
])  # fmt: skip
def test_tile_is_loaded_once_into_distinct_aligned_places(major, rows, depth, vector, threads):
    """Threads' vectors cover each element of a tile once; its places in shared memory differ and fragments align."""
    from cutegemm.kernels.simt_tile import GROUP, TileShape

    matrix = MatrixConfig(dtype=as_dtype("fp32"), major=major)
    shape = TileShape(matrix=matrix, rows=rows, depth=depth, vector=vector, threads=threads)
    seen = []
    for thread in range(threads):
        row0, k0 = shape.place(thread)
        for more_rows, more_k in map(shape.move, range(shape.loads)):
            for x in range(vector):
                along = (0, x) if major == "k" else (x, 0)
                seen.append((row0 + more_rows + along[0], k0 + more_k + along[1]))
    assert sorted(seen) == [(row, k) for row in range(rows) for k in range(depth)]
    places = {shape.line(k) + row for row, k in seen}
    assert len(places) == rows * depth
    assert max(places) < shape.elements
    assert all(shape.line(k) % GROUP == 0 for k in range(depth))


@pytest.mark.parametrize("vector,depth", [(4, 8), (4, 16), (8, 16), (2, 8)])
def test_transposing_stores_are_free_of_bank_conflicts(vector, depth):
    """When vectors lie along k, a warp's store of one element each touches all 32 banks."""
    from cutegemm.kernels.simt_tile import TileShape

    matrix = MatrixConfig(dtype=as_dtype("fp32"), major="k")
    shape = TileShape(matrix=matrix, rows=128, depth=depth, vector=vector, threads=128)
    places = [shape.place(thread) for thread in range(32)]
    assert len({(shape.line(k) + row) % 32 for row, k in places}) == 32


@pytest.mark.parametrize("a,b,d", [("k", "n", "n"), ("k", "k", "n"), ("m", "k", "m")])
def test_aligned_kernel_does_not_spill(a, b, d):
    """Vector loads of fp32: two CTAs of 256 threads per SM, no spills, one copy of the k loop, wide accesses only."""
    kernel = compiled(simt(a, b, d))
    assert kernel.resources.frame_bytes == 0
    assert kernel.resources.registers <= 128
    assert kernel.resources.threads == 256
    assert kernel.resources.instructions["fma.f32"] == 8 * 8 * 8  # k steps x 8 x 8 accumulators
    assert len(re.findall(r"ld\.global\.v4", kernel.ptx)) == kernel.resources.instructions["ld.global"] == 4
    assert len(re.findall(r"ld\.shared\.v4", kernel.ptx)) == len(re.findall(r"ld\.shared", kernel.ptx))


@pytest.mark.parametrize("tile", [(128, 128, 8), (64, 128, 8)])
def test_strided_kernel_does_not_spill(tile):
    """Element loads through three unknown strides per operand still fit the registers."""
    kernel = compiled(simt("strided", "strided", "strided", vector=(1, 1, 1), tile=tile))
    assert kernel.resources.frame_bytes == 0
    assert not re.findall(r"[ls][dt]\.global\.v", kernel.ptx)


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
    from cutegemm.kernels.simt import SimtGemm

    with pytest.raises(CompileError, match=r"vector=8: .*256 threads.*nearest legal value: 1"):
        SimtGemm(simt(dtypes=("fp16", "fp32", None, "fp32"), vector=(8, 4, 4)))
    with pytest.raises(CompileError, match=r"tile=\(96, 128, 8\): along m"):
        SimtGemm(simt(tile=(96, 128, 8)))


# -- on a GPU ---------------------------------------------------------------------------------------------------

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
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


def matrix(batch, rows, cols, kind, row_major=True):
    """A random matrix (batch, rows, cols)."""
    extents = (batch, rows, cols) if row_major else (batch, cols, rows)
    x = torch.randn(extents, device="cuda").to(TORCH[kind])
    return x if row_major else x.transpose(1, 2)


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
    buffer = torch.full((batch * m * n + 2 * GUARD,), float("nan"), device="cuda", dtype=TORCH[config.d.dtype.value])
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
