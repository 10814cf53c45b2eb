# SPDX-License-Identifier: Apache-2.0
"""Grouped GEMMs in torch: the reference, and the path of calls that give kernels no work.

The ends are read on the host, so a call waits for the device; kernels do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.launch_layout import GROUP_ENDS, ROW_INDICES
from cutegemm.request.group_forms import PACKED
from cutegemm.running import tangents
from cutegemm.running.arguments import check
from cutegemm.running.groups import inside
from cutegemm.running.kind import Kind
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.reference import TORCH_DTYPE


def bounds(ends: torch.Tensor, extent: int, lead: int = 0) -> torch.Tensor:
    """The starts and ends of groups, int64 (G + 1), on the ends' device; each end is the next group's start.

    Ends are clamped to [0, extent] and to the largest earlier end.

    Example:
        >>> bounds(torch.tensor([3, 1, 99]), 8)
        tensor([0, 3, 3, 8])
    """
    kept = ends.to(torch.int64).clamp(0, extent)
    if not lead:
        kept = torch.cat([kept.new_zeros(1), kept])
    return kept.cummax(0).values


def inside_groups(ends: torch.Tensor, extent: int, form: str, lead: int) -> torch.Tensor:
    """Mask of the rows inside groups, on the device: (M, 1), masked (G, C, 1); for groups of columns (1, N).

    Args:
        ends: the tensor of group ends; lead: elements before the ends.
        extent: of the groups' axis; form: one of `request.group_forms.FORMS`.
    """
    rows = torch.arange(extent, device=ends.device)
    if form == "masked":
        return (rows < ends[:, None])[..., None]
    places = bounds(ends, extent, lead)
    found = (rows >= places[0]) & (rows < places[-1])
    return found[None] if form == "columns" else found[:, None]


def gathered(a: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows of a matrix by index, (R, K); an out-of-range index reads zeros."""
    if not a.shape[0]:
        return a.new_zeros(rows.shape[0], a.shape[1])
    index, good = inside(rows, a.shape[0])
    return torch.where(good[:, None], a[index], a.new_zeros(()))


