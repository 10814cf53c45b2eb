# SPDX-License-Identifier: Apache-2.0
"""`Abilities`: what the kernels of one schedule can do, and the refusal of what they cannot.

A family's file has a row of these for each of its schedules. Specs, configs and the planner ask the row; nothing else
decides what a kernel can do.
"""

from __future__ import annotations

from dataclasses import dataclass

# loads by the producer warpgroup's threads
THREAD_LOADS = ("gather", "shift", "cp_async")


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """One row of the table of families.

    Attributes:
        loads: how operands may reach shared memory, by the names of a config's operands.
        stores: how outputs may leave, by the names of a config's outputs.
        schedulers: which tile schedulers there are.
        reductions: how splits of K may be added; "none" is a kernel that adds none.
        consumers: how many warpgroups may compute; empty where the family has no warpgroups.
        multicast: whether the CTAs of a cluster share operands by TMA multicast.
    """

    loads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    reductions: tuple[str, ...] = ("none",)
    consumers: tuple[int, ...] = ()
    multicast: bool = False


# (what is missing, its name; None is any) -> the rule, and the nearest legal value
REASONS: dict[tuple[str, object], tuple[str, object]] = {
    ("loads", None): ('threads that load are the producer warpgroup of schedule="cooperative"', "relayout"),
    ("schedulers", "per_tile"): ("warpgroups that take turns need more than one tile each", "persistent"),
    ("schedulers", "stream_k"): (
        'splits are added by the consumers of schedule="cooperative"',
        "persistent",
    ),
    ("schedulers", "dynamic"): (
        'tiles are taken by the producer warp of schedule="cooperative" or "pingpong"',
        "persistent",
    ),
    ("reductions", None): ('splits are added by the consumers of schedule="cooperative"', 1),
    ("consumers", None): ("two warpgroups take turns", 2),
    ("multicast", None): ('multicast needs the producer warp of schedule="cooperative"', (1, 1)),
}


def reason(what: str, value: object = None) -> tuple[str, object]:
    """(rule, nearest legal value) of a value that a row lacks."""
    return REASONS.get((what, value)) or REASONS[what, None]


__all__ = ["THREAD_LOADS", "Abilities", "reason"]
