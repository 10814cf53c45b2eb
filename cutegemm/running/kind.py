# SPDX-License-Identifier: Apache-2.0
"""A kind of call, validated and planned. Every backend is created from one."""

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
    """The data that all calls of a kind share. It is cached, so it must not hold a call's tensors.

    Attributes:
        graph: the epilogue.
        order: of tensors and numbers.
        call: the problem and the outputs.
        plan: of its launches.
        shapes: allocates and returns its outputs.
        device: of the tensors.
    """

    graph: Graph
    order: Order
    call: Call
    plan: Planned
    shapes: Shapes
    device: torch.device


class Prepared(Protocol):
    """A kind of call, ready to run."""

    kind: Kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        """Run one call.

        Args:
            given, addresses: the tensors and their addresses, in `kind.order`; None and -1 for one to be allocated.
            numbers: those passed by value, in `kind.order`.
            workspace: the caller's, or None.
        """


__all__ = ["Kind", "Prepared"]
