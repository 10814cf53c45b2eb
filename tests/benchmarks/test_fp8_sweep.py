# SPDX-License-Identifier: Apache-2.0
"""Sweeps of fp8 products: what is drawn, timed and written, without a GPU."""

import dataclasses
import json

import pytest

from benchmarks import fit_cost, fresh_draws
from benchmarks.probes import fp8_sweep
from benchmarks.probes.beside import Case
from cutegemm import problem
from cutegemm.arch.records import H200
from cutegemm.planning.candidates import Candidate
from tests.support.fake_gpu import FakeGpu

CASE = Case(suite="square", kind="tensor", of="square", dtype="fp8_e4m3", majors="kk", m=32, n=32, k=64)
CONFIG = [0, 64, 32, 128, 1, 1, "cooperative", 1, 1, 1, "none"]
GIVEN = {"fields": {}, "loads": {}, "config": CONFIG}


def test_problems_are_training_problems_that_tma_loads(monkeypatch):
    """Families of all kinds alternate, and configs have the columns that a fit reads; half is held back."""
    problems = fp8_sweep.cases(16)
    assert {x.kind for x in problems[:8]} == set(fp8_sweep.COUNTS)
    assert all(x.k % 16 == 0 and x.n % 16 == 0 for x in problems)
    known = {(x.n, x.k) for family in ("square", "prefill") for x in fresh_draws.draw(family, 16, 30)}
    assert any((x.n, x.k) in known for x in problems)
    assert {x.kind for x in fp8_sweep.cases(16, kinds=["blocks"])} == {"blocks"}
    assert all(x.m <= 256 for x in fp8_sweep.cases(85, "few"))
    assert {40 <= x.m <= 64 for x in fp8_sweep.cases(87, "full")} == {True}
    with pytest.raises(ValueError, match="no such problems with scales of block"):
        fp8_sweep.drawn(19, 6, "whole", ["block"])
    shallow = fp8_sweep.cases(17, "shallow")
    expected = fp8_sweep.DRAWN["shallow"]
    assert {x.k for x in shallow} <= set(expected.depths)
    assert {x.kind for x in shallow} == set(expected.counts)
    assert all(fresh_draws.for_training(x.n, x.k) and x.n % 16 == 0 for x in shallow)
    monkeypatch.setattr(fp8_sweep, "cases", lambda seed, which, kinds: [CASE, CASE])
    found = fp8_sweep.drawn(16, 6)
    assert [x["held_back"] for x in found["jobs"]] == [False, True]
    assert 0 < len(json.loads(json.dumps(found))["kernels"]) <= 6
    assert all(len(x["config"]) == len(CONFIG) for x in found["jobs"][0]["configs"])


def test_a_table_of_measured_problems_can_be_fitted(tmp_path, monkeypatch):
    """Wrong configs are left out, torch is the baseline, and the fit reads kind, types and times."""
    monkeypatch.setattr(fp8_sweep.beside.inputs, "ROTATION_BYTES", 1)
    sampler = fp8_sweep.timing.sampler
    costing = lambda x, sets, gpu, sample: sampler(gpu.costing(x, 1.0), sets, gpu, sample)
    monkeypatch.setattr(fp8_sweep.timing, "sampler", costing)
    job = dataclasses.asdict(CASE) | {
        "seed": 16,
        "held_back": True,
        "promote": 256,
        "configs": [GIVEN, GIVEN],
    }
    line = fp8_sweep.measure(0, job, FakeGpu(), "cpu")
    assert not line["bad"] and set(line["first"]) == set(line["last"]) == {"torch", "0", "1"}
    head = {"environment": {"gpu": "NVIDIA H200", "commit": "", "date": ""}}
    table = fp8_sweep.table([job], [head, line])
    path = tmp_path / "table.json"
    path.write_text(fp8_sweep.sweep_table.text(table))
    (read,) = fit_cost.fresh(path, H200)
    assert (read.scales, read.held_back, read.problem.a.dtype.name) == ("tensor", True, "FP8_E4M3")
    assert len(read.configs) == 2 and read.chosen == read.us[-1]
    monkeypatch.setattr(fp8_sweep.beside, "WRONG", 0.0)
    line = fp8_sweep.measure(0, job, FakeGpu(), "cpu")
    assert set(line["bad"]) == {"torch", "0", "1"} and "first" not in line


@pytest.mark.parametrize("scales", ["tensor", "whole", "block", "blocks"])
def test_kinds_of_scales_are_kinds_of_kernels(scales):
    """A fit counts as the planner does: promotion where scales are the epilogue's, scales of blocks and of columns."""
    one = Candidate((64, 32, 128), (1, 1), "cooperative", 1, 1, 1, "none")
    of, configs = problem(512, 512, 512, dtype="fp8_e4m3"), [(False, one), (True, one)]
    promote = 256 if scales == "tensor" else 0
    measured = fit_cost.Measured("square", of, configs, [1.0, 2.0], scales=scales, promote=promote)
    counts = fit_cost._counted(measured, H200)
    kinds = [fit_cost.known_kernels.KINDS[int(x)] for x in fit_cost.known_kernels.kinds(counts)]
    assert kinds == {
        "tensor": ["promoted", "promoted"], "block": ["scaled", "scaled_columns"],
        "blocks": ["scaled_columns", "scaled_columns"], "whole": ["whole", "whole"],
    }[scales]  # fmt: skip
