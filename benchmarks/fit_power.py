# SPDX-License-Identifier: Apache-2.0
"""Energies of a GPU at its power cap, from results whose power was read while they ran.

Time times power is a kernel's energy. Regressed on its FLOP, the bytes that L2 delivers and those of device memory it
gives the energy of each, none below zero (non-negative least squares of relative errors, constants that would be
negative left out one by one).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sweep_rows import labelled, load
from cutegemm import Problem, problem
from cutegemm.arch.device import Device, PowerModel
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.power import work
from cutegemm.planning.times import Table

# rows that a regression of three constants wants
LEAST_ROWS = 30
# share of the limit from which on a chip is at its cap
AT_CAP = 0.9


@dataclass(frozen=True)
class Burnt:
    """One kernel at the cap: its problem and candidate, nanojoules a call, and the limit in watts."""

    problem: Problem
    candidate: Candidate
    nj: float
    limit: float


def read(paths: Sequence[Path], gpu: str) -> list[Burnt]:
    """Rows of our kernels with tensor cores on a GPU at its cap; swapped ones and copies of operands left out."""
    found = []
    for path in paths:
        data = load(path, gpu)
        environment = data.get("environment", {})
        limit = environment.get("power_limit_watts")
        for row in data.get("rows") or [] if environment.get("gpu") == gpu and limit else []:
            candidate = labelled(row.get("plan"))
            plain = row.get("epilogue") == "none" and "relayout" not in (row.get("plan") or "")
            if candidate is None or not plain or row["m"] <= 64 or (row.get("watts") or 0) < AT_CAP * limit:
                continue
            of = problem(
                row["m"], row["n"], row["k"], batch=row["batch"], dtype=row["dtype"], majors=row["majors"]
            )
            found.append(Burnt(of, candidate, row["watts"] * row["us"] * 1e3, limit))
    return found


def fitted(rows: Sequence[Burnt], device: Device) -> PowerModel | None:
    """The energies that explain what rows burnt; None where there are too few."""
    if len(rows) < LEAST_ROWS:
        return None
    columns = []
    for x in rows:
        flops, l2, dram = work(x.problem, Table.of(x.problem, device, [x.candidate]))
        columns.append((flops[0] / x.nj, l2[0] / x.nj, dram / x.nj))
    flop, l2, dram = (float(v) * 1e3 for v in _least(np.array(columns)))
    return PowerModel(watts=statistics.median(x.limit for x in rows), flop=flop, l2=l2, dram=dram)


def _least(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-negative factors that bring the columns' sums nearest to one."""
    kept = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while kept:
        factors = np.linalg.lstsq(columns[:, kept], np.ones(len(columns)), rcond=None)[0]
        if (factors >= 0).all():
            found[kept] = factors
            break
        kept.pop(int(np.argmin(factors * columns[:, kept].mean(axis=0))))
    return found
