# SPDX-License-Identifier: Apache-2.0
"""CUTEGEMM_CHECK=1 of groups: each group compared with fp64, and rows of no group with what they must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cutegemm.running.kind import Prepared
from cutegemm.running.numerics.bounds import bound, described
from cutegemm.running.numerics.checked import Checked
from cutegemm.running.numerics.group_reference import GroupReference, at
from cutegemm.spec import GemmSpec


class GroupChecked(Checked):
    """As `Checked`, of a kind of call of groups, which `reference` computes group by group."""

    def __init__(self, prepared: Prepared, spec: GemmSpec, reference: GroupReference) -> None:
        super().__init__(prepared, spec)
        self.reference = reference

    def _outs(self, named: dict[str, Any]) -> dict[str, Any]:
        """What given outputs hold before the call, where rows of no group are to stay."""
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
                    # what is not a number stays so
                    kept = at(outs[name], place)
                    wrong, rule = (rest != kept) & ~(rest.isnan() & kept.isnan()), "not what they were"
                else:
                    continue
                if wrong.any():
                    yield name, f"{int(wrong.sum())} elements of rows of no group are {rule}"


__all__ = ["GroupChecked"]
