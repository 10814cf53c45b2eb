# SPDX-License-Identifier: Apache-2.0
"""`build(spec)` -> `Gemm`: the kernels of one spec, and the run of a call.

gemm               `Gemm`, which runs a spec's kernels, and `build`
kernels            a spec's kernels: chosen, compiled on first need, kept, tuned
planned_kernel     one problem's kernel: PTX, SASS, resources, explanation
plans              `plan`: the plan that a run would use
other_types        whether bf16 operands are predicted faster than a plan's
recorded_launches  the launches of a run, recorded on a machine without a GPU
saving, loaded     an artefact of chosen problems (`cutegemm.aot`); `Loaded`, which runs one, and `load`
eager              excludes runs from torch.compile's graphs
"""

from cutegemm.gemm.gemm import Gemm, build, build_many, recalled
from cutegemm.gemm.loaded import Loaded, load
from cutegemm.gemm.planned_kernel import Kernel
from cutegemm.gemm.plans import plan
from cutegemm.gemm.representatives import representative

__all__ = ["Gemm", "Kernel", "Loaded", "build", "build_many", "load", "plan", "recalled", "representative"]
