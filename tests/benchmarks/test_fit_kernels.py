# SPDX-License-Identifier: Apache-2.0
"""Factors of new kinds of kernels are added to a record, whose other factors stay."""

from __future__ import annotations

import dataclasses
import json

from benchmarks import fit_cost, fit_kernels
from cutegemm.arch.records import H200


def test_new_kernels_have_many_stages_or_tiles_in_turn():
    """By their names alone."""
    how = "cooperative 1 none"
    assert fit_kernels.is_new(f"deep 64x64x64 1x1 {how}")
    assert fit_kernels.is_new(f"plain 64x56x64 4x1 {how}") and fit_kernels.is_new(
        f"plain 64x56x64 1x16 {how}"
    )
    assert not fit_kernels.is_new(f"plain 64x64x64 4x2 {how}")
    assert not fit_kernels.is_new(f"scaled 128x128x128 2x1 {how}")
    for kind, expected in (("plain", True), ("promoted", False), ("scaled", False)):
        assert fit_kernels.is_new(f"{kind} 128x128x64 1x1 cooperative 2 launch") is expected


def test_rates_of_the_record_are_those_of_the_sweeps():
    """Fitted again they are the same, whatever they were before; other rates stay."""
    found = [x for name in fit_cost.FRESH[H200.name] for x in fit_cost.fresh(fit_cost.SWEEPS / name, H200)]
    changed = dataclasses.replace(H200.cost, add=1.0, full=1.0, within=9.0)
    assert fit_kernels.rated(found, dataclasses.replace(H200, cost=changed)).cost == H200.cost
    alone = [x for x in found if all(c.reduction != "launch" for _, c in x.configs)]
    kept = fit_kernels.rated(alone, H200).cost
    assert alone and all(getattr(kept, x) == getattr(H200.cost, x) for x in fit_kernels.RATES)


def test_splits_of_before_are_left_out():
    """They had no places by GPC; a problem whose fastest config was one of them is left out too."""
    (new, old) = (fit_cost.fresh(fit_cost.SWEEPS / f"fresh_{i}_h200.json", H200) for i in (16, 13))
    assert any(c.reduction == "launch" for x in new for _, c in x.configs)
    assert not any(c.reduction == "launch" for x in old for _, c in x.configs)
    anywhere = dataclasses.replace(H200, gpcs={})
    assert not any(
        c.reduction == "launch"
        for x in fit_cost.fresh(fit_cost.SWEEPS / "fresh_13_h200.json", anywhere)
        for _, c in x.configs
    )
    cases = json.loads((fit_cost.SWEEPS / "fresh_13_h200.json").read_text())["cases"]
    fastest = [min(x["rows"], key=lambda row: row[11]) for x in cases]
    assert len(old) == sum(row[10] != "launch" for row in fastest)


def test_only_new_kernels_get_factors():
    """The record's own are those that the shipped sweeps give, and no other kernel's is among them."""
    found = [x for name in fit_cost.FRESH[H200.name] for x in fit_cost.fresh(fit_cost.SWEEPS / name, H200)]
    factors = fit_kernels.added(found, H200)
    assert len(factors) > 100 and all(map(fit_kernels.is_new, factors))
    assert factors == {name: x for name, x in H200.kernels.items() if fit_kernels.is_new(name)}


def test_each_half_is_judged_without_its_own_times(monkeypatch):
    """Whatever one half's new kernels take, its regret is that under the other half's factors."""
    found = [x for x in fit_cost.fresh(fit_cost.SWEEPS / "fresh_16_h200.json", H200) if x.family == "deep_k"]
    asked = []
    monkeypatch.setattr(
        fit_kernels, "regret", lambda judged, by, device: asked.append((judged, by)) or judged
    )
    assert fit_kernels.judged_by_halves(found, H200) == found
    assert asked and all({x.held_back for x in of} != {x.held_back for x in by} for of, by in asked)


def test_a_record_keeps_its_other_factors(tmp_path):
    """Written twice it says the same."""
    path, old = tmp_path / "kernels.json", "plain 64x64x64 1x1 cooperative 1 none"
    new = "deep" + old.removeprefix("plain")
    path.write_text(json.dumps({"a gpu": {"source": "fitted", "kernels": {old: 1.1, new: 2.0}}}))
    for _ in range(2):
        fit_kernels.written("a gpu", {new: 0.9}, "some.json", path)
        (made,) = json.loads(path.read_text()).values()
        assert made["kernels"] == {old: 1.1, new: 0.9}
        assert made["source"] == "fitted; new kernels by benchmarks.fit_kernels from some.json"
