# SPDX-License-Identifier: Apache-2.0
"""The CUDA cores' tiles and cuts of K, as the planner chooses them."""

import dataclasses
import math

import pytest

from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.config.simt import EXTENTS, TILES
from cutegemm.gemm.representatives import representative
from cutegemm.planning import simt_tiles
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import estimate, fields_of, tiles_of, weighed
from cutegemm.problems import problem
from cutegemm.request.requirements import requested
from cutegemm.spec import Tile


def chosen(of):
    """The tile of a problem, of which nothing is given."""
    return simt_tiles.choose(requested(GemmSpec(), of, H200)[0])


@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (16, 4096, 4096), (4096, 16, 4096), (64, 4096, 4096), (100, 60, 9000)]
)
def test_few_tiles_are_cut_until_most_multiprocessors_work(shape):
    """Where output tiles cannot occupy the GPU, K is cut; the CTAs then cover at least two thirds of its SMs or are
    as many as a cluster holds."""
    posed = problem(*shape, dtype="fp32")
    tile = chosen(posed)
    assert tile.split > 1
    assert tiles_of(posed, tile) * tile.split >= H200.sms * 2 / 3 or tile.split == max(simt_tiles.SPLITS)


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (64, 4096, 4096), (512, 512, 512)])
def test_middling_products_give_every_multiprocessor_warps_enough(shape):
    """All clusters run at once, on nearly all SMs, each with sixteen warps, or eight of 8 x 16 a thread."""
    posed = problem(*shape, dtype="fp32")
    tile = chosen(posed)
    places = H200.resident_clusters(tile.split)
    busiest = -(-tiles_of(posed, tile) // places)
    values = math.prod(tile.thread_tile)
    assert busiest <= tile.residents and busiest * tile.warps * values >= 16 * 64
    assert tiles_of(posed, tile) * tile.split >= 0.95 * busiest * H200.sms


@pytest.mark.parametrize("odd", [(1023, 1023, 1023), (333, 777, 555), (4095, 63, 4097), (17, 8191, 4099)])
def test_addresses_of_single_elements_take_registers(odd):
    """A thread that loads single elements holds an address for each: half as many CTAs share an SM's registers. Where
    warps share K, a thread loads few elements at once, and all residents stay."""
    even = tuple(x + -x % 4 for x in odd)
    for shape, halved in ((odd, True), (even, False)):
        of = problem(*shape, dtype="fp32", majors="kk")
        for _, tile in weigh(of, H200):
            config = plan(GemmSpec(**dict(fields_of(tile))), of).config
            many = tile.staged and tile.slices == 1
            assert (config.vector[0] == 1) is halved
            assert config.residents == (tile.residents / 2 if halved and many else tile.residents), tile


# many tiles: squares, other shapes, short and deep K
MANY = [(4096, 4096, 4096), (8192, 8192, 1024), (3072, 6144, 1024), (16384, 2048, 4096), (40960, 1024, 512)]


@pytest.mark.parametrize("shape", MANY)
def test_many_tiles_are_whole_and_read_least_from_shared_memory(shape):
    """Where tiles fill all SMs several times, more CTAs add only reductions; of the tiles the one wins whose threads
    read fewest elements of shared memory for a product."""
    of = problem(*shape, dtype="fp32")
    tile = chosen(of)
    reads = {x: sum(x.thread_tile) / math.prod(x.thread_tile) for _, x in weigh(of, H200)}
    assert tiles_of(of, tile) > 4 * H200.sms and tile.split == 1
    assert reads[tile] == min(reads.values())


@pytest.mark.parametrize(
    "shape",
    [
        (64, 4096, 4096),
        (64, 2048, 8192),
        (48, 4096, 4096),
        (128, 2048, 4096),
        (512, 512, 512),
        (16, 4096, 4096),
    ],
)
def test_an_sm_with_one_cta_loads_tiles_ahead(shape):
    """One k tile takes less time than a read of device memory, and no other CTA of the SM has work meanwhile: loads
    begin several k tiles ahead, into L2 or a pipeline."""
    of = problem(*shape, dtype="fp32", majors="kk")
    config = plan(GemmSpec(), of).config
    assert tiles_of(of, config) * config.split <= H200.sms
    assert config.ahead > 1 if config.staged else config.stages > 3
    # the same tile without a prefetch is predicted slower
    late = [x for x in TILES if x.tile == (64, 64, 32) and not x.ahead]
    early = [dataclasses.replace(x, ahead=4) for x in late]
    assert late and all(
        estimate(of, x, H200) < estimate(of, y, H200) for x, y in zip(early, late, strict=True)
    )


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (512, 512, 512), (3000, 40, 50)])
def test_16_bit_elements_come_through_registers(shape):
    """A ring takes no elements that have to be converted."""
    assert chosen(problem(*shape)).staged


