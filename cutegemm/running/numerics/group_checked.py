# SPDX-License-Identifier: Apache-2.0
"""CUTEGEMM_CHECK=1 for groups: compares each group with fp64 and checks rows outside all groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cutegemm.running.kind import Prepared
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.running.numerics.checked import Checked
from cutegemm.running.numerics.group_reference import GroupReference, at
from cutegemm.spec import GemmSpec


class GroupChecked(Checked):
    """`Checked` for grouped calls; `reference` computes the expected results group by group."""

    def __init__(self, prepared: Prepared, spec: GemmSpec, reference: GroupReference) -> None:
        super().__init__(prepared, spec)
        self.reference = reference

    def _outs(self, named: dict[str, Any]) -> dict[str, Any]:
        """Copies of given outputs before the call, if rows outside all groups must not change."""
        stores = () if self.reference.tail else self.kind.graph.stores
        return {x.name: named[x.name].clone() for x in stores if named[x.name] is not None}

    def _complaints(
        self, named: dict[str, Any], values: dict[str, Any], outputs: dict[str, Any], outs: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        types, plan = {name: x.dtype for name, x in outputs.items()}, self.kind.plan
        how, stored = (
            described(None if plan is None else plan.config),
            {x.name for x in self.kind.graph.stores},
        )
        tensors = {name: x for name, x in values.items() if name in self.kind.graph.tensors}
        for part in self.reference.parts(named, tensors):
            expected = bound(self.kind.graph, part.a, part.b, values | part.inputs, types, *how, part.origin)
            for name, value in outputs.items():
                complaint = expected[name].complaint(part.of(value))
                if complaint is not None:
                    yield name, f"group {part.group}: {complaint}"
        for place in self.reference.others(named):
            for name, value in outputs.items():
                rest = at(value, place)
                if self.reference.tail or name not in stored:
                    wrong, rule = rest != 0, "not 0"
                elif name in outs:
                    # an unchanged NaN is not an error
                    kept = at(outs[name], place)
                    wrong, rule = (rest != kept) & ~(rest.isnan() & kept.isnan()), "changed"
                else:
                    continue
                if wrong.any():
                    yield name, f"{int(wrong.sum())} elements of rows outside all groups are {rule}"


__all__ = ["GroupChecked"]
