# SPDX-License-Identifier: Apache-2.0
"""Fit the constants of a GPU's model of time to committed sweeps, and say how well it ranks.

    python -m benchmarks.fit --gpu "NVIDIA H200"            # fit, and print regret per suite; nothing is written
    python -m benchmarks.fit --gpu "NVIDIA H200" --write    # and write the record, where what was measured is enough

The record is `cutegemm/arch/times.json`. What is minimised is regret (how much longer the model's first candidate
takes than the best measured) with a little of the error of predicted ratios, which still changes where the first does
not. Constants are searched one by one in their logarithm, with steps that halve: there is no gradient.
Half of the problems are held back; what does not rank those better is not written.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import runs
from benchmarks.sweep_rows import Measured, read
from cutegemm.arch.device import Device, TimeModel
from cutegemm.arch.records import RECORDS, TIMES_FILE
from cutegemm.planning.times import fastest_first

SWEEPS = Path(__file__).parent / "results" / "sweeps"
# the error of predicted ratios counts so much beside regret
RATIO_WEIGHT = 0.1
# first and last step of a constant's logarithm
FIRST_STEP, LAST_STEP = 0.3, 0.01
# of a fit that may be written: problems, and how many constants may move for each problem there is
LEAST_PROBLEMS = 40
PROBLEMS_PER_CONSTANT = 5


@dataclasses.dataclass(frozen=True)
class Score:
    """How a model ranks one problem: regret, and the spread of measured over predicted, both logarithms."""

    regret: float
    ratios: float

    @property
    def cost(self) -> float:
        """What is minimised."""
        return self.regret + RATIO_WEIGHT * self.ratios


def score(of: Measured, device: Device) -> Score:
    """How the device's model ranks what was measured of one problem."""
    known = list(of.us)
    order, times = fastest_first(of.problem, device, known)
    best = min(of.us.values())
    errors = [math.log(of.us[x] / ns) for x, ns in zip(known, times, strict=True)]
    return Score(math.log(of.us[known[order[0]]] / best), statistics.pstdev(errors))


def cost(found: Sequence[Measured], device: Device) -> float:
    """The mean over problems."""
    return statistics.fmean(score(x, device).cost for x in found)


def fit(found: Sequence[Measured], start: Device, names: Sequence[str] | None = None) -> Device:
    """The device with the constants that rank best what was found.

    Args:
        found: measured problems.
        start: where the search begins.
        names: of constants that may move; None is every one.
    """
    device, least, step = start, cost(found, start), FIRST_STEP
    moving = names or [x.name for x in dataclasses.fields(TimeModel)]
    while step >= LAST_STEP:
        moved = False
        for name in moving:
            for factor in (math.exp(step), math.exp(-step)):
                tried = dataclasses.replace(
                    device,
                    time=dataclasses.replace(device.time, **{name: getattr(device.time, name) * factor}),
                )
                now = cost(found, tried)
                if now < least - 1e-9:
                    device, least, moved = tried, now, True
        if not moved:
            step /= 2
    return device


def felt(found: Sequence[Measured], device: Device) -> list[str]:
    """The constants whose change these problems feel: the others stay as they are."""
    least = cost(found, device)
    names = []
    for x in dataclasses.fields(TimeModel):
        time = dataclasses.replace(
            device.time, **{x.name: getattr(device.time, x.name) * math.exp(FIRST_STEP)}
        )
        if abs(cost(found, dataclasses.replace(device, time=time)) - least) > 1e-6:
            names.append(x.name)
    return names


def regrets(found: Sequence[Measured], device: Device) -> dict[str, list[float]]:
    """Chosen over best measured, by suite."""
    by_suite: dict[str, list[float]] = {}
    for x in found:
        by_suite.setdefault(x.suite, []).append(math.exp(score(x, device).regret))
    return by_suite


def table(found: Sequence[Measured], before: Device, after: Device) -> Table:
    """Regret per suite, before and after."""
    shown = Table("suite", "problems", "mean before", "mean after", "worst before", "worst after")
    first, second = regrets(found, before), regrets(found, after)
    for suite, old in first.items():
        new = second[suite]
        means = (f"{statistics.geometric_mean(x):.4f}" for x in (old, new))
        shown.add_row(suite, str(len(old)), *means, f"{max(old):.3f}", f"{max(new):.3f}")
    return shown


def enough(found: Sequence[Measured], names: Sequence[str]) -> str | None:
    """Why problems are too few to write a fit of these constants; None where they are enough."""
    need = max(LEAST_PROBLEMS, PROBLEMS_PER_CONSTANT * len(names))
    suites = {x.suite for x in found}
    schedules = {y.schedule for x in found for y in x.us}
    if len(found) < need:
        return f"{len(found)} problems, and {len(names)} constants want {need}"
    if len(schedules) < 3:
        return f"only {', '.join(sorted(schedules))} kernels were measured: constants of the others would be guessed"
    beside = [x for x in found if len({y.schedule for y in x.us}) > 1]
    if 2 * len(beside) < len(found):
        return f"schedules were measured beside each other on {len(beside)} of {len(found)} problems"
    return None if len(suites) > 1 else "one suite only"


def write(device: Device, source: str, path: Path = TIMES_FILE) -> None:
    """Put a device's constants into the record."""
    data = json.loads(path.read_text())
    data[device.name] = {
        "source": source,
        "time": {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(device.time).items()},
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Run the command; 1 where there is nothing to fit, or a fit is not good enough to be written."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gpu", default=RECORDS[0].name, choices=[x.name for x in RECORDS], help="whose record")
    add("--sweeps", type=Path, nargs="*", help="files of sweeps; default benchmarks/results/sweeps/*.json")
    add("--write", action="store_true", help="write the record")
    add("--record", type=Path, default=TIMES_FILE, help="the record's file")
    args = parser.parse_args(arguments)
    start = next(x for x in RECORDS if x.name == args.gpu)
    paths = args.sweeps or sorted(SWEEPS.glob("*.json"))
    found = [x for x in read(paths, start) if x.gpu == start.name]
    console = runs.console()
    if len(found) < 2:
        console.print(f"{args.gpu}: {len(found)} problems measured, nothing to fit")
        return 1
    names = felt(found, start)
    fitted = fit(found[::2], start, names)
    held = found[1::2]
    console.print(f"{args.gpu}: {len(found)} problems, {len(names)} constants: {', '.join(names)}")
    console.print(table(found, start, fitted))
    old, new = (cost(held, x) for x in (start, fitted))
    console.print(f"held back: {len(held)} problems, cost {old:.4f} before, {new:.4f} after")
    reason = enough(found, names) or (None if new < old else "it ranks what was held back no better")
    if reason is not None:
        console.print(f"not written: {reason}")
        return 1
    if args.write:
        final = fit(found, fitted, names)
        write(final, f"fitted by benchmarks.fit to {', '.join(x.name for x in paths)}", args.record)
        console.print(f"written to {args.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
