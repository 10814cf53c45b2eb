# SPDX-License-Identifier: Apache-2.0
"""Tables show measured columns only where there are measurements, and the README is filled between its markers."""

import pytest

import handwritten
from cutegemm import plan, problem
from handwritten import __main__ as command
from handwritten import report
from handwritten.twins import twin


def row(contender, us, dtype="fp32", m=64):
    """A results row of an m-cubed problem that cuBLAS does in 10 us."""
    return {
        "dtype": dtype,
        "m": m,
        "n": m,
        "k": m,
        "beta": 0.0,
        "contender": contender,
        "us": us,
        "tflops": 2 * m**3 / us / 1e6,
        "ratio": 10 / us,
    }


def test_speed_up_is_over_the_stage_before():
    """The step column compares with the last measured stage of the same dtype."""
    rows = [row("01_naive", 40.0), row("03_smem_tile", 20.0), row("14_mma_sync", 5.0, "bf16")]
    steps = {line.stage.key: line.cells()[3] for line in report.lines(rows) if line.row}
    assert steps == {"01_naive": "", "03_smem_tile": "2.00", "14_mma_sync": ""}


def test_share_of_cublas():
    """A stage twice as slow as cuBLAS has half of its speed."""
    (line,) = [line for line in report.lines([row("01_naive", 20.0)]) if line.row]
    assert line.cells()[1:3] == ["0.0", "50.0%"]


def test_without_a_gpu_the_table_leaves_measured_columns_out(capsys, monkeypatch):
    """Without a GPU the command shows the resources, says what it left out, and succeeds."""
    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    assert command.main(["--dtypes", "fp32"]) == 0
    shown = capsys.readouterr().out
    assert "01_naive" in shown and "09_wmma_global" not in shown
    assert "registers" in shown and "x before" not in shown
    assert "left out TFLOP/s" in shown


def test_fill_replaces_only_what_is_between_the_markers():
    """Text around the markers stays; filling twice leaves the second."""
    begin, end = report.MARKERS
    text = f"before\n{begin}\nold\n{end}\nafter\n"
    once = report.fill(report.fill(text, "first"), "second")
    assert once == f"before\n{begin}\nsecond\n{end}\nafter\n"


def test_readme_has_the_markers_and_every_stage():
    """The worklog has a section for each stage, in order, and a place for the numbers."""
    text = (handwritten.stage(1).path.parent / "README.md").read_text()
    assert all(text.count(marker) == 1 for marker in report.MARKERS)
    numbers = dict.fromkeys(stage.number for stage in handwritten.stages())
    places = [text.find(f"\n### {number:02} ") for number in numbers]
    assert -1 not in places and places == sorted(places)


def test_markdown_names_environment_and_file():
    """A table says the GPU, the versions and the file its numbers come from."""
    environment = {"gpu": "NVIDIA H200", "torch": "2.11", "date": "2026-01-02T00:00:00"}
    text = report.markdown({"environment": environment, "rows": [row("01_naive", 20.0)]}, "h200.json")
    assert text.startswith("NVIDIA H200, torch 2.11, 2026-01-02; from `h200.json`.")
    assert "| 01_naive | 20.0 | 0.0 | 50.0% |" in text


def test_plot_writes_a_picture(tmp_path):
    """Bars for the largest size and curves over sizes end up in a PNG."""
    rows = [
        row(name, us * size, m=size)
        for name, us in (("cublas", 1.0), ("01_naive", 4.0))
        for size in (64, 128)
    ]
    report.plot(rows, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("text, expected", [("4096", (4096,) * 3), ("128x64x32", (128, 64, 32))])
def test_extents(text, expected):
    """One number is a cube, three are M, N and K."""
    assert command.extents(text) == expected


@pytest.mark.parametrize("stage", handwritten.stages(), ids=lambda stage: stage.key)
def test_twins_are_specs_that_the_builder_takes(stage):
    """A stage's twin has its tile and fits; only Hopper stages have one."""
    spec = twin(stage)
    assert (spec is not None) <= (stage.number >= 16)
    if spec is not None:
        config = plan(spec, problem(4096, 4096, 4096)).config
        assert config.tile == tuple(stage.constants[name] for name in ("BM", "BN", "BK"))
