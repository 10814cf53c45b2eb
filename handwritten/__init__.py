# SPDX-License-Identifier: Apache-2.0
"""The worklog ladder: raw-CUDA GEMM kernels, one new idea each, from naive to cuBLAS speed.

import handwritten
for stage in handwritten.stages():
    print(stage.key, stage.idea, stage.resources())
d = handwritten.stage("wgmma_serial").run(a, b, c, alpha=2.0, beta=0.5)
"""

from handwritten.problem import Limits
from handwritten.registry import stage, stages
from handwritten.rung import Stage

__all__ = ["Limits", "Stage", "stage", "stages"]
