# SPDX-License-Identifier: Apache-2.0
"""One kind of call, validated and planned: what every backend is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from cutegemm.epilogue.graph import Graph
from cutegemm.running.arguments.call import Planned
from cutegemm.running.arguments.describe import Call
from cutegemm.running.arguments.named import Order
from cutegemm.running.arguments.results import Shapes


@dataclass(frozen=True)
class Kind:
    """Everything that calls of one kind have in common. It is remembered, so it holds no tensor of any call.

    Attributes:
        graph: the epilogue.
        order: in which tensors and numbers travel.
        call: the problem and the outputs.
        plan: how kernels serve it.
        shapes: how its outputs are allocated and handed over.
        device: where the tensors are.
    """

    graph: Graph
    order: Order
    call: Call
    plan: Planned
    shapes: Shapes
    device: torch.device


class Prepared(Protocol):
    """A kind of call, ready to be served."""

    kind: Kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        """Serve one call.

        Args:
            given, addresses: its tensors and where they lie, in `kind.order`; None and -1 where one is to be allocated.
            numbers: passed by value, in `kind.order`.
            workspace: what the caller gave, or None.
        """


__all__ = ["Kind", "Prepared"]
