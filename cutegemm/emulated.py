# SPDX-License-Identifier: Apache-2.0
"""`backend="emulator"`: a run's own launches, recorded from the real host code, executed on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from cutegemm import arguments, cache, fused, tensors
from cutegemm.compile import record_launches
from cutegemm.emulator import Step, run_steps, tensor_buffer
from cutegemm.plan import KernelPlan
from cutegemm.results import Shapes


class Emulated:
    """A call served by the emulator: the compiled PTX with the parameters its host code packed."""

    def __init__(self, plan: KernelPlan, shapes: Shapes) -> None:
        self.plan, self.shapes = plan, shapes

    def __call__(self, given, places, numbers, workspace):
        graph = self.shapes.graph
        inputs, rest = fused.order(graph, self.plan.problem.device_scalars)
        named = dict(zip((*inputs, *rest), given, strict=True))
        outs = rest[: len(graph.outputs)]
        kept = {name: named[name] for name in outs if named[name] is not None}
        tensors.check_overlaps({k: v for k, v in named.items() if k not in outs}, kept, graph.tensors)
        for wanted in self.shapes.wanted:
            if named[wanted.name] is None:
                named[wanted.name] = self.shapes.allocate(wanted)
        found = {name: named[name] for name in outs}
        if self.plan.steps:
            self._run(named, numbers, workspace)
        else:
            self.shapes.fill_empty(found)
        return self.shapes.present(found)

    def _run(self, named: dict[str, torch.Tensor], numbers: tuple, workspace: Any) -> None:
        if workspace is None:
            workspace = torch.empty(max(self.plan.workspace_bytes, 1), dtype=torch.uint8)
        places = {name: x.data_ptr() for name, x in named.items()}
        values = dict(zip(self.plan.config.host_numbers, numbers))
        launches = arguments.launch_arguments(self.plan, places, workspace.data_ptr(), values, stream=0)
        steps = [step for config, args in launches for step in _steps(config, args)]
        buffers = [tensor_buffer(x, name.upper() if name in "abcd" else name) for name, x in named.items()]
        run_steps(steps, [*buffers, tensor_buffer(workspace, "workspace")])


def _steps(config: Any, args: tuple) -> list[Step]:
    """The launches of one kernel's host code, for the emulator."""
    made = cache.artifact(config)
    found = record_launches(made.obj, made.ptx, args)
    return [Step(made.ptx, x.grid, x.block, x.cluster, x.smem, x.params) for x in found]
