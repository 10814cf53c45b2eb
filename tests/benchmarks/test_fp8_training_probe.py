# SPDX-License-Identifier: Apache-2.0
"""The probe of training in fp8: a few steps of a narrow model on a CPU."""

import json

import pytest

from benchmarks.probes import fp8_training
from benchmarks.suite_tables import markdown

FEW = ["--steps", "25", "--width", "32", "--rows", "64", "--device", "cpu"]


def test_a_run_prints_its_table_and_writes_its_rows(tmp_path, capsys):
    """A row for every seed and contender; bf16 has no difference from itself, and fp8 a small one."""
    out = tmp_path / "losses.json"
    assert fp8_training.main([*FEW, "--seeds", "0,7", "--out", str(out), "--commit", "abc"]) == 0
    document = json.loads(out.read_text())
    assert document["environment"]["commit"] == "abc" and document["environment"]["device"] == "cpu"
    rows = document["rows"]
    assert [(x["seed"], x["contender"]) for x in rows] == [
        (seed, name) for seed in (0, 7) for name in ("bf16", "row", "block")
    ]
    for plain, *others in (rows[:3], rows[3:]):
        assert plain["difference"] == 0 and plain["last"] < plain["first"]
        for x in others:
            assert x["difference"] == pytest.approx(x["last"] / plain["last"] - 1)
            assert 0 < abs(x["difference"]) < 0.02
            # the same model and inputs: before the first step only the GEMMs differ
            assert x["first"] == pytest.approx(plain["first"], rel=0.02)
    printed = capsys.readouterr().out.splitlines()
    table = markdown(*fp8_training.lines(rows))
    assert printed == [*table, "", *fp8_training.summary(rows)] and len(table) == 2 + 6


def test_a_mean_of_the_last_steps():
    """A row compares the last 20 losses, not all of them."""
    row = next(iter(fp8_training.measured([0], 25, 32, 64, "cpu")))
    found = fp8_training.losses(fp8_training.linear_of("bf16"), 0, 25, 32, 64, "cpu")
    assert row["last"] == pytest.approx(sum(found[5:]) / 20) and row["final"] == found[-1]
    assert sum(row["means"][:1]) == pytest.approx(sum(found[:2]) / 2)


@pytest.mark.parametrize("words", ["--seeds 0,x", "--seeds ,", "--steps 0", "--out x"])
def test_a_wrong_command_line_is_refused(words, capsys):
    """Before anything is computed."""
    with pytest.raises(SystemExit):
        fp8_training.main(words.split())
    told = capsys.readouterr().err
    assert any(x in told for x in ("must be numbers", "must be at least 1", "--out needs --commit"))
