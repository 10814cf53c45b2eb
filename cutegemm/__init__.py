# SPDX-License-Identifier: Apache-2.0
"""cutegemm: declare a GEMM, get a Hopper kernel.

>>> import cutegemm
>>> gemm = cutegemm.build(cutegemm.GemmSpec())      # doctest: +SKIP
>>> d = gemm.run(a, b, c, alpha=2.0, beta=0.5)      # doctest: +SKIP
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import DType
from cutegemm.errors import GemmError, needing
from cutegemm.gemm import Gemm, Loaded, build, build_many, load, plan
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.problems import Operand, Problem, problem
from cutegemm.running.pack import pack
from cutegemm.spec import GemmSpec, Tile
from cutegemm.tuning import tune

if TYPE_CHECKING:
    from cutegemm.ops import bmm, linear, matmul

__all__ = [
    "DType",
    "Gemm",
    "GemmError",
    "GemmSpec",
    "KernelPlan",
    "Loaded",
    "Operand",
    "Problem",
    "Tile",
    "bmm",
    "build",
    "build_many",
    "linear",
    "load",
    "matmul",
    "pack",
    "plan",
    "problem",
    "tune",
]
__version__ = "0.1.0"


# Loaded on first use: `import cutegemm` does not pay for them, least of all for torch.
_MODULES = (
    "arch", "database", "emulator", "epilogue", "errors", "inductor", "layouts", "nn", "ops",
)  # fmt: skip
_FUNCTIONS = ("bmm", "linear", "matmul")


def __getattr__(name: str) -> Any:
    """Load a module or a function on first use.

    Raises:
        AttributeError: the package has no such thing.
        MissingPackageError: it needs a package that is not installed.
    """
    if name in _MODULES:
        with needing():
            return importlib.import_module(f"cutegemm.{name}")
    if name in _FUNCTIONS:
        with needing():
            found = getattr(importlib.import_module("cutegemm.ops"), name)
        globals()[name] = found
        return found
    module = sys.modules[__name__]
    raise AttributeError(f"module 'cutegemm' has no attribute {name!r}", name=name, obj=module)


def __dir__() -> list[str]:
    """What is public, loaded or not, for `dir` and completion."""
    return sorted({*__all__, *_MODULES, *(x for x in globals() if x.startswith("__"))})
