# SPDX-License-Identifier: Apache-2.0
"""The worklog's figures come from the results file: README.md and the headers say what it says, and nothing else."""

import difflib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import handwritten
from cutegemm.errors import GemmError
from handwritten.ladder import bars, worklog
from handwritten.ladder.names import SPLIT_K_SHAPE, one_part
from handwritten.ladder.source import FOLDER, with_measured
from tests.support.ladder_rows import row

RESULTS = "benchmarks/results/sweeps/handwritten.json"
README = (FOLDER / "README.md").read_text()
ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "torch": "2.11",
    "nvrtc": "13.0",
    "date": "2026-01-02T00:00:00",
    "commit": "0123456789abcdef",
}


def figures(*rows: dict[str, Any]) -> worklog.Figures:
    """Figures of these rows alone."""
    return worklog.Figures({"environment": ENVIRONMENT, "rows": rows})


def test_readme_and_headers_agree_with_the_results_file() -> None:
    """Written anew from the committed results, README.md and every header stay as they are."""
    path = FOLDER.parent / RESULTS
    found = worklog.Figures(json.loads(path.read_text()))
    ablation = worklog.ablation(json.loads(worklog.beside(path).read_text()))
    assert worklog.fill(README, worklog.sections(found, RESULTS) | {"ablation": ablation}) == README
    for name in {stage.file for stage in handwritten.stages()}:
        text = (FOLDER / name).read_text()
        assert with_measured(text, worklog.header(found, name)) == text, name


def test_the_picture_agrees_with_the_results_file() -> None:
    """The committed picture has a bar for every source, and is the one that the results give."""
    found = worklog.Figures(json.loads((FOLDER.parent / RESULTS).read_text()))
    drawn = bars.picture(found)
    assert (FOLDER / "ladder.svg").read_text() == drawn
    assert drawn.count("<rect") == len({stage.file for stage in handwritten.stages()})
    assert "](ladder.svg)" in README


def test_readme_names_the_steps_that_change_most() -> None:
    """README.md lists the steps that add and remove a hundred lines or more below the headers."""
    files = list(dict.fromkeys(stage.file for stage in handwritten.stages()))
    bodies = [[x for x in (FOLDER / name).read_text().splitlines() if x[:2] != "//"] for name in files]
    large = []
    for i, (before, after) in enumerate(itertools.pairwise(bodies), 1):
        changed = difflib.unified_diff(before, after, lineterm="", n=0)
        if sum(x[0] in "+-" for x in changed) - 2 >= 100:
            large.append(f"{i:02} to {i + 1:02}")
    assert ", ".join(large) in README


def test_results_file_has_every_stage() -> None:
    """Every stage was right and was timed in its first dtype at 4096 cubed; split-K at its own shape too."""
    document = json.loads((FOLDER.parent / RESULTS).read_text())
    found = worklog.Figures(document)
    for stage in handwritten.stages():
        assert document["checks"][stage.key]["failure"] is None
        assert found.row(stage.dtypes[0], 4096, stage.key), stage.key
    for number in (21, 22):
        key = handwritten.stage(number).key
        assert found.row("bf16", SPLIT_K_SHAPE, one_part(key))


def test_a_stage_is_compared_with_the_fastest_of_the_variants_before() -> None:
    """Stage 18 follows stage 17, whose variants count by their best."""
    found = figures(
        row("17_wgmma_shapes_n128", 30.0),
        row("17_wgmma_shapes_n256", 90.0),
        row("18_producer_consumer", 20.0),
    )
    assert found.step(handwritten.stage(18), "bf16", 4096) == 1.5
    assert found.step(handwritten.stage(17), "bf16", 4096) is None


def test_line_of_a_stage() -> None:
    """A stage's line says speed, share and step at each size, and what C costs."""
    rows = [row("18_producer_consumer", 20.0), row("19_staged_epilogue", 10.0, 8192, 0.5)]
    text = worklog.sections(figures(*rows, row("19_staged_epilogue", 10.0)), "f.json")
    assert text["18"] == "Measured: 4096³ 6.87e+03 TFLOP/s, 50% of cuBLAS."
    assert text["19"] == (
        "Measured: 4096³ 1.37e+04 TFLOP/s, 100% of cuBLAS, 2.00 × stage 18;"
        " 8192³ with beta 0.5 1.1e+05 TFLOP/s, 100% of cuBLAS."
    )
    assert text["20"] == ""
    variants = [row("17_wgmma_shapes_n32", 20.0), row("17_wgmma_shapes_n64", 10.0)]
    assert worklog.sections(figures(*variants), "f.json")["17"] == (
        "- `n32`: 4096³ 6.87e+03 TFLOP/s, 50% of cuBLAS.\n- `n64`: 4096³ 1.37e+04 TFLOP/s, 100% of cuBLAS."
    )


