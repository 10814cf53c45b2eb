# SPDX-License-Identifier: Apache-2.0
"""Better, worse or no difference: by interval, by margin, across runs and within one."""

import random

import pytest

from benchmarks import compare, results
from benchmarks.results import Case, Measurement

SQUARE = Case(suite="square", dtype="bf16", majors="kk", m=64, n=64, k=64)
ODD = Case(suite="odd", dtype="bf16", majors="kk", m=63, n=65, k=67)


def run(seed: int, case: Case = SQUARE, clock: float = 1.0, spread: float = 0.004, **us: float) -> dict:
    """A results document of one run: eight rounds, in each of which all contenders drift alike."""
    rng = random.Random(seed)
    drift = [clock * (1 + rng.gauss(0, 0.02)) for _ in range(8)]
    times = {}
    for name, middle in us.items():
        samples = [middle * factor * (1 + rng.gauss(0, spread)) for factor in drift]
        ordered = sorted(samples)
        times[name] = Measurement(
            us=(ordered[3] + ordered[4]) / 2,
            us_min=ordered[0],
            us_max=ordered[-1],
            rounds=8,
            samples=tuple(samples),
        )
    rows = results.case_rows(case, times, plans={}, regime="sustained", baseline="cublas")
    return {"schema": 1, "environment": {}, "rows": rows}


def one(before: list[dict], after: list[dict], **more) -> compare.Change:
    """The only row's change."""
    (change,) = compare.compare(before, after, **more)
    return change


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.10, "better"), (0.90, "worse"), (1.00, "no difference"), (1.02, "no difference")],
)
def test_verdict_of_single_runs(factor, verdict):
    """One run a side tells a tenth, and does not tell what two runs of the same sources may differ by."""
    before = run(1, cutegemm=10.0, cublas=10.0)
    change = one([before], [run(2, cutegemm=10.0 / factor, cublas=10.0)])
    assert change.verdict == verdict and change.factor == pytest.approx(factor, rel=0.01)
    assert change.low <= change.factor <= change.high and change.what == "square 64x64x64 bf16 kk"


def test_clock_of_a_run_does_not_count():
    """A run in which everything is slower by a fifth compares by its ratio to the baseline."""
    before = run(1, cutegemm=10.0, cublas=10.0)
    change = one([before], [run(2, clock=1.2, cutegemm=10.0, cublas=10.0)])
    assert change.verdict == "no difference" and change.factor == pytest.approx(1, rel=0.01)


def test_without_a_baseline_times_are_compared():
    """Contenders measured alone compare by their times."""
    change = one([run(1, cutegemm=10.0)], [run(2, cutegemm=5.0)])
    assert change.factor == pytest.approx(2, rel=0.05) and change.verdict == "better"


def test_margin_is_of_the_whole_interval():
    """A change beyond the margin counts only if its interval is, too."""
    assert (
        compare.verdict(1.04, 1.06, 0.03) == "better" and compare.verdict(1.02, 1.06, 0.03) == "no difference"
    )
    assert (
        compare.verdict(0.94, 0.96, 0.03) == "worse" and compare.verdict(0.94, 0.98, 0.03) == "no difference"
    )
    assert compare.verdict(None, None, 0.0) == "no difference"
    sides = [run(1, cutegemm=10.0, cublas=10.0)], [run(2, cutegemm=9.8, cublas=10.0)]
    assert one(*sides).verdict == "no difference" and one(*sides, margin=0.0).verdict == "better"


def test_four_runs_a_side_show_a_small_change():
    """With four runs a side the runs are the samples: two percent is told, though runs scatter by half of one."""
    rng = random.Random(3)
    before = [run(i, cutegemm=10.0 * (1 + rng.gauss(0, 0.003)), cublas=10.0) for i in range(4)]
    after = [run(10 + i, cutegemm=9.8 * (1 + rng.gauss(0, 0.003)), cublas=10.0) for i in range(4)]
    assert one(before, after).verdict == "better"
    assert one(before[:3], after[:3]).verdict == "no difference", "three are too few"


def test_contenders_of_one_run_are_compared_in_pairs():
    """Within a run a percent shows, as the rounds' common drift cancels."""
    both = run(1, spread=0.001, cutegemm=9.9, cublas=10.0)
    change = one([both], [both], names=("cublas", "cutegemm"))
    assert change.verdict == "better" and change.factor == pytest.approx(1.01, rel=0.002)
    back = one([both], [both], names=("cutegemm", "cublas"))
    assert back.verdict == "worse" and back.factor == pytest.approx(1 / change.factor)
    assert one([both], [both]).verdict == "no difference"
    alone = run(1, spread=0.001, ours=9.9, theirs=10.0)
    assert one([alone], [alone], names=("theirs", "ours")).verdict == "better", "without a baseline, too"


def test_files_without_samples_say_so():
    """A file from before samples were kept is compared without a verdict."""
    documents = [run(i, cutegemm=us, cublas=10.0) for i, us in ((1, 10.0), (2, 5.0))]
    for document in documents:
        for row in document["rows"]:
            del row["samples"]
    change = one(*([document] for document in documents))
    assert (change.low, change.high, change.verdict) == (None, None, "no difference")
    assert change.factor == pytest.approx(2, rel=0.05)


def save(path, *documents: dict) -> str:
    """The path of a file with the rows of all documents."""
    environment = {"gpu": "H200", "date": "2026-01-02"}
    rows = [row for document in documents for row in document["rows"]]
    results.save(path, {"schema": 1, "environment": environment, "rows": rows})
    return str(path)


def test_command(tmp_path, capsys):
    """The command shows every row that both sides have, counts verdicts, and fails where a row is worse."""
    a = save(tmp_path / "a.json", run(1, cutegemm=10.0, cublas=10.0), run(2, ODD, cutegemm=10.0, cublas=10.0))
    b = save(tmp_path / "b.json", run(3, cutegemm=8.0, cublas=10.0), run(4, ODD, cutegemm=12.0, cublas=10.0))
    assert compare.main([a, b]) == 1
    shown = capsys.readouterr().out
    assert "square 64x64x64" in shown and "1 better, 1 worse, 0 no difference; geometric mean" in shown
    assert compare.main([a, a]) == 0
    only = save(tmp_path / "c.json", run(5, ODD, cutegemm=10.0, cublas=10.0))
    assert compare.main([only, a]) == 0
    assert "0 better, 0 worse, 1 no difference" in capsys.readouterr().out


def test_command_refuses(tmp_path, capsys):
    """A missing file, files without a common problem and wrong options end with status 2 and the reason."""
    a = save(tmp_path / "a.json", run(1, cutegemm=10.0, cublas=10.0))
    b = save(tmp_path / "b.json", run(2, ODD, cutegemm=10.0, cublas=10.0))
    assert compare.main([a, str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert compare.main([a, b]) == 2
    assert "no problem is in the files of both sides" in capsys.readouterr().err
    for words, message in (
        (["--margin", "3"], "'3': must be a fraction from 0 to below 1"),
        (["--confidence", "0"], "'0': must be above 0"),
        (["--contenders", "a,b,c"], "'a,b,c': must be one name, or two"),
    ):
        with pytest.raises(SystemExit):
            compare.parse([a, b, *words])
        assert message in capsys.readouterr().err
