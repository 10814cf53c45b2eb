# SPDX-License-Identifier: Apache-2.0
"""A measuring run records what it is about to try, resumes from its file, and times only what was right."""

import json

import pytest
import torch

import handwritten
from cutegemm.errors import GemmError
from handwritten import __main__ as command
from handwritten import measure, twins, verify

STAGES = "1,2,14"


@pytest.fixture
def fake_gpu(monkeypatch):
    """Checks and timings that need no GPU; the calls they got, in order."""
    calls = []

    def check(stage):
        calls.append(stage.key)
        return 1e-3

    def time_all(case, contenders, rounds):
        calls.append((case.dtype, case.m, *contenders))
        problem = {"dtype": case.dtype, "m": case.m, "n": case.n, "k": case.k, "beta": case.beta}
        return [
            problem | {"contender": name, "us": 1.0, "tflops": 1.0, "ratio": 1.0}
            for name in ("cublas", *contenders)
        ]

    monkeypatch.setattr(command, "has_gpu", lambda: True)
    monkeypatch.setattr(verify, "verify", check)
    monkeypatch.setattr(measure, "measure", time_all)
    monkeypatch.setattr(
        measure, "environment", lambda commit: {"sources": measure.source_digest(), "commit": commit}
    )
    monkeypatch.setattr(twins, "builder_calls", lambda stages, *problem: {"cutegemm": None})
    return calls


def run(path, *more):
    """The command over three stages at 64 cubed."""
    return command.main(["--stages", STAGES, "--sizes", "64", "--json", str(path), *more])


def test_checks_then_times_each_dtype(fake_gpu, tmp_path):
    """Every stage is checked, then timed in its dtype beside the builder; all of it is in the file."""
    path = tmp_path / "out.json"
    assert run(path) == 0
    assert fake_gpu == [
        "01_naive",
        "02_coalesced",
        "14_mma_sync",
        ("fp32", 64, "01_naive", "02_coalesced", "cutegemm"),
        ("bf16", 64, "14_mma_sync", "cutegemm"),
    ]
    document = json.loads(path.read_text())
    assert document["schema"] == command.SCHEMA
    assert document["checks"]["14_mma_sync"] == {"error": 1e-3, "failure": None}
    assert [row["contender"] for row in document["rows"] if row["dtype"] == "bf16"] == [
        "cublas",
        "14_mma_sync",
        "cutegemm",
    ]


def test_second_run_does_nothing_again(fake_gpu, tmp_path):
    """What the file holds is neither checked nor timed twice."""
    run(tmp_path / "out.json")
    before = (tmp_path / "out.json").read_text()
    fake_gpu.clear()
    assert run(tmp_path / "out.json") == 0
    assert fake_gpu == []
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == json.loads(before)["rows"]


def test_a_stage_that_never_came_back_is_not_tried_again(fake_gpu, tmp_path, monkeypatch):
    """A stage is on record as unfinished before it is tried, so that a lost process leaves its name."""
    path = tmp_path / "out.json"

    def die(stage):
        assert json.loads(path.read_text())["checks"][stage.key]["failure"] == command.UNFINISHED
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", die)
    with pytest.raises(KeyboardInterrupt):
        run(path)
    monkeypatch.setattr(verify, "verify", lambda stage: fake_gpu.append(stage.key) or 1e-3)
    assert run(path) == 1
    assert fake_gpu[:2] == ["02_coalesced", "14_mma_sync"]
    assert fake_gpu[2] == ("fp32", 64, "02_coalesced", "cutegemm")  # the unfinished one is not timed


def test_a_wrong_stage_is_reported_and_not_timed(fake_gpu, tmp_path, monkeypatch):
    """A stage whose result is wrong fails the command and has no row."""

    def wrong(stage):
        raise verify.WrongResult(f"{stage.key}: relative error 1")

    monkeypatch.setattr(verify, "verify", wrong)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert run(tmp_path / "out.json") == 1
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["checks"]["01_naive"]["failure"] == "01_naive: relative error 1"
    assert document["rows"] == []


def test_figures_of_other_sources_are_dropped(fake_gpu, tmp_path):
    """When a stage's source has changed since, everything is measured anew."""
    path = tmp_path / "out.json"
    run(path)
    document = json.loads(path.read_text())
    document["environment"]["sources"] = "other"
    path.write_text(json.dumps(document))
    fake_gpu.clear()
    run(path)
    assert fake_gpu[0] == "01_naive"


def test_a_builder_that_refuses_is_left_out(fake_gpu, tmp_path, monkeypatch):
    """The stages are timed without the builder when it refuses the problem."""

    def refuse(*_):
        raise GemmError("no")

    monkeypatch.setattr(twins, "builder_calls", refuse)
    assert run(tmp_path / "out.json") == 0
    assert ("bf16", 64, "14_mma_sync") in fake_gpu


def test_large_problems_leave_stages_without_reuse_out(fake_gpu, tmp_path):
    """At 8192 cubed the naive stages would take minutes."""
    command.main(
        ["--stages", "1,3", "--sizes", "8192", "--dtypes", "fp32", "--json", str(tmp_path / "out.json")]
    )
    assert fake_gpu[-1] == ("fp32", 8192, "03_smem_tile", "cutegemm")


def test_split_k_is_timed_against_itself_in_one_part(fake_gpu, tmp_path):
    """At split-K's own shape each of its stages also runs unsplit."""
    command.main(["--stages", "21,22", "--sizes", "128x128x16384", "--dtypes", "bf16", "--no-builder"])
    keys = ("21_split_k_atomic", "22_split_k_workspace")
    assert fake_gpu[-1] == ("bf16", 128, *keys, *(f"{key}, one part" for key in keys))


@pytest.mark.parametrize("stage", handwritten.stages(), ids=lambda stage: stage.key)
def test_shapes_of_the_check_are_within_the_limits(stage):
    """Every problem that a stage is checked on with row-major operands is one that it takes, some of them ragged."""
    for dtype in stage.dtypes:
        drawn = list(verify.shapes(stage))
        assert all(stage.takes(dtype, *shape) for shape in drawn)
    if stage.limits.m == 1:
        assert any(m % stage.constants["BM"] for m, _, _ in drawn)
