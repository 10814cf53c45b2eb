# SPDX-License-Identifier: Apache-2.0
"""The fit of the cost model: it finds rates that made up the times, and the committed record chooses well."""

from __future__ import annotations

import dataclasses
import json
import statistics

import numpy as np
import pytest

from benchmarks import fit_cost
from benchmarks.fresh_draws import TRAINING_SEEDS, for_training
from cutegemm.arch.records import H200
from cutegemm.planning.cost import nanoseconds

# of what is predicted fastest over the best measured, geometric means: of all problems, and of those held back
REGRET, HELD = 1.025, 1.025


@pytest.fixture(scope="module")
def found():
    """The swept problems."""
    return [x for name in fit_cost.FRESH[H200.name] for x in fit_cost.fresh(fit_cost.SWEEPS / name, H200)]


def test_only_training_problems_are_fitted_to(found):
    """Reported runs never draw them."""
    assert TRAINING_SEEDS > 1 and len(found) > 300
    few = [
        x for name in fit_cost.ONLY_FACTORS[H200.name] for x in fit_cost.fresh(fit_cost.SWEEPS / name, H200)
    ]
    assert len(few) > 80 and all(for_training(x.problem.n, x.problem.k) for x in [*found, *few])


def _only_factors(sweep, scales):
    """The held-back problems of some sweeps to which only factors of kernels are fitted."""
    names = [x for x in fit_cost.ONLY_FACTORS[H200.name] if sweep in x]
    found = [x for name in names for x in fit_cost.fresh(fit_cost.SWEEPS / name, H200)]
    return [x for x in found if x.held_back and x.scales == scales]


def test_few_k_tiles_in_8_bits_choose_well():
    """Block scales, most of whose factors are of such problems: within 2 % of the best of held-back ones."""
    held = _only_factors("shallow", "block")
    assert len(held) > 6
    regret = statistics.geometric_mean(fit_cost.Data(held, H200).regret(H200.cost, H200.kernels))
    assert regret <= 1.02 < statistics.geometric_mean(fit_cost.Data(held, H200).regret(H200.cost, {}))


@pytest.mark.parametrize("scales", ["block", "blocks"])
def test_rows_that_nearly_fill_a_wgmma_choose_well(scales):
    """40 to 64 of them: within 3 % of the best of held-back problems."""
    held = _only_factors("full", scales)
    assert len(held) > 6
    assert statistics.geometric_mean(fit_cost.Data(held, H200).regret(H200.cost, H200.kernels)) <= 1.03


def test_kernels_that_took_tiles_from_a_counter_are_fitted_to(tmp_path):
    """Those of older tables had lists of tiles, and the planner would now choose a counter: they are left out."""
    rows = [[0, 128, 128, 64, across, 1, "pingpong", 2, 1, 1, "none", 900.0, 1, {}] for across in (1, 2, 4)]
    case = {"suite": "square", "majors": "kk", "batch": 1, "m": 8192, "n": 8192, "k": 8192, "rows": rows}
    path, clusters = tmp_path / "table.json", []
    for more in ({}, {"counter": True}, {"kind": "block", "dtype": "fp8_e4m3"}):
        path.write_text(json.dumps({"cases": [case | more]}))
        (found,) = fit_cost.fresh(path, H200)
        clusters.append([x.cluster for _, x in found.configs])
    assert clusters == [[(2, 1), (4, 1)], *2 * [[(1, 1), (2, 1), (4, 1)]]]


def test_older_sweeps_read_the_same_whatever_the_record():
    """A fit to them gives the same rates twice: what their specs leave open is not planned by rates of the record."""
    paths = [fit_cost.SWEEPS / "deep_k.json"]
    other = dataclasses.replace(H200, cost=dataclasses.replace(H200.cost, mma=2.0, dram=0.3), kernels={})
    assert fit_cost.older(paths, H200, fit_cost.START) == fit_cost.older(paths, other, fit_cost.START)


def test_the_record_chooses_well_among_what_was_measured(found):
    """Within 2.5 % of the best in the mean, of problems that the fit did not see, too."""
    held = [x for x in found if x.held_back]
    assert len(held) > 120
    for some, most in ((found, REGRET), (held, HELD)):
        assert statistics.geometric_mean(fit_cost.Data(some, H200).regret(H200.cost, H200.kernels)) <= most


def test_a_fit_finds_the_rates_that_made_the_times(found):
    """Times of a model with other rates are predicted within 1 % after a fit that began elsewhere."""
    truth = dataclasses.replace(H200.cost, mma=0.6, launch=1200.0, tile=300.0)
    some = found[::8]
    data = fit_cost.Data(some, H200)
    data.us = nanoseconds(data.counts, truth) / 1e3
    made = fit_cost.fit(data, H200.cost, steps=10)
    errors = abs(nanoseconds(data.counts, made) / 1e3 / data.us - 1)
    before = abs(nanoseconds(data.counts, H200.cost) / 1e3 / data.us - 1)
    assert statistics.median(errors) < 0.01 < statistics.median(before)


def test_factors_lower_what_held_back_problems_lose(found):
    """Kernels' own factors choose better, on problems that they are not fitted to, than rates alone."""
    data = fit_cost.Data([x for x in found if x.held_back], H200)
    alone, together = (statistics.geometric_mean(data.regret(H200.cost, x)) for x in ({}, H200.kernels))
    assert together < alone - 0.002


def test_a_kernel_that_is_slower_everywhere_is_found(found):
    """Times of one kernel grow by a tenth: its factor does by most of it, others' by little."""
    data = fit_cost.Data(found[::4], H200)
    names, often = np.unique(data.kernels, return_counts=True)
    slow = names[often.argmax()]
    data.us = nanoseconds(data.counts, H200.cost) / 1e3 * np.where(data.kernels == slow, 1.1, 1.0)
    made = data.factors(H200.cost, {})
    assert 1.03 < made.pop(slow) < 1.1
    assert statistics.median(abs(x - 1) for x in made.values()) < 0.02
    # from factors that are known already little changes
    known = {**made, slow: 1.1}
    assert all(abs(factor - known.get(x, 1.0)) < 0.03 for x, factor in data.factors(H200.cost, known).items())


def test_what_is_written_can_be_read(tmp_path):
    """Rates with four digits beside what the record had."""
    path, kernels = tmp_path / "times.json", tmp_path / "kernels.json"
    path.write_text(json.dumps({"GPU": {"cores": {"slot": 1}}}))
    kernels.write_text("{}")
    fit_cost.write("GPU", fit_cost.START, {"one": 1.05}, "a sweep", path, kernels)
    assert json.loads(kernels.read_text()) == {"GPU": {"source": "a sweep", "kernels": {"one": 1.05}}}
    data = json.loads(path.read_text())["GPU"]
    assert data["cores"] == {"slot": 1} and data["cost_source"] == "a sweep"
    assert data["cost"] == dataclasses.asdict(fit_cost.START)
