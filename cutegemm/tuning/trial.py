# SPDX-License-Identifier: Apache-2.0
"""One candidate, compiled and proved right: only then is it timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cutegemm.config import GemmConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.running.bounds import Bound, bound
from cutegemm.running.checked import finished
from cutegemm.running.kind import Prepared
from cutegemm.tuning.operands import Operands


class Oracle:
    """What the outputs of some operands may be: the graph in fp64 with a running error bound, worked out once.

    Args:
        graph: the epilogue.
        operands: that every candidate gets.
    """

    def __init__(self, graph: Graph, operands: Operands) -> None:
        self.graph, self.operands = graph, operands
        self._bounds: dict[bool, dict[str, Bound]] = {}

    def complaint(self, prepared: Prepared) -> str | None:
        """What is wrong with a candidate, or None.

        Outputs are poison before each of two runs; the first must be within the bound, the second the same bits.
        """
        first = self._run(prepared)
        expected = self._expected(prepared, first)
        for name, value in first.items():
            said = expected[name].complaint(value)
            if said is not None:
                return f"{name}: {said}"
        second = self._run(prepared)
        for name, value in first.items():
            differ = int((value.view(torch.uint8) != second[name].view(torch.uint8)).sum())
            if differ:
                return f"{name}: {differ} bytes differ on a second run"
        return None

    def _run(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        x = self.operands
        x.poison()
        found = finished(prepared(x.given, x.places, x.numbers, None))
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}

    def _expected(self, prepared: Prepared, got: Mapping[str, torch.Tensor]) -> dict[str, Bound]:
        config: GemmConfig | None = prepared.kind.plan.config
        approximate = config is None or config.approximate
        if approximate not in self._bounds:
            order, named = self.operands.order, self.operands.order.named(self.operands.given)
            inputs: dict[str, Any] = {name: named[name] for name in order.inputs}
            inputs |= dict(zip(order.numbers, self.operands.numbers, strict=True))
            types = {name: x.dtype for name, x in got.items()}
            self._bounds[approximate] = bound(self.graph, named["a"], named["b"], inputs, types, approximate)
        return self._bounds[approximate]
