# SPDX-License-Identifier: Apache-2.0
"""The figures of fused epilogues: what they divide, their targets, and how they are shown."""

import pytest
from rich.console import Console

from benchmarks import epilogue, figures, fusions, results, table
from benchmarks.results import Case, Measurement

ENVIRONMENT = {"gpu": "H200", "torch": "2.11", "date": "2026-01-02T10:00:00", "commit": "c" * 40}


def rows(name: str, size: tuple[int, int, int], beta: float = 0.0, **us: float) -> list[results.Row]:
    """Rows of one case measured in one run, with these times."""
    m, n, k = size
    case = Case(suite="epilogue", dtype="bf16", majors="kk", m=m, n=n, k=k, epilogue=name, beta=beta)
    times = {who: Measurement(us=t, us_min=t, us_max=t, rounds=3) for who, t in us.items()}
    return results.case_rows(case, times, plans={}, regime="sustained", baseline="cutegemm_plain")


def test_every_figure_is_measured():
    """Each figure's two contenders stand in one case of the suite."""
    names = {(c.epilogue, (c.m, c.n, c.k)): fusions.names(c) for c in epilogue.cases()}
    for figure in figures.FIGURES:
        assert {figure.over, figure.under} <= set(names[figure.epilogue, figure.size]), figure


def test_figures_in_full():
    """Every figure is one contender's time over another's, beside its target."""
    measured = [
        *rows("bias_gelu_residual", (8192, 4096, 1024), cutegemm=110, cutegemm_plain=100, torch_compile=143, eager=176),
        *rows("bias_gelu_residual", (4096, 14336, 4096), cutegemm=105, cutegemm_plain=100, torch_compile=126),
        *rows("bias_gelu_residual", (8192, 8192, 8192), cutegemm=100, cutegemm_plain=100, cublas_plain=98),
        *rows("bias_gelu_residual", (16, 14336, 4096), cutegemm=102, cutegemm_plain=100),
        *rows("linear_combination", (4096, 14336, 4096), 0.5, cutegemm=106, cutegemm_plain=100, cublas=228,
              cublas_plain=200),
        *rows("linear_combination", (8192, 4096, 1024), 0.5, cutegemm=110, cutegemm_plain=100),
        *rows("swiglu", (4096, 57344, 8192), cutegemm=103, cutegemm_plain=100),
        *rows("bias_quantize_fp8", (4096, 14336, 4096), cutegemm=104, cutegemm_plain=100),
    ]  # fmt: skip
    found = [
        (f.epilogue, f.what, value and round(value, 2), f.target, f.verdict(value))
        for f, value in figures.values(measured)
    ]
    gelu, linear, ours = "bias_gelu_residual", "linear_combination", "fused over our plain GEMM"
    assert found == [
        (gelu, ours, 1.10, "at most 1.12", "met"),
        (gelu, ours, 1.05, "at most 1.05", "met"),
        (gelu, ours, 1.00, "at most 1.03", "met"),
        (gelu, ours, 1.02, "at most 1.05", "met"),
        (gelu, "torch_compile over fused", 1.30, "at least 1.35", "not met"),
        (gelu, "torch_compile over fused", 1.20, "at least 1.12", "met"),
        (gelu, "torch_compile over fused, once plain leads cuBLAS", None, "at least 1.06", "not measured"),
        (gelu, "cuBLAS over our plain GEMM", 0.98, "", ""),
        (gelu, "eager over fused", 1.60, "at least 1.60", "met"),
        (linear, ours, 1.06, "at most 1.04", "not met"),
        (linear, "cuBLAS's beta over its plain GEMM", 1.14, "", ""),
        (linear, ours, 1.10, "at most 1.10", "met"),
        (linear, "cuBLAS's beta over its plain GEMM", None, "", ""),
        ("swiglu", ours, 1.03, "at most 1.02", "not met"),
        ("bias_quantize_fp8", ours, 1.04, "at most 1.05", "met"),
    ]


def test_figures_never_mix_runs():
    """Times of two runs are not divided: the clock has moved between them."""
    size = (4096, 57344, 8192)
    old = rows("swiglu", size, cutegemm=100, cutegemm_plain=99)
    new = rows("swiglu", size, cutegemm_plain=120, eager=200)
    value = {f.epilogue: v for f, v in figures.values([old[0], *new])}
    assert value["swiglu"] is None
    assert list(figures.by_case([old[0], *new])["swiglu", size]) == ["cutegemm_plain", "eager"]


def test_terminal_table_shows_all():
    """The printed table has a line a figure, with the value and the verdict."""
    console = Console(record=True, width=150)
    console.print(figures.table(rows("swiglu", (4096, 57344, 8192), cutegemm=103, cutegemm_plain=100)))
    lines = console.export_text().splitlines()
    assert len([line for line in lines if "GEMM" in line or "over fused" in line]) == len(figures.FIGURES)
    (line,) = [line for line in lines if "swiglu" in line]
    assert "4096x57344x8192" in line and "1.030" in line and "at most 1.02" in line and "not met" in line


def test_readme_table():
    """A line a problem: our time, over plain, and the others' times over ours."""
    gelu = rows(
        "bias_gelu_residual",
        (8192, 4096, 1024),
        cutegemm=110,
        cutegemm_plain=100,
        torch_compile=154,
        eager=220,
        cublaslt=165,
    )
    linear = rows("linear_combination", (8192, 4096, 1024), 0.5, cutegemm=110, cutegemm_plain=100, cublas=143)
    document = {"environment": ENVIRONMENT, "rows": gelu + linear}
    text = table.render("epilogue", {"results/epilogue.json": document})
    assert text.splitlines()[2:] == [
        "| bias gelu residual | 8192×4096×1024 | 110.0 | **1.10** | 1.40 | 2.00 | 1.50 |",
        "| linear combination | 8192×4096×1024 | 110.0 | **1.10** |  |  | 1.30 |",
        "",
        "Measured: [epilogue.json](results/epilogue.json) (H200, torch 2.11, 2026-01-02, commit cccccccccc).",
    ]
    with pytest.raises(ValueError, match="'summary': no results file"):
        table.render("summary", {"results/epilogue.json": document})


def test_readme_table_may_await_its_measurement():
    """Until there are rows the markers may enclose nothing, but no figures that no file holds."""
    empty = "<!-- benchmark:epilogue -->\n<!-- /benchmark:epilogue -->\n"
    assert table.fill(empty, {}) == empty
    with pytest.raises(ValueError, match="table 'epilogue': no results file has rows for it"):
        table.fill(empty.replace("\n", "\n| old |\n", 1), {})
    swiglu = rows("swiglu", (4096, 57344, 8192), cutegemm=103, cutegemm_plain=100)
    assert "| swiglu |" in table.fill(empty, {"r.json": {"environment": ENVIRONMENT, "rows": swiglu}})
