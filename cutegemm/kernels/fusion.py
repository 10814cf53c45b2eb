# SPDX-License-Identifier: Apache-2.0
"""The epilogue graph evaluated inside a kernel, element by element; what elements share is computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import GemmConfig
from cutegemm.epilogue.graph import LEAVES, Node
from cutegemm.kernels import functions

_DEPENDS = {"row": {"column"}, "col": {"row"}, "scalar": set(), "integer": set(), "const": set()}


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs as a kernel holds them: tensors (m, n, l) in global memory and numbers, by name."""

    tensors: dict[str, Any]
    numbers: dict[str, Any]
    shape: Any  # (m, n) of the output, run time

    def element(self, name: str, coord: tuple[Any, Any, Any]) -> Any:
        """One element as fp32, outside the output the nearest one inside.

        What is computed from the latter is never stored, and a load without a branch is cheaper than a guarded one.
        """
        row = cutlass.min(coord[0], self.shape[0] - 1)
        col = cutlass.min(coord[1], self.shape[1] - 1)
        tensor = self.tensors[name]
        batch = cutlass.min(coord[2], cute.size(tensor, mode=[2]) - 1)
        return tensor[row, col, batch].to(cutlass.Float32)


def bind(config: GemmConfig, tensors: tuple, numbers: tuple, scalars: tuple, shape: Any) -> Inputs:
    """Inputs from a launch's arguments.

    Args:
        tensors: the graph's tensors in global memory.
        numbers: those passed by value.
        scalars: one-element fp32 tensors of the numbers passed by address.
        shape: (m, n) of the output.
    """
    values = dict(zip(config.host_numbers, numbers))
    values |= {name: scalars[i][0] for i, name in enumerate(config.device_scalars)}
    return Inputs(dict(zip(config.epilogue.tensors, tensors, strict=True)), values, shape)


@dataclass
class Fusion:
    """One evaluation of the graph over a piece of the output.

    Elements are known by (row key, column key): values that depend on the column alone, say a bias times a
    scale, are computed once per column key, and so on. Make a new one for every piece.
    """

    config: GemmConfig
    leaf: Callable  # (node, row key, column key) -> fp32 value of an acc, matrix, row or col leaf
    coord: Callable  # (row key, column key) -> (m, n, l)
    numbers: dict[str, Any]
    _known: dict = field(default_factory=dict)

    def __call__(self, row: Any, column: Any) -> list[Any]:
        """The values of all outputs at one element."""
        graph = self.config.epilogue
        table = functions.FAST if self.config.approximate else functions.FINE
        depends: list[set] = []
        values: list[Any] = []
        for index, node in enumerate(graph.nodes):
            depends.append(_depends(node, depends))
            key = (index, row if "row" in depends[-1] else None, column if "column" in depends[-1] else None)
            if key not in self._known:
                self._known[key] = self._value(node, values, row, column, table)
            values.append(self._known[key])
        return [values[x.node] for x in graph.outputs]

    def _value(self, node: Node, values: list, row: Any, column: Any, table: dict) -> Any:
        if node.op == "const":
            return cutlass.Float32(node.value)
        if node.op in ("scalar", "integer"):
            return self.numbers[node.value]
        if node.op in LEAVES:
            return self.leaf(node, row, column)
        args = [values[a] for a in node.args]
        if node.op == "random":
            return functions.uniform(*args, self.coord(row, column))
        return table[node.op](*args, *(() if node.value is None else (node.value,)))


def _depends(node: Node, earlier: list[set]) -> set:
    """The coordinates a node's value varies with."""
    if node.op in ("acc", "matrix", "random"):
        return {"row", "column"}
    if node.op in LEAVES:
        return _DEPENDS[node.op]
    return set().union(*(earlier[a] for a in node.args))
