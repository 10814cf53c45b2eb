# SPDX-License-Identifier: Apache-2.0
"""Which variants of a handwritten stage are compiled: each costs a second or more of NVRTC."""

from handwritten.ladder.compiling import legal_majors
from handwritten.ladder.stage import Stage
from tests.support.profile import cases


def variants(stage: Stage) -> list[tuple[str, str]]:
    """(dtype, majors): every dtype and every layout, side by side; all pairs under `--profile long`."""
    layouts = legal_majors(stage)
    both = range(max(len(stage.dtypes), len(layouts)))
    few = [(stage.dtypes[i % len(stage.dtypes)], layouts[i % len(layouts)]) for i in both]
    return cases(few, [(dtype, majors) for dtype in stage.dtypes for majors in layouts])
