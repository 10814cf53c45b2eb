# SPDX-License-Identifier: Apache-2.0
"""Charts show what was measured: bars always, curves only where there are sizes to draw them over."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from handwritten.ladder import plot
from tests.support.ladder_rows import row


def titles(figure: Figure) -> list[str]:
    """Titles of the charts that are visible."""
    return [axes.get_title() for axes in figure.axes if axes.axison]


def test_one_size_draws_bars_alone() -> None:
    """With one size there is no curve, and no empty chart in its place."""
    figure = plot.draw([row("01_naive", 40.0, dtype="fp32"), row("cublas", 10.0, dtype="fp32")])
    assert titles(figure) == ["fp32 4096³, beta 0"] and len(figure.axes) == 1
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["01_naive", "cublas"]


def test_several_sizes_draw_curves() -> None:
    """With two sizes each contender but the twins has a curve over them."""
    rows = [
        row(name, us, size)
        for name, us in (("cublas", 10.0), ("16_wgmma_serial", 40.0), ("16_wgmma_serial (DSL)", 50.0))
        for size in (64, 128)
    ]
    figure = plot.draw(rows)
    assert titles(figure) == ["bf16 128³, beta 0", "bf16, squares"]
    curves = figure.axes[1].get_lines()
    assert [line.get_label() for line in curves] == ["16_wgmma_serial", "cublas"]
    assert list(curves[0].get_xdata()) == [64, 128]


def test_each_dtype_has_what_it_was_measured_on() -> None:
    """A dtype of one size beside one of two has bars alone, and the place of its curves is blank."""
    rows = [row("01_naive", 40.0, dtype="fp32"), row("14_mma_sync", 40.0, 64), row("14_mma_sync", 40.0, 128)]
    assert titles(plot.draw(rows)) == ["bf16 128³, beta 0", "bf16, squares", "fp32 4096³, beta 0"]


@pytest.mark.parametrize(
    ("shape", "beta", "title"),
    [((128, 128, 16384), 0.0, "bf16 128×128×16384, beta 0"), (8192, 0.5, "bf16 8192³, beta 0.5")],
)
def test_problems_that_are_no_plain_square(
    shape: int | tuple[int, int, int], beta: float, title: str
) -> None:
    """A problem of any shape, with C or without, is drawn."""
    assert titles(plot.draw([row("21_split_k_atomic", 40.0, shape, beta)])) == [title]


def test_plot_writes_a_picture(tmp_path: Path) -> None:
    """The charts end up in a PNG, whose folder is made."""
    plot.plot([row("01_naive", 40.0, dtype="fp32")], tmp_path / "new" / "ladder.png")
    assert (tmp_path / "new" / "ladder.png").read_bytes()[:4] == b"\x89PNG"