def along_k(
    a: torch.Tensor, b: torch.Tensor, first: int, end: int, scaled: bool
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The A and B of a group along K, and the block of K that their first element begins.

    With block scales (`scaled`) zeros come before the group's elements, from the start of the block of K on.
    """
    x, y = a[:, first:end], b[first:end]
    block, before = divmod(first, K_BLOCK) if scaled and end > first else (0, 0)
    if before:
        x = torch.cat([x.new_zeros(x.shape[0], before), x], 1)
        y = torch.cat([y.new_zeros(before, y.shape[1]), y])
    return x, y, block


@dataclass(frozen=True)
class Part:
    """One group of a call.

    Attributes:
        group: its index.
        a, b, inputs: the tensors that its GEMM and its epilogue read.
        place: index of its part of D; origin: batch, row and column of that part's first element.
    """

    group: int
    a: torch.Tensor
    b: torch.Tensor
    inputs: dict[str, Any]
    place: tuple[Any, ...]
    origin: tuple[int, int, int]

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Its part of an output."""
        return at(x, self.place)


class GroupReference:
    """Computes a kind of call group by group: fp32 accumulation, the same epilogue graph."""

    def __init__(self, kind: Kind, form: str, lead: int, tail: bool) -> None:
        self.kind, self.form, self.lead, self.tail = kind, form, lead, tail

    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        kind = self.kind
        named = kind.order.named(given)
        tangents.refuse(named.items())
        request = kind.order.request(named)
        check.overlaps(request, kind.graph.tensors)
        values = dict(zip(kind.order.numbers, numbers, strict=True))
        found = {}
        for wanted in kind.shapes.wanted:
            if named[wanted.name] is None:
                named[wanted.name] = kind.shapes.allocate(wanted)
            found[wanted.name] = named[wanted.name]
        inputs = {name: x for name, x in request.inputs.items() if name not in (GROUP_ENDS, ROW_INDICES)}
        for part in self.parts(named, inputs):
            results = reference.evaluate(
                kind.graph, part.a, part.b, part.inputs | values, torch.float32, part.origin
            )
            for wanted in kind.shapes.wanted:
                target = part.of(found[wanted.name])
                target.copy_(
                    reference.round_to(results[wanted.name], TORCH_DTYPE[wanted.dtype]).expand(target.shape)
                )
        stored = [x.name for x in kind.graph.stores]
        for name, x in found.items():
            for place in self.others(named) if self.tail or name not in stored else ():
                at(x, place).fill_(0)
        return kind.shapes.present(found)

    def parts(self, named: dict[str, Any], inputs: dict[str, Any]) -> Iterator[Part]:
        """The groups that have a part of D.

        Args:
            named: tensors of a call; inputs: of its epilogue.
        """
        a = named["a"]
        a = gathered(a, named[ROW_INDICES]) if ROW_INDICES in named else a
        for group, x, y, place, block in self._groups(a, named["b"], named[GROUP_ENDS]):
            own = {name: _of(self, name, z, group, place) for name, z in inputs.items()}
            own |= {z.name: own[z.name][..., block:] for z in self.kind.graph.scales if z.name in own}
            origin = (0 if self.form in PACKED else group, *_begins(place))
            yield Part(group, x, y, own, place, origin)

    def _groups(self, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> Iterator[tuple[Any, ...]]:
        """(group, its A, its B, its index in D, its first block of K) of each group that has a part of D."""
        if self.form == "masked":
            for group, count in enumerate(ends.clamp(0, a.shape[1]).tolist()):
                yield group, a[group, :count], b[group], (group, slice(0, count)), 0
            return
        extent = {"depth": a.shape[-1], "columns": b.shape[-1]}.get(self.form, a.shape[0])
        for group, (first, end) in enumerate(itertools.pairwise(bounds(ends, extent, self.lead).tolist())):
            if self.form == "depth":
                x, y, block = along_k(a, b, first, end, bool(self.kind.graph.scales))
                yield group, x, y, (group,), block
            elif end > first and self.form == "columns":
                yield group, a[group], b[:, first:end], (slice(None), slice(first, end)), 0
            elif end > first:
                yield group, a[first:end], b[group], (slice(first, end),), 0

    def others(self, named: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Indices of the rows, or columns, of D outside all groups."""
        a, ends = named["a"], named[GROUP_ENDS]
        if self.form == "masked":
            for group, count in enumerate(ends.clamp(0, a.shape[1]).tolist()):
                yield group, slice(count, None)
        if self.form in PACKED:
            rows = named.get(ROW_INDICES, a).shape[0]
            extent = named["b"].shape[-1] if self.form == "columns" else rows
            before = (slice(None),) if self.form == "columns" else ()
            places = bounds(ends, extent, self.lead).tolist()
            yield *before, slice(0, places[0])
            yield *before, slice(places[-1], None)


def at(x: torch.Tensor, place: tuple[Any, ...]) -> torch.Tensor:
    """The part of an output at an index of D; a reduction lacks one axis and uses the other axis's index."""
    return x[place[-1:] if x.dim() < len(place) else place]


def _begins(place: Any) -> tuple[int, int]:
    """The first row and column of a group's part of D."""
    row, column = (*(x for x in place if isinstance(x, slice)), slice(None), slice(None))[:2]
    return row.start or 0, column.start or 0


def _of(served: GroupReference, name: str, x: torch.Tensor, group: int, place: Any) -> torch.Tensor:
    """The part of an epilogue's input for one group."""
    kind, form = served.kind.graph.tensors.get(name), served.form
    if kind is None:
        return x
    batched = x.dim() == (2 if kind in ("row", "col") else 3)
    if form in PACKED:
        if kind in PACKED[form].own:
            return x[group] if batched else x
        return x[place] if kind == "matrix" else x[place[-1]]
    x = (x[group] if x.shape[0] > 1 else x[0]) if batched else x
    return x[place[1]] if form == "masked" and kind not in ("row", "blocks_n") else x


__all__ = ["GroupReference", "along_k", "at", "bounds", "gathered", "inside_groups"]
