# SPDX-License-Identifier: Apache-2.0
"""The worklog ladder: raw-CUDA GEMM kernels, one new idea each, from naive to cuBLAS speed.

import handwritten
for stage in handwritten.stages():
    print(stage.key, stage.idea, stage.resources())
d = handwritten.stage("wgmma_serial").run(a, b, c, alpha=2.0, beta=0.5)

The kernels are the `.cu` files beside this one; the package `ladder` compiles, launches, measures and reports them.
"""

from handwritten.ladder.problem import Limits
from handwritten.ladder.registry import stage, stages
from handwritten.ladder.stage import Stage

__all__ = ["Limits", "Stage", "stage", "stages"]
