# SPDX-License-Identifier: Apache-2.0
"""The plain reference: the epilogue graph over a product in torch, for CPU tensors and for checking."""

from __future__ import annotations

from typing import Any

from cutegemm.epilogue.graph import Graph, Node

_OPERATIONS = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}


def evaluate(
    graph: Graph, a: Any, b: Any, matrices: dict[str, Any], scalars: dict[str, float], dtype: Any
) -> Any:
    """D in `dtype`, unrounded: the graph applied to a @ b computed in `dtype` (torch.float32 or float64)."""
    import torch

    product = torch.matmul(a.to(dtype), b.to(dtype))

    def leaf(node: Node) -> Any:
        if node.op == "acc":
            return product
        if node.op == "scalar":
            return scalars[node.value]
        if node.op == "const":
            return node.value
        return matrices[node.value].to(dtype)

    return graph.evaluate(leaf, _OPERATIONS)["d"]
