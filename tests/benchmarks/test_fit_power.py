# SPDX-License-Identifier: Apache-2.0
"""Energies at the power cap: regressed from what was read, and what they do to the order of candidates."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import contenders, fit_power
from benchmarks.results import Case
from cutegemm import GemmSpec, Tile
from cutegemm.arch.device import PowerModel
from cutegemm.arch.records import H200
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.power import energies
from cutegemm.planning.times import Table, fastest_first

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TRUTH = PowerModel(watts=700.0, flop=0.6, l2=20.0, dram=90.0)
CASES = [
    Case(suite="square", dtype="bf16", majors="kk", m=m, n=n, k=k)
    for m in (512, 2048, 8192)
    for n in (1024, 4096)
    for k in (256, 1024, 8192)
]


def rows(power):
    """What kernels of two tiles would burn."""
    found = []
    for case in CASES:
        of = contenders.problem(case)
        for tile in (Tile(128, 256), Tile(128, 128)):
            made = plan(GemmSpec(tile=tile, cluster=(2, 1), swap=False), of)
            candidate = Candidate(tuple(tile), (2, 1), "cooperative", 2)
            nj = float(energies(of, power, Table.of(of, H200, [candidate]))[0])
            us = nj / 1e3 / power.watts
            found.append(vars(case) | {"plan": contenders.plan_label(made), "us": us, "watts": power.watts})
    return found


def test_known_energies_are_found_again(tmp_path):
    """Rows at the cap give the energies that they were made with; rows below it, and of another GPU, do not count."""
    path = tmp_path / "r.json"
    cold = [x | {"watts": 300.0} for x in rows(TRUTH)]
    environment = {"gpu": "NVIDIA H200", "power_limit_watts": 700.0}
    path.write_text(json.dumps({"environment": environment, "rows": rows(TRUTH) + cold}))
    read = fit_power.read([path], "NVIDIA H200")
    assert len(read) == 36 and fit_power.read([path], "NVIDIA H100 80GB HBM3") == []
    found = fit_power.fitted(read, H200)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(TRUTH), rel=1e-6)
    assert fit_power.fitted(read[:20], H200) is None


def test_no_energy_is_negative():
    """Of the committed rows every kind of work takes some; a constant that would be below zero is left out."""
    found = fit_power.fitted(fit_power.read(sorted(RESULTS.glob("*.json")), H200.name), H200)
    assert found.watts == 700.0 and 0.4 < found.flop < 1.2 and found.l2 >= 0 and found.dram >= 0
    assert fit_power._least(fit_power.np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]]))[1] == 0.0


def test_under_a_cap_fewer_bytes_win():
    """Where the cap bites the candidate that moves fewer bytes is first; where it is far away nothing changes."""
    of = contenders.problem(Case(suite="square", dtype="bf16", majors="kk", m=8192, n=8192, k=8192))
    both = [
        Candidate((128, 128, 64), (2, 1), "pingpong", 2),
        Candidate((128, 256, 64), (2, 1), "cooperative", 2),
    ]
    free = fastest_first(of, H200, both)
    far = dataclasses.replace(H200, power=dataclasses.replace(TRUTH, watts=1e5))
    assert fastest_first(of, far, both)[1] == pytest.approx(free[1])
    near = dataclasses.replace(H200, power=dataclasses.replace(TRUTH, watts=350.0))
    order, times = fastest_first(of, near, both)
    assert order[0] == 1 and times[0] / times[1] > 1.05 * free[1][0] / free[1][1]
