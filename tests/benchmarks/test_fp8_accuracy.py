# SPDX-License-Identifier: Apache-2.0
"""The probe of errors by kind of scales, and the tables of docs/fp8.md that are made of its results and of times."""

import json
from pathlib import Path

import pytest

from benchmarks.probes import fp8_accuracy
from benchmarks.suite_tables import markdown

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "benchmarks" / "results" / "checks"
PAGE = (ROOT / "docs" / "fp8.md").read_text()


def rows_of(name):
    """The rows of a committed results file."""
    return json.loads((CHECKS / name).read_text())["rows"]


def test_the_page_has_the_committed_errors():
    """All lines of the table, for every K and kind of operands."""
    rows = rows_of("fp8_accuracy.json")
    assert len(rows) == len(fp8_accuracy.OPERANDS) * len(fp8_accuracy.DEPTHS) * 6
    assert "\n".join(markdown(*fp8_accuracy.lines(rows))) in PAGE


def test_the_page_has_the_committed_times():
    """Microseconds of `benchmarks.probes.fp8`, our bf16 in the last line."""
    assert "\n".join(markdown(*fp8_accuracy.time_lines(rows_of("fp8.json")))) in PAGE


def test_the_committed_errors_are_what_is_computed():
    """The least K of every line again, on this machine: equal but for the order of fp32 sums."""
    known = {
        (x["operands"], x["contender"]): x["error"] for x in rows_of("fp8_accuracy.json") if x["k"] == 512
    }
    for row in fp8_accuracy.measured([512], "cpu"):
        assert row["error"] == pytest.approx(known[row["operands"], row["contender"]], rel=1e-3)


def test_measured_times_confirm_the_errors():
    """On the H200 our bf16 differed from the quantized product by what the table says of normal operands."""
    errors = {
        x["contender"]: x["error"]
        for x in rows_of("fp8_accuracy.json")
        if (x["operands"], x["k"]) == ("normal", 8192)
    }
    for row in rows_of("fp8.json"):
        kind, suite = row["what"].split()
        if row["contender"] == "ours bf16" and suite == "square":
            assert row["error"] == pytest.approx(errors[kind], rel=0.03)


def test_a_run_prints_its_table_and_writes_its_rows(tmp_path, capsys):
    """One line for every kind of operands; the file names the commit and the machine."""
    out = tmp_path / "errors.json"
    assert fp8_accuracy.main(["--k", "128", "--device", "cpu", "--out", str(out), "--commit", "abc"]) == 0
    document = json.loads(out.read_text())
    assert document["environment"]["commit"] == "abc" and document["environment"]["device"] == "cpu"
    printed = capsys.readouterr().out.splitlines()
    assert printed == markdown(*fp8_accuracy.lines(document["rows"])) and len(printed) == 2 + 3


@pytest.mark.parametrize("words", ["--k 512,x", "--k 0", "--k ,", "--out x"])
def test_a_wrong_command_line_is_refused(words, capsys):
    """Before anything is computed."""
    with pytest.raises(SystemExit):
        fp8_accuracy.main(words.split())
    assert "must be positive numbers" in (told := capsys.readouterr().err) or "--out needs --commit" in told
