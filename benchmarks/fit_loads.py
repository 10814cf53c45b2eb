# SPDX-License-Identifier: Apache-2.0
"""Measured kernels with operands that TMA or WGMMA cannot take as they lie, and how well the cost model ranks loads.

Input are sweeps of specs and sweeps of random training problems, on all GPUs whose records have the same constants of
loads. The rates of tensor-core kernels stay fixed. Configs with copies or with loads by cp.async count if these were
of today's version, which only tables of `benchmarks.sweep_table` tell.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks import candidates as specs
from benchmarks import sweep_draws, tuned_rows
from cutegemm import GemmSpec, Problem, problem
from cutegemm.arch.device import Device, LoadModel
from cutegemm.arch.records import DEFAULT, RECORDS
from cutegemm.errors import GemmError
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.ranking import predicted
from cutegemm.planning.ways import ways_of
from cutegemm.planning.why import option_of
from cutegemm.request.requirements import requested

# the constants, the part of a device that holds them, what is measured, and the files
NAMES = tuple(x.name for x in dataclasses.fields(LoadModel))
PART, WHAT = "loads", "loads"
FILES = "*_h?00.json"
# spec fields that determine a config
CHOSEN = {"tile", "cluster", "schedule", "consumers", "split_k", "split_reduction", "swap", "raster",
          "a_load", "b_load"}  # fmt: skip
# versions that tables tell, of loads that have changed
CHANGED = {"relayout": "copies", "cp_async": "async"}
# (load of A, load of B), whether operands are swapped, the candidate of the kernel's GEMM
Config = tuple[tuple[str, str], bool, Candidate]
# what kernels are told apart by: a config or a tile
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Timed(Generic[Kind]):
    """Microseconds of one problem's kernels, timed in one run or relative to one baseline."""

    gpu: str
    suite: str
    problem: Problem
    us: dict[Kind, float]


Loaded = Timed[Config]


def read(paths: Sequence[Path]) -> list[Loaded]:
    """The problems with such an operand and several configs."""
    found: dict[tuple[str, str, Problem], Loaded] = {}
    for path in paths:
        # a tuning database does not record loads
        data = {} if path.suffix == tuned_rows.SUFFIX else json.loads(path.read_text())
        for gpu, suite, of, config, us in _drawn(data) if "cases" in data else _swept(data):
            group = found.setdefault((gpu, path.name, of), Loaded(gpu, suite, of, {}))
            group.us[config] = min(us, group.us.get(config, us))
    return [x for x in found.values() if len(x.us) > 1]


def _unaligned(of: Problem) -> bool:
    return of.a.tma_reason() is not None or of.b.tma_reason() is not None


def _swept(data: dict[str, Any]) -> Iterator[tuple[str, str, Problem, Config, float]]:
    """The configs planned for the specs of a sweep's rows."""
    for row in data.get("rows") or []:
        given = row.get("spec")
        if not isinstance(given, dict) or not row.get("ratio") or not given or not set(given) <= CHOSEN:
            continue
        of = tuned_rows.problem_of(row)
        if not _unaligned(of):
            continue
        try:
            made = plan(specs.spec(given), of, DEFAULT)
        except GemmError:
            continue
        _, way, candidate = option_of(made)
        loads = way.loads
        if not CHANGED.keys().isdisjoint(loads):
            continue
        config = (loads[::-1] if way.swapped else loads), way.swapped, candidate
        yield data["environment"]["gpu"], row["suite"], of, config, row["baseline_us"] / row["ratio"]


def _drawn(data: dict[str, Any]) -> Iterator[tuple[str, str, Problem, Config, float]]:
    """The configs of random problems (`fit_cost.fresh`) that are not held back."""
    for case in data["cases"]:
        if case.get("held_back"):
            continue
        extents = (case[x] for x in "mnk")
        dtype = case.get("dtype", "bf16")
        of = problem(*extents, batch=case["batch"], majors=case["majors"], dtype=dtype)
        for row in case["rows"]:
            us, _, extra = row[len(sweep_draws.COLUMNS) :]
            loads = tuple(
                extra.get(f"{name}_load", "tma" if getattr(of, name).tma_reason() is None else None)
                for name in "ab"
            )
            given = None not in loads and any(x != "tma" for x in loads)
            told = [CHANGED[x] for x in loads if x in CHANGED]
            given &= all(case.get(x) == sweep_draws.VERSIONS[x] for x in told)
            if given and extra.keys() <= {"chosen", "a_load", "b_load"}:
                yield data["gpu"], case["suite"], of, (loads, *sweep_draws.read_config(row)), us


def predicted_us(of: Loaded, device: Device) -> dict[Config, float]:
    """Predicted microseconds of each config."""
    found: dict[Config, float] = {}
    for loads, swapped in dict.fromkeys(x[:2] for x in of.us):
        spec = GemmSpec(a_load=loads[0], b_load=loads[1], swap=swapped)
        (way,) = ways_of(requested(spec, of.problem, device)[0])
        some = [x for x in of.us if x[:2] == (loads, swapped)]
        found |= zip(some, predicted(way, [x[2] for x in some]), strict=True)
    return {x: found[x] / 1e3 for x in of.us}


def fared(times: Mapping[Any, float], us: Mapping[Any, float], blur: float) -> tuple[float, float, float]:
    """Regret, expected regret and mean error of predicted times, as logarithms."""
    measured = np.array([us[x] for x in times])
    logs = np.log(list(times.values()))
    drawn = np.exp((logs.min() - logs) / blur)
    expected = float(drawn @ measured / drawn.sum())
    first = measured[int(logs.argmin())]
    error = float(np.abs(np.log(measured) - logs).mean())
    return math.log(first / measured.min()), math.log(expected / measured.min()), error


def score(of: Loaded, device: Device, blur: float) -> tuple[float, float, float]:
    """How well the device's constants rank the configs of a problem on its own GPU (`fared`)."""
    measured = next((x for x in RECORDS if x.name == of.gpu), device)
    return fared(predicted_us(of, dataclasses.replace(measured, loads=device.loads)), of.us, blur)
