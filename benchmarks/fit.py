# SPDX-License-Identifier: Apache-2.0
"""Fit what unaligned operands or CUDA-core kernels take on a GPU to committed sweeps, and say how well it ranks.

    python -m benchmarks.fit --gpu "NVIDIA H200" --loads            # fit, and print; nothing is written
    python -m benchmarks.fit --gpu "NVIDIA H200" --cores --write    # and write the record, where it ranks better

The record is `cutegemm/arch/times.json`; `benchmarks.fit_cost` fits the rates of tensor-core kernels. What is minimised
is the expected regret: how much longer than the best measured a config takes that is drawn by predicted time, as if
predictions were off by 2 %. A little of the error of predicted times comes to it, and of how far the constants are from
where they began. Constants are searched one by one in their logarithm, with steps that halve: there is no gradient.
Each problem is judged by a fit to the others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line, fit_cores, fit_loads, runs, tuned_rows
from cutegemm.arch.device import Device
from cutegemm.arch.records import RECORDS, TIMES_FILE

SWEEPS = Path(__file__).parent / "results" / "sweeps"
# the error of predicted times counts so much beside regret
RATIO_WEIGHT = 0.1
# what a constant's squared logarithm costs: as much as the whole of one problem's regret where it is off by this factor
MOVED_WEIGHT = 0.03
# assumed relative error of predictions
BLUR = 0.02
# first and last step of a constant's logarithm
FIRST_STEP, LAST_STEP = 0.3, 0.02
# problems of a fit
LEAST_BESIDE = 3


def search(
    of: Callable[[Device], float], start: Device, moving: Sequence[str], problems: int, part: str
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


def put(name: str, part: str, model: Any, source: str, path: Path = TIMES_FILE) -> None:
    """Put a model's constants into a GPU's record, to four digits, with where they come from."""
    data = json.loads(path.read_text())
    data.setdefault(name, {})[f"{part}_source"] = source
    data[name][part] = {x: float(f"{value:.4g}") for x, value in dataclasses.asdict(model).items()}
    path.write_text(json.dumps(data, indent=1) + "\n")


def write(device: Device, part: str, source: str, path: Path = TIMES_FILE) -> None:
    """Put a device's constants of one part into the record."""
    put(device.name, part, getattr(device, part), source, path)


def main(arguments: list[str]) -> int:
    """Run the command; 1 where there is nothing to fit, or a fit is not good enough to be written."""
    parser = command_line.parser("fit", __doc__)
    add, which = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    add("--gpu", default=RECORDS[0].name, choices=[x.name for x in RECORDS], help="whose record")
    add("--sweeps", type=Path, nargs="*", help="files of sweeps; default those of benchmarks/results/sweeps")
    add("--write", action="store_true", help="write the record")
    which.add_argument("--loads", action="store_true", help="fit what unaligned operands take")
    which.add_argument("--cores", action="store_true", help="fit the kernels of the CUDA cores")
    names = [x.name for x in RECORDS]
    add("--onto", choices=names, help="whose record is written to; default the GPU's")
    add("--record", type=Path, default=TIMES_FILE, help="the record's file")
    args = parser.parse_args(arguments)
    of: Any = fit_cores if args.cores else fit_loads
    paths = args.sweeps or sorted([*SWEEPS.glob(of.FILES), *SWEEPS.glob(f"*{tuned_rows.SUFFIX}")])
    start = next(x for x in RECORDS if x.name == args.gpu)
    found = [x for x in of.read(paths) if x.gpu == start.name]
    console = runs.console()
    known = getattr(next(x for x in RECORDS if x.name == (args.onto or start.name)), of.PART)
    start = _moved(start, of.PART, {name: getattr(known, name) for name in of.NAMES})
    if len(found) < LEAST_BESIDE:
        console.print(f"{args.gpu}: {len(found)} problems with several {of.WHAT}, {LEAST_BESIDE} are wanted")
        return 1

    # fits to all problems but one begin alike: a problem's score is wanted again with the same constants
    known_scores: dict[tuple[int, Any], tuple[float, float, float]] = {}

    def scored(x: Any, device: Device) -> tuple[float, float, float]:
        key = id(x), getattr(device, of.PART)
        if key not in known_scores:
            known_scores[key] = of.score(x, device, BLUR)
        return known_scores[key]

    def judged(some: Sequence[Any], device: Device) -> float:
        scores = [scored(x, device) for x in some]
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
        write(onto, of.PART, f"fitted by benchmarks.fit to {files} of {start.name}", args.record)
        console.print(f"written to {args.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
