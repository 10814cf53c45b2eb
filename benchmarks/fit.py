# SPDX-License-Identifier: Apache-2.0
"""Fit the constants of a GPU's model of time to committed sweeps, and say how well it ranks.

    python -m benchmarks.fit --gpu "NVIDIA H200"            # fit, and print regret per suite; nothing is written
    python -m benchmarks.fit --gpu "NVIDIA H200" --write    # and write the record, where what was measured is enough
    python -m benchmarks.fit --gpu "NVIDIA H200" --loads    # the same of loads of operands that TMA cannot address
    python -m benchmarks.fit --gpu "NVIDIA H200" --cores    # the same of the CUDA cores' kernels

The record is `cutegemm/arch/times.json`. What is minimised is the regret to be expected: how much longer than the best
measured a candidate takes that is drawn by predicted time, as if predictions were off by 2 %, so that it changes with
every constant and a lucky first place counts for little. A little of the error of predicted ratios and times comes to
it, and of how far the constants are from where they began, the more the fewer the problems. Constants are searched one
by one in their logarithm, with steps that halve: there is no gradient. Each quarter of the problems is judged by a fit
to the others, with the power cap as a bound of its own (`fit_power`) and without; what does not rank what was held back
better, or ranks a suite worse, is not written. Problems whose operands are copied first are left out: of loads there is
a fit of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import fit_cores, fit_loads, fit_power, runs, tuned_rows
from benchmarks.sweep_rows import Measured, load, read
from cutegemm import Problem
from cutegemm.arch.device import Device, TimeModel
from cutegemm.arch.records import RECORDS, TIMES_FILE
from cutegemm.planning.swap import MOST_ROWS
from cutegemm.planning.times import estimates, ranked

RESULTS = Path(__file__).parent / "results"
SWEEPS = RESULTS / "sweeps"
# the error of predicted ratios and times counts so much beside regret
RATIO_WEIGHT = 0.1
# what a constant's squared logarithm costs: as much as the whole of one problem's regret where it is off by this factor
MOVED_WEIGHT = 0.03
# of what a fit must bring the cost of what was held back to: one that is made again would move on for nothing
LEAST_GAIN = 0.99
# parts of the problems, each judged by a fit to the others
FOLDS = 4
# relative error of predictions that is reckoned with
BLUR = 0.02
# first and last step of a constant's logarithm
FIRST_STEP, LAST_STEP = 0.3, 0.02
# of a fit that may be written: problems, and measured times for each constant that moves
LEAST_PROBLEMS = 24
TIMES_PER_CONSTANT = 20
# by what share a suite's mean regret may grow: what a measured time is uncertain by, over the root of its problems
SUITE_MARGIN = 0.03
# constants that hold still: no sweep has kernels whose consumers take turns at 16384^3, where they are 3 % slower
# (H200), and from shorter K the fit would take them there
HELD = ("turn_deep",)
# problems of a fit of loads or of the CUDA cores, and how the source of one of loads begins
LEAST_BESIDE = 3
LOADS = "loads:"


@dataclasses.dataclass(frozen=True)
class Score:
    """How a model ranks one problem, as logarithms.

    Attributes:
        regret: of what it puts first.
        expected: the same of what is drawn by predicted time.
        ratios: the spread of measured over predicted.
        level: how far predicted microseconds are off altogether; 0 where nobody knows.
    """

    regret: float
    expected: float
    ratios: float
    level: float

    @property
    def cost(self) -> float:
        """What is minimised."""
        return self.expected + RATIO_WEIGHT * (self.ratios + self.level)


def score(of: Measured, device: Device) -> Score:
    """How the device's model ranks what was measured of one problem."""
    measured = of.times
    times = estimates(of.problem, device, of.table)
    first = ranked(of.table, times)[0]
    logs = np.log(times)
    drawn = np.exp((logs.min() - logs) / BLUR)
    expected = float(drawn @ measured / drawn.sum())
    errors = np.log(measured) - logs
    # both in nanoseconds: measured are thousandths of the baseline's microseconds
    level = 0.0 if of.baseline is None else abs(float(errors.mean()) + math.log(of.baseline))
    return Score(
        math.log(measured[first] / measured.min()),
        math.log(expected / measured.min()),
        float(errors.std()),
        level,
    )


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
    moving = names or [x.name for x in dataclasses.fields(TimeModel)]
    return search(lambda device: cost(found, device), start, moving, len(found))


