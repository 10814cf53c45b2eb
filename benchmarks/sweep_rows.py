# SPDX-License-Identifier: Apache-2.0
"""Measured times of the planner's candidates, read from any of the committed sweeps."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import candidates as specs
from cutegemm import Problem, plan, problem
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT, RECORDS
from cutegemm.errors import GemmError
from cutegemm.planning.candidates import BLOCK_K, SHARED_ELEMENTS, TURN_TILES, WIDTHS, Candidate
from cutegemm.planning.swap import transposed_problem
from cutegemm.planning.times import Table
from cutegemm.planning.why import candidate_of

# fields of a spec that make a candidate, and the walk
CHOSEN = {"tile", "cluster", "schedule", "consumers", "split_k", "swap", "raster"}


@dataclass(frozen=True)
class Measured:
    """One problem's candidates, timed beside each other or beside one baseline.

    Attributes:
        gpu: its name; suite: of the problem.
        problem: as its kernels see it.
        us: time of each candidate, by the best of the walks that were measured, in thousandths of the baseline's.
        best: the same of the best spec that was measured, whatever it gives.
        baseline: microseconds of the baseline; None where times are not measured beside one.
    """

    gpu: str
    suite: str
    problem: Problem
    us: dict[Candidate, float]
    best: float | None = None
    baseline: float | None = None

    @functools.cached_property
    def table(self) -> Table:
        """The candidates as columns on their GPU, which no constant of its model changes."""
        device = next((x for x in RECORDS if x.name == self.gpu), DEFAULT)
        return Table.of(self.problem, device, list(self.us))

    @property
    def least(self) -> float:
        """Time of the best of everything that was measured."""
        return min(self.us.values()) if self.best is None else min(self.best, *self.us.values())


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
    return [x for x in _joined(found) if len(x.us) > 1]


def _joined(found: list[Measured]) -> Iterator[Measured]:
    """One of each GPU and problem: what several files measured beside the same baseline."""
    groups: dict[tuple[str, Problem], list[Measured]] = {}
    for x in found:
        groups.setdefault((x.gpu, x.problem), []).append(x)
    for (gpu, of), group in groups.items():
        us = {y: min(x.us[y] for x in group if y in x.us) for y in {y: 0 for x in group for y in x.us}}
        baselines = [x.baseline for x in group if x.baseline is not None]
        baseline = statistics.median(baselines) if baselines else None
        yield Measured(gpu, group[0].suite, of, us, min(x.least for x in group if x.us), baseline)


def _tiles(data: dict[str, Any]) -> Iterator[Measured]:
    """`tiles.json`: cooperative tiles by problem."""
    for shape, times in data["problems"].items():
        us = {x: 1e3 * y / times["cublas"] for x, y in _columns(times, "c", "cooperative")}
        of = problem(*ast.literal_eval(shape), majors="kk")
        yield Measured(data["gpu"], "tiles", of, us, baseline=times["cublas"])


def _turns(data: dict[str, Any]) -> Iterator[Measured]:
    """`pingpong.json`: tiles of consumers that take turns, by problem."""
    for row in data["rows"]:
        us = {x: 1e3 * y / row["us"]["cublas"] for x, y in _columns(row["us"], "_", "pingpong")}
        of = problem(row["m"], row["n"], row["k"], majors="kk")
        yield Measured(data["environment"]["gpu"], row["suite"], of, us, baseline=row["us"]["cublas"])


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
    """A file of `benchmarks.sweep`: the candidate that each spec is planned as.

    Swapped candidates are those of the transposed product, a problem of its own. A spec that gives more than a
    candidate and a walk counts for the best of the problem alone.
    """
    groups: dict[tuple[Any, ...], Measured] = {}
    best: dict[tuple[Any, ...], float] = {}
    for row in data["rows"]:
        if row.get("spec") is None or row.get("ratio") is None:
            continue
        of = problem(
            row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"]
        )
        # the baseline beside each group of specs takes out what differs from group to group
        us = 1e3 / row["ratio"]
        place = (row["suite"], of)
        best[place] = min(us, best.get(place, us))
        try:
            made = plan(specs.spec(row["spec"]), of, device)
        except GemmError:
            continue
        candidate = labelled(row.get("plan")) if row["spec"] == {} else candidate_of(made)
        if candidate is None or not set(row["spec"]) <= CHOSEN:
            continue
        suite = row["suite"] + (" swapped" if made.swapped else "")
        seen = transposed_problem(of) if made.swapped else of
        group = groups.setdefault(
            (*place, made.swapped),
            Measured(data["environment"]["gpu"], suite, seen, {}, baseline=row["us"] / us * 1e3),
        )
        group.us[candidate] = min(us, group.us.get(candidate, us))
    for (*place, _), group in groups.items():
        yield dataclasses.replace(group, best=best[tuple(place)])


def labelled(label: str | None) -> Candidate | None:
    """The candidate that a plan's label tells: what the planner of its day chose."""
    words = re.search(r"(\w+), tile (\d+)x(\d+)x(\d+), cluster (\d)x(\d), .*consumers (\d)", label or "")
    if words is None or label is None:
        return None
    m, n, k, across, along, consumers = map(int, words.groups()[1:])
    turns = "pingpong True" in label
    schedule = "pingpong" if turns else "multistage" if words[1] == "multistage" else "cooperative"
    parts = re.search(r"K in (\d+) parts", label)
    return Candidate((m, n, k), (across, along), schedule, consumers, int(parts[1]) if parts else 1)
