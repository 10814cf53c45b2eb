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


class Writing:
    """A prepared kind of call whose kernels write into given outputs.

    torch's functions increment the version counter of a tensor that they write, and kernels do not. Without that,
    autograd would read the new values of a tensor that it has saved.
    """

    def __init__(self, prepared: Prepared, written: list[int]) -> None:
        # `written`: positions of the given outputs
        self.prepared, self.kind, self.written = prepared, prepared.kind, written

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        result = self.prepared(given, addresses, numbers, workspace)
        torch._C._increment_version([given[i] for i in self.written])
        return result


def writing(prepared: Prepared, given: tuple[Any, ...]) -> Prepared:
    """A prepared kind of call, as a `Writing` if the call has given outputs."""
    order = prepared.kind.order
    written = [i for i in range(order.first_out, order.end_out) if given[i] is not None]
    return Writing(prepared, written) if written else prepared


__all__ = ["Kind", "Prepared", "writing"]