def search(
    of: Callable[[Device], float], start: Device, moving: Sequence[str], problems: int, part: str = "time"
) -> Device:
    """The device with the constants that cost least, one by one in their logarithm with steps that halve.

    Args:
        of: what a device costs, the mean over problems.
        start: where the search begins, and what is believed where problems say little.
        moving: constants that may move.
        problems: how many there are.
        part: of the device, which holds them.
    """
    known = getattr(start, part)

    def total(device: Device) -> float:
        moved = [math.log(getattr(getattr(device, part), x) / getattr(known, x)) ** 2 for x in moving]
        return of(device) + MOVED_WEIGHT * sum(moved) / problems

    device, least, step = start, total(start), FIRST_STEP
    while step >= LAST_STEP:
        before = least
        for name in moving:
            for factor in (math.exp(step), math.exp(-step)):
                now = getattr(device, part)
                tried = _moved(device, part, {name: getattr(now, name) * factor})
                costs = total(tried)
                if costs < least - 1e-7:
                    device, least = tried, costs
        if least == before:
            step /= 2
    return device


def _moved(device: Device, part: str, constants: dict[str, float]) -> Device:
    """The device with other constants in one of its parts."""
    return dataclasses.replace(device, **{part: dataclasses.replace(getattr(device, part), **constants)})


def _measures(path: Path, gpu: str) -> bool:
    """Whether a file holds candidates' times on a GPU."""
    data = load(path, gpu)
    rows = data.get("rows") or []
    swept = isinstance(data.get("problems"), dict) or any(
        "spec" in x or isinstance(x.get("us"), dict) for x in rows
    )
    return swept and (data.get("environment") or data).get("gpu") == gpu


def held_back(found: Sequence[Measured], start: Device, names: Sequence[str]) -> float:
    """The cost of problems that each were left out of the fit that judges them."""
    costs = []
    for part in range(min(FOLDS, len(found))):
        fitted = fit([x for place, x in enumerate(found) if place % FOLDS != part], start, names)
        costs += [score(x, fitted).cost for x in found[part::FOLDS]]
    return statistics.fmean(costs)


def _copied(of: Problem) -> bool:
    """Whether TMA cannot address an operand, so that times include a load that candidates do not tell."""
    return of.a.tma_reason() is not None or of.b.tma_reason() is not None


def _ruled(of: Problem) -> bool:
    """Whether rules of few rows choose, which have a model of their own (`planning.narrow`, `planning.swap`)."""
    return min(of.m, of.n) <= MOST_ROWS < max(of.m, of.n)


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
    """Regret per suite, before and after; at last before that of the best spec measured, whatever it gives."""
    shown = Table(
        "suite", "problems", "mean before", "after", "worst before", "after", "before, of all specs"
    )
    first, second = regrets(found, before), regrets(found, after)
    for suite, old in first.items():
        new, of = second[suite], [x for x in found if x.suite == suite]
        beyond = [min(x.us.values()) / x.least for x in of]
        numbers = [*map(statistics.geometric_mean, (old, new)), max(old), max(new)]
        everything = statistics.geometric_mean([x * y for x, y in zip(old, beyond, strict=True)])
        shown.add_row(suite, str(len(old)), *(f"{x:.3f}" for x in numbers), f"{everything:.3f}")
    return shown


