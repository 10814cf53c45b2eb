# SPDX-License-Identifier: Apache-2.0
"""What was measured best is the model's choice or among the first proposals, so that a tuner finds it."""

from __future__ import annotations

import json

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.database.entry import refined
from cutegemm.planning.invariance import keeps
from cutegemm.planning.planner import plan
from cutegemm.tuning.proposals import _kernels, explicit, proposals

FIRST = 12


def tile(*extents, **fields):
    """A spec of a tile, not swapped unless it says so."""
    return GemmSpec(**{"tile": Tile(*extents), "swap": False} | fields)


def parts(m, n, k, plane, count):
    """A spec of parts of K that a launch adds up."""
    return tile(m, n, k, cluster=(*plane, 1), split_k=count, split_reduction="launch")


# (batch, M, N, K) -> a spec that an H200 ran faster than what was chosen before, or within 2 % of the best of 7 to 30
MEASURED = {
    (1, 128, 4096, 14336): parts(64, 128, 64, (2, 1), 2),
    (8, 2048, 2048, 1024): tile(128, 128, 64, cluster=(2, 1), schedule="pingpong", raster=("m", 8)),
    (128, 64, 128, 64): tile(64, 128, 64, schedule="multistage"),
    (1, 333, 777, 555): GemmSpec(schedule="multistage"),
}


@pytest.mark.parametrize("extents", MEASURED, ids=lambda x: "x".join(map(str, x)))
def test_what_was_measured_best_is_proposed(extents):
    """A tuner of twelve candidates measures the fastest spec that is known for a problem."""
    batch, *shape = extents
    of = problem(*shape, batch=batch, majors="kk")
    wanted = _kernels(plan(MEASURED[extents], of, H200))
    assert wanted in [_kernels(x.plan) for x in proposals(GemmSpec(), of, H200, FIRST)]


def test_other_loads_of_what_tma_does_not_transpose_are_proposed():
    """8-bit B of another major than K: copied or gathered, and each proposal says which."""
    of = problem(16, 4096, 4096, dtype="fp8", majors="kn")
    found = proposals(GemmSpec(), of, H200, FIRST)[1:]
    assert {x.fields.get("b_load") for x in found} == {"relayout", "gather"}
    assert not any("a_load" in x.fields for x in found)


def test_fp32_of_64_rows_prefetches():
    """At 64 x 4096 x 4096 the CUDA cores' tile of 8 x 16 a thread takes 53 us where 8 x 8 took 69 (H200)."""
    config = plan(GemmSpec(), problem(64, 4096, 4096, dtype="fp32", majors="kk"), H200).config
    assert (config.tile, config.thread_tile) == ((64, 64, 32), (8, 16))
    assert (config.slices, config.split, config.ahead) == (8, 2, 4)


# (M, N, K) -> a CUDA-core tile, its stages and its parts of K, that an H200 ran faster than what was chosen before, or
# within 2 % of the best
CORES = {
    (333, 5025, 1023): ((112, 128, 8), 2, 2),
    (1023, 1023, 1023): ((128, 128, 8), 2, 2),
    (512, 512, 512): ((64, 32, 64), 2, 1),
    (64, 4096, 4096): ((64, 64, 32), 2, 2),
    (16, 4096, 4096): ((16, 64, 32), 6, 2),
    (1024, 1024, 1024): ((64, 128, 16), 2, 2),
}


@pytest.mark.parametrize("extents", CORES, ids=lambda x: "x".join(map(str, x)))
def test_tiles_of_the_cuda_cores_are_proposed_and_kept_by_name(extents):
    """A tuner measures the tile that is known best; whichever wins, the model's own too, is kept so that it stays."""
    tile, stages, parts = CORES[extents]
    of = problem(*extents, dtype="fp32", majors="kk")
    wanted = _kernels(
        plan(GemmSpec(schedule="simt", tile=Tile(*tile), stages=stages, split_k=parts), of, H200)
    )
    found = proposals(GemmSpec(), of, H200, FIRST)
    assert wanted in [_kernels(x.plan) for x in found] and len(found) == FIRST
    for x in found:
        fields = json.loads(json.dumps(explicit(GemmSpec(), x)))
        assert set(fields) == {"schedule", "tile", "stages", "split_k"}
        assert _kernels(plan(refined(GemmSpec(), fields), of, H200)) == _kernels(x.plan)


PARTS_OF_K = {"tile": [64, 128, 64], "split_k": 4, "split_reduction": "launch"}
# what is given beside batch_invariant=True, type -> fields of seeds whose order of additions the planner would not take
OTHER_BITS = [
    ({}, "bf16", PARTS_OF_K),
    ({}, "bf16", {"cluster": [1, 1, 2]}),
    ({}, "bf16", {"scheduler": "stream_k"}),
    ({}, "bf16", {"schedule": "simt"}),
    ({"split_k": 2}, "bf16", {"tile": [64, 128, 128]}),
    ({"split_k": 4}, "bf16", {"tile": [64, 128, 64], "cluster": [1, 1, 2]}),
    ({"epilogue": epi.row_max()}, "bf16", {"tile": [64, 64, 64]}),
    ({"epilogue": epi.row_max(), "tile": Tile(64, 64, 64)}, "bf16", {"swap": True}),
    ({}, "fp32", {"schedule": "simt", "tile": [64, 64, 32], "split_k": 1}),
    ({"tile": Tile(64, 64, 32)}, "fp32", {"split_k": 2}),
]


@pytest.mark.parametrize(("given", "dtype", "fields"), OTHER_BITS, ids=lambda x: str(x)[:40])
def test_seeds_that_change_the_order_of_additions_are_passed_over(given, dtype, fields):
    """Under batch_invariant=True: parts of K, depths, widths and CUDA-core tiles that would follow M."""
    epilogue = given.get("epilogue")
    of = problem(64, 4096, 4096, dtype=dtype, majors="kk", epilogue=epilogue)
    spec = GemmSpec(batch_invariant=True, **given)
    found = proposals(spec, of, H200, 4, first=[fields], seeds=[fields])
    assert fields not in [x.fields for x in found]
    assert all(keeps(plan(spec, of, H200), x.plan) for x in found)
