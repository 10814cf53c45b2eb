# SPDX-License-Identifier: Apache-2.0
"""The probe of constant weights: what its contenders are, and the committed table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from benchmarks import contenders, fresh_bench, fresh_draws
from benchmarks.probes import declared
from cutegemm.arch.records import H200
from cutegemm.config import KernelConfig
from cutegemm.planning.planner import plan

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "before_after" / "declared.json"


def plans(case, name):
    """Both layers' plans of a contender."""
    layers = fresh_bench.chain_of(case).layers
    specs = declared.of_chain(case, H200)[name]
    problems = (contenders.problem(replace(case, n=n, k=k)) for n, k in layers)
    return [plan(spec, of, H200) for spec, of in zip(specs, problems, strict=True)]


def test_contenders_differ_in_what_their_names_say():
    """`same` has the undeclared tiles with constant weights; the deep ones have as many stages or more."""
    case = next(x for x in fresh_draws.draw("chain", declared.SEEDS[0], declared.COUNT) if x.m > 4)
    own, deep, undeclared, same = (
        plans(case, x) for x in ("declared", "declared_deep", "undeclared", "same")
    )
    for x, y, z, w in zip(own, deep, undeclared, same, strict=True):
        assert x.config.tile == y.config.tile and x.config.stages <= y.config.stages
        assert isinstance(z.config, KernelConfig) and z.config.tile == w.config.tile
        assert not z.config.early and (w.config.early or w.config.family == "multistage")


def test_the_committed_table_has_the_drawn_chains():
    """Chains of the probe's seeds, each with the baseline and correct contenders."""
    drawn = [x for seed in declared.SEEDS for x in fresh_draws.draw("chain", seed, declared.COUNT)]
    rows = json.loads(TABLE.read_text())["rows"]
    assert [(x["m"], x["n"], x["k"]) for x in rows] == [(x.m, x.n, x.k) for x in drawn]
    assert all({"cublas", "declared", "undeclared"} <= x["us"].keys() and not x["bad"] for x in rows)
