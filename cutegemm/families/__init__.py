# SPDX-License-Identifier: Apache-2.0
"""The families of kernels and the features that each supports (`rows`).

A new family is a row in `rows` with a config, a driver in `kernels/`, and a planning function in `planning/` if a
problem can be planned for it.
"""

from cutegemm.families.abilities import THREAD_LOADS, Abilities, reason
from cutegemm.families.family import Family, Roles, load
from cutegemm.families.rows import FAMILIES


def abilities_of(schedule: str) -> Abilities:
    """The abilities of a schedule's kernels; those of the first schedule for "auto"."""
    rows = of_schedule(schedule).abilities
    return rows.get(schedule) or next(iter(rows.values()))


def of_schedule(schedule: str) -> Family:
    """The family of a spec's schedule; the first family for "auto"."""
    families = (x for x in FAMILIES.values() if schedule in x.schedules)
    return next(families, next(iter(FAMILIES.values())))


__all__ = [
    "FAMILIES",
    "THREAD_LOADS",
    "Abilities",
    "Family",
    "Roles",
    "abilities_of",
    "load",
    "of_schedule",
    "reason",
]
