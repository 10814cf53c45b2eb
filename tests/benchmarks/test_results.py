# SPDX-License-Identifier: Apache-2.0
"""Results files: schema, resumption, merge, means."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results
from benchmarks.results import Case, Measurement, Results

ENVIRONMENT = {"gpu": "H", "date": "2026-01-02", "commit": "c", "sources": "digest", "torch": "2"}
CASE = Case(suite="square", dtype="bf16", majors="kk", m=100, n=200, k=300)


def measured(us: float, **more) -> Measurement:
    """A measurement around this time."""
    return Measurement(us=us, us_min=us - 1, us_max=us + 1, rounds=7, **more)


def rows(case: Case = CASE, ours: float = 10.0, cublas: float = 20.0) -> list[results.Row]:
    """Our row and the baseline's of one case."""
    times = {"cutegemm": measured(ours, sm_mhz=1500, watts=600.0), "cublas": measured(cublas)}
    return results.case_rows(case, times, plans={"cutegemm": "p"}, regime="burst", baseline="cublas")


def test_row_has_exactly_the_schema():
    """A row's fields are the schema's, in its order."""
    fields = (
        "suite dtype majors m n k batch epilogue beta contender plan us us_min us_max rounds regime sm_mhz "
        "watts tflops tflop_per_j baseline baseline_us ratio samples"
    )
    assert " ".join(rows()[0]) == fields


def test_row_values():
    """The ratio is baseline time over ours; rates follow from the case, times and watts."""
    ours, cublas = rows()
    assert (ours["ratio"], ours["baseline"], ours["baseline_us"]) == (2.0, "cublas", 20.0)
    assert ours["tflops"] == pytest.approx(2 * 100 * 200 * 300 / 10e-6 / 1e12)
    assert ours["tflop_per_j"] == pytest.approx(ours["tflops"] / 600)
    assert (cublas["ratio"], cublas["plan"], cublas["tflop_per_j"]) == (1.0, None, None)


def test_without_baseline_there_is_no_ratio():
    """A contender measured alone has neither ratio nor baseline."""
    (row,) = results.case_rows(CASE, {"cutegemm": measured(5.0)}, plans={}, regime="burst", baseline="cublas")
    assert (row["ratio"], row["baseline"], row["baseline_us"]) == (None, None, None)


def test_file_resumes(tmp_path):
    """A second run of the same environment keeps the rows and notes its date."""
    path = tmp_path / "sub" / "r.json"
    Results(path, ENVIRONMENT).put(rows())
    again = Results(path, ENVIRONMENT | {"date": "2026-01-03"})
    assert again.has(rows()) and again.dropped == 0
    assert not again.has([*rows(), rows()[0] | {"contender": "third"}])
    assert not again.has(rows(Case(suite="square", dtype="bf16", majors="kn", m=100, n=200, k=300)))
    assert again.environment == ENVIRONMENT | {"resumed": ["2026-01-03"]}


def test_other_sources_drop_rows(tmp_path):
    """Rows measured on other sources are not mixed with new ones."""
    path = tmp_path / "r.json"
    Results(path, ENVIRONMENT).put(rows())
    again = Results(path, ENVIRONMENT | {"sources": "new"})
    assert (again.rows, again.dropped) == ([], 2)
    assert len(json.loads(path.read_text())["rows"]) == 2, "nothing is lost before a new row exists"


def test_put_replaces_rows_of_equal_key(tmp_path):
    """Measuring a case again replaces its rows and no others."""
    out = Results(tmp_path / "r.json", ENVIRONMENT)
    other = rows(Case(suite="odd", dtype="bf16", majors="kk", m=100, n=200, k=300))
    out.put(rows(ours=10.0))
    out.put(other)
    out.put(rows(ours=5.0))
    assert [(r["suite"], r["us"]) for r in results.load(out.path)["rows"]] == [
        ("odd", 10.0), ("odd", 20.0), ("square", 5.0), ("square", 20.0),
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"more": 1}, {"us": None}])
def test_put_refuses_other_fields(tmp_path, change):
    """A row with a field too many or too few is refused and names it."""
    row = rows()[0] | change
    row = {name: value for name, value in row.items() if value is not None or name != "us"}
    with pytest.raises(ValueError, match=rf"row fields \['{next(iter(change))}'\]: must be exactly"):
        Results(tmp_path / "r.json", ENVIRONMENT).put([row])


def test_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    """The file is replaced whole: a failure before that leaves what was there."""
    out = Results(tmp_path / "r.json", ENVIRONMENT)
    out.put(rows())
    before = out.path.read_text()

    def broken(*_):
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError):
        out.put(rows(ours=1.0))
    assert out.path.read_text() == before


def test_saved_file_is_json_with_one_row_a_line(tmp_path):
    """The hand-laid file parses back to the document, and each row has a line of its own."""
    document = {"schema": 1, "environment": ENVIRONMENT, "rows": rows()}
    results.save(tmp_path / "r.json", document)
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text) == document
    assert sum(line.startswith("  {") for line in text.splitlines()) == 2


def test_load_refuses_another_schema(tmp_path):
    """A file of another schema is refused with both numbers."""
    (tmp_path / "r.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema 0 must be 1"):
        results.load(tmp_path / "r.json")


def test_merge_keeps_later_rows_and_all_dates():
    """If two documents have the same row, the later one's is kept; the dates of both documents are kept."""
    documents = [
        {"schema": 1, "environment": ENVIRONMENT | {"date": date}, "rows": rows(ours=us)}
        for date, us in (("2026-01-05", 10.0), ("2026-01-04", 8.0))
    ]
    merged = results.merge(documents)
    assert [row["us"] for row in merged["rows"]] == [8.0, 20.0]
    assert (merged["environment"]["date"], merged["environment"]["resumed"]) == ("2026-01-04", ["2026-01-05"])


def test_merge_refuses_other_sources():
    """Documents of different sources do not become one file."""
    documents = [{"environment": ENVIRONMENT | {"sources": s}, "rows": []} for s in ("old", "new")]
    with pytest.raises(ValueError, match="sources: 'old' and 'new'"):
        results.merge(documents)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 100))
def test_geometric_mean_laws(ratios, factor):
    """It lies between the extremes, scales with its values, and inverts with them."""
    mean = results.geometric_mean(ratios)
    assert min(ratios) * (1 - 1e-9) <= mean <= max(ratios) * (1 + 1e-9)
    assert math.isclose(results.geometric_mean([factor * r for r in ratios]), factor * mean, rel_tol=1e-9)
    assert math.isclose(results.geometric_mean([1 / r for r in ratios]), 1 / mean, rel_tol=1e-9)


def test_summary_leaves_out_the_baseline():
    """A suite's mean is over our ratios only."""
    larger = Case(suite="square", dtype="bf16", majors="kk", m=400, n=200, k=300)
    (line,) = results.summary(rows() + rows(larger, ours=40.0))
    group = {"suite": "square", "dtype": "bf16", "majors": "kk", "regime": "burst", "contender": "cutegemm"}
    assert line == group | {"rows": 2, "geomean": pytest.approx(1.0), "least": 0.5, "greatest": 2.0}
