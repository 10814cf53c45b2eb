# SPDX-License-Identifier: Apache-2.0
"""`backend="emulator"`: a run's own launches, recorded from the real host code, executed on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from cutegemm import arguments, cache, tensors
from cutegemm.compile import record_launches
from cutegemm.emulator import Step, run_steps, tensor_buffer
from cutegemm.plan import KernelPlan


class Emulated:
    """A call served by the emulator: the compiled PTX with the parameters its host code packed."""

    def __init__(self, plan: KernelPlan, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.plan, self.shape, self.dtype = plan, shape, dtype

    def __call__(self, inputs, places, alpha, beta, workspace):
        a, b, c, out = inputs
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype)
        else:
            tensors.check_overlap(a, b, c, out)
        if beta is None:
            beta = 0.0 if c is None else 1.0
        if workspace is None:
            workspace = torch.empty(max(self.plan.workspace_bytes, 1), dtype=torch.uint8)
        places = (*places[:3], out.data_ptr())
        scalars = (float(alpha), float(beta))
        launches = arguments.launch_arguments(self.plan, places, workspace.data_ptr(), scalars, stream=0)
        steps = [step for config, args in launches for step in _steps(config, args)]
        named = {"A": a, "B": b, "C": c, "D": out, "workspace": workspace}
        buffers = [tensor_buffer(tensor, name) for name, tensor in named.items() if tensor is not None]
        run_steps(steps, buffers)
        return out


def _steps(config: Any, args: tuple) -> list[Step]:
    """The launches of one kernel's host code, for the emulator."""
    made = cache.artifact(config)
    found = record_launches(made.obj, made.ptx, args)
    return [Step(made.ptx, x.grid, x.block, x.cluster, x.smem, x.params) for x in found]
