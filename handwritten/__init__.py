# SPDX-License-Identifier: Apache-2.0
"""The ladder: raw-CUDA GEMM kernels from naive to cuBLAS speed, each with one new idea.

import handwritten
for stage in handwritten.stages():
    print(stage.key, stage.idea, stage.resources())
d = handwritten.stage("wgmma_serial").run(a, b, c, alpha=2.0, beta=0.5)

The kernels are the `.cu` files in this folder. The package `ladder` compiles, launches, measures and reports them.
"""

from handwritten.ladder.problem import Limits
from handwritten.ladder.registry import stage, stages
from handwritten.ladder.stage import Stage

__all__ = ["Limits", "Stage", "stage", "stages"]