def test_tiles_differ_and_fit():
    """No tile needs more shared memory or threads than an SM has for its residents."""
    assert len({dataclasses.replace(x, split=1) for x in TILES}) == len(TILES)
    for tile in TILES:
        ring = (tile.tile[0] + tile.tile[1]) * tile.tile[2] * 4 * tile.stages
        sums = tile.tile[0] * tile.tile[1] * 4 * tile.slices
        assert max(ring, sums) * tile.residents <= 227 * 1024
        assert tile.warps * tile.residents <= 64


def weigh(of, device, **fields):
    """(nanoseconds, tile) of what a spec leaves for a problem."""
    return weighed(requested(GemmSpec(**fields), of, device)[0])


ALIGNED = problem(333, 5028, 1024, dtype="fp32", majors="kk")
ODD = problem(333, 5025, 1023, dtype="fp32", majors="kk")


@pytest.mark.parametrize("of", [ALIGNED, ODD], ids=["aligned", "odd"])
def test_a_spec_names_every_tile(of):
    """Each tile and cut that the model weighs is planned when a spec gives its fields, and has them."""
    for _, tile in weigh(of, H200):
        made = plan(GemmSpec(**dict(fields_of(tile))), of)
        config = made.config
        same = {x.name for x in dataclasses.fields(tile)} - {"residents"}
        assert all(getattr(config, name) == getattr(tile, name) for name in same)
        assert made.why.taken is not None and dict(made.why.taken.fields)["tile"] == tile.tile


def test_a_plan_says_why_also_where_another_chose():
    """If a plan's spec does not name its tile, as with a tuned entry, that tile is the one taken."""
    given = plan(GemmSpec(schedule="simt", tile=Tile(64, 16, 32), stages=9, split_k=2), ODD)
    assert (given.config.stages, given.config.split) == (9, 2)
    why = dataclasses.replace(given, spec=GemmSpec()).why
    assert dict(why.taken.fields) == {"schedule": "simt", "tile": (64, 16, 32), "stages": 9, "split_k": 2}
    assert all(x.lost for x in why.weighed if x is not why.taken) and len(why.weighed) > 10


@pytest.mark.parametrize("rows", range(100, 800, 37))
def test_tiles_that_pad_fewer_rows_take_less_time(rows):
    """In many tiles of as many columns, 112 and 128 rows differ in the rows that they compute outside D."""
    of = problem(rows, 60001, 1023, dtype="fp32", majors="kk")
    low, high = (
        next(x for x in TILES if x.tile == (m, 128, 8) and math.prod(x.thread_tile) in (112, 128))
        for m in (112, 128)
    )
    computed = [math.ceil(rows / x.tile[0]) * x.tile[0] for x in (low, high)]
    assert computed[0] != computed[1]
    assert (estimate(of, low, H200) < estimate(of, high, H200)) is (computed[0] < computed[1])


@pytest.mark.parametrize("of", [ALIGNED, ODD], ids=["aligned", "odd"])
def test_threads_share_loads_evenly(of):
    """A tile is possible where its threads have equally many loads: of single elements, or of vectors of four."""
    possible = {x.tile for _, x in weigh(of, H200)}
    for x in TILES:
        each = x.threads * plan(GemmSpec(), of).config.vector[0]
        if x.staged:
            even = all(rows * x.tile[2] % each == 0 for rows in x.tile[:2])
            assert (x.tile in possible) is even, x
    assert any(x.tile not in possible for x in TILES) is (of is ALIGNED)


