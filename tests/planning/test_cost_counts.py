# SPDX-License-Identifier: Apache-2.0
"""What the cost model counts besides operations, and which configs the generator leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.config import SECTOR
from cutegemm.config.smem_budget import STAGE_BARRIERS, room
from cutegemm.planning import cost, generator, ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.epilogue_plan import STAGING_BYTES
from cutegemm.planning.kernel_fields import PANEL, drafted
from cutegemm.planning.seen import Seen
from cutegemm.plans.launch_limits import MOST_COUNTED
from tests.support.costs import LARGE, counted, table, way_of


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_waves_are_of_the_clusters_that_a_gpu_holds(cluster):
    """One cluster more than the GPU holds takes a second wave, even if SMs stay idle."""
    held = DEFAULT.resident_clusters(cluster[0] * cluster[1])
    tile = Candidate((128, 64, 64), cluster, "cooperative", 2)
    waves = [
        int(counted(problem(128 * cluster[0], 64 * cluster[1] * x, 4096), tile).waves[0])
        for x in (held, held + 1, 2 * held + 1)
    ]
    assert waves == [1, 2, 3]
    # four SMs are left over in each of some GPCs, which no cluster of eight can use
    assert cluster != (4, 2) or held * 8 < DEFAULT.sms


def test_panels_after_the_first_read_b_again_unless_l2_holds_both_operands():
    """Every panel after the first reads B again, at most PANEL times."""
    rows = 2 * 128 * PANEL
    for panels in (1, 2, 5, 3 * PANEL):
        large = problem(rows * panels, 16384, 8192)
        assert counted(large, LARGE).memory - large.min_bytes == min(panels - 1, PANEL) * large.b.bytes
        small = problem(rows * panels, 256, 256)
        assert small.a.bytes + small.b.bytes <= DEFAULT.l2_bytes
        assert counted(small, LARGE).memory == small.min_bytes


def test_ctas_that_share_columns_wait_for_slices_or_for_all_of_them():
    """With 48 columns each of two CTAs loads half; with 40 each loads every other stage whole."""
    slices, turns = (Candidate((64, n, 128), (2, 1), "cooperative", 1) for n in (48, 40))
    void = counted(problem(4096, 8, 8192, majors="kk"), slices, turns).void
    # 40 columns outside fill the second slice and 16 columns of the first
    assert void.tolist() == [24 * 128 * 2, 32 * 128 * 2]
    # half of the tiles of a cluster along N are whole outside
    wide = Candidate((64, 48, 128), (2, 2), "cooperative", 1)
    assert counted(problem(4096, 40, 8192, majors="kk"), wide).void == (24 + 8) / 2 * 128 * 2


def test_stages_have_the_room_that_staging_leaves():
    """Staging buffers for outputs and inputs take room from stages, up to STAGING_BYTES per warpgroup."""
    stages = []
    for c_dtype in (None, "bf16"):
        of = problem(8192, 8192, 8192, c_dtype=c_dtype)
        left = DEFAULT.limits.smem_bytes - (1 + (c_dtype is not None)) * LARGE.consumers * STAGING_BYTES
        (ring,) = counted(of, LARGE).ring
        assert ring == left // ((128 + 256) * 64 * 2 + STAGE_BARRIERS)
        stages.append(ring)
    assert stages == [4, 3]


def test_stream_k_shares_the_last_wave():
    """One tile more than a wave costs another wave of tiles, but no more than its own work if SMs share K."""
    tile = Candidate((128, 128, 64), (1, 1), "cooperative", 2)
    times = []
    for tiles in (DEFAULT.sms, DEFAULT.sms + 1):
        of = problem(128, 128 * tiles, 8192)
        times += [
            ranking.predicted(way_of(GemmSpec(swap=False, scheduler=x), of), [tile])[0]
            for x in ("persistent", "stream_k")
        ]
    full, full_shared, more, more_shared = times
    assert full == full_shared and more > 1.15 * full
    assert full < more_shared < 1.05 * full


PLAIN = GemmSpec(swap=False)
KK, KN = (problem(4096, 4096, 4096, majors=x) for x in ("kk", "kn"))


def test_rows_of_d_are_whole_sectors_in_wide_tiles():
    """A store of less than 32 bytes would read the rest of a sector; columns of D have no such rows."""
    by_rows = table(PLAIN, KK)
    assert (by_rows.n[by_rows.n > generator.NARROW_COLUMNS] * 2 % SECTOR == 0).all()
    by_columns = table(PLAIN, problem(4096, 4096, 4096, majors="kk", d_major="m"))
    assert (by_columns.n[by_columns.n > generator.NARROW_COLUMNS] * 2 % SECTOR != 0).any()


def test_tiles_of_a_row_major_b_are_whole_swizzle_rows():
    """Rows of B are at least 32 bytes, and 64 in wide tiles; a B that is contiguous along K has no such rows."""
    by_rows, by_columns = table(PLAIN, KN), table(PLAIN, KK)
    assert (by_rows.n % 16 == 0).all() and (by_columns.n % 16 != 0).any()
    wide = by_rows.n >= generator.NARROW_COLUMNS
    assert (by_rows.n[wide] % 32 == 0).all() and (by_rows.n[~wide] % 32 != 0).any()
    assert (by_columns.n[by_columns.n >= generator.NARROW_COLUMNS] % 32 != 0).any()


def test_warps_that_load_and_multiply_have_columns_enough_to_hide_their_loads():
    """Unless a spec asks for that schedule."""
    free, given = table(PLAIN, KK), table(GemmSpec(swap=False, schedule="multistage"), KK)
    bare = free.schedule == cost.MULTISTAGE
    assert free.n[bare].min() == generator.BARE_COLUMNS > free.n[~bare].min()
    assert (given.schedule == cost.MULTISTAGE).all() and given.n.min() < generator.BARE_COLUMNS


def test_deep_stages_and_clusters_of_eight_are_of_small_tiles():
    """Larger tiles would have too few stages; pingpong has no deep stages. A given cluster may have any tile."""
    of = table(PLAIN, KK)
    large = of.m + of.n > generator.DEEP_EDGES
    assert (of.k[large | (of.schedule == cost.PINGPONG)] == 64).all() and (of.k == 128).any()
    size = of.across * of.along
    assert size[large].max() == generator.MOST_SHARED < size.max() == 8
    given = table(GemmSpec(swap=False, cluster=(4, 2)), KK)
    assert (given.m + given.n > generator.DEEP_EDGES).any()


def test_wide_tiles_have_few_block_scales_of_b():
    """A thread multiplies by one for every aligned power of two of the tile's columns; narrow tiles have few anyway."""
    spec = GemmSpec(swap=False, scale_a=("block", 1, 128), scale_b=("block", 128, 128))
    of = problem(4096, 4096, 4096, dtype="fp8_e4m3", majors="kk", epilogue=spec.epilogue)
    columns = table(spec, of).n.astype(int)
    parts = columns // np.minimum(columns & -columns, 128)
    wide = columns > generator.NARROW_COLUMNS
    assert wide.any() and parts[wide].max() <= generator.MOST_SCALES < parts[~wide].max()