def enough(found: Sequence[Measured], names: Sequence[str]) -> str | None:
    """Why problems are too few to write a fit of these constants; None where they are enough."""
    times, need = sum(len(x.us) for x in found), TIMES_PER_CONSTANT * len(names)
    suites = {x.suite for x in found}
    schedules = {y.schedule for x in found for y in x.us}
    if len(found) < LEAST_PROBLEMS or times < need:
        return f"{times} times of {len(found)} problems, and {len(names)} constants want {need} of {LEAST_PROBLEMS}"
    if len(schedules) < 3:
        return f"only {', '.join(sorted(schedules))} kernels were measured: constants of the others would be guessed"
    beside = [x for x in found if len({y.schedule for y in x.us}) > 1]
    if len(beside) < LEAST_PROBLEMS:
        return f"schedules were measured beside each other on {len(beside)} of {len(found)} problems"
    return None if len(suites) > 1 else "one suite only"


def worse(found: Sequence[Measured], before: Device, after: Device) -> str | None:
    """The suites that a fit ranks worse, in words; None where there are none."""
    first, second = regrets(found, before), regrets(found, after)
    means = {x: (statistics.geometric_mean(first[x]), statistics.geometric_mean(second[x])) for x in first}
    lost = [
        f"{x} {old:.3f} -> {new:.3f}"
        for x, (old, new) in means.items()
        if new > old * (1 + SUITE_MARGIN / math.sqrt(len(first[x])))
    ]
    return f"it ranks suites worse: {', '.join(lost)}" if lost else None


def unfitted(names: Sequence[str]) -> str:
    """The constants of kernels that a fit leaves as they were, in words of a record's source."""
    kernels = [x.name for x in dataclasses.fields(TimeModel) if x.name not in fit_loads.NAMES]
    return f"not fitted: {', '.join(x for x in kernels if x not in names)}"


def write(device: Device, source: str, path: Path = TIMES_FILE, names: Sequence[str] | None = None) -> None:
    """Put a device's constants into the record, or those of them that are named."""
    data = json.loads(path.read_text())
    found = dataclasses.asdict(device.time)
    time = {name: float(f"{found[name]:.4g}") for name in names or found}
    if names is not None:
        known = data[device.name]
        time = known["time"] | time
        # what an earlier fit of the same constants said of itself goes
        source = "; ".join([*(x for x in known["source"].split("; ") if not x.startswith(LOADS)), source])
    else:
        # what was said of loads holds still: a fit of kernels does not feel them
        known = data.get(device.name, {}).get("source", "")
        source = "; ".join([source, *(x for x in known.split("; ") if x.startswith(LOADS))])
    power = data[device.name].get("power") if names is not None else None
    if names is None and device.power is not None:
        power = {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(device.power).items()}
    cores = {name: x for name, x in data.get(device.name, {}).items() if name in ("cores", "cores_source")}
    data[device.name] = {"source": source, "time": time} | ({} if power is None else {"power": power}) | cores
    path.write_text(json.dumps(data, indent=1) + "\n")


def write_cores(device: Device, source: str, path: Path) -> None:
    """Put a device's constants of the CUDA cores into the record."""
    data = json.loads(path.read_text())
    found = dataclasses.asdict(device.cores)
    data[device.name]["cores_source"] = source
    data[device.name]["cores"] = {name: float(f"{value:.4g}") for name, value in found.items()}
    path.write_text(json.dumps(data, indent=1) + "\n")


