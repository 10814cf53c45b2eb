# SPDX-License-Identifier: Apache-2.0
"""Groups beside torch's: every kind of work on the CPU, what is compiled ahead, and what the figures are held to."""

import pytest
import torch
from rich.console import Console

from benchmarks import models, results, timing
from benchmarks.probes import grouped, grouped_cases, grouped_mixtures
from benchmarks.probes.grouped_cases import OURS, TORCH, Case
from benchmarks.results import Results
from benchmarks.timing import Contender
from cutegemm.arch.records import H200
from cutegemm.compiling import kernel_cache
from cutegemm.config import RowSumConfig
from tests.support.fake_gpu import ENVIRONMENT

QUICK = timing.Regime(name="probe", preheat=0.0, rest=0.0, sample=1e-4, rounds=2)
SMALL = {"mixtral-up": (6, 2, 48, 128), "mixtral-down": (6, 2, 128, 32)}
TIERS = [(kind, spread) for kind, spreads in grouped.TIERS for spread in spreads]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small layers and models, and few draws."""
    monkeypatch.setattr(grouped_cases, "ROTATION_BYTES", 1)
    for name, shape in SMALL.items():
        monkeypatch.setitem(grouped_cases.LAYERS, name, shape)
    monkeypatch.setitem(grouped_mixtures.MODELS, "mixtral", (64, 48, 5, 2))
    monkeypatch.setitem(grouped_mixtures.MODELS, "qwen3-30b", (64, 32, 6, 3))


def bench():
    """The bench on a CPU."""
    layers = grouped_mixtures.Layers(lambda x: x, "cpu", "reference")
    return grouped.Bench(None, QUICK, models.Host(), "cpu", layers)


@pytest.mark.parametrize(("kind", "spread"), TIERS)
def test_a_kind_of_work_is_checked_and_timed(kind, spread):
    """Every contender is right, has times, and a row of the schema under its key."""
    names = ["mixtral-down" if kind == "scatter" else "mixtral-up"]
    if kind in grouped_mixtures.KINDS:
        pytest.importorskip("transformers")
        names = list(grouped_mixtures.MODELS)
    for name in names:
        case = Case(kind, name, 40, spread)
        rows, failures = bench().measure(case)
        assert failures == []
        assert [results.key(x) for x in rows] == [results.key(x) for x in bench().keys(case)]
        assert all(tuple(x) == results.GROUPED_FIELDS and x["us"] > 0 for x in rows)
        assert all(x["ratio"] is not None for x in rows if kind != "host")


def test_what_is_wrong_is_not_timed(monkeypatch):
    """A contender that computes something else, or reads ends once only; the others are measured."""
    real = grouped_cases.contenders

    def spoilt(case, fallback="error"):
        first, *others = real(case, fallback)
        known = []

        def call(x):
            if case.kind == "replay":
                known.append(x.ends.clone())
                return first.call(grouped_cases.Draw(**vars(x) | {"ends": known[0]}))
            return first.call(x) * 1.1

        return [Contender(OURS, call), *others]

    monkeypatch.setattr(grouped_cases, "contenders", spoilt)
    for kind in ("forward", "replay"):
        rows, ((name, why),) = bench().measure(Case(kind, "mixtral-up", 40, "uniform"))
        assert name == OURS and "of the rows are within" in why
        assert [x["us"] is None for x in rows] == [True] + [False] * (len(rows) - 1)


def test_kernels_are_compiled_ahead(monkeypatch):
    """A machine without a GPU plans every case's own kernels, on tensors that hold nothing."""
    wanted = []
    monkeypatch.setattr(kernel_cache, "ensure", wanted.extend)
    cases = [Case(kind, "mixtral-up", 40, spread) for kind, spread in TIERS if not kind.startswith("moe")]
    cases += [Case(kind, "mixtral", 40, "uniform") for kind in grouped_mixtures.KINDS]
    count = grouped.compile_all(cases, H200, Console(quiet=True))
    assert count == len(wanted) == len(set(wanted)) >= 10
    assert any(isinstance(x, RowSumConfig) for x in wanted)
    eight = [x for x in wanted if any(y.dtype.bits == 8 for y in getattr(x, "operands", ()))]
    assert len(eight) == 2 and {getattr(x, "grouped", "") for x in wanted if x not in eight} == {
        "",
        "k",
        "m",
        "n",
    }


