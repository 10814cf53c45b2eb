# SPDX-License-Identifier: Apache-2.0
"""`Abilities`: the features that the kernels of one schedule support, and the errors for the others.

Each family has a row for each of its schedules. Specs, configs and the planner use the row; nothing else decides what a
kernel supports.
"""

from __future__ import annotations

from dataclasses import dataclass

# loads by threads of the producer warpgroup
THREAD_LOADS = ("gather", "shift", "cp_async")


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """One row of the table of families."""

    loads: tuple[str, ...] = ()  # supported loads of operands, as in `OperandConfig.load`
    stores: tuple[str, ...] = ()  # supported stores of outputs, as in `OutputConfig.store`
    schedulers: tuple[str, ...] = ()  # tile schedulers
    reductions: tuple[str, ...] = ("none",)  # of splits of K; "none" is a kernel without splits
    consumers: tuple[
        int, ...
    ] = ()  # numbers of warpgroups that compute; empty for families without warpgroups
    multicast: bool = False  # whether the CTAs of a cluster share operands by TMA multicast


# (missing ability, its value; None is any) -> the rule, and the nearest legal value
REASONS: dict[tuple[str, object], tuple[str, object]] = {
    ("loads", None): ('only the producer warpgroup of schedule="cooperative" loads by threads', "relayout"),
    ("schedulers", "per_tile"): ("pingpong warpgroups need more than one tile each", "persistent"),
    ("schedulers", "stream_k"): (
        'splits are reduced by the consumers of schedule="cooperative"',
        "persistent",
    ),
    ("schedulers", "dynamic"): (
        'only the producer warp of schedule="cooperative" or "pingpong" takes tiles from a counter',
        "persistent",
    ),
    ("reductions", None): ('splits are reduced by the consumers of schedule="cooperative"', 1),
    ("consumers", None): ("pingpong has two consumer warpgroups", 2),
    ("multicast", None): ('multicast needs the producer warp of schedule="cooperative"', (1, 1)),
}


def reason(what: str, value: object = None) -> tuple[str, object]:
    """(rule, nearest legal value) of a value that a row lacks."""
    return REASONS.get((what, value)) or REASONS[what, None]
