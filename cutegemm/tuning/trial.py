# SPDX-License-Identifier: Apache-2.0
"""One candidate, compiled and proved right: only then is it timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cutegemm.config import GemmConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.running.kind import Prepared
from cutegemm.running.numerics.bounds import Bound, bound, described
from cutegemm.running.numerics.checked import finished
from cutegemm.tuning.random_operands import Operands

# elements of D that are worked out in fp64 at a time: half a GiB a tensor, of which the bound needs about twenty
SLAB = 1 << 26


class Oracle:
    """What the outputs of some operands may be: the graph in fp64 with a running error bound, worked out once.

    Rows of D are worked out some at a time and kept in the outputs' own types, so that a problem that fits a GPU's
    memory can be proved there too. An epilogue that reduces, or that counts D's elements, is worked out whole.

    Args:
        graph: the epilogue.
        operands: that every candidate gets.
    """

    def __init__(self, graph: Graph, operands: Operands) -> None:
        self.graph, self.operands = graph, operands
        self._bounds: dict[tuple[Any, ...], list[tuple[slice, dict[str, Bound]]]] = {}

    def complaint(self, prepared: Prepared) -> str | None:
        """What is wrong with a candidate, or None.

        Outputs are poison before each of two runs; the first must be within the bound, the second the same bits.
        """
        first = self._run(prepared)
        config: GemmConfig | None = prepared.kind.plan.config
        for rows, bounds in self._expected(described(config), first):
            for name, value in first.items():
                said = bounds[name].complaint(value if rows == _ALL else value[..., rows, :])
                if said is not None:
                    return f"{name}{'' if not rows.start else f' from row {rows.start}'}: {said}"
        second = self._run(prepared)
        for name, value in first.items():
            differ = int((_bits(value) != _bits(second[name])).sum())
            if differ:
                return f"{name}: {differ} bytes differ on a second run"
        return None

    def _run(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        x = self.operands
        x.poison()
        found = finished(prepared(x.given, x.places, x.numbers, None))
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}

    def _expected(
        self, arithmetic: tuple[Any, ...], got: Mapping[str, torch.Tensor]
    ) -> list[tuple[slice, dict[str, Bound]]]:
        """Rows of D and the bounds of the outputs there; `arithmetic`: the last arguments of `bound`."""
        if arithmetic not in self._bounds:
            order, named = self.operands.order, self.operands.order.named(self.operands.given)
            inputs: dict[str, Any] = {name: named[name] for name in order.inputs}
            inputs |= dict(zip(order.numbers, self.operands.numbers, strict=True))
            types = {name: x.dtype for name, x in got.items()}
            found = []
            for rows in self._slabs(named["a"], got):
                a, part = named["a"], inputs
                if rows != _ALL:
                    a = a[..., rows, :]
                    part = {name: self._rows(name, x, rows) for name, x in inputs.items()}
                bounds = bound(self.graph, a, named["b"], part, types, *arithmetic)
                found.append((rows, {name: _kept(x, types[name]) for name, x in bounds.items()}))
            self._bounds[arithmetic] = found
        return self._bounds[arithmetic]

    def _slabs(self, a: torch.Tensor, got: Mapping[str, torch.Tensor]) -> list[slice]:
        """Rows of D that are worked out together."""
        rows, graph = a.shape[-2], self.graph
        whole = bool(graph.reductions or graph.scales) or any(x.op == "random" for x in graph.nodes)
        row = max(x.numel() for x in got.values()) // max(rows, 1)
        step = max(1, SLAB // max(row, 1))
        if whole or step >= rows:
            return [_ALL]
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def _rows(self, name: str, value: Any, rows: slice) -> Any:
        """An input's part beside some rows of D."""
        kind = self.graph.tensors.get(name)
        if kind == "matrix":
            return value[..., rows, :]
        return value[..., rows] if kind == "col" else value


_ALL = slice(None)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes; a reduction over everything has no axis to view them along."""
    return x.reshape(-1).view(torch.uint8)


def _kept(x: Bound, dtype: torch.dtype) -> Bound:
    """A bound in its output's own type, which holds least and greatest value exactly (of fp8, bf16 does)."""
    held = dtype if dtype.itemsize > 1 else torch.bfloat16
    return Bound(x.expected.to(held), x.low.to(held), x.high.to(held), x.free)
