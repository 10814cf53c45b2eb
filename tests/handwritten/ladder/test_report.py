# SPDX-License-Identifier: Apache-2.0
"""Tables show measured columns only where there are measurements, and only the columns that fit."""

import re

import pytest
from rich.console import Console

import handwritten
from handwritten.ladder import report
from tests.support.ladder_rows import row


def shown(width: int, rows: list[report.Row], stages: str = "16 17 18 20") -> list[str]:
    """The lines of both tables on a terminal of this width."""
    console = Console(width=width, record=True)
    chosen = [stage for stage in handwritten.stages() if str(stage.number) in stages.split()]
    console.print(report.table(rows, "The ladder", ("bf16",), width=console, chosen=chosen))
    console.print(report.mix(("bf16",), width=console, chosen=chosen))
    return console.export_text().splitlines()


def test_speed_up_is_over_the_stage_before() -> None:
    """The step column compares with the last measured stage of the same dtype."""
    rows = [
        row("01_naive", 40.0, dtype="fp32"),
        row("03_smem_tile", 20.0, dtype="fp32"),
        row("14_mma_sync", 5.0, dtype="bf16"),
    ]
    steps = {line.stage.key: line.cells().get("x before") for line in report.lines(rows) if line.row}
    assert steps == {"01_naive": None, "03_smem_tile": "2.00", "14_mma_sync": None}


def test_share_of_cublas() -> None:
    """A stage twice as slow as cuBLAS has half of its speed."""
    (line,) = [line for line in report.lines([row("01_naive", 20.0, 64, dtype="fp32")]) if line.row]
    assert (line.cells()["TFLOP/s"], line.cells()["of cuBLAS"]) == ("0.0", "50.0%")


def test_speed_up_is_over_the_fastest_of_the_variants() -> None:
    """Each stage is compared with the fastest variant of the stage before it."""
    times = {"17_wgmma_shapes_n128": 30.0, "17_wgmma_shapes_n256": 90.0, "18_producer_consumer": 20.0}
    rows = [row(name, us) for name, us in times.items()]
    steps = {line.stage.key: line.cells().get("x before") for line in report.lines(rows) if line.row}
    assert steps == {
        "17_wgmma_shapes_n128": None,
        "17_wgmma_shapes_n256": None,
        "18_producer_consumer": "1.50",
    }


@pytest.mark.sliced
@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("width", [70, 80, 100, 120, 200])
def test_no_cell_is_cut_or_wrapped(width: int, measured: bool) -> None:
    """At any width every stage stands on one line of each table, in full, and lines fit the width."""
    times = {
        "16_wgmma_serial": 40.0,
        "17_wgmma_shapes_n256": 90.0,
        "20_persistent_cluster": 20.0,
        "cublas": 10.0,
    }
    rows = [row(name, us) for name, us in times.items()] if measured else []
    lines = shown(width, rows)
    assert all(len(line) <= width for line in lines) and not any("…" in line for line in lines)
    for key in ("16_wgmma_serial", "17_wgmma_shapes_n256", "20_persistent_cluster"):
        assert len([line for line in lines if re.search(rf"\b{key} ", line)]) == 2, key
    assert any("UTMALDG.2D.MULTICAST 2" in line for line in lines)
    assert not measured or any("50.0%" in line for line in lines), "what was measured is never left out"


def test_columns_left_out_are_named() -> None:
    """A narrow table says which columns it lacks; a wide one has them all."""
    assert any("left out at this width: bound, CTAs per SM (limit)" in line for line in shown(80, []))
    wide = shown(200, [row("18_producer_consumer", 20.0)])
    assert all(name in " ".join(wide) for name in report.HEAD) and not any("left out" in x for x in wide)


def test_a_pipe_is_as_wide_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither a terminal nor COLUMNS sets a width, nothing is left out for it; COLUMNS does set one."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert report.console().width == report.UNBOUNDED
    monkeypatch.setenv("COLUMNS", "80")
    assert report.console().width == 80


def test_readme_has_every_stage() -> None:
    """The worklog has a section for each stage, in order."""
    text = (handwritten.stage(1).path.parent / "README.md").read_text()
    numbers = dict.fromkeys(stage.number for stage in handwritten.stages())
    places = [text.find(f"\n### {number:02} ") for number in numbers]
    assert -1 not in places and places == sorted(places)
