# SPDX-License-Identifier: Apache-2.0
"""Our product as a choice of torch.compile: Inductor times it beside its own and takes the fastest.

Covered is what Inductor lowers as `aten.mm`: matmul of matrices, and nn.Linear without a bias. It offers no such choice
for `addmm` (nn.Linear with a bias) or `bmm`: there a converted model (`cutegemm.nn.convert`) takes our op instead.
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

# torch's minor versions whose interface this was written for: what `_interface` reads there
VERSIONS = ("2.11", "2.13")
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_program = kept(Program(GemmSpec(), PLAIN))


def cutegemm_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """a @ b into `out`: what compiled code calls, by this name.

    Without a Hopper GPU, and for types that no kernel has, torch computes it.
    """
    if hopper(a.device) and a.dtype in _TYPES and a.dtype == b.dtype == out.dtype:
        serve(_program, a, b, (), (1.0,), (), {"d": out})
        return out
    return torch_matmul(a, b, None, 1.0, 0.0, out)


def enable() -> None:
    """Offer our product to Inductor's autotuning of `mm`; again is once.

    Call it before the first compilation, and in every process that runs what was compiled: code from a warm cache finds
    our product by its name.

    Raises:
        HardwareError: this torch's Inductor is another one than was relied on.

    Example:
        >>> cutegemm.inductor.enable()                              # doctest: +SKIP
        >>> fast = torch.compile(model, mode="max-autotune")        # doctest: +SKIP
    """
    config, register = _interface()
    register(cutegemm_mm)
    if cutegemm_mm not in config.external_matmul:
        config.external_matmul = [*config.external_matmul, cutegemm_mm]


def disable() -> None:
    """Offer it no longer. What was compiled with it keeps it."""
    config, _ = _interface()
    config.external_matmul = [x for x in config.external_matmul if x is not cutegemm_mm]


def _interface() -> tuple[Any, Any]:
    """Inductor's configuration, and what makes a function known to compiled code by its name.

    Raises:
        HardwareError: there is no such thing in this version.
    """
    version = re.match(r"\d+\.\d+", torch.__version__)
    found = version.group() if version else torch.__version__
    rule = f"Inductor's interface for outside products is known of torch {' and '.join(VERSIONS)}"
    if found not in VERSIONS:
        raise field_error(HardwareError, "torch.__version__", torch.__version__, rule, VERSIONS[-1])
    from torch._inductor import config
    from torch._inductor.kernel import mm

    register = getattr(mm, "lazy_register_extern_choice", None)
    if register is None or not isinstance(getattr(config, "external_matmul", None), list):
        raise field_error(HardwareError, "torch.__version__", torch.__version__, f"{rule}, which this lacks")
    return config, register


__all__ = ["VERSIONS", "cutegemm_mm", "disable", "enable"]
