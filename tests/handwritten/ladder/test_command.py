# SPDX-License-Identifier: Apache-2.0
"""The command: a measuring run records what it is about to try, resumes from its file, and times only what was right;
without a GPU it shows what needs none, and what is missing is said in a line."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from cutegemm.errors import CompileError, GemmError
from handwritten.ladder import command, measure, resources, session, source, toolkit, twins, verify
from handwritten.ladder.stage import Stage

STAGES = "1,2,14"


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Checks and timings that need no GPU; the calls they got, in order."""
    calls: list[Any] = []

    def check(stage: Stage) -> float:
        calls.append(stage.key)
        return 1e-3

    def time_all(case: measure.Case, contenders: Iterable[str], rounds: int) -> list[dict[str, Any]]:
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
        measure, "environment", lambda commit: {"sources": source.source_digest(), "commit": commit}
    )
    monkeypatch.setattr(twins, "builder_calls", lambda stages, *problem: {"cutegemm": None})
    return calls


def run(path: Path, *more: str) -> int:
    """The command over three stages at 64 cubed."""
    return command.main(["--stages", STAGES, "--sizes", "64", "--json", str(path), *more])


def test_checks_then_times_each_dtype(fake_gpu: list[Any], tmp_path: Path) -> None:
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
    assert document["schema"] == session.SCHEMA
    assert document["checks"]["14_mma_sync"] == {"error": 1e-3, "failure": None}
    assert [row["contender"] for row in document["rows"] if row["dtype"] == "bf16"] == [
        "cublas",
        "14_mma_sync",
        "cutegemm",
    ]


def test_second_run_does_nothing_again(fake_gpu: list[Any], tmp_path: Path) -> None:
    """What the file holds is neither checked nor timed twice."""
    run(tmp_path / "out.json")
    before = (tmp_path / "out.json").read_text()
    fake_gpu.clear()
    assert run(tmp_path / "out.json") == 0
    assert fake_gpu == []
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == json.loads(before)["rows"]


