# SPDX-License-Identifier: Apache-2.0
"""The results of a run: D alone, or all outputs of a fused epilogue by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.epilogue.graph import NEUTRAL, SCALE, Graph, Result
from cutegemm.running.arguments.call import Planned
from cutegemm.running.arguments.describe import Call, Wanted
from cutegemm.running.numerics.eight_bits import EXPONENTS
from cutegemm.running.numerics.reference import TORCH_DTYPE, combine


class Outputs:
    """The outputs of a fused run by name: tensors, and a `Partial` for each reduction that is left partial."""

    def __init__(self, **named: Any) -> None:
        # one by one, so that torch.compile can trace it
        for name, value in named.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the epilogue has no output {name!r}; it has {', '.join(vars(self))}")

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True)
class Partial:
    """Partial results of a reduction, one per tile.

    Attributes:
        kind: "sum", "max" or "logsumexp".
        values: fp32 (parts, [L,] elements), for a reduction over all (parts, [L]). For a logsumexp, the maxima.
        sums: for a logsumexp, the sums of exp(x - maximum), shaped like `values`; else None.
        width: rows or columns of D per partial result (the last may cover fewer); for a reduction over all (rows,
            columns). 0 if one covers everything: on the reference backend, and if D is empty.
    """

    kind: str
    values: torch.Tensor
    sums: torch.Tensor | None
    width: int | tuple[int, int]

    def finish(self) -> torch.Tensor:
        """The finished reduction."""
        # a logsumexp's part (maximum, sum of exp(x - maximum)) represents maximum + log(sum)
        parts = self.values if self.sums is None else self.values + self.sums.log()
        return combine(self.kind, parts, 0)


class Shapes:
    """Allocates a kind of call's outputs and returns them to the caller."""

    def __init__(self, graph: Graph, call: Call, plan: Planned | None, device: torch.device) -> None:
        self.graph, self.wanted, self.device = graph, call.outputs, device
        self.results = {x.name: x for x in graph.outputs}
        self.alone = [x.name for x in graph.outputs] == ["d"]
        self.batch = call.problem.batch
        self.plan = plan

    def allocate(self, wanted: Wanted) -> torch.Tensor:
        """A new tensor for one output."""
        result = self.results[wanted.name]
        shape, order = wanted.shape, wanted.order
        if result.partial and self.plan is not None:
            shape, order = self._partial_shape(result, wanted), None
        if order is None:
            return torch.empty(shape, dtype=TORCH_DTYPE[wanted.dtype], device=self.device)
        memory = torch.empty([shape[x] for x in order], dtype=TORCH_DTYPE[wanted.dtype], device=self.device)
        return memory.permute([order.index(x) for x in range(len(order))])

    def _partial_shape(self, result: Result, wanted: Wanted) -> tuple[int, ...]:
        """(numbers per part, parts, L, elements); for a reduction over all (numbers, L, parts)."""
        states, parts = len(NEUTRAL[result.kind]), self._parts(result)
        if result.axis is None:
            return states, self.batch, parts
        return states, parts, self.batch, wanted.shape[-1]

    def _parts(self, result: Result) -> int:
        """Partial results per result of a reduction; one if D is empty."""
        parts = (1, 1, 1) if self.plan is None or not self.plan.steps else self.plan.parts
        return int(result.by_axis(*parts))

    def present(self, tensors: dict[str, torch.Tensor]) -> Any:
        """The value that the caller gets."""
        if self.alone:
            return tensors["d"]
        shown: dict[str, Any] = dict(tensors)
        for wanted in self.wanted:
            result = self.results[wanted.name]
            if result.partial:
                shown[wanted.name] = self._partial(result, wanted, tensors[wanted.name])
        return self.named(shown)

    def named(self, values: dict[str, Any]) -> Outputs:
        """Outputs in the order in which the epilogue names them."""
        shown = {x.name: values[x.name] for x in self.graph.outputs}
        return Outputs(
            **{
                name: x.view(EXPONENTS) if self.results[name].kind == SCALE and x.dtype == torch.uint8 else x
                for name, x in shown.items()
            }
        )

    def fill_empty(self, tensors: dict[str, torch.Tensor]) -> None:
        """The values of reductions over an empty D."""
        for x in self.graph.reductions:
            # an empty D has no scales
            numbers = NEUTRAL.get(x.kind, ())
            for tensor, value in zip(tensors[x.name] if x.partial else (tensors[x.name],), numbers):
                tensor.fill_(value)

    def _partial(self, result: Result, wanted: Wanted, tensor: torch.Tensor) -> Partial:
        if result.axis is None:
            tensor = tensor.transpose(1, 2)
        states = tensor.reshape(len(NEUTRAL[result.kind]), self._parts(result), *wanted.shape)
        rows, cols = (0, 0) if self.plan is None else self.plan.partial_width
        width = result.by_axis(rows, cols, (rows, cols) if rows else 0)
        return Partial(result.kind, states[0], states[1] if len(states) > 1 else None, width)


def reference_outputs(graph: Graph, values: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The reference's outputs; a partial reduction has one part that covers everything."""
    shown: dict[str, Any] = dict(values)
    for x in graph.reductions:
        if x.partial:
            value = values[x.name][None]
            sums = torch.ones_like(value) if x.kind == "logsumexp" else None
            shown[x.name] = Partial(x.kind, value, sums, width=0)
    return shown
