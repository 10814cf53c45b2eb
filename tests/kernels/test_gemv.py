# SPDX-License-Identifier: Apache-2.0
"""Few rows or columns of D on the CUDA cores: any alignment and length, epilogues, NaNs that stay in their columns."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from cutegemm import GemmSpec, emulator
from cutegemm import epilogue as epi
from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.compiling import kernel_cache
from cutegemm.config import config_from_data
from cutegemm.config.gemv import COLUMNS, MOST_ROWS, SLICES, TILES, WORD, GemvTile
from cutegemm.emulator import Launch, Options, run_sequence, tensor_buffer
from cutegemm.emulator.launching import front
from cutegemm.errors import EmulatorError, PlanError
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import fields_of
from cutegemm.problems import problem
from tests.support.epilogues import assert_outputs_close, random_inputs
from tests.support.fused_kernels import results
from tests.support.numerics import assert_close
from tests.support.prefetches import ALWAYS, PREDICATED, as_loads
from tests.support.watched import RACES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.sliced

THREADS = 2048  # of an SM (CUDA programming guide, compute capability 9.0)
MANY = 37  # not a multiple of any tile's columns
LONG = 120_001  # so many bytes that the next launch begins late
NAME = lambda x: f"{x.rows} rows, {x.own} columns, {x.slices} slices"  # noqa: E731


def gemm_of(x, swapped=False, **fields):
    """The kernel of a tile."""
    return Gemm(GemmSpec(**dict(fields_of(x, swapped)), **fields))


def matrix(rows, k, *, pitch=None, offset=0, batch=None, dtype=torch.bfloat16, seed=0, device="cpu"):
    """A matrix of random numbers whose rows begin at any element, between NaNs."""
    pitch, count = pitch or k, batch or 1
    store = torch.full((offset + count * rows * pitch + WORD,), float("nan"), dtype=dtype, device=device)
    view = store[offset : offset + count * rows * pitch].view(count, rows, pitch)[:, :, :k]
    view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(seed)))
    return view if batch else view[0]


def operands(columns, k, *, rows=1, swapped=False, **how):
    """A and B of few rows, or of few columns if `swapped`; the first row is aligned, others begin as B's columns do."""
    pitch = how.get("pitch") or k
    few = matrix(
        rows,
        k,
        pitch=-(-k // WORD) * WORD if rows == 1 else pitch,
        batch=how.get("batch"),
        dtype=how.get("dtype", torch.bfloat16),
        seed=1,
    )
    many = matrix(columns, k, **how)
    return (many, few.mT) if swapped else (few, many.mT)


@pytest.mark.parametrize("tile", TILES, ids=NAME)
def test_every_tile_multiplies(tile):
    """Each tile gives D for columns that begin at odd elements, in several blocks, the last one partly empty."""
    swapped = tile.own == 2
    a, b = operands(MANY, 2 * tile.tile[2] + 77, rows=tile.rows, swapped=swapped, offset=3)
    run = emulator.run(gemm_of(tile, swapped), a, b, options=RACES)
    assert not run.races
    assert_close(run.d, a, b)


@pytest.mark.parametrize("k", [16, 17, 23, 24, 31, 511, 512, 513, 519, 520, 527, 1024, 1031])
@pytest.mark.parametrize(("pitch", "offset"), [(0, 0), (0, 1), (1, 0), (3, 5), (8, 0), (8, 7)])
def test_any_end_and_any_beginning(k, pitch, offset):
    """Lines of any length that begin anywhere are read to their ends and no further: NaNs lie around them."""
    for rows in (1, 3):
        a, b = operands(9, k, rows=rows, pitch=k + pitch, offset=offset)
        run = emulator.run(gemm_of(GemvTile(rows=rows, own=2, slices=2)), a, b)
        assert_close(run.d, a, b)


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_a_tile_with_more_rows_than_d(rows):
    """Rows that do not exist are computed twice and not stored."""
    a, b = operands(MANY, 531, rows=rows, offset=1)
    run = emulator.run(gemm_of(GemvTile(rows=MOST_ROWS, own=2, slices=2)), a, b, options=RACES)
    assert not run.races and run.d.shape == (rows, MANY)
    assert_close(run.d, a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batches(dtype):
    """Each batch has its own columns; a row that all share is read for each."""
    a, b = operands(MANY, 700, rows=2, pitch=701, batch=3, dtype=dtype)
    gemm = gemm_of(GemvTile(rows=2, own=4, slices=1))
    assert_close(emulator.run(gemm, a, b, options=RACES).d, a, b)
    assert_close(emulator.run(gemm, a[:1], b, options=RACES).d, a[:1].expand(3, -1, -1), b)


def test_aligned_columns_need_no_shift():
    """Aligned columns are another kernel, which loads each word of A once."""
    config, shifted = (
        plan(GemmSpec(schedule="simt", tile=TILES[0].tile), problem(1, 64, k, majors="kk")).config
        for k in (1024, 1025)
    )
    assert config.aligned and not shifted.aligned
    a, b = operands(MANY, 1024)
    whole = emulator.run(gemm_of(TILES[0]), a, b)
    odd = emulator.run(gemm_of(TILES[0]), *operands(MANY, 1024, offset=1))
    assert_close(whole.d, a, b)
    assert 1.5 * whole.counters["global_load_requests"] < odd.counters["global_load_requests"]


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
def test_an_sm_holds_the_ctas_that_the_planner_counts(aligned):
    """Registers of the compiled kernels leave room for `residents` CTAs and two more at most, and none spills."""
    for tile in (x for x in TILES if x.slices != 2):
        of = problem(tile.rows, 64, 1024 if aligned else 1025, majors="kk")
        config = plan(GemmSpec(schedule="simt", tile=tile.tile), of).config
        resources = kernel_cache.artifact(config).resources
        used = -(-resources.registers // LIMITS.register_step) * LIMITS.register_step * config.threads
        held = min(LIMITS.registers_per_sm // used, THREADS // config.threads)
        assert config.residents <= held <= config.residents + 2
        assert not resources.spills


def test_values_that_are_no_numbers_stay_in_their_columns():
    """An infinity in one line, and a NaN in another, reach their columns of D alone, wherever in the line they are."""
    for place in (0, 5, 300, 698, 699):
        a, b = operands(MANY, 700, rows=3, pitch=701, offset=1)
        b[place, 4], b[place, 9] = float("inf"), float("nan")
        d = emulator.run(gemm_of(GemvTile(rows=3, own=4, slices=2)), a, b).d
        assert d[:, 4].isinf().all() and d[:, 9].isnan().all()
        assert d[:, [i for i in range(MANY) if i not in (4, 9)]].isfinite().all()


def test_values_that_are_no_numbers_stay_in_their_rows():
    """A NaN in a row of A reaches its row of D alone, in its first element, in its last, and in between."""
    for place in (0, 5, 300, 698, 699):
        a, b = operands(MANY, 700, rows=4, pitch=701, offset=1)
        a[2, place] = float("nan")
        d = emulator.run(gemm_of(GemvTile(rows=4, own=2, slices=1)), a, b).d
        assert d[2].isnan().all() and d[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("k", [700, 704, 1024])
@pytest.mark.parametrize("rows", [1, 3])
def test_infinities_of_a_stay_infinities(k, rows):
    """Lanes behind the last word add nothing, not zero times what A has there, which would be no number."""
    for place in (0, 511, 512, k - 20, k - 12, k - 1):
        a, b = operands(MANY, k, rows=rows)
        a[rows - 1, place] = float("inf")
        d = emulator.run(gemm_of(GemvTile(rows=rows, own=2, slices=2)), a, b.abs()).d
        assert d[rows - 1].isposinf().all() and d[: rows - 1].isfinite().all()


@epi.define
def fused(acc, *, bias: epi.Row, scale: epi.Col, other: epi.Matrix, factor: epi.Scalar):
    """Every kind of input, three outputs."""
    h = acc * scale * factor + bias
    return epi.Output(
        d=epi.relu(h) + other, pre=epi.Store(h, dtype="fp32", major="m"), low=epi.Store(h, dtype="fp8")
    )


@pytest.mark.parametrize("swapped", [False, True], ids=["row", "column"])
def test_an_epilogue_has_the_coordinates_of_d(swapped):
    """Vectors along both axes, a matrix, a number and further outputs, of a row and of a column, in batches."""
    a, b = operands(MANY, 333, rows=3, swapped=swapped, offset=1, batch=2)
    shape = (2, a.shape[1], b.shape[2])
    inputs = random_inputs(fused, shape, torch.Generator().manual_seed(3))
    run = emulator.run(
        gemm_of(GemvTile(rows=3, own=2), swapped, epilogue=fused), a, b, options=RACES, **inputs
    )
    assert not run.races
    assert_outputs_close(results(run.d), fused, a, b, inputs)


@pytest.mark.parametrize("swapped", [False, True], ids=["row", "column"])
def test_c_is_added(swapped):
    """alpha A B + beta C."""
    a, b = operands(MANY, 100, rows=2, swapped=swapped, offset=1)
    c = torch.randn(a.shape[0], b.shape[1], generator=torch.Generator().manual_seed(5)).bfloat16()
    run = emulator.run(gemm_of(GemvTile(rows=2, own=1), swapped), a, b, c, alpha=0.5, beta=2.0)
    assert_close(run.d, a, b, c, 0.5, 2.0)


def test_equal_calls_give_equal_bits():
    """The order of additions is fixed, whatever order work completes in."""
    a, b = operands(MANY, 2100, offset=1)
    gemm = gemm_of(GemvTile(own=2, slices=4))
    runs = [emulator.run(gemm, a, b, options=emulator.Options(policy="random", seed=i)).d for i in range(3)]
    assert all(torch.equal(runs[0], x) for x in runs)


def test_a_config_survives_serialisation():
    """A config read back from its data equals the original."""
    config = plan(GemmSpec(), problem(1, 999, 1001, majors="kk")).config
    assert config.family == "gemv" and config_from_data(config.to_data()) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [("rows", 5), ("own", 3), ("slices", 8), ("trigger", "never"), ("operands", None)],
    ids=["rows", "own", "slices", "trigger", "operands"],
)
def test_an_impossible_config_is_refused(field, value):
    """A config that breaks an invariant names the field."""
    config = plan(GemmSpec(), problem(1, 999, 1001, majors="kk")).config
    if field == "operands":
        value = (config.a, dataclasses.replace(config.b, major="n"))
    with pytest.raises(PlanError) as error:
        dataclasses.replace(config, **{field: value})
    assert error.value.field == field
    assert set(COLUMNS) == {x.own for x in TILES} and set(SLICES) == {x.slices for x in TILES}


@pytest.mark.parametrize(("k", "begins"), [(1024, "start"), (LONG, "mainloop")])
def test_a_long_launch_lets_the_next_one_begin_after_its_products(k, begins):
    """A short one at once."""
    tile = GemvTile(own=2, slices=4)
    a, b = operands(MANY, k, offset=1)
    run = emulator.run(gemm_of(tile), a, b, options=RACES)
    assert not run.races
    assert_close(run.d, a, b)
    config = plan(GemmSpec(**dict(fields_of(tile))), problem(1, MANY, k, majors="kk")).config
    before, after = kernel_cache.artifact(config).ptx.split("griddepcontrol.wait")
    assert config.trigger == begins
    assert ("griddepcontrol.launch_dependents" in before) == (begins == "start")
    if begins == "mainloop":
        products, end = after.split("griddepcontrol.launch_dependents")
        assert "fma.rn.f32" in products and "bfly" in end


@pytest.mark.parametrize("tile", [TILES[0], TILES[-1]], ids=NAME)
def test_prefetches_precede_the_wait_and_loads_follow_it(tile):
    """One for each row of A that a CTA shares with others, and one for each column of a warp."""
    config = plan(GemmSpec(**dict(fields_of(tile))), problem(tile.rows, MANY, 1024, majors="kk")).config
    before, after = kernel_cache.artifact(config).ptx.split("griddepcontrol.wait")
    assert before.count("prefetch.global.L2") == tile.rows + tile.own and "prefetch" not in after
    assert "ld.global" not in before and "ld.global" in after


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("swapped", [False, True])
def test_prefetches_stay_inside_the_operands(swapped, batch, monkeypatch):
    """The emulator ignores prefetches, but not loads of the same addresses: without their predicates these fault."""
    parsed = front.kernel_of
    for tile in (GemvTile(rows=3, own=4, slices=2), GemvTile(own=2, slices=4)):
        gemm = gemm_of(tile, swapped)
        for k, pitch in ((1029, 0), (520, 3), (40, 1)):
            how = {"offset": 5, "pitch": k + pitch, "batch": batch}
            a, b = operands(MANY, k, rows=tile.rows, swapped=swapped, **how)
            for predicate in (PREDICATED, ALWAYS):
                loaded = lambda ptx, *entry, x=predicate: parsed(as_loads(ptx, x), *entry)
                monkeypatch.setattr(front, "kernel_of", loaded)
                if predicate == PREDICATED:
                    assert_close(emulator.run(gemm, a, b).d, a, b)
                elif k < 1000:
                    with pytest.raises(EmulatorError, match="out of bounds"):
                        emulator.run(gemm, a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES, ids=NAME)
def test_every_tile_on_a_gpu(tile):
    """As in the emulator, one launch after another, for several lengths and alignments."""
    for swapped in (False, True):
        gemm = gemm_of(tile, swapped)
        for k, offset, columns in (
            (16, 0, 1),
            (17, 1, 3),
            (1029, 3, 1077),
            (2048, 0, 333),
            (5207, 1, 50),
            (777, 0, 4097),
            (4099, 1, 1077),
        ):
            few = matrix(tile.rows, k, seed=1, device="cuda")
            many = matrix(columns, k, offset=offset, device="cuda")
            a, b = (many, few.mT) if swapped else (few, many.mT)
            assert_close(gemm.run(a, b), a, b)
    gemm = gemm_of(tile, constant=("b",))
    for k in (16, 1032, 2048, 5200):
        # each launch reads the result of the one before, under which it begins
        b = (matrix(k, k, device="cuda") / k**0.5).mT
        chain = [matrix(tile.rows, k, seed=1, device="cuda")]
        chain += [torch.full_like(chain[0], float("nan")) for _ in range(6)]
        for a, d in itertools.pairwise(chain):
            gemm.run(a, b, out=d)
        for a, d in itertools.pairwise(chain):
            assert_close(d, a, b)


@pytest.mark.parametrize("tile", TILES, ids=NAME)
def test_constant_columns_are_loaded_early(tile):
    """Each tile reads B before the wait and A after it, of less than a block, one and several."""
    of = problem(tile.rows, MANY, 64, majors="kk")
    ptx = kernel_cache.artifact(gemm_of(tile, constant=("b",)).kernel(of).plan.config).ptx
    before, _, after = ptx.partition("griddepcontrol.wait")
    # past L1: 32 bytes of it may hold the end of B beside what an earlier launch has yet to write
    assert before.count("ld.global.cg") == before.count("ld.global") == tile.own * tile.words
    assert after.count("ld.global") > tile.own * tile.words and ".cg" not in after
    assert "griddepcontrol.launch_dependents" in before
    for k in (16, tile.tile[2] - 8, tile.tile[2], 2 * tile.tile[2] + 72):
        a, b = operands(MANY, k, rows=tile.rows, offset=8)
        run = emulator.run(gemm_of(tile, constant=("b",)), a, b, options=RACES)
        assert not run.findings
        assert_close(run.d, a, b)


@pytest.mark.parametrize("k", [128, 264])
@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_a_chain_with_constant_columns(policy, k):
    """A launch reads the result of the one before, under which it begins, in less than a block and in more."""
    spec, of = GemmSpec(schedule="simt", tile=(2, 16, 256), constant=("b",)), problem(2, k, k, majors="kk")
    made = plan(spec, of)
    ptx = kernel_cache.artifact(made.config).ptx
    a, b = matrix(2, k, seed=1), matrix(k, k, seed=2).mT
    results = [torch.zeros(2, k, dtype=torch.bfloat16) for _ in range(3)]
    tensors = {"A": a, "B": b} | {f"D{i}": x for i, x in enumerate(results)}
    buffers = [tensor_buffer(x, name) for name, x in tensors.items()]
    sequence = []
    for given, out in zip((a, *results), results, strict=False):
        places = {name: x.data_ptr() for name, x in (("a", given), ("b", b), ("d", out))}
        (x,) = Gemm(spec, of).launches(of, places)
        sequence.append(Launch(ptx, grid=x.grid, block=x.block, smem_bytes=x.smem, params=list(x.params),
                               buffers=buffers, pdl=True))  # fmt: skip
    found = run_sequence(sequence, Options(races=True, policy=policy)).findings
    assert not found, found
    for given, out in zip((a, *results), results, strict=False):
        assert_close(out, given, b)
