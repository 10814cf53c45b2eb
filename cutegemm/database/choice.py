# SPDX-License-Identifier: Apache-2.0
"""What `plan`, `build` and `run` choose: an entry of the database with the problem's extents, else the model's choice.

A neighbour's entry serves only if the GPU's record has the model's error, and the model predicts the entry's choice
within that error of its own. `CUTEGEMM_DATABASE=off` leaves every choice to the model.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from cutegemm import checks
from cutegemm.arch.device import Device
from cutegemm.database import user_database
from cutegemm.database.entry import Entry, Extents, Key, key_of, nearest, refined
from cutegemm.database.exchange import shipped
from cutegemm.database.user_database import Database
from cutegemm.errors import GemmError
from cutegemm.planning import requirements
from cutegemm.planning.invariance import keeps
from cutegemm.planning.planner import KernelPlan, plan
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

MODEL = "the model"
# choices that are kept
REMEMBERED = 1024
# seconds between two looks at whether another process has changed the user's file
LOOK = 1.0


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

    Choices from the user's own database are remembered until it changes.

    Args:
        spec, problem, device: what is asked.
        database: None is the user's.

    Raises:
        PlanError, SpecError, InputError: as `plan` does.
    """
    if not checks.switch("CUTEGEMM_DATABASE", True):
        return by_model(spec, problem, device)
    if database is not None:
        return _chosen(spec, problem, device, database)
    return _remembered(spec, problem, device, _STATE.now())


@functools.lru_cache(REMEMBERED)
def by_model(spec: GemmSpec, problem: Problem, device: Device) -> Choice:
    """What the model alone chooses.

    Raises:
        PlanError, SpecError, InputError: as `plan` does.
    """
    return _models(plan(spec, problem, device))


@functools.lru_cache(REMEMBERED)
def _remembered(spec: GemmSpec, problem: Problem, device: Device, state: Hashable) -> Choice:
    return _chosen(spec, problem, device, Database())


class _State:
    """What the user's database is known by: its place, this process's changes, and its files' own times."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._files: tuple[str, ...] = ()
        self._until = -1.0
        self._stamps: tuple[int, ...] = ()

    def now(self) -> Hashable:
        """Another value once the database may have changed; files are looked at once in `LOOK` seconds."""
        folder, now = os.environ.get("CUTEGEMM_CACHE_DIR"), time.monotonic()
        if now >= self._until or folder != self._folder:
            path = str(user_database.default_path())
            self._folder, self._files, self._until = folder, (path, f"{path}-wal"), now + LOOK
            self._stamps = tuple(map(_stamp, self._files))
        return self._files, user_database.changes(), self._stamps


def _stamp(path: str) -> int:
    """When a file was last written, in ns; -1 where there is none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return -1


_STATE = _State()


def _chosen(spec: GemmSpec, problem: Problem, device: Device, database: Database) -> Choice:
    requirements.check_arguments(spec, problem, device, plan)
    found = None
    if 0 not in (problem.m, problem.n, problem.batch):
        key = key_of(spec, problem, device)
        found = find(key, database, near=device.model_error is not None)
    if found is None:
        return by_model(spec, problem, device)
    extents, entry, source = found
    near = extents != key.extents
    # a neighbour's raster fits the neighbour's tiles along M and N
    fields = {name: v for name, v in entry.fields.items() if not (near and name == "raster")}
    made: KernelPlan | None = None
    try:
        made = plan(refined(spec, fields), problem, device)
    except (GemmError, TypeError) as error:
        # a neighbour's entry may well not fit this problem
        if not near:
            _ignored(source, key, str(error))
    own = plan(spec, problem, device) if made is None or near or spec.batch_invariant is True else made
    if made is None or not keeps(own, made):
        return _models(own, ": an entry of the database does not serve")
    if near and _slower(made, own):
        return _models(own, f", which predicts that the choice of {_words(extents)} is slower")
    stale = made.config is not None and not near and entry.expired(made.config)
    words = describe(device, entry, source, extents if near else None, stale)
    return Choice(_said(made, spec, words), entry, extents)


@functools.lru_cache(REMEMBERED)
def _ignored(source: str, key: Key, why: str) -> None:
    """Name an entry that no kernel can have, once."""
    text = f"{source}: the entry of {_words(key.extents)} for {key.gpu} is ignored: {why}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _models(own: KernelPlan, why: str = "") -> Choice:
    """The model's choice."""
    return Choice(_said(own, own.spec, f"{MODEL} ({own.device.name}, predicted){why}"))


def find(key: Key, database: Database, near: bool = True) -> tuple[Extents, Entry, str] | None:
    """(extents, entry, where it lies) of a problem, the user's first.

    Args:
        key: of the problem.
        database: the user's.
        near: whether the nearest problem's entry (`entry.nearest`) will do.
    """
    brought = shipped().get(key[:3], {})
    if not near:
        mine = database.get(key)
        if mine is not None:
            return key.extents, mine, "database"
        entry = brought.get(key.extents)
        return None if entry is None else (key.extents, entry, "shipped database")
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
    words = f"{source} ({device.name}, {entry.date[:10]}, measured {entry.us:,.1f} us)"
    if near is not None:
        words += f", of the nearest shape {_words(near)}"
    return words + (", expired: its kernel has changed since; tune again" if expired else "")


def _said(made: KernelPlan, spec: GemmSpec, by: str) -> KernelPlan:
    return dataclasses.replace(made, spec=spec, chosen_by=by)


def _words(extents: Extents) -> str:
    m, n, k, batch = extents
    return f"{m} x {n} x {k}" + (f", batch {batch}" if batch != 1 else "")


def _slower(made: KernelPlan, own: KernelPlan) -> bool:
    """Whether the model predicts a neighbour's choice slower than its own by more than its error."""
    # imports NumPy
    from cutegemm.planning.why import predicted_us

    return predicted_us(made) > (1 + (own.device.model_error or 0.0)) * predicted_us(own)
