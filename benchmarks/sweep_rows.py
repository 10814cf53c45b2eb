# SPDX-License-Identifier: Apache-2.0
"""Measured times of the planner's candidates, read from any of the committed sweeps."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import candidates as specs
from cutegemm import Problem, plan, problem
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import GemmError
from cutegemm.planning.candidates import BLOCK_K, SHARED_ELEMENTS, TURN_TILES, WIDTHS, Candidate
from cutegemm.planning.why import candidate_of


@dataclass(frozen=True)
class Measured:
    """One problem's candidates, timed beside each other.

    Attributes:
        gpu: its name; suite: of the problem.
        problem: as its kernels see it.
        us: microseconds of each candidate.
    """

    gpu: str
    suite: str
    problem: Problem
    us: dict[Candidate, float]


def read(paths: list[Path], device: Device = DEFAULT) -> list[Measured]:
    """The problems of sweeps with two candidates and more; other files of results have none.

    Args:
        paths: of `benchmarks.sweep`'s files and of the two older forms in `results/sweeps`.
        device: that specs are planned for, to find out which candidate they are.
    """
    found = []
    for path in paths:
        data = json.loads(path.read_text())
        if isinstance(data.get("problems"), dict):
            found += list(_tiles(data))
        elif data.get("rows") and isinstance(data["rows"][0].get("us"), dict):
            found += list(_turns(data))
        elif data.get("rows") and "spec" in data["rows"][-1]:
            found += list(_swept(data, device))
    return [x for x in found if len(x.us) > 1]


def _tiles(data: dict[str, Any]) -> Iterator[Measured]:
    """`tiles.json`: cooperative tiles by problem."""
    for shape, times in data["problems"].items():
        us = dict(_columns(times, "c", "cooperative"))
        yield Measured(data["gpu"], "tiles", problem(*ast.literal_eval(shape), majors="kk"), us)


def _turns(data: dict[str, Any]) -> Iterator[Measured]:
    """`pingpong.json`: tiles of consumers that take turns, by problem."""
    for row in data["rows"]:
        us = dict(_columns(row["us"], "_", "pingpong"))
        of = problem(row["m"], row["n"], row["k"], majors="kk")
        yield Measured(data["environment"]["gpu"], row["suite"], of, us)


def _columns(times: dict[str, float], mark: str, schedule: str) -> Iterator[tuple[Candidate, float]]:
    """The planner's candidates among an older sweep's columns, such as "128x256_21"."""
    for name, us in times.items():
        found = re.fullmatch(rf"(\d+)x(\d+){mark}(\d)(\d)", name)
        if found is None:
            continue
        m, n, cm, cn = map(int, found.groups())
        turns = schedule == "pingpong" and ((m, n) not in TURN_TILES or (cm, cn) != (2, 1))
        # pieces of 16 columns have been given more staging buffers since that sweep
        wide = n not in WIDTHS or n % 32 or m * n > SHARED_ELEMENTS or cn != 1
        if not turns and not (schedule == "cooperative" and wide):
            yield Candidate((m, n, BLOCK_K), (cm, cn), schedule, max(1, min(2, m // 64))), us


def _swept(data: dict[str, Any], device: Device) -> Iterator[Measured]:
    """A file of `benchmarks.sweep`: the candidate that each spec is planned as; swapped ones are another product."""
    groups: dict[tuple[Any, ...], Measured] = {}
    for row in data["rows"]:
        if row.get("spec") is None or row.get("us") is None:
            continue
        of = problem(
            row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"]
        )
        try:
            made = plan(specs.spec(row["spec"]), of, device)
        except GemmError:
            continue
        candidate = None if made.swapped else candidate_of(made)
        if candidate is None:
            continue
        place = (row["suite"], of)
        group = groups.setdefault(place, Measured(data["environment"]["gpu"], row["suite"], of, {}))
        # the baseline beside each group of specs takes out what differs from group to group
        group.us[candidate] = 1e3 / row["ratio"] if row.get("ratio") else row["us"]
    yield from groups.values()