def test_line_of_a_split_k_stage() -> None:
    """Split-K is compared with itself in one part."""
    shape = SPLIT_K_SHAPE
    rows = [row("21_split_k_atomic", 20.0, shape), row("21_split_k_atomic, one part", 120.0, shape)]
    text = worklog.sections(figures(*rows), "f.json")
    assert text["21"] == "Measured: 128×128×16384 20.0 µs, 6.0 × one split, 50% of cuBLAS."
    assert "| 21_split_k_atomic | 120.0 | 20.0 | 6.0 | 50.0% |" in text["tables"]


def test_tables_name_machine_commit_and_file() -> None:
    """The tables say where their numbers come from, with raw CUDA and its twin in one row."""
    rows = [row("16_wgmma_serial", 40.0), row("16_wgmma_serial (DSL)", 50.0), row("cublas", 10.0)]
    text = worklog.tables(figures(*rows), "f.json")
    assert text.startswith(
        "NVIDIA H200, torch 2.11, NVRTC 13.0, 2026-01-02, commit 0123456789; from `f.json`."
    )
    assert "| 16_wgmma_serial | 32 | 3436.0 | 25.0% |  |  |  |  |" in text
    assert "| 16_wgmma_serial | 2749 | 3436 |  |  |" in text


def test_fill_replaces_only_what_is_between_the_markers() -> None:
    """Text around the markers stays; filling twice leaves the second."""
    text = "before\n<!-- ladder:01 -->\nold\n<!-- /ladder:01 -->\nafter\n"
    once = worklog.fill(worklog.fill(text, {"01": "first"}), {"01": "second"})
    assert once == "before\n<!-- ladder:01 -->\nsecond\n<!-- /ladder:01 -->\nafter\n"


def test_a_missing_marker_is_refused() -> None:
    """A figure without a place, or a place without a figure, is an error that names both lists."""
    with pytest.raises(GemmError, match=r"markers=\['01'\]: must be \['01', '02'\], each once and closed"):
        worklog.fill("<!-- ladder:01 -->\n<!-- /ladder:01 -->\n", {"01": "", "02": ""})


def test_ablation_lists_the_changes_in_order() -> None:
    """The stage as it is comes first, then each change with its speeds and shares; what was not timed stays empty."""
    rows = [row("cublas", 10.0, 8192), row("19_staged_epilogue", 20.0, 8192), row("worse", 40.0, 8192)]
    text = worklog.ablation(
        {"environment": {}, "variants": {"worse": {"change": "without it"}}, "rows": rows}
    )
    assert text.splitlines()[2:] == [
        "| stage 19 | 8192³, beta 0.5 | 8192³, beta 0 | 4096³, beta 0.5 | 4096³, beta 0 |",
        "| --- | --- | --- | --- | --- |",
        "| as it is |  ·  | 54975.6 · 50.0% |  ·  |  ·  |",
        "| without it |  ·  | 27487.8 · 25.0% |  ·  |  ·  |",
    ]


def test_header_names_the_variants() -> None:
    """A file that is several stages lists them; split-K's is measured at its own shape."""
    found = figures(row("17_wgmma_shapes_n32", 20.0), row("17_wgmma_shapes_n64", 10.0))
    assert worklog.header(found, "17_wgmma_shapes.cu") == (
        "4096^3, bf16: n32 6.87e+03, n64 1.37e+04 TFLOP/s, 100% of cuBLAS; README.md, stage 17."
    )
    assert worklog.header(figures(), "21_split_k_atomic.cu") == "README.md, stage 21."


@pytest.mark.parametrize("text", ["{}", "[1]", "# a README"])
def test_a_file_without_results_is_refused(tmp_path: Path, text: str) -> None:
    """A file of another kind is refused by name, and nothing is written."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(
        GemmError, match="--readme=.*must be a file that `python -m handwritten --json` wrote"
    ):
        worklog.write(path, tmp_path)
    assert [x.name for x in tmp_path.iterdir()] == ["x.json"]
