# SPDX-License-Identifier: Apache-2.0
"""`backend="emulator"`: records a run's launches from the real host code and executes them on the CPU."""

from __future__ import annotations

from typing import Any, cast

import torch

from cutegemm.emulator import Step, output, run_steps, tensor_buffer
from cutegemm.errors import EmulatorError
from cutegemm.launch_layout import COUNTERS
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.running import tangents
from cutegemm.running.arguments import check
from cutegemm.running.backends import emulator_steps
from cutegemm.running.kind import Kind


class Emulated:
    """Runs calls in the emulator: the compiled PTX with the parameters that its host code packed."""

    def __init__(self, kind: Kind, whole: bool = True) -> None:
        # `whole`: whether every element of the stored outputs is written
        self.kind, self.whole = kind, whole

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        kind = self.kind
        named = kind.order.named(given)
        tangents.refuse(named.items())
        check.overlaps(kind.order.request(named), kind.graph.tensors)
        if workspace is not None:
            check.workspace(workspace, kind.plan.workspace_bytes, named)
        for wanted in kind.shapes.wanted:
            if named[wanted.name] is None:
                named[wanted.name] = kind.shapes.allocate(wanted)
        found = {name: named[name] for name in kind.order.outs}
        if kind.plan.steps:
            self._run(named, dict(zip(kind.order.numbers, numbers, strict=True)), workspace)
        else:
            kind.shapes.fill_empty(found)
        return kind.shapes.present(found)

    def _run(self, named: dict[str, torch.Tensor], numbers: dict[str, float], workspace: Any) -> None:
        plan = cast(KernelPlan, self.kind.plan)
        if workspace is None:
            workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device="cpu")
        counters = torch.zeros(max(plan.counter_bytes, 1), dtype=torch.uint8, device="cpu")
        addresses = {name: x.data_ptr() for name, x in named.items()} | {COUNTERS: counters.data_ptr()}
        launches = self._steps(addresses, workspace.data_ptr(), numbers)
        buffers = [tensor_buffer(x, name.upper() if name in "abcd" else name) for name, x in named.items()]
        buffers += [tensor_buffer(workspace, "workspace"), tensor_buffer(counters, "counters")]
        stores = self.kind.graph.stores if self.whole else ()
        outputs = [output(named[x.name], *emulator_steps.shown(plan, x.name)) for x in stores]
        run_steps(launches, buffers, outputs=outputs)
        if counters.any():
            raise EmulatorError("counters must be zero after a run; they are not")

    def _steps(self, addresses: dict[str, int], workspace: int, numbers: dict[str, float]) -> list[Step]:
        """Every launch of one call, with its parameters."""
        return emulator_steps.of_plan(cast(KernelPlan, self.kind.plan), addresses, workspace, numbers)


__all__ = ["Emulated"]
