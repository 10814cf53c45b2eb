# SPDX-License-Identifier: Apache-2.0
"""Rows of `benchmarks.peers`: contenders that were left out, and our speed-up over each other contender."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from benchmarks import contenders, libraries, results
from benchmarks.results import Case, Row

# prefix of suite names
PREFIX = "peers_"
# the other contenders, in the order of the tables
PEERS = (contenders.BASELINE, *libraries.NAMES)


def left_out(case: Case, name: str, why: str, regime: str) -> Row:
    """A row without times, with the reason."""
    return results.refused_row(asdict(case) | {"contender": name, "regime": regime}, why)


def by_problem(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """For each problem that ours was timed on, the rows with times by contender."""
    groups: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        if row["us"] is not None:
            problem = tuple(row[field] for field in (*results.CASE_FIELDS, "regime"))
            groups.setdefault(problem, {})[row["contender"]] = row
    return [group for group in groups.values() if contenders.OURS in group]


def faster(group: dict[str, Row], peer: str) -> float | None:
    """Our speed-up over a peer on one problem; None if the peer has no times."""
    return group[peer]["us"] / group[contenders.OURS]["us"] if peer in group else None


def means(rows: Iterable[Row]) -> dict[str, dict[str, tuple[float, float, int]]]:
    """Our speed-up by suite and peer: geometric mean, least, and number of problems."""
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