@pytest.mark.parametrize("given", [{"a_dtype": "fp32"}, {"schedule": "simt"}], ids=["fp32", "simt"])
@pytest.mark.parametrize("tile", dict.fromkeys(x.tile for x in TILES), ids=str)
def test_a_bare_spec_may_name_every_tile(given, tile):
    """Before a problem is named, too: the one that stands for it is of a kind that the tile serves."""
    spec = GemmSpec(tile=Tile(*tile), split_k=2, **given)
    assert plan(spec, representative(spec)).config.tile == tile
    # types that are left open refuse no tile
    assert plan(GemmSpec(tile=Tile(*tile)), representative(spec)).config.tile == tile and tile in EXTENTS
    assert Gemm(GemmSpec(tile=Tile(*tile))).plan.steps


def test_without_k_a_tile_means_nothing():
    """The epilogue alone takes whatever tile; one of the tensor cores may be given, as for any other K."""
    of = problem(64, 64, 0)
    assert plan(GemmSpec(tile=Tile(128, 128, 64)), of).config == plan(GemmSpec(), of).config


def test_a_given_tile_is_batch_invariant_whatever_shares_its_k():
    """Left open no warps share K, whose tiles would change with M; a given tile is the same for every M."""
    of = problem(64, 4096, 4096, dtype="fp32")
    left = weigh(of, H200, batch_invariant=True)
    assert {(x.slices, x.split) for _, x in left} == {(1, 1)}
    given = GemmSpec(tile=Tile(64, 64, 32), split_k=2, batch_invariant=True)
    config = plan(given, of).config
    assert (config.slices, config.split) == (8, 2)
    assert plan(GemmSpec(tile=Tile(64, 64, 32), batch_invariant=True), of).config.split == 1


def test_gated_pairs_have_tiles_of_their_own():
    """Of 64 x 64 x 32 a pair takes the form of 8 x 8 a thread: a thread's 8 x 16 leaves no room for two."""
    graph = epi.swiglu("halves")
    of = problem(512, 512, 512, dtype="fp32", epilogue=graph)
    config = plan(GemmSpec(tile=Tile(64, 64, 32), epilogue=graph), of).config
    assert config.thread_tile == (8, 8)


def test_shared_memory_bounds_a_threads_8_x_8():
    """In 2048^3 tiles of 128 x 128 take 326 us with 16 x 8 a thread and 408 with 8 x 8 (H200): as many issue slots, but
    a fifth less is read from shared memory. By slots alone they would be 1.046 apart."""
    of = problem(2048, 2048, 2048, dtype="fp32", majors="kk")
    wide, narrow = (x for x in TILES if x.tile == (128, 128, 8))
    ratio = estimate(of, narrow, H200) / estimate(of, wide, H200)
    assert narrow.thread_tile == (8, 8) and 1.06 < ratio < 1.3


def test_smaller_groups_of_rows_are_read_more_often(monkeypatch):
    """A thread loads each group of its rows by itself: more issue slots where a group is smaller."""
    of, slots = problem(2048, 2048, 2048, dtype="fp32"), []
    for group in (4, 2, 1):
        monkeypatch.setattr(simt_tiles.SimtTile, "group", group)
        slots.append(simt_tiles._work(TILES[1], of)[0])
    assert slots == sorted(set(slots))


def test_every_time_counts_and_lengthens():
    """Each figure of the CUDA cores' model, doubled, makes some tile's estimate longer and none shorter."""
    tiles = [*TILES, *(dataclasses.replace(x, split=4) for x in TILES)]
    shapes = (4096, 4096, 4096), (64, 64, 4096), (1, 1, 1)
    cases = [(problem(*shape, dtype="fp32"), x) for shape in shapes for x in tiles]
    times = lambda cores: [estimate(*x, dataclasses.replace(H200, cores=cores)) for x in cases]
    before = times(H200.cores)
    for name, value in dataclasses.asdict(H200.cores).items():
        after = times(dataclasses.replace(H200.cores, **{name: 2 * value or 1.0}))
        assert all(x >= y for x, y in zip(after, before, strict=True)) and after != before, name


def test_d_is_stored_in_words_of_16_bytes_where_its_lines_allow():
    """Four elements of fp32 at once, one where the leading dimension is odd."""
    found = [plan(GemmSpec(), problem(512, n, 512, dtype="fp32")).config.vector[2] for n in (512, 511)]
    assert found == [4, 1]