def test_draws_spread_as_they_say():
    """All tokens have as many experts as the layer says; half of them none; or one has all."""
    layer, tokens = "mixtral-up", 60
    b = grouped_cases.weights(layer, "cpu")
    for spread, most in (("uniform", 6), ("zipf", 6), ("half", 3), ("alone", 1)):
        for x in grouped_cases.sets_of(Case("forward", layer, tokens, spread), b):
            counts = torch.diff(x.ends, prepend=x.ends.new_zeros(1))
            each = 1 if spread == "alone" else 2
            assert counts.sum() == tokens * each and (counts > 0).sum() <= most
            assert torch.equal(x.rows[x.place], torch.arange(tokens).int()[:, None].expand(-1, each))
    assert counts[1] == tokens


def row(what, contender, us, **more):
    """A measured row."""
    kind, layer, tokens, spread = what.split()
    known = {"kind": kind, "layer": layer, "tokens": int(tokens), "spread": spread, "roof_us": 1.0}
    return (
        dict.fromkeys(results.GROUPED_FIELDS)
        | known
        | {"what": what, "contender": contender, "us": us}
        | more
    )


def test_figures_are_held_to_what_is_wanted():
    """Means and the least over all distributions; one expert alone is apart, and so is ours compiled."""
    rows = []
    for what, ours, theirs in (
        ("forward a 16 uniform", 2.0, 4.0), ("forward a 64 zipf", 2.0, 2.0), ("forward a 256 alone", 2.0, 9.0),
    ):  # fmt: skip
        rows += [row(what, OURS, ours), row(what, TORCH, theirs), row(what, "dense", 1.0)]
    rows += [row("moe m 1 uniform", x, us) for x, us in ((OURS, 2.0), ("cutegemm_compile", 1.0))]
    rows += [row("moe m 1 uniform", grouped_mixtures.THEIRS, 3.0), row("host a 16 uniform", OURS, 11.0)]
    lines = grouped.summary(rows)
    assert "forward, up to 64 tokens: 1.414, least 1.000 of 2 (wanted mean 1.5, least 1.2)" in lines
    assert "one expert alone, of our dense GEMM: 0.500, least 0.500 of 1 (wanted mean 0.95)" in lines
    assert "nn.MoE: 1.500, least 1.500 of 1 (wanted mean 1.25)" in lines
    assert "nn.MoE, compiled: 3.000, least 3.000 of 1 (wanted mean 1.25)" in lines
    assert "host time of cutegemm: 11.00 us (wanted 12)" in lines


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Rows are in the file after each case; the same command measures the others, and none twice."""
    path, measured = tmp_path / "grouped.json", []

    class Counted(grouped.Bench):
        def __init__(self, sensors):
            super().__init__(None, QUICK, models.Host(), "cpu")

        def measure(self, case):
            measured.append(str(case))
            return super().measure(case)

    monkeypatch.setattr(grouped, "Bench", Counted)
    monkeypatch.setattr(
        grouped.runs, "open_run", lambda args: (Console(quiet=True), None, Results(args.out, ENVIRONMENT))
    )
    words = [
        "--kinds",
        "weight,forward",
        "--layers",
        "mixtral-up",
        "--tokens",
        "16",
        "--out",
        str(path),
        "--commit",
        "c",
    ]
    assert grouped.main([*words, "--seconds", "1e-9"]) == 0 and measured == []
    assert grouped.main([*words, "--spreads", "uniform"]) == 0
    assert measured == ["forward mixtral-up 16 uniform", "weight mixtral-up 16 uniform"]
    assert grouped.main(words) == 0
    assert len(measured) == len(set(measured)) == 7
    assert len(results.load(path)["rows"]) == 3 * 4 + 2 * 3