def least_room(of, **fields):
    """The fewest stages that any config in the table has room for."""
    way = way_of(GemmSpec(swap=False, **fields), of)
    found = generator.table(ways.Kind.of(way))
    return min(room(drafted(way, generator.candidate(found, i))) for i in range(len(found.m)))


def test_configs_have_stages_enough_for_loads_to_overlap_the_mainloop():
    """Three by TMA, also if two CTAs share an SM, unless a spec gives fewer; two by threads."""
    assert least_room(KK, ctas_per_sm=2) == generator.LEAST_STAGES > least_room(KK, ctas_per_sm=2, stages=1)
    assert least_room(problem(4096, 4096, 4097), a_load="shift", b_load="gather") == generator.LEAST_LOADED


def test_clusters_have_no_more_ctas_than_a_spec_gives_sms():
    """Unless it gives the cluster, too."""
    of = table(GemmSpec(swap=False, sms=2), KK)
    assert (of.across * of.along).max() == 2
    assert len(table(GemmSpec(swap=False, sms=2, cluster=(4, 1)), KK).m)


def with_splits(of, **fields):
    """The splits of a problem's configs, and the configs without any."""
    spec = GemmSpec(swap=False, **fields)
    found = generator.split(spec, [Seen.of(of)], DEFAULT, table(spec, of))
    split = found.splits > 1
    return (cost.Rows(*(x[y] for x in found)) for y in (split, ~split))


DEEP = problem(256, 1024, 16384, majors="kk", d_major="m")


def test_what_is_split_has_small_clusters_and_steps_of_columns_that_matter():
    """Steps of eight columns in narrow or small tiles only; more would give larger tables and no faster kernels."""
    split, whole = with_splits(DEEP)
    assert (split.across * split.along).max() == generator.MOST_SHARED < (whole.across * whole.along).max()
    for of, fine in ((split, False), (whole, True)):
        large = (of.n > generator.NARROW_COLUMNS) & (of.m + of.n > generator.DEEP_EDGES)
        assert (of.n[large] % 16 != 0).any() == fine


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_cluster_adds_up_splits_that_it_has_room_for(dtype):
    """Registers for its own sums and others', shared memory for theirs beside three stages, and SMs for all splits."""
    split, _ = with_splits(problem(256, 1024, 16384, majors="kk", dtype=dtype))
    held, size = split.held > 1, split.across * split.along
    planes = np.ceil(256 / (split.m * split.across)) * np.ceil(1024 / (split.n * split.along))
    assert ((size * split.held)[held] <= DEFAULT.limits.max_cluster).all()
    assert (planes * split.held <= DEFAULT.sms)[held].all()
    stage = (split.m + split.n) * split.k * (1 if dtype == "fp8" else 2)
    fits = 4 * split.m * split.n + generator.LEAST_STAGES * stage <= DEFAULT.limits.smem_bytes
    adds = split.adds > 0
    assert (fits & adds)[held].all()
    # stages of 8 bits are small: some configs have room in shared memory but too few registers
    assert (~fits if dtype == "bf16" else fits & ~adds)[~held].any()


def test_splits_of_a_deep_k_are_as_many_as_can_be_counted():
    """The k tiles of all splits, in the tile scheduler's 32-bit integers."""
    most = 2**31 - 512
    split, _ = with_splits(problem(64, 64, most, majors="kk"))
    assert len(split.m) and (split.splits * np.ceil(most / split.k) <= MOST_COUNTED).all()
