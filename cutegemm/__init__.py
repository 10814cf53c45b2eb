# SPDX-License-Identifier: Apache-2.0
"""cutegemm: declare a GEMM, get a Hopper kernel.

>>> import cutegemm
>>> gemm = cutegemm.build(cutegemm.GemmSpec())      # doctest: +SKIP
>>> d = gemm.run(a, b, c, alpha=2.0, beta=0.5)      # doctest: +SKIP
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cutegemm.errors import GemmError, needing

if TYPE_CHECKING:
    from cutegemm.dtypes import DType
    from cutegemm.gemm import Gemm, Loaded, build, build_many, load, plan
    from cutegemm.ops import bmm, dequantize, grouped_mm, linear, matmul, quantize
    from cutegemm.plans.kernel_plan import KernelPlan
    from cutegemm.problems import Operand, Problem, problem
    from cutegemm.running.arguments.pack import pack
    from cutegemm.running.groups import Groups
    from cutegemm.spec import GemmSpec, Tile
    from cutegemm.tuning import tune

__all__ = [
    "DType",
    "Gemm",
    "GemmError",
    "GemmSpec",
    "Groups",
    "KernelPlan",
    "Loaded",
    "Operand",
    "Problem",
    "Tile",
    "bmm",
    "build",
    "build_many",
    "dequantize",
    "grouped_mm",
    "linear",
    "load",
    "matmul",
    "pack",
    "plan",
    "problem",
    "quantize",
    "tune",
]
__version__ = "0.1.0"

# Loaded on first use, so that `import cutegemm` stays fast and does not import torch.
_MODULES = (
    "arch", "database", "emulator", "epilogue", "errors", "inductor", "layouts", "nn", "ops",
)  # fmt: skip
_HOMES = {
    "dtypes": ("DType",), "gemm": ("Gemm", "Loaded", "build", "build_many", "load", "plan"),
    "ops": ("bmm", "dequantize", "grouped_mm", "linear", "matmul", "quantize"), "plans.kernel_plan": ("KernelPlan",),
    "problems": ("Operand", "Problem", "problem"), "running.arguments.pack": ("pack",), "running.groups": ("Groups",),
    "spec": ("GemmSpec", "Tile"), "tuning": ("tune",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a module or a name on first use.

    Raises:
        AttributeError: the package has no such name.
        MissingPackageError: the name needs a package that is not installed.
    """
    if name not in _MODULES and name not in _HOME:
        module = sys.modules[__name__]
        raise AttributeError(f"module 'cutegemm' has no attribute {name!r}", name=name, obj=module)
    with needing():
        if name in _MODULES:
            return importlib.import_module(f"cutegemm.{name}")
        found = getattr(importlib.import_module(f"cutegemm.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not, for `dir` and completion."""
    return sorted({*__all__, *_MODULES, *(x for x in globals() if x.startswith("__"))})
