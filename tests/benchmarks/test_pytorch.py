# SPDX-License-Identifier: Apache-2.0
"""The benchmark beside torch: every case runs small on the CPU; who is wrong or dies leaves its error in a row."""

import pytest
import torch

from benchmarks import pytorch, pytorch_cases, results, timing
from benchmarks.pytorch import CASES, Bench

QUICK = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-4, rounds=2)


def bench():
    """On the CPU, without a compiler."""
    return Bench("cpu", QUICK, compiler=lambda x: x)


@pytest.mark.parametrize(
    "case", ["host matmul", "host linear bias grad", "linear bias step", "replay", "mlp gelu step"]
)
@pytest.mark.filterwarnings("ignore:cutegemm")
def test_a_case_runs_and_is_right_on_the_cpu(case):
    """All contenders agree and have times; rows are those that were announced."""
    found, failures = bench().measure(case)
    assert not failures
    for row, key in zip(found, bench().keys(case), strict=True):
        assert tuple(row) == results.PYTORCH_FIELDS and results.key(row) == results.key(key)
        assert row["us"] > 0 and row["error"] is None and case in pytorch.describe(row)


@pytest.mark.filterwarnings("ignore:cutegemm")
def test_who_is_wrong_or_dies_leaves_its_error(monkeypatch):
    """The others are timed; a row of an error has no time."""

    class Wrong(torch.nn.Linear):
        def forward(self, x):
            """Twice what it should be."""
            return 2 * super().forward(x)

    def dies(x):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(pytorch_cases.nn, "Linear", Wrong)
    (theirs, ours), failures = bench().measure("linear step")
    assert theirs["us"] and ours["us"] is None and "y: relative Frobenius error" in ours["error"]
    assert failures == [("cutegemm", ours["error"])]
    monkeypatch.undo()
    rows, failures = Bench("cpu", QUICK, compiler=dies).measure("mlp gelu step")
    assert [row["error"] is None for row in rows] == [True, False, True, False]
    assert "no compiler here" in pytorch.describe(rows[1])


def test_kinds_of_cases_are_chosen():
    """`--what` takes kinds; none given is all of them."""
    args = pytorch.parse(["--out", "x.json", "--commit", "c", "--what", "mlp,host"])
    assert pytorch.cases_of(args.what) == [*CASES["host"], *CASES["mlp"]]
    assert pytorch.cases_of(list(CASES))[-1] == "mlp gelu step"
