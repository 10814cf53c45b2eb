# SPDX-License-Identifier: Apache-2.0
"""Fit the time of loads by threads and copies, or of CUDA-core kernels, to committed sweeps, and report how they rank.

    python -m benchmarks.fit --gpu "NVIDIA H200" --loads            # fit and print; write nothing
    python -m benchmarks.fit --gpu "NVIDIA H200" --cores --write    # write the record if it ranks better
    python -m benchmarks.fit --gpu "NVIDIA H200" --few-rows --write # the same of a few rows or columns of D

GPUs whose records have the same constants are fitted together.
The record is `cutegemm/arch/times.json`; `benchmarks.fit_cost` fits the rates of tensor-core kernels. The fit minimizes
the expected regret: the time of a config drawn by its predicted time, with an assumed prediction error of 2 %, over the
best measured time. Small terms add the error of predicted times and the distance of constants from their start. The
objective has no gradient, so constants are searched one by one in the logarithm, with halving steps. Each problem is
judged by a fit to the others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line, fit_cores, fit_few_rows, fit_loads, runs, tuned_rows
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT, KERNELS_FILE, RECORDS, TIMES_FILE

SWEEPS = Path(__file__).parent / "results" / "sweeps"
# weight of the error of predicted times relative to regret
RATIO_WEIGHT = 0.1
# cost of a constant's squared logarithm, as a share of one problem's regret
MOVED_WEIGHT = 0.03
# assumed relative error of predictions
BLUR = 0.02
# first and last step of a constant's logarithm
FIRST_STEP, LAST_STEP = 0.3, 0.02
# precedes constants of a record's part that were fitted after the others, which stayed
SOME = "; later "
# minimum problems of a fit
LEAST_BESIDE = 3


def search(
    of: Callable[[Device], float], start: Device, moving: Sequence[str], problems: int, part: str
) -> Device:
    """The device with the constants of least cost, searched one by one in the logarithm with halving steps.

    Args:
        of: cost of a device, averaged over problems.
        start: start of the search, and the prior of constants that problems do not determine.
        moving: constants that may change.
        problems: number of problems.
        part: part of the device with these constants.
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


def rounded(model: Any) -> Any:
    """A model's constants to four digits."""
    return type(model)(**{x: float(f"{value:.4g}") for x, value in dataclasses.asdict(model).items()})


def _joined(known: str, moving: Sequence[str], source: str) -> str:
    """The source of a part some of whose constants are fitted anew, without what it said of these alone."""
    first, *later = known.split(SOME)
    kept = [x for x in later if not set(x.split(" fitted ")[0].split(", ")) <= set(moving)]
    return SOME.join([first, *kept, f"{', '.join(moving)} {source}"])


def put(name: str, part: str, model: Any, source: str, path: Path = TIMES_FILE) -> None:
    """Write a model's constants into a GPU's record, to four digits, with their source."""
    data = json.loads(path.read_text())
    data.setdefault(name, {})[f"{part}_source"] = source
    data[name][part] = dataclasses.asdict(rounded(model))
    path.write_text(json.dumps(data, indent=1) + "\n")


def write(
    name: str,
    model: Any,
    factors: Mapping[str, float],
    source: str,
    path: Path = TIMES_FILE,
    kernels: Path = KERNELS_FILE,
) -> None:
    """Write a GPU's rates and factors of kernels into the record."""
    put(name, "cost", model, source, path)
    data = json.loads(kernels.read_text())
    data[name] = {"source": source, "kernels": dict(factors)}
    kernels.write_text(json.dumps(data, indent=0) + "\n")


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if there is too little to fit, or if the fit does not rank better."""
    parser = command_line.parser("fit", __doc__)
    add, which = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    runs.add_gpu(parser, "GPU whose record is fitted")
    every = [x for of in (fit_cores, fit_few_rows, fit_loads) for x in of.NAMES]
    add(
        "--only",
        type=runs.names_among(every),
        help="constants of the fitted part that may change; default all",
    )
    add("--sweeps", type=Path, nargs="*", help="files of sweeps; default those of benchmarks/results/sweeps")
    add("--write", action="store_true", help="write the record")
    which.add_argument(
        "--loads", action="store_true", help="fit loads of operands that TMA or WGMMA cannot take"
    )
    which.add_argument("--cores", action="store_true", help="fit CUDA-core kernels")
    which.add_argument("--few-rows", action="store_true", help="fit those of a few rows or columns of D")
    names = [x.name for x in RECORDS]
    add("--onto", choices=names, help="GPU whose record is written; default the fitted GPU")
    add("--record", type=Path, default=TIMES_FILE, help="the record's file")
    args = parser.parse_args(arguments)
    of: Any = fit_cores if args.cores else fit_few_rows if args.few_rows else fit_loads
    moving = args.only or of.NAMES
    if strange := [x for x in moving if x not in of.NAMES]:
        parser.error(f"--only {','.join(strange)}: no constants of {of.WHAT}")
    paths = args.sweeps or sorted([*SWEEPS.glob(of.FILES), *SWEEPS.glob(f"*{tuned_rows.SUFFIX}")])
    start = runs.record_of(args.gpu)
    alike = {x.name for x in RECORDS if getattr(x, of.PART) == getattr(start, of.PART)}
    found = [x for x in of.read(paths) if x.gpu in alike]
    console = runs.console()
    name = args.onto or start.name
    known = getattr(runs.record_of(name), of.PART)
    # constants that stay are those of the file that is written; it need not have this part, which is then the default's
    written = json.loads(args.record.read_text()).get(name, {}) if args.only and args.record.exists() else {}
    known = dataclasses.replace(known, **written.get(of.PART, {}))
    start = _moved(start, of.PART, {name: getattr(known, name) for name in of.NAMES})
    if len(found) < LEAST_BESIDE:
        console.print(
            f"{args.gpu}: {len(found)} problems with several {of.WHAT}, at least {LEAST_BESIDE} are needed"
        )
        return 1

    # fits to all problems but one start alike and need the same scores again
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
        return search(lambda device: judged(some, device), start, moving, len(some), of.PART)

    old = statistics.fmean(judged([x], start) for x in found)
    new = statistics.fmean(judged([x], fitted([y for y in found if y is not x])) for x in found)
    best = fitted(found)
    before, after = getattr(start, of.PART), getattr(best, of.PART)
    shown = ", ".join(f"{x} {getattr(before, x):.4g} -> {getattr(after, x):.4g}" for x in of.NAMES)
    console.print(f"{args.gpu}: {len(found)} problems, {shown}")
    console.print(f"held back: cost {old:.4f} before, {new:.4f} after")
    if new >= old:
        console.print("not written: held-back problems are not ranked better")
        return 1
    if args.write:
        files = ", ".join(x.name for x in paths if of.read([x]))
        source = f"fitted by benchmarks.fit to {files} of {', '.join(sorted({x.gpu for x in found}))}"
        if args.only:
            others = written.get(f"{of.PART}_source", f"those of {DEFAULT.name}")
            source = _joined(others, moving, source)
        put(name, of.PART, after, source, args.record)
        console.print(f"written to {args.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
