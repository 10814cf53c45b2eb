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
    assert round(plot.size({"m": 64, "n": 64, "k": 64})) == 64
    assert round(plot.size({"m": 16, "n": 64, "k": 256})) == 64


def test_command_draws_every_suite(tmp_path, capsys):
    """One PNG a suite, none for host rows, which have no size."""
    host = results.host_rows("call", {"cutegemm": Measurement(us=1, us_min=1, us_max=1, rounds=1)}, "cublas")
    environment = {"gpu": "H200", "date": "2026-01-02T10:00", "commit": "0123456789abcdef"}
    everything = rows("square", (1024, 2048)) + rows("odd", (127,)) + host
    results.save(tmp_path / "gemm.json", {"schema": 1, "environment": environment, "rows": everything})
    plot.main([str(tmp_path / "gemm.json"), "--out", str(tmp_path / "plots")])
    drawn = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in drawn] == ["gemm_odd.png", "gemm_square.png"]
    assert all(path.read_bytes().startswith(PNG) for path in drawn)
    assert str(drawn[1]) in capsys.readouterr().out
