# SPDX-License-Identifier: Apache-2.0
"""Which variants of a handwritten stage are compiled: each costs a second or more of NVRTC."""

from handwritten.ladder.compiling import legal_majors
from handwritten.ladder.stage import Stage
from tests.support.profile import cases


def variants(stage: Stage) -> list[tuple[str, str]]:
    """(dtype, majors): every dtype row-major, every layout in the first dtype; all pairs under `--profile long`."""
    layouts = legal_majors(stage)
    few = [
        (dtype, x) for dtype in stage.dtypes for x in layouts if dtype == stage.dtypes[0] or x == layouts[0]
    ]
    return cases(few, [(dtype, majors) for dtype in stage.dtypes for majors in layouts])
