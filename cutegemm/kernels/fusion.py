# SPDX-License-Identifier: Apache-2.0
"""The epilogue graph evaluated on accumulator elements, inside a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass

from cutegemm.epilogue.graph import Graph, Node

_OPERATIONS: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}


@dataclass(frozen=True)
class Fusion:
    """A graph bound to a kernel's arguments: matrices by name as (m, n, l) tensors, scalars by name."""

    graph: Graph
    matrices: dict[str, Any]
    scalars: dict[str, Any]
    shape: Any  # (m, n) run-time extents

    def __call__(self, accumulator: Any, coord: tuple[Any, Any, Any]) -> Any:
        """The value of D at logical (m, n, l) from its fp32 accumulator.

        Outside the problem the matrices are read at the nearest element inside: the result there is
        never stored, and a load without a branch is cheaper than a guarded one.
        """

        def leaf(node: Node) -> Any:
            if node.op == "acc":
                return accumulator
            if node.op == "scalar":
                return self.scalars[node.value]
            if node.op == "const":
                return cutlass.Float32(node.value)
            row = cutlass.min(coord[0], self.shape[0] - 1)
            col = cutlass.min(coord[1], self.shape[1] - 1)
            return self.matrices[node.value][row, col, coord[2]].to(cutlass.Float32)

        return self.graph.evaluate(leaf, _OPERATIONS)["d"]
