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

import numpy as np
from numpy.typing import NDArray

from benchmarks import candidates as specs
from benchmarks import tuned_rows
from benchmarks.contenders import BASELINE
from cutegemm import Problem, problem
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import GemmError
from cutegemm.planning.candidates import BLOCK_K, Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.swap import transposed_problem
from cutegemm.planning.why import candidate_of

# what the older sweeps measured of the kernels of today
WIDTHS = (256, 224, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16)
SHARED_ELEMENTS = 128 * 256
TURN_TILES = (*((128, n) for n in (192, 176, 160, 144, 128, 96, 64)), (64, 128))
# CTAs of a cluster that add up parts of K, at most
MAX_CLUSTER = 8
# fields of a spec that make a candidate, and the walk
CHOSEN = {"tile", "cluster", "schedule", "consumers", "split_k", "split_reduction", "swap", "raster"}


@dataclass(frozen=True)
class Measured:
    """One problem's candidates, timed beside each other or beside one baseline.

    Attributes:
        gpu: its name; suite: of the problem.
        problem: as its kernels see it.
        us: time of each candidate, by the best of the walks that were measured, in thousandths of the baseline's.
        best: the same of the best spec that was measured, whatever it gives.
        baseline: microseconds of the baseline; None where times are not measured beside one.
        beside: its name.
    """

    gpu: str
    suite: str
    problem: Problem
    us: dict[Candidate, float]
    best: float | None = None
    baseline: float | None = None
    beside: str = BASELINE

    @functools.cached_property
    def times(self) -> NDArray[np.float64]:
        """Of each candidate, in its own place."""
        return np.array(list(self.us.values()))

    @property
    def least(self) -> float:
        """Time of the best of everything that was measured."""
        return min(self.us.values()) if self.best is None else min(self.best, *self.us.values())


def read(paths: list[Path], device: Device = DEFAULT) -> list[Measured]:
    """The problems of sweeps with two candidates and more; other files of results have none.

    Args:
        paths: of `benchmarks.sweep`'s files, of the two older forms in `results/sweeps`, and of databases that
            `benchmarks.tune` made, of which the device's problems are read.
        device: that specs are planned for, to find out which candidate they are.
    """
    found = []
    for path in paths:
        data = load(path, device.name)
        if isinstance(data.get("problems"), dict):
            found += list(_tiles(data))
        elif data.get("rows") and isinstance(data["rows"][0].get("us"), dict):
            found += list(_turns(data))
        elif data.get("rows") and "spec" in data["rows"][-1]:
            found += list(_swept(data, device))
    return [x for x in _joined(found) if len(x.us) > 1]


def load(path: Path, gpu: str) -> dict[str, Any]:
    """What a file of results holds; of a tuning database, what was tried on a GPU."""
    if path.suffix == tuned_rows.SUFFIX:
        return tuned_rows.document(path, gpu)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def _joined(found: list[Measured]) -> Iterator[Measured]:
    """One of each GPU, problem and baseline: what several files measured beside it."""
    groups: dict[tuple[str, Problem, str], list[Measured]] = {}
    for x in found:
        groups.setdefault((x.gpu, x.problem, x.beside), []).append(x)
    # of a problem that was tuned older sweeps say what older kernels took
    tuned = {(gpu, of) for gpu, of, beside in groups if beside == tuned_rows.BASELINE}
    for (gpu, of, beside), group in groups.items():
        if beside != tuned_rows.BASELINE and (gpu, of) in tuned:
            continue
        us = {y: min(x.us[y] for x in group if y in x.us) for y in {y: 0 for x in group for y in x.us}}
        baselines = [x.baseline for x in group if x.baseline is not None]
        baseline = statistics.median(baselines) if baselines else None
        yield Measured(gpu, group[0].suite, of, us, min(x.least for x in group if x.us), baseline, beside)


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
    candidate and a walk counts for the best of the problem alone, and one that gives a walk for its candidate only
    where nothing else does: the best of several walks would beat whoever was timed with the planner's of that day.
    """
    groups: dict[tuple[Any, ...], Measured] = {}
    walked: dict[tuple[Any, ...], dict[Candidate, float]] = {}
    best: dict[tuple[Any, ...], float] = {}
    for row in data["rows"]:
        if row.get("spec") is None or row.get("ratio") is None:
            continue
        of = problem(
            row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"]
        )
        # the baseline beside each group of specs takes out what differs from group to group
        us = 1e3 / row["ratio"]
        place = (row["suite"], of, row.get("baseline", BASELINE))
        best[place] = min(us, best.get(place, us))
        try:
            made = plan(specs.spec(row["spec"]), of, device)
        except GemmError:
            continue
        candidate = labelled(row.get("plan")) if row["spec"] == {} else candidate_of(made)
        # one CTA an SM is what is planned where nothing is said
        given = {name for name, value in row["spec"].items() if (name, value) != ("ctas_per_sm", 1)}
        if candidate is None or not given <= CHOSEN:
            continue
        suite = row["suite"] + (" swapped" if made.swapped else "")
        seen = transposed_problem(of) if made.swapped else of
        group = groups.setdefault(
            (*place, made.swapped),
            Measured(
                data["environment"]["gpu"], suite, seen, {}, baseline=row["us"] / us * 1e3, beside=place[-1]
            ),
        )
        times = walked.setdefault((*place, made.swapped), {}) if "raster" in given else group.us
        times[candidate] = min(us, times.get(candidate, us))
    for key, group in groups.items():
        yield dataclasses.replace(group, us=walked.get(key, {}) | group.us, best=best[key[:-1]])


def labelled(label: str | None) -> Candidate | None:
    """The candidate that a plan's label tells: what the planner of its day chose."""
    words = re.search(r"(\w+), tile (\d+)x(\d+)x(\d+), cluster (\d)x(\d), .*consumers (\d)", label or "")
    if words is None or label is None:
        return None
    m, n, k, across, along, consumers = map(int, words.groups()[1:])
    turns = "pingpong True" in label
    schedule = "pingpong" if turns else "multistage" if words[1] == "multistage" else "cooperative"
    whole = Candidate((m, n, k), (across, along), schedule, consumers)
    parts = re.search(r"K in (\d+) parts", label)
    if parts is None:
        return whole
    count = int(parts[1])
    if "add parts" in label:
        return whole._replace(splits=count, reduction="launch")
    # a label does not tell workspace from cluster, but more than a cluster holds
    return whole._replace(splits=count, depth=count, reduction="cluster") if count <= MAX_CLUSTER else None
