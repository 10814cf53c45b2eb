# SPDX-License-Identifier: Apache-2.0
"""`build(spec)` -> `Gemm`: the kernels of one spec, and the run of a call.

kernel      one problem's kernel, and what it shows
kernels     a spec's kernels: chosen, compiled on first need, kept, tuned
launches    the launches of a run, recorded on a machine without a GPU
plans       `plan`, which says what would run
gemm        `Gemm`, which runs them, and `build`
saving      an artefact of chosen problems (`cutegemm.aot`); loaded: `Loaded`, which runs one, and `load`
eager       torch.compile leaves a run to Python
"""

from cutegemm.gemm.gemm import Gemm, build, build_many, recalled
from cutegemm.gemm.kernel import Kernel
from cutegemm.gemm.loaded import Loaded, load
from cutegemm.gemm.plans import plan
from cutegemm.gemm.representatives import representative

__all__ = ["Gemm", "Kernel", "Loaded", "build", "build_many", "load", "plan", "recalled", "representative"]
