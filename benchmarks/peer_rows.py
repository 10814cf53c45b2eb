# SPDX-License-Identifier: Apache-2.0
"""Rows of `benchmarks.peers`: those of contenders that were left out, and how much faster ours is than each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from benchmarks import contenders, libraries, results
from benchmarks.results import Case, Row

# before the names of suites
PREFIX = "peers_"
# who ours is set beside, in the order of the tables
PEERS = (contenders.BASELINE, *libraries.NAMES)


def left_out(case: Case, name: str, why: str, regime: str) -> Row:
    """The row of a contender without times."""
    return results.refused_row(asdict(case) | {"contender": name, "regime": regime}, why)


def by_problem(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The rows that have times, by contender, a problem each; problems without ours are left out."""
    groups: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        if row["us"] is not None:
            problem = tuple(row[field] for field in (*results.CASE_FIELDS, "regime"))
            groups.setdefault(problem, {})[row["contender"]] = row
    return [group for group in groups.values() if contenders.OURS in group]


def faster(group: dict[str, Row], peer: str) -> float | None:
    """How many times as fast as a peer ours is on one problem; None where the peer has no times."""
    return group[peer]["us"] / group[contenders.OURS]["us"] if peer in group else None


def means(rows: Iterable[Row]) -> dict[str, dict[str, tuple[float, float, int]]]:
    """By suite and peer how many times as fast ours is: the geometric mean, the least, and the number of problems."""
    suites: dict[str, list[dict[str, Row]]] = {}
    for group in by_problem(rows):
        suites.setdefault(group[contenders.OURS]["suite"].removeprefix(PREFIX), []).append(group)
    return {suite: _over_peers(groups) for suite, groups in suites.items()}


def _over_peers(groups: Sequence[dict[str, Row]]) -> dict[str, tuple[float, float, int]]:
    found = {}
    for peer in PEERS:
        if ratios := [ratio for group in groups if (ratio := faster(group, peer)) is not None]:
            found[peer] = (results.geometric_mean(ratios), min(ratios), len(ratios))
    return found
