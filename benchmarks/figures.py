# SPDX-License-Identifier: Apache-2.0
"""The targets of fused epilogues, and their values from rows of suite "epilogue"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from benchmarks.results import Row

Size = tuple[int, int, int]
SMALL_K, MLP, CUBE = (8192, 4096, 1024), (4096, 14336, 4096), (8192, 8192, 8192)
LLAMA, DECODE = (4096, 2 * 28672, 8192), (16, 14336, 4096)


@dataclass(frozen=True)
class Figure:
    """The time of contender `over` divided by that of `under`, with a target.

    `most` and `least` bound it from above and below; without either it is only reported.
    """

    what: str
    epilogue: str
    size: Size
    over: str
    under: str
    most: float | None = None
    least: float | None = None

    @property
    def target(self) -> str:
        """The target in words."""
        if self.most is not None:
            return f"at most {self.most:.2f}"
        return "" if self.least is None else f"at least {self.least:.2f}"

    def verdict(self, value: float | None) -> str:
        """Whether a value meets the target."""
        if not self.target:
            return ""
        if value is None:
            return "not measured"
        above = self.least is None or value >= self.least
        below = self.most is None or value <= self.most
        return "met" if above and below else "not met"


def _over_plain(epilogue: str, size: Size, most: float) -> Figure:
    return Figure("fused over our plain GEMM", epilogue, size, "cutegemm", "cutegemm_plain", most=most)


def _faster(than: str, size: Size, least: float, when: str = "") -> Figure:
    return Figure(f"{than} over fused{when}", "bias_gelu_residual", size, than, "cutegemm", least=least)


_LINEAR = "linear_combination"
FIGURES = (
    _over_plain("bias_gelu_residual", SMALL_K, 1.12),
    _over_plain("bias_gelu_residual", MLP, 1.05),
    _over_plain("bias_gelu_residual", CUBE, 1.03),
    _over_plain("bias_gelu_residual", DECODE, 1.05),
    _faster("torch_compile", SMALL_K, 1.35),
    _faster("torch_compile", MLP, 1.12),
    _faster("torch_compile", CUBE, 1.06, ", once plain leads cuBLAS"),
    Figure("cuBLAS over our plain GEMM", "bias_gelu_residual", CUBE, "cublas_plain", "cutegemm_plain"),
    _faster("eager", SMALL_K, 1.6),
    _over_plain(_LINEAR, MLP, 1.04),
    Figure("cuBLAS's beta over its plain GEMM", _LINEAR, MLP, "cublas", "cublas_plain"),
    _over_plain(_LINEAR, SMALL_K, 1.10),
    Figure("cuBLAS's beta over its plain GEMM", _LINEAR, SMALL_K, "cublas", "cublas_plain"),
    _over_plain("swiglu", LLAMA, 1.02),
    _over_plain("bias_quantize_fp8", MLP, 1.05),
)


def by_case(rows: Iterable[Row]) -> dict[tuple[str, Size], dict[str, Row]]:
    """Per epilogue and size the rows that were measured together with the last one."""
    groups: dict[tuple[str, Size], dict[str, Row]] = {}
    for row in rows:
        if row["suite"] == "epilogue":
            place = row["epilogue"], (row["m"], row["n"], row["k"])
            groups.setdefault(place, {})[row["contender"]] = row
    for place, group in groups.items():
        run = list(group.values())[-1][
            "baseline_us"
        ]  # a run times the baseline once, so its time identifies the run
        groups[place] = {name: row for name, row in group.items() if row["baseline_us"] == run}
    return groups


def values(rows: Iterable[Row]) -> list[tuple[Figure, float | None]]:
    """Every figure with its value; None if one of its contenders has no row."""
    groups = by_case(rows)
    found = []
    for figure in FIGURES:
        group = groups.get((figure.epilogue, figure.size), {})
        both = figure.over in group and figure.under in group
        found.append((figure, group[figure.over]["us"] / group[figure.under]["us"] if both else None))
    return found


def table(rows: Iterable[Row]) -> Table:
    """All figures and targets, for a terminal."""
    shown = Table("epilogue", "M x N x K", "figure", "value", "target", "")
    for figure, value in values(rows):
        number = "" if value is None else f"{value:.3f}"
        size = "x".join(map(str, figure.size))
        shown.add_row(figure.epilogue, size, figure.what, number, figure.target, figure.verdict(value))
    return shown
