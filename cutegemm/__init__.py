# SPDX-License-Identifier: Apache-2.0
"""cutegemm: declare a GEMM, get a Hopper kernel.

>>> import cutegemm
>>> gemm = cutegemm.build(cutegemm.GemmSpec())      # doctest: +SKIP
>>> d = gemm.run(a, b, c, alpha=2.0, beta=0.5)      # doctest: +SKIP
"""

import importlib
from types import ModuleType

from cutegemm.dtypes import DType
from cutegemm.errors import GemmError
from cutegemm.gemm import Gemm, build
from cutegemm.planning.planner import KernelPlan, plan
from cutegemm.problems import Operand, Problem, problem
from cutegemm.spec import GemmSpec, Tile
from cutegemm.tuning import tune

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
    "tune",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """Load `cutegemm.emulator` on first use: `import cutegemm` does not pay for it.

    Raises:
        AttributeError: any other name the package does not have.
    """
    if name == "emulator":
        return importlib.import_module("cutegemm.emulator")
    raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")
