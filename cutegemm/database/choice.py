# SPDX-License-Identifier: Apache-2.0
"""What `build` and `run` choose: what was measured where the database knows it, the model's choice otherwise.

`plan()` knows nothing of this and stays pure. `CUTEGEMM_DATABASE=off` leaves every choice to the model.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.database.entry import Entry, Extents, Key, key_of, nearest, refined
from cutegemm.database.exchange import shipped
from cutegemm.database.store import Database
from cutegemm.errors import GemmError
from cutegemm.planning.invariance import keeps
from cutegemm.planning.planner import KernelPlan, plan
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

# A neighbour's choice is not taken where the model finds it slower than its own by more than this factor: the
# neighbour's waves fit the neighbour.
TRUSTED = 1.05
MODEL = "the model"


@dataclass(frozen=True)
class Choice:
    """A plan, and where it comes from.

    Attributes:
        plan: under the spec that was asked; its `chosen_by` says where it comes from.
        entry: of the database; None where the model chose.
        extents: of the entry, which may be a neighbour's.
    """

    plan: KernelPlan
    entry: Entry | None = None
    extents: Extents | None = None

    @property
    def near(self) -> bool:
        """Whether the entry is a neighbour's, whose kernel may be another."""
        of = self.plan.problem
        return self.extents is not None and self.extents != (of.m, of.n, of.k, of.batch)


def choose(spec: GemmSpec, problem: Problem, device: Device, database: Database | None = None) -> Choice:
    """The plan that `build` takes for a problem.

    Raises:
        PlanError, SpecError, InputError: as `plan` does.
    """
    own = plan(spec, problem, device)
    if own.config is None or os.environ.get("CUTEGEMM_DATABASE", "").lower() == "off":
        return Choice(_said(own, spec, MODEL))
    key = key_of(spec, problem, device)
    found = find(key, database or Database())
    if found is None:
        return Choice(_said(own, spec, MODEL))
    extents, entry, source = found
    near = extents != key.extents
    # a neighbour's walk fits the neighbour's tiles along M and N
    fields = {name: v for name, v in entry.fields.items() if not (near and name == "raster")}
    try:
        made: KernelPlan | None = plan(refined(spec, fields), problem, device)
    except (GemmError, TypeError):
        made = None
    if made is None or not keeps(own, made):
        return Choice(_said(own, spec, f"{MODEL}: an entry of the database does not serve"))
    if near and _slower(made, own):
        return Choice(_said(own, spec, f"{MODEL}, which finds the choice of {_words(extents)} slower"))
    stale = made.config is not None and not near and entry.expired(made.config)
    return Choice(
        _said(made, spec, describe(device, entry, source, extents if near else None, stale)), entry, extents
    )


def find(key: Key, database: Database) -> tuple[Extents, Entry, str] | None:
    """(extents, entry, where it lies) of a problem, or of the nearest one (`entry.nearest`); the user's come first."""
    brought = shipped().get(key[:3], {})
    here = database.neighbours(key)
    extents = nearest(key.extents, [*here, *brought])
    if extents is None:
        return None
    mine = here.get(extents)
    return (extents, brought[extents], "shipped database") if mine is None else (extents, mine, "database")


def describe(
    device: Device, entry: Entry, source: str, near: Extents | None = None, expired: bool = False
) -> str:
    """Where a choice comes from, in words."""
    words = f"{source} ({device.name}, {entry.date[:10]}, {entry.us:,.1f} us)"
    if near is not None:
        words += f", of the nearest shape {_words(near)}"
    return words + (", expired: its kernel has changed since; tune again" if expired else "")


def _said(made: KernelPlan, spec: GemmSpec, by: str) -> KernelPlan:
    return dataclasses.replace(made, spec=spec, chosen_by=by)


def _words(extents: Extents) -> str:
    m, n, k, batch = extents
    return f"{m} x {n} x {k}" + (f", batch {batch}" if batch != 1 else "")


def _slower(made: KernelPlan, own: KernelPlan) -> bool:
    """Whether the model finds a neighbour's choice slower than its own."""
    # imports NumPy
    from cutegemm.planning.why import predicted_us

    return predicted_us(made) > TRUSTED * predicted_us(own)
