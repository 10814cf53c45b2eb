# SPDX-License-Identifier: Apache-2.0
"""What the model cannot tell from its choice is among the first proposals, so that a tuner measures it."""

from __future__ import annotations

import json
import math

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.database.entry import refined
from cutegemm.planning.invariance import keeps
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of
from cutegemm.tuning.proposals import BOTH_WAYS, FEW_TILES, _kernels, explicit, proposals

FIRST = 12


# predicted slowdown within which the model cannot tell kinds of kernels apart: its errors are about as large
ERROR = 1.05
SHAPES = [
    (1, 64, 4096, 4096), (1, 128, 4096, 14336), (1, 1024, 1024, 1024), (1, 4096, 4096, 4096), (1, 333, 777, 555),
    (1, 2048, 2112, 7168), (1, 16, 8192, 8192), (1, 8192, 16, 4096), (8, 2048, 2048, 1024), (128, 64, 128, 64),
]  # fmt: skip


def kind(fields):
    """What gives kernels' times different reasons."""
    return fields["schedule"], fields.get("split_k", 1) > 1


@pytest.mark.parametrize("extents", SHAPES, ids=lambda x: "x".join(map(str, x)))
def test_every_kind_within_the_models_error_is_proposed(extents):
    """A tuner of twelve candidates measures each schedule, with splits and without, both orientations if D has few rows
    or columns, and both axes of a raster, which the model does not rank."""
    batch, *shape = extents
    of = problem(*shape, batch=batch, majors="kk")
    found = proposals(GemmSpec(), of, H200, FIRST)
    weighed = [x for x in plan(GemmSpec(), of, H200).why.weighed if x.serves and x.fields]
    near = [dict(x.fields) for x in weighed if x.us <= ERROR * min(y.us for y in weighed)]
    made = [fields_of(x.plan) for x in found]
    assert set(map(kind, near)) <= set(map(kind, made))
    assert {x["swap"] for x in near} <= {x["swap"] for x in made} or min(shape[:2]) > BOTH_WAYS
    assert {x.plan.raster[0] for x in found} == set("mn") or math.prod(found[0].plan.tiles) <= FEW_TILES


def test_other_loads_of_what_tma_does_not_transpose_are_proposed():
    """8-bit B of another major than K: copied or gathered, and each proposal says which."""
    of = problem(16, 4096, 4096, dtype="fp8", majors="kn")
    found = proposals(GemmSpec(), of, H200, FIRST)[1:]
    assert {x.fields.get("b_load") for x in found} == {"relayout", "gather"}
    assert not any("a_load" in x.fields for x in found)


CORES = [
    (333, 5025, 1023),
    (1023, 1023, 1023),
    (512, 512, 512),
    (64, 4096, 4096),
    (16, 4096, 4096),
    (2048, 1024, 8192),
]


@pytest.mark.parametrize("extents", CORES, ids=lambda x: "x".join(map(str, x)))
def test_tiles_of_the_cuda_cores_are_proposed_and_kept_by_name(extents):
    """A tuner measures every tile within the model's error; whichever wins is kept so that it stays."""
    of = problem(*extents, dtype="fp32", majors="kk")
    found = proposals(GemmSpec(), of, H200, FIRST)
    weighed = plan(GemmSpec(), of, H200).why.weighed
    near = [dict(x.fields) for x in weighed if x.us <= ERROR * min(y.us for y in weighed)]
    assert len(found) == min(FIRST, len(weighed))
    wanted = {_kernels(plan(refined(GemmSpec(), x), of, H200)) for x in near}
    assert wanted <= {_kernels(x.plan) for x in found}
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
