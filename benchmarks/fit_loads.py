# SPDX-License-Identifier: Apache-2.0
"""Measured ways to load operands that TMA cannot address, and how well the model ranks them.

What the model knows of a way is what it costs beside TMA. The kernel without it takes what is left of the copy's time,
or of the ways' in the middle where a copy was not timed, so that predicted is that and what the way costs.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tuned_rows
from cutegemm import Problem, problem
from cutegemm.arch.device import Device
from cutegemm.planning.model import loads_ns

# constants of these ways; of `copy` there are no measurements
NAMES = ("relayout", "gather", "shift")
# what of a device holds them, and what is measured
PART, WHAT = "time", "loads"
FIELDS = {"a_load", "b_load"}
# a way (A's load, B's load) that copies both
COPIED = ("relayout", "relayout")


@dataclass(frozen=True)
class Loaded:
    """A kernel whose operands are both loaded in several ways: microseconds by (A's load, B's load)."""

    gpu: str
    suite: str
    problem: Problem
    us: dict[tuple[str, str], float]


def read(paths: Sequence[Path]) -> list[Loaded]:
    """What sweeps' rows give that name both loads: the ways of each problem and of what else is given."""
    found: dict[tuple[str, Problem, str], Loaded] = {}
    for path in paths:
        # of loads a tuning database has too few beside each other
        data = {} if path.suffix == tuned_rows.SUFFIX else json.loads(path.read_text())
        for row in data.get("rows") or []:
            spec = row.get("spec")
            if not isinstance(spec, dict) or not set(spec) >= FIELDS or not row.get("ratio"):
                continue
            rest = json.dumps({name: v for name, v in spec.items() if name not in FIELDS}, sort_keys=True)
            of = problem(
                row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"]
            )
            # what TMA could address is copied in every row, and costs each the same
            if any(
                spec[f"{name}_load"] != "relayout" and getattr(of, name).tma_reason() is None for name in "ab"
            ):
                continue
            gpu = data["environment"]["gpu"]
            group = found.setdefault((gpu, of, rest), Loaded(gpu, row["suite"], of, {}))
            group.us[spec["a_load"], spec["b_load"]] = row["baseline_us"] / row["ratio"]
    return [x for x in found.values() if len(x.us) > 1]


def predicted(of: Loaded, device: Device) -> dict[tuple[str, str], float]:
    """Microseconds of each way, if the kernel beside the loads takes what it took beside copies."""
    odd = [name for name in "ab" if getattr(of.problem, name).tma_reason() is not None]

    def beside(way: tuple[str, str]) -> float:
        chosen = {name: load for name, load in zip("ab", way, strict=True) if name in odd}
        return loads_ns(of.problem, chosen, dict.fromkeys(odd, 0), device) / 1e3

    left = {way: us - beside(way) for way, us in of.us.items()}
    kernel = max(left.get(COPIED, statistics.median(left.values())), 0.0)
    return {way: kernel + beside(way) for way in of.us}


def fared(times: Mapping[Any, float], us: Mapping[Any, float], blur: float) -> tuple[float, float, float]:
    """Regret, regret to be expected and mean error of times beside measured ones, as logarithms (`fit.Score`)."""
    measured = np.array([us[x] for x in times])
    logs = np.log(list(times.values()))
    drawn = np.exp((logs.min() - logs) / blur)
    expected = float(drawn @ measured / drawn.sum())
    first = measured[int(logs.argmin())]
    error = float(np.abs(np.log(measured) - logs).mean())
    return math.log(first / measured.min()), math.log(expected / measured.min()), error


def score(of: Loaded, device: Device, blur: float) -> tuple[float, float, float]:
    """How the device's model ranks the ways of one problem (`fared`)."""
    return fared(predicted(of, device), of.us, blur)
