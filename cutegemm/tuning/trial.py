# SPDX-License-Identifier: Apache-2.0
"""Checks a compiled candidate's results before it is timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cutegemm.config import GemmConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.running.kind import Prepared
from cutegemm.running.numerics.accepted import Bound
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.running.numerics.checked import finished
from cutegemm.tuning.random_operands import Operands

# elements of D that are computed in fp64 at a time: half a GiB per tensor; a bound needs about twenty tensors
SLAB = 1 << 26


class Oracle:
    """The bounds of the outputs of one set of operands: the graph in fp64 with a running error bound, computed once.

    D is computed some rows at a time and stored in the outputs' own types, so any problem that fits a GPU's memory can
    be checked there. An epilogue with reductions or random numbers is computed for all rows at once.

    Args:
        graph: the epilogue.
        operands: of every candidate.
    """

    def __init__(self, graph: Graph, operands: Operands) -> None:
        self.graph, self.operands = graph, operands
        self._bounds: dict[tuple[Any, ...], list[tuple[slice, dict[str, Bound]]]] = {}

    def complaint(self, prepared: Prepared) -> str | None:
        """The first error of a candidate; None if it is right.

        Outputs are NaN before each of two runs. The first must be within the bound, the second must have the same bits.
        """
        first = self._run(prepared)
        config: GemmConfig | None = prepared.kind.plan.config
        for rows, bounds in self._expected(described(config), first):
            for name, value in first.items():
                wrong = bounds[name].complaint(value if rows == _ALL else value[..., rows, :])
                if wrong is not None:
                    return f"{name}{'' if not rows.start else f' from row {rows.start}'}: {wrong}"
        second = self._run(prepared)
        for name, value in first.items():
            differ = int((_bits(value) != _bits(second[name])).sum())
            if differ:
                return f"{name}: {differ} bytes differ on a second run"
        return None

    def _run(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        x = self.operands
        x.poison()
        outputs = finished(prepared(x.given, x.places, x.numbers, None))
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in outputs.items()}

    def _expected(
        self, arithmetic: tuple[Any, ...], got: Mapping[str, torch.Tensor]
    ) -> list[tuple[slice, dict[str, Bound]]]:
        """Rows of D and the bounds of their outputs; `arithmetic`: the last arguments of `bound`."""
        if arithmetic not in self._bounds:
            order, named = self.operands.order, self.operands.order.named(self.operands.given)
            inputs: dict[str, Any] = {name: named[name] for name in order.inputs}
            inputs |= dict(zip(order.numbers, self.operands.numbers, strict=True))
            types = {name: x.dtype for name, x in got.items()}
            slabs = []
            for rows in self._slabs(named["a"], got):
                a, part = named["a"], inputs
                if rows != _ALL:
                    a = a[..., rows, :]
                    part = {name: self._rows(name, x, rows) for name, x in inputs.items()}
                bounds = bound(self.graph, a, named["b"], part, types, *arithmetic)
                slabs.append((rows, {name: _in_type(x, types[name]) for name, x in bounds.items()}))
            self._bounds[arithmetic] = slabs
        return self._bounds[arithmetic]

    def _slabs(self, a: torch.Tensor, got: Mapping[str, torch.Tensor]) -> list[slice]:
        """Rows of D that are computed together."""
        rows, graph = a.shape[-2], self.graph
        whole = bool(graph.reductions or graph.scales) or any(x.op == "random" for x in graph.nodes)
        row = max(x.numel() for x in got.values()) // max(rows, 1)
        step = max(1, SLAB // max(row, 1))
        if whole or step >= rows:
            return [_ALL]
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def _rows(self, name: str, value: Any, rows: slice) -> Any:
        """The part of an input that belongs to some rows of D."""
        kind = self.graph.tensors.get(name)
        if kind == "matrix":
            return value[..., rows, :]
        return value[..., rows] if kind == "col" else value


_ALL = slice(None)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes, also of a tensor without axes."""
    return x.reshape(-1).view(torch.uint8)


def _in_type(x: Bound, dtype: torch.dtype) -> Bound:
    """A bound in its output's type, or in bf16 for fp8, which represents the least and greatest value exactly."""
    kind = dtype if dtype.itemsize > 1 else torch.bfloat16
    return Bound(x.expected.to(kind), x.low.to(kind), x.high.to(kind), x.free)
