# SPDX-License-Identifier: Apache-2.0
"""What `plan`, `build` and `run` choose: the database entry of exactly this problem, else the cost model's choice.

`CUTEGEMM_DATABASE=off` leaves every choice to the model.
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
from cutegemm.database.entry import Entry, Key, key_of, refined
from cutegemm.database.exchange import shipped
from cutegemm.database.user_database import Database
from cutegemm.errors import GemmError
from cutegemm.planning.invariance import keeps
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.request import requirements
from cutegemm.spec import GemmSpec

MODEL = "the model"
# choices that are cached
REMEMBERED = 1024
# seconds between two checks whether another process has changed the user's file
LOOK = 1.0


@dataclass(frozen=True)
class Choice:
    """A plan for the requested spec, and the database entry that it comes from; None if the cost model chose."""

    plan: KernelPlan
    entry: Entry | None = None


def choose(spec: GemmSpec, problem: Problem, device: Device, database: Database | None = None) -> Choice:
    """The plan that `build` uses for a problem.

    Choices from the user's own database are cached until it changes.

    Args:
        spec, problem, device: of the plan.
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
    """The cost model's choice; raises what `plan` raises."""
    return from_model(plan(spec, problem, device))


@functools.lru_cache(REMEMBERED)
def _remembered(spec: GemmSpec, problem: Problem, device: Device, state: Hashable) -> Choice:
    return _chosen(spec, problem, device, Database())


class _State:
    """Detects changes of the user's database: another path, a change by this process, or new modification times."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._files: tuple[str, ...] = ()
        self._until = -1.0
        self._stamps: tuple[int, ...] = ()

    def now(self) -> Hashable:
        """A value that differs once the database may have changed; files are checked every `LOOK` seconds."""
        folder, now = os.environ.get("CUTEGEMM_CACHE_DIR"), time.monotonic()
        if now >= self._until or folder != self._folder:
            path = str(user_database.default_path())
            self._folder, self._files, self._until = folder, (path, f"{path}-wal"), now + LOOK
            self._stamps = tuple(map(_stamp, self._files))
        return self._files, user_database.changes(), self._stamps


def _stamp(path: str) -> int:
    """When a file was last written, in ns; -1 if it does not exist."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return -1


_STATE = _State()


def _chosen(spec: GemmSpec, problem: Problem, device: Device, database: Database) -> Choice:
    requirements.check_arguments(spec, problem, device, plan)
    if 0 in (problem.m, problem.n, problem.batch):
        return by_model(spec, problem, device)
    key = key_of(spec, problem, device)
    entry, source = find(key, database)
    if entry is None:
        return by_model(spec, problem, device)
    try:
        tuned = plan(refined(spec, entry.fields), problem, device)
    except (GemmError, TypeError) as error:
        _warn_ignored(source, key, str(error))
        tuned = None
    invariant = spec.batch_invariant is True
    if tuned is None or (invariant and not keeps(plan(spec, problem, device), tuned)):
        return from_model(plan(spec, problem, device), ": the database entry does not apply")
    chosen_by = f"{source} ({device.name}, {entry.date[:10]}, measured {entry.us:,.1f} us)"
    if tuned.config is not None and entry.expired(tuned.config):
        chosen_by += ", expired: its kernel has changed since; tune again"
    return Choice(dataclasses.replace(tuned, spec=spec, chosen_by=chosen_by), entry)


def find(key: Key, database: Database) -> tuple[Entry | None, str]:
    """(entry, which database has it): the user's entry, else the shipped one, else (None, "")."""
    if (entry := database.get(key)) is not None:
        return entry, "database"
    entry = shipped().get(key)
    return entry, "shipped database" if entry is not None else ""


@functools.lru_cache(REMEMBERED)
def _warn_ignored(source: str, key: Key, why: str) -> None:
    """Warn once about an entry that no kernel can have."""
    m, n, k, batch = key.extents
    shape = f"{m} x {n} x {k}" + (f", batch {batch}" if batch != 1 else "")
    text = f"{source}: the entry of {shape} for {key.gpu} is ignored: {why}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def from_model(own: KernelPlan, why: str = "") -> Choice:
    """The cost model's choice."""
    chosen_by = f"{MODEL} ({own.device.name}, predicted){why}"
    return Choice(dataclasses.replace(own, chosen_by=chosen_by))
