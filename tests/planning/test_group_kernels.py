# SPDX-License-Identifier: Apache-2.0
"""What groups prefer to a batch: tiles from a counter, turns without clusters, tiles whose rows of D are long."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H100, H200
from cutegemm.errors import PlanError
from cutegemm.planning import group_kernels
from cutegemm.planning.grouped import plan_groups
from cutegemm.plans.steps import Ends
from cutegemm.request.group_forms import all_groups

COUNTER = "CTAs take tiles from a counter: "
BLOCKS = {"scale_a": ("block", 1, 128), "scale_b": ("block", 128, 128), "d_dtype": "bf16"}


def planned(form, shape, groups, majors="kk", dtype="bf16", device=H200, **fields):
    """The plan of groups of (m, n, k) each on average."""
    spec = GemmSpec(**fields)
    graph = None if isinstance(spec.epilogue, str) else spec.epilogue
    m, n, k = shape
    extents = (m * groups, n, k) if form == "rows" else (m, n, k * groups)
    of = problem(*extents, batch=groups, majors=majors, dtype=dtype, d_dtype="bf16", epilogue=graph)
    return plan_groups(spec, all_groups(of, form, {}), form, Ends(), device)


def counted(made):
    """Whether CTAs take tiles from a counter, which the plan explains."""
    explained = any(x.startswith(COUNTER) for x in made.reasons)
    assert explained or not made.config.dynamic or made.spec.scheduler == "dynamic"
    return made.config.dynamic


def test_large_groups_of_rows_take_turns_without_clusters():
    """From 256 rows on, and only from a counter: L2 holds a group's matrices, but not all."""
    config = planned("rows", (512, 1536, 2048), 128).config
    assert config.pingpong and config.cluster == (1, 1) and config.dynamic
    assert counted(planned("rows", (512, 1536, 2048), 128))
    assert not counted(planned("rows", (512, 1536, 2048), 128, scheduler="persistent"))
    # few tiles, or matrices of a group that exceed L2, are planned as a batch's are
    for shape, groups in (((256, 1024, 1024), 8), ((4096, 4096, 14336), 2)):
        other = planned("rows", shape, groups).config
        assert other.dynamic or not (other.pingpong and other.cluster == (1, 1))


@pytest.mark.parametrize("rows", [64, 512, 4096])
def test_groups_along_k_have_a_counter(rows):
    """With clusters, too, where SMs have several tiles; with few tiles lists are as good."""
    assert counted(planned("depth", (1536, 2048, rows), 64, majors="mn"))
    assert not counted(planned("depth", (64, 512, rows), 2, majors="mn"))


@pytest.mark.parametrize("device", [H200, H100])
def test_groups_of_few_rows_along_k_have_wide_tiles_and_a_counter(device):
    """Stores of D take most of the time, so rows of a tile are long, and what is loaded is read for wide tiles."""
    least = {rows: planned("depth", (1536, 2048, rows), 64, "mn", device=device) for rows in (1, 16, 64, 128)}
    for rows, made in least.items():
        m, n, k = made.config.tile
        assert m * n >= 128 * 256 and n * 2 >= 384 and k == 16, rows
        assert counted(made) and made.config.cluster == (1, 1) and not made.config.pingpong
    # tiles that D does not fill store less than they multiply
    tile = planned("depth", (64, 2048, 16), 512, "mn", device=device).config.tile
    assert tile[0] * tile[1] < 128 * 256


def test_groups_along_k_take_the_next_kernel_where_one_spills(monkeypatch):
    """An epilogue's inputs take registers that the widest tile has not."""
    wide = planned("depth", (1536, 2048, 64), 64, "mn").config.tile
    monkeypatch.setattr(group_kernels, "spills", lambda config: config.tile == wide)
    group_kernels.alike.cache_clear()
    made = planned("depth", (1536, 2048, 64), 64, "mn")
    group_kernels.alike.cache_clear()
    assert made.config.tile == (128, 192, 32) and counted(made)


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("rows", [16, 256])
def test_an_error_does_not_depend_on_preferred_kernels(consumers, rows, monkeypatch):
    """Where nothing is possible, the error is that of kernels of the caller's fields alone."""
    found = []
    for _ in range(2):
        group_kernels.alike.cache_clear()
        with pytest.raises(PlanError) as refused:
            planned("depth", (1536, 2048, rows), 64, "mn", "fp8", consumers=consumers, ctas_per_sm=2)
        found.append(str(refused.value))
        monkeypatch.setattr(group_kernels, "_preferred", lambda of: [])
    group_kernels.alike.cache_clear()
    assert found[0] == found[1]


def test_many_rows_with_scales_of_blocks_and_few_k_tiles_are_wide():
    """If D fills the tiles of all SMs several times."""
    config = planned("rows", (512, 2048, 768), 64, dtype="fp8", **BLOCKS).config
    assert config.tile == (128, 192, 128) and config.cluster == (1, 1) and config.dynamic
    assert planned("rows", (512, 2048, 768), 2, dtype="fp8", **BLOCKS).config.tile != (128, 192, 128)
    assert planned("rows", (512, 2048, 4096), 64, dtype="fp8", **BLOCKS).config.tile != (128, 192, 128)
    given = planned("rows", (512, 2048, 768), 64, dtype="fp8", tile=Tile(128, 128, 128), swap=False, **BLOCKS)
    assert given.config.tile == (128, 128, 128)


@epi.define
def summed(acc):
    """D and the sum of each of its rows."""
    return epi.Output(d=acc, sums=epi.Sum(acc, axis=1))


@pytest.mark.parametrize("form", ["rows", "depth"])
def test_columns_of_tiles_do_not_depend_on_rows_under_batch_invariant(form):
    """The sum of a row is added up tile by tile, so its bits depend on their columns and on whether operands swap."""
    majors = {"rows": "kk", "depth": "mn"}[form]
    shapes = {
        "rows": [(m, 2048, 512) for m in (1, 6, 40, 400)],
        "depth": [(m, 2048, 16) for m in (16, 64, 512)],
    }
    found = set()
    for shape in shapes[form]:
        made = planned(form, shape, 40, majors=majors, batch_invariant=True, epilogue=summed)
        found.add((made.swapped, made.config.tile[0 if made.swapped else 1]))
    assert len(found) == 1
