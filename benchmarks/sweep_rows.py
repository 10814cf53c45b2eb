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
from cutegemm.config import KernelConfig
from cutegemm.errors import GemmError
from cutegemm.planning.candidates import BLOCK_K, Candidate
from cutegemm.planning.planner import plan
from cutegemm.request.swap import transposed_problem

# tiles of the older sweeps that current kernels have
WIDTHS = (256, 224, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16)
SHARED_ELEMENTS = 128 * 256
TURN_TILES = (*((128, n) for n in (192, 176, 160, 144, 128, 96, 64)), (64, 128))
# maximum CTAs of a cluster that reduce splits of K
MAX_CLUSTER = 8
# spec fields that determine a candidate, and the raster
CHOSEN = {"tile", "cluster", "schedule", "consumers", "split_k", "split_reduction", "swap", "raster"}


@dataclass(frozen=True)
class Measured:
    """One problem's candidates, timed in one run or relative to one baseline.

    Attributes:
        gpu: name of the GPU.
        suite: of the problem.
        problem: as its kernels see it.
        us: time of each candidate with its best measured raster, in thousandths of the baseline's time.
        best: the same of the best measured spec, whatever its fields.
        baseline: microseconds of the baseline; None without a baseline.
        baseline_name: of the baseline.
    """

    gpu: str
    suite: str
    problem: Problem
    us: dict[Candidate, float]
    best: float | None = None
    baseline: float | None = None
    baseline_name: str = BASELINE

    @functools.cached_property
    def times(self) -> NDArray[np.float64]:
        """The time of each candidate, in their order."""
        return np.array(list(self.us.values()))

    @property
    def least(self) -> float:
        """The least time of all measurements."""
        return min(self.us.values()) if self.best is None else min(self.best, *self.us.values())


def read(paths: list[Path], device: Device = DEFAULT) -> list[Measured]:
    """The problems of sweeps with two or more candidates; other results files have none.

    Args:
        paths: files of `benchmarks.sweep`, of the two older formats in `results/sweeps`, and databases of
            `benchmarks.tune`, from which the device's problems are read.
        device: to plan specs for, which determines their candidates.
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
    """The contents of a results file, or the trials on a GPU of a tuning database."""
    if path.suffix == tuned_rows.SUFFIX:
        return tuned_rows.document(path, gpu)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def _joined(found: list[Measured]) -> Iterator[Measured]:
    """Merge the measurements of several files that share GPU, problem and baseline."""
    groups: dict[tuple[str, Problem, str], list[Measured]] = {}
    for x in found:
        groups.setdefault((x.gpu, x.problem, x.baseline_name), []).append(x)
    # for tuned problems older sweeps measured older kernels
    tuned = {(gpu, of) for gpu, of, name in groups if name == tuned_rows.BASELINE}
    for (gpu, of, name), group in groups.items():
        if name != tuned_rows.BASELINE and (gpu, of) in tuned:
            continue
        us = {y: min(x.us[y] for x in group if y in x.us) for y in {y: 0 for x in group for y in x.us}}
        baselines = [x.baseline for x in group if x.baseline is not None]
        baseline = statistics.median(baselines) if baselines else None
        yield Measured(gpu, group[0].suite, of, us, min(x.least for x in group if x.us), baseline, name)


def _tiles(data: dict[str, Any]) -> Iterator[Measured]:
    """`tiles.json`: cooperative tiles by problem."""
    for shape, times in data["problems"].items():
        us = {x: 1e3 * y / times["cublas"] for x, y in _columns(times, "c", "cooperative")}
        of = problem(*ast.literal_eval(shape), majors="kk")
        yield Measured(data["gpu"], "tiles", of, us, baseline=times["cublas"])


def _turns(data: dict[str, Any]) -> Iterator[Measured]:
    """`pingpong.json`: pingpong tiles by problem."""
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
        # epilogue subtiles of 16 columns have more staging buffers since that sweep
        wide = n not in WIDTHS or n % 32 or m * n > SHARED_ELEMENTS or cn != 1
        if not turns and not (schedule == "cooperative" and wide):
            yield Candidate((m, n, BLOCK_K), (cm, cn), schedule, max(1, min(2, m // 64))), us


def _swept(data: dict[str, Any], device: Device) -> Iterator[Measured]:
    """A file of `benchmarks.sweep`: the candidate planned for each spec.

    Swapped candidates belong to the transposed problem. A spec that specifies more than a candidate and a raster
    counts only for the best of the problem. A spec with a raster counts for its candidate only if no other spec does:
    the best of several rasters would beat candidates timed with the planner's raster.
    """
    groups: dict[tuple[Any, ...], Measured] = {}
    walked: dict[tuple[Any, ...], dict[Candidate, float]] = {}
    best: dict[tuple[Any, ...], float] = {}
    for row in data["rows"]:
        if row.get("spec") is None or row.get("ratio") is None:
            continue
        of = tuned_rows.problem_of(row)
        # the baseline of each group cancels differences between groups
        us = 1e3 / row["ratio"]
        place = (row["suite"], of, row.get("baseline", BASELINE))
        best[place] = min(us, best.get(place, us))
        try:
            made = plan(specs.spec(row["spec"]), of, device)
        except GemmError:
            continue
        if not isinstance(made.config, KernelConfig):
            continue
        own = Candidate.of(made.config)
        candidate = labelled(row.get("plan")) if row["spec"] == {} else own
        # one CTA per SM is the default
        given = {name for name, value in row["spec"].items() if (name, value) != ("ctas_per_sm", 1)}
        if candidate is None or not given <= CHOSEN:
            continue
        suite = row["suite"] + (" swapped" if made.swapped else "")
        seen = transposed_problem(of) if made.swapped else of
        group = groups.setdefault(
            (*place, made.swapped),
            Measured(
                data["environment"]["gpu"],
                suite,
                seen,
                {},
                baseline=row["us"] / us * 1e3,
                baseline_name=place[-1],
            ),
        )
        times = walked.setdefault((*place, made.swapped), {}) if "raster" in given else group.us
        times[candidate] = min(us, times.get(candidate, us))
    for key, group in groups.items():
        yield dataclasses.replace(group, us=walked.get(key, {}) | group.us, best=best[key[:-1]])


def labelled(label: str | None) -> Candidate | None:
    """The candidate in a plan's label: the planner's choice at that time."""
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
    # the label does not distinguish workspace from cluster, but a cluster has a maximum size
    return whole._replace(splits=count, depth=count, reduction="cluster") if count <= MAX_CLUSTER else None


def splits_changed(x: Candidate, device: Device) -> bool:
    """Whether a candidate's splits are not as before: clusters have places by GPC, or a changed launch adds."""
    known = device.gpcs.get(x.cluster[0] * x.cluster[1] * x.depth)
    return x.splits > x.depth and (known is not None or x.reduction == "launch")
