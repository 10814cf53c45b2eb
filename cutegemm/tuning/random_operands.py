# SPDX-License-Identifier: Apache-2.0
"""Random tensors with a problem's memory layout, and outputs that are NaN until they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.epilogue.graph import Graph
from cutegemm.problems import Operand, Problem
from cutegemm.request.group_forms import FORMS
from cutegemm.running.arguments.named import Order, Signature
from cutegemm.running.numerics.reference import TORCH_DTYPE

# every byte of an output before a run: a NaN in every type
POISON = 0xFF
# values of scalars, and of integers such as a seed
SCALAR, INTEGER = 0.5, 1.0


@dataclass(frozen=True)
class Operands:
    """One call's tensors."""

    order: Order  # of the call's arguments
    given: tuple[Any, ...]  # the tensors in this order; None for an output that the call allocates
    numbers: tuple[float, ...]  # passed by value
    outputs: tuple[torch.Tensor, ...]  # the whole memory of the stored outputs

    @property
    def places(self) -> tuple[int, ...]:
        """Addresses, as a prepared call takes them."""
        return tuple(-1 if x is None else x.data_ptr() for x in self.given)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.untyped_storage().nbytes() for x in self.given if x is not None)

    def poison(self) -> None:
        """Set every element of the outputs to NaN."""
        for memory in self.outputs:
            memory.view(torch.uint8).fill_(POISON)


def operands(problem: Problem, graph: Graph, device: str, seed: int = 0, form: str = "") -> Operands:
    """Operands of a problem with standard normal elements.

    Args:
        problem: of the call.
        graph: the epilogue.
        device: torch's name of the device.
        seed: of the elements.
        form: of the problem's groups, one of `request.group_forms.FORMS`; "" without groups. Their ends are not among
            the operands (`group_ends`).
    """
    draw = torch.Generator(device).manual_seed(seed)
    scalars = problem.device_scalars
    order = Signature(graph).order(scalars)
    inputs, outputs = dict(problem.inputs), dict(problem.outputs)
    named: dict[str, torch.Tensor | None] = dict.fromkeys(order.names)
    stored = []
    for name, operand in {"a": problem.a, "b": problem.b, **inputs, **outputs}.items():
        memory = _memory(operand, device, None if name in outputs else draw)
        view = memory.as_strided(*_view(operand, _offset(operand)))
        kind = graph.tensors.get(name, "matrix")
        if kind == "blocks_n":
            view = view.mT
        if kind in ("row", "col"):
            view = view.squeeze(-2 if kind == "row" else -1)
        if form:
            # also with one group
            stacked = FORMS[form].apart(name, graph.tensors.get(name))
        else:
            stacked = problem.batch > 1 and operand.batch > 1
        named[name] = view if stacked else view[0]
        if name in outputs:
            stored.append(memory)
    for name in scalars:
        named[name] = torch.tensor(SCALAR, dtype=torch.float32, device=device)
    numbers = tuple(INTEGER if graph.numbers[x] == "integer" else SCALAR for x in order.numbers)
    return Operands(order, tuple(named[x] for x in order.names), numbers, tuple(stored))


def group_ends(extent: int, groups: int, device: str, seed: int = 0) -> torch.Tensor:
    """Ends of groups, int32 (G,), of an axis whose every row is in a random group.

    Example:
        >>> int(group_ends(100, 4, "cpu")[-1])
        100
    """
    draw = torch.Generator(device).manual_seed(seed)
    chosen = torch.randint(groups, (extent,), generator=draw, device=device)
    return torch.bincount(chosen, minlength=groups).cumsum(0).to(torch.int32)


def _view(x: Operand, offset: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of a stack of matrices."""
    row, col, batch = x.strides
    return (x.batch, x.rows, x.cols), (batch, row, col), offset


def _offset(x: Operand) -> int:
    """Elements from an aligned address to one with exactly the operand's alignment."""
    return 0 if x.align >= 16 else max(1, x.align // x.dtype.bytes)


def _memory(x: Operand, device: str, draw: torch.Generator | None) -> torch.Tensor:
    """The memory of a stack of matrices: random, or uninitialized without a generator."""
    (batch, rows, cols), strides, offset = _view(x, _offset(x))
    last = sum((extent - 1) * step for extent, step in zip((batch, rows, cols), strides, strict=True))
    size, dtype = (max(offset + last + 1, 1), TORCH_DTYPE[x.dtype])
    if draw is None:
        return torch.empty(size, dtype=dtype, device=device)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max + 1, (size,), generator=draw, device=device, dtype=dtype)
    kind = dtype if dtype.itemsize > 1 else torch.float32
    return torch.randn(size, generator=draw, device=device, dtype=kind).to(dtype)
