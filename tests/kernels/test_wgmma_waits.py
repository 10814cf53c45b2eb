# SPDX-License-Identifier: Apache-2.0
"""The WGMMAs of a stage are issued one after another, and the threads wait once for all of them.

ptxas waits after each of them if it must insert a fence (wgmma.fence) where threads may have diverged, and says so in a
message (C7520) that the DSL does not show. The sums are right, the tensor cores idle.
"""

import re

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.resources import sass
from cutegemm.planning.planner import plan

SMALL = {"tile": Tile(64, 64, 64), "swap": False}
SPECS = {
    "one stage after another": GemmSpec(**SMALL),
    "pingpong": GemmSpec(**SMALL, schedule="pingpong"),
    "multistage": GemmSpec(**SMALL, schedule="multistage"),
    "one stage": GemmSpec(**SMALL, stages=1),
    "pairs": GemmSpec(**SMALL, cluster=(2, 1), sms=4),
    "tiles from a counter": GemmSpec(**SMALL, scheduler="dynamic", sms=4),
    "stream-K": GemmSpec(**SMALL, scheduler="stream_k", sms=5),
    "splits in a cluster": GemmSpec(**SMALL, split_k=4, split_reduction="cluster", sms=4),
    "splits in a cluster of pairs": GemmSpec(**SMALL, split_k=2, cluster=(2, 1, 2), sms=4),
    "splits of clusters": GemmSpec(**SMALL, split_k=4, cluster=(1, 1, 2), split_reduction="launch", sms=4),
    "splits in a workspace": GemmSpec(**SMALL, split_k=3, split_reduction="workspace", sms=4),
    "promoted": GemmSpec(**SMALL, promote=128),
    "gathered": GemmSpec(**SMALL, a_load="gather"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_stages_wgmmas_are_committed_together(name):
    """Only the last of a stage's WGMMAs ends a group (gsb0 in the machine code)."""
    made = plan(SPECS[name], problem(200, 136, 1024))
    artifact = kernel_cache.artifact(made.config)
    multiplied = re.findall(r"HGMMA\.[^;]*;", sass(artifact.cubin))
    ended = sum("gsb0" in x for x in multiplied)
    assert len(multiplied) >= 4 and 4 * ended <= len(multiplied)
