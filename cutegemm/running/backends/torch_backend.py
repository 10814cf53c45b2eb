# SPDX-License-Identifier: Apache-2.0
"""Calls without a kernel launch: computed by the torch reference, or only described if tensors have no memory."""

from __future__ import annotations

from typing import Any

import torch

from cutegemm.running import tangents
from cutegemm.running.arguments import check
from cutegemm.running.arguments.results import reference_outputs
from cutegemm.running.kind import Kind
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.reference import TORCH_DTYPE


class Referenced:
    """A call computed by torch: fp32 accumulation, the same epilogue graph."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        kind, graph = self.kind, self.kind.graph
        named = kind.order.named(given)
        tangents.refuse(named.items())
        request = kind.order.request(named)
        check.overlaps(request, graph.tensors)
        if workspace is not None:
            check.workspace(workspace, 0, named)
        inputs = dict(request.inputs) | dict(zip(kind.order.numbers, numbers, strict=True))
        # fp32 represents only 24-bit integers exactly
        dtype = torch.float32 if request.a.is_floating_point() else torch.float64
        values = reference.evaluate(graph, request.a, request.b, inputs, dtype)
        found = {}
        for wanted in kind.shapes.wanted:
            value = reference.round_to(values[wanted.name], TORCH_DTYPE[wanted.dtype]).expand(wanted.shape)
            target = named[wanted.name]
            if target is None:
                target = kind.shapes.allocate(wanted)
            found[wanted.name] = target.copy_(value)
        if kind.shapes.alone:
            return found["d"]
        return kind.shapes.named(reference_outputs(graph, found))


class Described:
    """A call on meta or fake tensors: outputs of the right shapes, types and strides, nothing is computed."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        named, shapes = self.kind.order.named(given), self.kind.shapes
        tangents.refuse(named.items())
        for wanted in shapes.wanted:
            if named[wanted.name] is None:
                named[wanted.name] = shapes.allocate(wanted)
        return shapes.present({name: named[name] for name in self.kind.order.outs})


__all__ = ["Described", "Referenced"]
