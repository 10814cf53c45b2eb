# SPDX-License-Identifier: Apache-2.0
"""cutegemm: declare a GEMM, get a Hopper kernel.

>>> import cutegemm
>>> gemm = cutegemm.build(cutegemm.GemmSpec())      # doctest: +SKIP
>>> d = gemm.run(a, b, c, alpha=2.0, beta=0.5)      # doctest: +SKIP
"""

from cutegemm.build import Gemm, build
from cutegemm.dtypes import DType
from cutegemm.errors import GemmError
from cutegemm.plan import KernelPlan, plan
from cutegemm.problem import Operand, Problem, problem
from cutegemm.spec import GemmSpec, Tile

__all__ = [
    "DType",
    "Gemm",
    "GemmError",
    "GemmSpec",
    "KernelPlan",
    "Operand",
    "Problem",
    "Tile",
    "build",
    "plan",
    "problem",
]
__version__ = "0.1.0"
