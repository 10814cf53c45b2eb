# SPDX-License-Identifier: Apache-2.0
"""The kinds of kernels, a file each, and the table of them.

A new family is a file here with its `FAMILY`, a line in `FAMILIES`, and what its paths name: a config, a
driver in `kernels/`, and a plan in `planning/` if a problem can be planned for it.
"""

from cutegemm.families import add_parts, finish, multistage, relayout, simt, warp_specialized
from cutegemm.families.abilities import THREAD_LOADS, Abilities, reason
from cutegemm.families.family import Family, Roles, load

FAMILIES: dict[str, Family] = {
    x.name: x
    for x in (
        warp_specialized.FAMILY,
        multistage.FAMILY,
        simt.FAMILY,
        relayout.FAMILY,
        finish.FAMILY,
        add_parts.FAMILY,
    )
}


def abilities_of(schedule: str) -> Abilities:
    """What kernels of a schedule can do; those of the first schedule for "auto"."""
    rows = of_schedule(schedule).abilities
    return rows.get(schedule) or next(iter(rows.values()))


def of_schedule(schedule: str) -> Family:
    """The family that a spec's schedule names; the first family for "auto"."""
    found = (x for x in FAMILIES.values() if schedule in x.schedules)
    return next(found, next(iter(FAMILIES.values())))


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
