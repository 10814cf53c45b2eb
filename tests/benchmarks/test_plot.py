# SPDX-License-Identifier: Apache-2.0
"""Pictures of results."""

from benchmarks import plot, results
from benchmarks.results import Case, Measurement

PNG = b"\x89PNG\r\n\x1a\n"


def rows(suite: str, sizes: tuple[int, ...]) -> list[results.Row]:
    """Two contenders' rows of cubes."""
    found = []
    for size in sizes:
        times = {
            "cutegemm": Measurement(us=size / 50, us_min=1, us_max=9, rounds=3),
            "cublas": Measurement(us=size / 48, us_min=1, us_max=9, rounds=3),
        }
        case = Case(suite=suite, dtype="bf16", majors="kk", m=size, n=size, k=size)
        found += results.case_rows(case, times, plans={}, regime="burst", baseline="cublas")
    return found


def test_lines_are_sorted_by_size_and_split_by_contender():
    """A line is one contender's rows of one suite from small to large."""
    lines = plot.lines(rows("square", (4096, 1024, 2048)) + rows("odd", (127,)), "square")
    assert list(lines) == ["cutegemm bf16 kk, burst", "cublas bf16 kk, burst"]
    assert [row["m"] for row in lines["cutegemm bf16 kk, burst"]] == [1024, 2048, 4096]


def test_size_is_the_side_of_the_cube():
    """A cube's size is its side, and any shape of as much work has the same."""
    assert round(plot.size({"batch": 1, "m": 64, "n": 64, "k": 64})) == 64
    assert round(plot.size({"batch": 1, "m": 16, "n": 64, "k": 256})) == 64


def shaped(suite: str, *sizes: tuple[int, int, int], **more) -> list[results.Row]:
    """Two contenders' rows of these shapes."""
    times = {name: Measurement(us=1, us_min=1, us_max=1, rounds=1) for name in ("cutegemm", "cublas")}
    found = []
    for m, n, k in sizes:
        case = Case(suite=suite, dtype="bf16", majors="kk", m=m, n=n, k=k, **more)
        found += results.case_rows(case, times, plans={}, regime="burst", baseline="cublas")
    return found


ENVIRONMENT = {"gpu": "H200", "date": "2026-01-02T10:00", "commit": "0123456789abcdef"}


def test_unrelated_shapes_have_a_row_each():
    """Shapes that are no cubes stand in rows under their names, sorted by work, and no line joins them."""
    found = shaped("prefill", (8192, 64, 64), (16, 64, 256), (2048, 64, 64))
    figure = plot.draw({"environment": ENVIRONMENT, "rows": found}, "prefill")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["16x64x256", "2048x64x64", "8192x64x64"]
    for line in right.get_lines():
        assert line.get_linestyle() == "None" and sorted(line.get_ydata()) == [0, 1, 2]
    assert len(left.get_lines()) == 2, "our ratios, and the line at one; the baseline's ratios are no news"


def test_cubes_are_lines_over_their_size():
    """A suite of cubes keeps its lines."""
    figure = plot.draw({"environment": ENVIRONMENT, "rows": rows("square", (1024, 2048))}, "square")
    (line,) = [line for line in figure.axes[1].get_lines() if line.get_label().startswith("cutegemm")]
    assert line.get_linestyle() == "-" and [round(x) for x in line.get_xdata()] == [1024, 2048]


def test_batched_and_fused_rows_are_named_in_full():
    """A batch and an epilogue are part of a row's name, so that no two fall together."""
    batched = shaped("batched", (64, 64, 64), batch=8) + shaped("batched", (64, 64, 64), batch=4)
    assert plot.shapes(batched) == ["4:64x64x64", "8:64x64x64"]
    assert plot.shapes(shaped("epilogue", (16, 64, 32), epilogue="bias_gelu")) == ["bias gelu 16x64x32"]


def test_command_draws_every_suite(tmp_path, capsys):
    """One PNG a suite, none for host rows, which have no size."""
    host = results.host_rows("call", {"cutegemm": Measurement(us=1, us_min=1, us_max=1, rounds=1)}, "cublas")
    everything = rows("square", (1024, 2048)) + rows("odd", (127,)) + host
    results.save(tmp_path / "gemm.json", {"schema": 1, "environment": ENVIRONMENT, "rows": everything})
    plot.main([str(tmp_path / "gemm.json"), "--out", str(tmp_path / "plots")])
    drawn = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in drawn] == ["gemm_odd.png", "gemm_square.png"]
    assert all(path.read_bytes().startswith(PNG) for path in drawn)
    assert str(drawn[1]) in capsys.readouterr().out
