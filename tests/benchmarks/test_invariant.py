# SPDX-License-Identifier: Apache-2.0
"""What batch_invariant=True costs: the problems that are measured, and what the model says of them."""

import math

from benchmarks import invariant
from cutegemm import GemmSpec, problem
from cutegemm.planning.planner import plan
from cutegemm.planning.why import predicted_us


def test_problems_are_those_of_the_suites_under_names_of_their_own():
    """So that no row counts as one of the suite itself."""
    found = invariant.cases(["decode", "prefill"])
    assert len(found) == 35 + 42 and {x.suite for x in found} == {"invariant_decode", "invariant_prefill"}


def test_prefill_costs_nothing_and_decode_little():
    """By the model: at prefill both have the same tiles; at decode times rise by less than 5 % in the mean."""
    ratios = {"invariant_decode": [], "invariant_prefill": []}
    for case in invariant.cases(["decode", "prefill"]):
        of = problem(case.m, case.n, case.k, majors=case.majors)
        free, fixed = plan(GemmSpec(), of), plan(GemmSpec(batch_invariant=True), of)
        same = free.steps == fixed.steps
        ratios[case.suite].append(1.0 if same else predicted_us(fixed) / predicted_us(free))
    assert set(ratios["invariant_prefill"]) == {1.0}
    mean = math.exp(sum(map(math.log, ratios["invariant_decode"])) / 35)
    assert 1.0 <= mean < 1.05 and max(ratios["invariant_decode"]) < 1.25
