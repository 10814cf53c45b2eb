# SPDX-License-Identifier: Apache-2.0
"""Our GEMM as a candidate of torch.compile's autotuning. Inductor times all candidates and uses the fastest.

Inductor supports external candidates for `aten.mm`: matmul of matrices, and nn.Linear without a bias. For `addmm`
(nn.Linear with a bias) and `bmm` it does not; convert the model with `cutegemm.nn.convert` to use our op there.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from cutegemm.errors import HardwareError, field_error
from cutegemm.ops.fallback import torch_matmul
from cutegemm.ops.program import PLAIN, Program, kept
from cutegemm.ops.serve import hopper, serve
from cutegemm.spec import GemmSpec

# torch minor versions whose internal interface `_interface` supports
VERSIONS = ("2.11", "2.13")
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_program = kept(Program(GemmSpec(), PLAIN))


def cutegemm_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Compute a @ b into `out`. Compiled code calls this function by its name.

    Without a Hopper GPU, and for unsupported types, torch computes it.
    """
    if hopper(a.device) and a.dtype in _TYPES and a.dtype == b.dtype == out.dtype:
        serve(_program, a, b, (), (1.0,), (), {"d": out})
        return out
    return torch_matmul(a, b, None, 1.0, 0.0, out)


def enable() -> None:
    """Offer our GEMM to Inductor's autotuning of `mm`. Idempotent.

    Call it before the first compilation, and in every process that runs compiled code, because code from a warm cache
    finds our GEMM by its name.

    Raises:
        HardwareError: this torch version's Inductor is not supported.

    Example:
        >>> cutegemm.inductor.enable()                              # doctest: +SKIP
        >>> fast = torch.compile(model, mode="max-autotune")        # doctest: +SKIP
    """
    config, register = _interface()
    register(cutegemm_mm)
    if cutegemm_mm not in config.external_matmul:
        config.external_matmul = [*config.external_matmul, cutegemm_mm]


def disable() -> None:
    """Stop offering our GEMM. Code that was compiled with it still uses it."""
    config, _ = _interface()
    config.external_matmul = [x for x in config.external_matmul if x is not cutegemm_mm]


def _interface() -> tuple[Any, Any]:
    """Inductor's configuration, and its function that registers a kernel by name."""
    version = re.match(r"\d+\.\d+", torch.__version__)
    rule = f"Inductor's interface for external GEMMs is supported for torch {' and '.join(VERSIONS)}"
    if version is None or version.group() not in VERSIONS:
        raise field_error(HardwareError, "torch.__version__", torch.__version__, rule, VERSIONS[-1])
    from torch._inductor import config
    from torch._inductor.kernel import mm

    register = getattr(mm, "lazy_register_extern_choice", None)
    if register is None or not isinstance(getattr(config, "external_matmul", None), list):
        raise field_error(HardwareError, "torch.__version__", torch.__version__, f"{rule}, which this lacks")
    return config, register


__all__ = ["VERSIONS", "cutegemm_mm", "disable", "enable"]