def test_a_stage_that_never_came_back_is_not_tried_again(
    fake_gpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage is on record as unfinished before it is tried, so that a lost process leaves its name."""
    path = tmp_path / "out.json"

    def die(stage: Stage) -> float:
        assert json.loads(path.read_text())["checks"][stage.key]["failure"] == session.UNFINISHED
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", die)
    with pytest.raises(KeyboardInterrupt):
        run(path)
    monkeypatch.setattr(verify, "verify", lambda stage: fake_gpu.append(stage.key) or 1e-3)
    assert run(path) == 1
    assert fake_gpu[:2] == ["02_coalesced", "14_mma_sync"]
    assert fake_gpu[2] == ("fp32", 64, "02_coalesced", "cutegemm")  # the unfinished one is not timed


def test_a_wrong_stage_is_reported_and_not_timed(
    fake_gpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage whose result is wrong fails the command and has no row."""

    def wrong(stage: Stage) -> float:
        raise verify.WrongResult(f"{stage.key}: relative error 1")

    monkeypatch.setattr(verify, "verify", wrong)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert run(tmp_path / "out.json") == 1
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["checks"]["01_naive"]["failure"] == "01_naive: relative error 1"
    assert document["rows"] == []


def test_figures_of_other_sources_are_dropped(fake_gpu: list[Any], tmp_path: Path) -> None:
    """When a stage's source has changed since, everything is measured anew."""
    path = tmp_path / "out.json"
    run(path)
    document = json.loads(path.read_text())
    document["environment"]["sources"] = "other"
    path.write_text(json.dumps(document))
    fake_gpu.clear()
    run(path)
    assert fake_gpu[0] == "01_naive"


def test_a_builder_that_refuses_is_left_out(
    fake_gpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages are timed without the builder when it refuses the problem."""

    def refuse(*_: object) -> None:
        raise GemmError("no")

    monkeypatch.setattr(twins, "builder_calls", refuse)
    assert run(tmp_path / "out.json") == 0
    assert ("bf16", 64, "14_mma_sync") in fake_gpu


def test_large_problems_leave_stages_without_reuse_out(fake_gpu: list[Any], tmp_path: Path) -> None:
    """At 8192 cubed the naive stages would take minutes."""
    command.main(
        ["--stages", "1,3", "--sizes", "8192", "--dtypes", "fp32", "--json", str(tmp_path / "out.json")]
    )
    assert fake_gpu[-1] == ("fp32", 8192, "03_smem_tile", "cutegemm")


def test_split_k_is_timed_against_itself_in_one_part(fake_gpu: list[Any], tmp_path: Path) -> None:
    """At split-K's own shape each of its stages also runs unsplit."""
    command.main(["--stages", "21,22", "--sizes", "128x128x16384", "--dtypes", "bf16", "--no-builder"])
    keys = ("21_split_k_atomic", "22_split_k_workspace")
    assert fake_gpu[-1] == ("bf16", 128, *keys, *(f"{key}, one part" for key in keys))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 1}', '{"schema": 0, "environment": {}, "checks": {}, "rows": []}']
)
def test_a_file_of_another_kind_is_not_overwritten(
    fake_gpu: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """What --json names must be absent or the command's own: anything else is refused and left as it is."""
    path = tmp_path / "notes.json"
    path.write_text(text)
    assert run(path) == command.EXIT_REFUSED
    assert f"--json {path}: must be absent, or a file that this command wrote" in capsys.readouterr().err
    assert path.read_text() == text and fake_gpu == []


def test_failures_of_stages_not_asked_for_do_not_fail(fake_gpu: list[Any], tmp_path: Path) -> None:
    """A file may hold a broken stage from an earlier run; a run over others succeeds."""
    path = tmp_path / "out.json"
    run(path)
    document = json.loads(path.read_text())
    document["checks"]["01_naive"]["failure"] = "hang"
    path.write_text(json.dumps(document))
    assert command.main(["--stages", "2", "--sizes", "64", "--json", str(path)]) == 0
    assert run(path) == command.EXIT_WRONG


def test_without_a_gpu_the_table_leaves_measured_columns_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the command shows the resources of the chosen stages, says what it left out, and succeeds."""
    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    assert command.main(["--dtypes", "fp32", "--stages", "1,6,7,9"]) == 0
    shown = capsys.readouterr().out
    assert "01_naive" in shown and "09_wmma_global" not in shown and "02_coalesced" not in shown
    assert "registers" in shown and "x before" not in shown
    assert "left out: TFLOP/s" in shown
    assert "Instruction mix" in shown and "LDG.E.128 18" in shown and "FFMA 576" in shown


def test_without_a_disassembler_the_command_says_what_else_it_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instruction mix needs nvdisasm; without it the rest is shown and the reason given."""

    def missing(cubin: bytes) -> str:
        raise CompileError("nvdisasm: not found")

    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setattr(resources, "disassemble", missing)
    monkeypatch.setenv("COLUMNS", "200")
    assert command.main(["--dtypes", "fp32", "--stages", "1"]) == 0
    assert "and the instruction mix (nvdisasm: not found)" in capsys.readouterr().out


@pytest.mark.parametrize("gpu", [False, True])
def test_a_missing_package_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """Where the compiler or a header is missing, the command ends with one line on stderr that names the package."""

    def missing() -> None:
        raise CompileError("NVRTC: nowhere; pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(command, "has_gpu", lambda: gpu)
    monkeypatch.setattr(toolkit, "require", missing)
    assert command.main(["--stages", "1"]) == command.EXIT_REFUSED
    said = capsys.readouterr()
    assert (
        said.err == "python -m handwritten: NVRTC: nowhere; pip install nvidia-cuda-nvrtc\n"
        and said.out == ""
    )


def test_readme_from_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A results file that is not there is named, without a traceback."""
    assert command.main(["--readme", str(tmp_path / "none.json")]) == command.EXIT_REFUSED
    assert "none.json" in capsys.readouterr().err


def test_module_runs_the_command() -> None:
    """`python -m handwritten` is the command: it refuses a wrong argument with status 2."""
    done = subprocess.run(
        [sys.executable, "-m", "handwritten", "--stages", "99"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "'99': must be the number, name or key" in " ".join(done.stderr.split())
