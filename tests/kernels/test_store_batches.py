# SPDX-License-Identifier: Apache-2.0
"""TMA stores several subtiles at once, in batches that the staging buffers hold: on the emulator, races on.

Two CTAs compute several tiles each, so that buffers are used again in every batch.
"""

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.emulator import Options
from cutegemm.gemm import build
from cutegemm.planning.planner import plan
from tests.support.numerics import assert_close

SHAPE = 200, 216, 136
# staging buffers, schedule -> subtiles that are stored at once, of nine in a tile
BATCHES = {
    (9, "cooperative"): 9,
    (6, "cooperative"): 3,
    (4, "cooperative"): 2,
    (2, "cooperative"): 1,
    (4, "pingpong"): 2,
}


@pytest.mark.parametrize(("buffers", "schedule"), BATCHES)
@pytest.mark.parametrize("policy", ["random", "lazy"])
def test_batches_of_subtiles_use_buffers_that_tma_has_read(buffers, schedule, policy):
    """D = A B, whether or not a tile's subtiles divide into whole batches."""
    m, n, k = SHAPE
    spec = GemmSpec(
        tile=Tile(64, 72, 64), swap=False, schedule=schedule, epilogue_stages=buffers, sms=2, stages=2
    )
    config = plan(spec, problem(m, n, k)).config
    assert (config.subtiles, config.stored_at_once) == (9, BATCHES[buffers, schedule])
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(x, generator=generator).bfloat16() for x in ((m, k), (k, n)))
    run = emulator.run(build(spec), a, b, options=Options(policy=policy, seed=4, races=True))
    assert not run.findings
    assert_close(run.d, a, b)
