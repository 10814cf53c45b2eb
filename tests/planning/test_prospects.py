# SPDX-License-Identifier: Apache-2.0
"""A contradiction is found after few kernels have been worked out; what is left out would not have served."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import PlanError
from cutegemm.planning import candidates, choose, generator
from cutegemm.planning.planner import plan
from cutegemm.planning.ways import ways_of
from cutegemm.request.requirements import requested

# kernels that may be worked out before a spec is refused; they take some 0.05 ms each
FEW = 100
# fields, (M, N, K), what the refusal begins with
CONTRADICTIONS = [
    ({"split_k": 16, "epilogue_stages": 2}, (4096, 4096, 4096), "epilogue_stages=2: the launch that adds up"),
    ({"scheduler": "per_tile", "sms": 8, "input_stages": 1}, (4096, 4096, 4096), "sms=8: an SM limit needs"),
    ({"cluster": (4, 2), "sms": 3}, (4096, 4096, 4096), "sms=3: a cluster occupies 8 SMs"),
    ({"a_load": "shift", "ctas_per_sm": 2, "epilogue_stages": 8}, (64, 64, 65536), "ctas_per_sm=2: 2 consumer"),
    ({"evict_first": ("d",), "store": "staged"}, (333, 777, 555), "evict_first=('d',): TMA does not move d"),
    ({"tile": Tile(256, 128, 64), "cluster": (2, 1), "stages": 9, "schedule": "pingpong"}, (512, 512, 512),
     "tile.n=128: a warpgroup of a pingpong kernel holds 256 accumulators"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "extents", "message"), CONTRADICTIONS, ids=[str(x[0]) for x in CONTRADICTIONS]
)
def test_a_contradiction_is_refused_after_few_tries(fields, extents, message, monkeypatch):
    """What no tile mends is asked once a kind of kernel, and of tiles only those that may fit are tried."""
    tried, served = [], choose.served
    monkeypatch.setattr(choose, "served", lambda *args: tried.append(args) or served(*args))
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), problem(*extents))
    assert str(e.value).startswith(message)
    assert "; nearest legal value: " in str(e.value)
    assert len(tried) <= FEW


OPEN = [
    ({"epilogue_stages": 4, "stages": 4, "schedule": "cooperative"}, "kn", "bf16"),
    ({"epilogue_stages": 2, "swizzle": "64B", "store": "staged", "consumers": 2}, "mk", "fp32"),
    ({"split_k": 4, "swizzle": "32B", "stages": 6}, "kn", "bf16"),
    ({"ctas_per_sm": 2, "schedule": "multistage"}, "kk", "bf16"),
]


@pytest.mark.parametrize(("fields", "majors", "d_dtype"), OPEN, ids=[str(x[0]) for x in OPEN])
def test_nothing_that_serves_is_left_out(fields, majors, d_dtype):
    """Every tile of which a kernel can be made is among those that may serve."""
    spec, of = GemmSpec(**fields), problem(1024, 512, 200, majors=majors, d_dtype=d_dtype)
    way, limits, found = next(ways_of(requested(spec, of, DEFAULT)[0])), DEFAULT.limits, 0
    for kind in candidates.kinds(spec, limits):
        tiles = list(candidates.tiles(spec, limits, 1 << 16, limits.mma_m * kind.team))
        left = set(generator.fitting(way, kind, tiles))
        for tile in (x for x in tiles if x not in left and x[0] <= 8 * limits.mma_m * kind.team):
            with pytest.raises(PlanError):
                choose.served(way, kind._replace(tile=tile))
        found += len(left)
    assert found
