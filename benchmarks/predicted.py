# SPDX-License-Identifier: Apache-2.0
"""Times that the cost model predicts, compared with the measured times of the swept training problems.

    python -m benchmarks.predicted                                           # print the table
    python -m benchmarks.predicted --plot benchmarks/predicted.svg           # and draw the chosen configs

`benchmarks.table` writes the same table into benchmarks/README.md.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks import command_line, fit_cost, runs
from benchmarks.probe_tables import Lines
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT

NEAR = 1.1  # configs that take at most so much longer than the best of their problem
RANGE = (0.1, 0.9)
HEAD = ["family", "problems", "configs near the best", "median", "10 to 90 %", "of the chosen", "10 to 90 %"]
SIZE = (7.0, 5.5)  # inches


@dataclass(frozen=True)
class Compared:
    """One family.

    Attributes:
        name: of the family.
        near: measured over predicted times of configs near the best of their problem.
        chosen: the same of the config predicted fastest, by problem.
        predicted_us, measured_us: times of the chosen configs.
    """

    name: str
    near: NDArray[np.float64]
    chosen: NDArray[np.float64]
    predicted_us: NDArray[np.float64]
    measured_us: NDArray[np.float64]


def compared(paths: Sequence[Path], device: Device = DEFAULT) -> list[Compared]:
    """Every family of sweeps, with the rates of a GPU's record."""
    found = [x for path in paths for x in fit_cost.fresh(path, device)]
    data = fit_cost.Data(found, device)
    ns = data.predicted(device.cost, device.kernels)
    ratio, close, chosen = data.us * 1e3 / ns, data.us <= NEAR * data.best[data.of], data.chosen(ns)
    family = np.array([x.family for x in found])
    return [
        Compared(
            name,
            ratio[close & (family[data.of] == name)],
            ratio[mine := chosen[family == name]],
            ns[mine] / 1e3,
            data.us[mine],
        )
        for name in dict.fromkeys(family.tolist())
    ]


def lines(found: Sequence[Compared]) -> Lines:
    """Head and lines of the table."""

    def cells(x: NDArray[np.float64]) -> list[str]:
        low, high = np.quantile(x, RANGE)
        return [f"{np.median(x):.2f}", f"{low:.2f} to {high:.2f}"]

    return HEAD, [
        [x.name, str(len(x.chosen)), str(len(x.near)), *cells(x.near), *cells(x.chosen)] for x in found
    ]


def table() -> Lines:
    """Head and lines of the table of the committed sweeps."""
    return lines(compared(fit_cost.swept_on(DEFAULT.name)))


def measured(base: str) -> str:
    """The sweeps behind the table, as links in a text of the folder `base`."""
    where = posixpath.relpath("benchmarks/results/sweeps", base or ".")
    links = ", ".join(f"[{x.name}]({where}/{x.name})" for x in fit_cost.swept_on(DEFAULT.name))
    return f"Measured: {links} ({DEFAULT.name})."


def draw(found: Sequence[Compared], path: Path) -> None:
    """Draw measured over predicted times of the chosen configs, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "predicted"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    for number, x in enumerate(found):
        axes.loglog(
            x.predicted_us,
            x.measured_us,
            ".",
            markersize=4,
            label=x.name,
            color=f"C{number % 10}",
            fillstyle="full" if number < 10 else "none",
        )
    ends = [min(x.predicted_us.min() for x in found), max(x.predicted_us.max() for x in found)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xlabel="predicted, µs", ylabel="measured, µs")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("predicted", __doc__)
    parser.add_argument("--gpu", choices=tuple(fit_cost.FRESH), default=DEFAULT.name)
    parser.add_argument("--plot", type=Path, help="also draw into this file")
    args = parser.parse_args(arguments)
    found = compared(fit_cost.swept_on(args.gpu), runs.record_of(args.gpu))
    head, body = lines(found)
    shown = Table(*head)
    for line in body:
        shown.add_row(*line)
    runs.console().print(shown)
    if args.plot:
        draw(found, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