def _fit_beside(args: argparse.Namespace, start: Device, paths: Sequence[Path]) -> int:
    """Fit what loads cost, or the CUDA cores; each problem is judged by a fit to the others."""
    of: Any = fit_cores if args.cores else fit_loads
    found = [x for x in of.read(paths) if x.gpu == start.name]
    console = runs.console()
    known = getattr(next(x for x in RECORDS if x.name == (args.onto or start.name)), of.PART)
    start = _moved(start, of.PART, {name: getattr(known, name) for name in of.NAMES})
    if len(found) < LEAST_BESIDE:
        console.print(f"{args.gpu}: {len(found)} problems with several {of.WHAT}, {LEAST_BESIDE} are wanted")
        return 1

    def judged(some: Sequence[Any], device: Device) -> float:
        scores = [of.score(x, device, BLUR) for x in some]
        return statistics.fmean(expected + RATIO_WEIGHT * error for _, expected, error in scores)

    def fitted(some: Sequence[Any]) -> Device:
        return search(lambda device: judged(some, device), start, of.NAMES, len(some), of.PART)

    old = statistics.fmean(judged([x], start) for x in found)
    new = statistics.fmean(judged([x], fitted([y for y in found if y is not x])) for x in found)
    best = fitted(found)
    before, after = getattr(start, of.PART), getattr(best, of.PART)
    shown = ", ".join(f"{x} {getattr(before, x):.4g} -> {getattr(after, x):.4g}" for x in of.NAMES)
    console.print(f"{args.gpu}: {len(found)} problems, {shown}")
    console.print(f"held back: cost {old:.4f} before, {new:.4f} after")
    if new >= old:
        console.print("not written: it ranks what was held back no better")
        return 1
    if args.write:
        onto = dataclasses.replace(best, name=args.onto or start.name)
        files = ", ".join(x.name for x in paths if of.read([x]))
        source = f"fitted by benchmarks.fit to {files} of {start.name}"
        if args.cores:
            write_cores(onto, source, args.record)
        else:
            write(onto, f"{LOADS} {', '.join(of.NAMES)} {source}", args.record, of.NAMES)
        console.print(f"written to {args.record}")
    return 0


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
    add("--loads", action="store_true", help="fit what loads of odd operands cost, instead of kernels' times")
    add("--cores", action="store_true", help="fit the kernels of the CUDA cores instead")
    names = [x.name for x in RECORDS]
    add("--onto", choices=names, help="whose record loads or cores are written to; default the GPU's")
    add("--record", type=Path, default=TIMES_FILE, help="the record's file")
    args = parser.parse_args(arguments)
    start = next(x for x in RECORDS if x.name == args.gpu)
    paths = args.sweeps or sorted([*SWEEPS.glob("*.json"), *SWEEPS.glob(f"*{tuned_rows.SUFFIX}")])
    if args.loads or args.cores:
        return _fit_beside(args, start, paths)
    found = [
        x for x in read(paths, start) if x.gpu == start.name and not (_copied(x.problem) or _ruled(x.problem))
    ]
    console = runs.console()
    if len(found) < 2:
        console.print(f"{args.gpu}: {len(found)} problems measured, nothing to fit")
        return 1
    names = [x for x in felt(found, start) if x not in HELD]
    console.print(f"{args.gpu}: {len(found)} problems, {len(names)} constants: {', '.join(names)}")
    burnt = fit_power.read([*sorted(RESULTS.glob("*.json")), *paths], start.name)
    power = fit_power.fitted(burnt, start)
    if power is not None:
        pj = f"{power.flop:.3f} pJ a FLOP, {power.l2:.1f} a byte of L2, {power.dram:.1f} of device memory"
        console.print(f"{len(burnt)} kernels at the cap of {power.watts:.0f} W: {pj}")
    old = cost(found, start)
    best: tuple[float, Device] | None = None
    for what, begin in (
        ("without", dataclasses.replace(start, power=None)),
        ("with", dataclasses.replace(start, power=power)),
    ):
        if best is not None and power is None:
            break
        new = held_back(found, begin, names)
        console.print(f"held back, {what} the power cap: {old:.4f} before, {new:.4f} after")
        if best is None or new < best[0]:
            best = new, begin
    assert best is not None
    fitted = fit(found, best[1], names)
    console.print(table(found, start, fitted))
    better = best[0] < LEAST_GAIN * old
    reason = enough(found, names) or (None if better else "it ranks what was held back no better")
    reason = reason or worse(found, start, fitted)
    if reason is not None:
        console.print(f"not written: {reason}")
        return 1
    if args.write:
        of = ", ".join(x.name for x in paths if _measures(x, start.name))
        write(fitted, f"fitted by benchmarks.fit to {of}; {unfitted(names)}", args.record)
        console.print(f"written to {args.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
