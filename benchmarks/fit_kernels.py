# SPDX-License-Identifier: Apache-2.0
"""Adds factors of new kinds of kernels, and rates of splits, to a GPU's record; its other rates and factors stay.

    python -m benchmarks.fit_kernels --gpu "NVIDIA H200"            # fit and print regret per family
    python -m benchmarks.fit_kernels --gpu "NVIDIA H200" --write    # also write the record in `cutegemm/arch`

`benchmarks.fit_cost` fits everything anew, these kernels included. Then plans change for groups and operand types too
that the newest sweeps did not measure. This command replaces only factors of kernels that such plans do not have: with
more than eight stages, with tiles that the CTAs of a cluster load in turn (`config.stage.StageItem.shares`), and with
16-bit splits of K that the next launch adds. Rates of that launch, and of boxes by the place and length of their rows,
are fitted first. The record gets what is fitted to all problems. Each half of them, held back or not, is judged by a
fit to the other, if there are two.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import command_line, fit, fit_cost, fit_report, runs
from benchmarks.fit_cost import CHAIN, FRESH, SWEEPS, Data, Measured
from cutegemm.arch.device import Device
from cutegemm.arch.records import KERNELS_FILE, RECORDS, TIMES_FILE
from cutegemm.layouts.hardware import CORE_ROWS
from cutegemm.planning import known_kernels

# begin the parts of a record's sources that this command writes
SPLITS = "; rates of boxes and splits by benchmarks.fit_kernels to "
ADDED = "; new kernels by benchmarks.fit_kernels from "

# rates of boxes by their rows' place and length, and of the launch that adds splits
BOXES, RATES = ("straddle", "within", "slim"), ("add", "add_rate", "full")
SIXTEEN = tuple(known_kernels.KINDS[x] for x in (known_kernels.PLAIN, known_kernels.DEEP))


def is_new(kernel: str) -> bool:
    """Whether a kernel, by its name (`known_kernels.name`), is of a kind whose factors this command fits."""
    kind, tile, cluster, *_, reduction = kernel.split()
    (m, n, _), (across, along) = (tuple(map(int, x.split("x"))) for x in (tile, cluster))
    shared = n % (CORE_ROWS * across) == 0 and m % (CORE_ROWS * along) == 0
    added = reduction == "launch" and kind in SIXTEEN
    return kind == known_kernels.KINDS[known_kernels.DEEP] or not shared or added


def kept(device: Device) -> dict[str, float]:
    """The factors that the record has of other kernels."""
    return {name: x for name, x in device.kernels.items() if not is_new(name)}


def rated(found: Sequence[Measured], device: Device) -> Device:
    """The device with `BOXES` fitted to all problems, and `RATES` to those with splits that the next launch adds."""
    own = kept(device)

    def without(x: Measured) -> Measured:
        """The problem with times that its kernels' factors do not change."""
        names = (known_kernels.name(c) for _, c in x.configs)
        us = [y / known_kernels.factor_of(name, own) for y, name in zip(x.us, names, strict=True)]
        return dataclasses.replace(x, us=us)

    split = [x for x in found if any(c.reduction == "launch" for _, c in x.configs)]
    assert device.cost is not None
    # start from constants, so that repeated fits give the same rates
    fitted = (*BOXES, *(RATES if split else ()))
    cost = dataclasses.replace(device.cost, **{x: getattr(fit_cost.START, x) for x in fitted})
    for names, some in ((BOXES, found), (RATES, split)):
        if some:
            cost = fit_cost.fit(Data([without(x) for x in some], device), cost, names=names)
    return dataclasses.replace(device, cost=fit.rounded(cost))


def added(found: Sequence[Measured], device: Device) -> dict[str, float]:
    """The factors of new kernels, fitted to problems but chains; those that the record has do not count."""
    assert device.cost is not None
    known = [x for x in found if x.family != CHAIN]
    fitted = Data(known, device).factors(device.cost, kept(device))
    return {name: x for name, x in fitted.items() if is_new(name)}


def regret(judged: Sequence[Measured], fitted_to: Sequence[Measured], device: Device) -> list[float]:
    """The regret of problems under rates and factors that are fitted to others."""
    device = rated(fitted_to, device)
    assert device.cost is not None
    return Data(judged, device).regret(device.cost, kept(device) | added(fitted_to, device))


def judged_by_halves(found: Sequence[Measured], device: Device) -> list[float]:
    """The regret of each problem under factors fitted to the other half: held back, or not."""
    halves = [[x for x in found if x.held_back == half] for half in (False, True)]
    if not all(halves):
        return [math.nan] * len(found)
    each = [iter(regret(halves[half], halves[not half], device)) for half in (False, True)]
    return [next(each[x.held_back]) for x in found]


def written(name: str, factors: Mapping[str, float], files: str, path: Path = KERNELS_FILE) -> None:
    """Replace the factors of new kernels in a GPU's record."""
    data = json.loads(path.read_text())
    source, kernels = data[name]["source"].split(ADDED)[0], data[name]["kernels"]
    others = {kernel: x for kernel, x in kernels.items() if not is_new(kernel)}
    data[name] = {"source": f"{source}{ADDED}{files}", "kernels": others | dict(factors)}
    path.write_text(json.dumps(data, indent=0) + "\n")


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("fit_kernels", __doc__)
    parser.add_argument("--gpu", choices=sorted(FRESH), default="NVIDIA H200")
    parser.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args(arguments)
    device = next(x for x in RECORDS if x.name == args.gpu)
    paths = [SWEEPS / name for name in FRESH[args.gpu]]
    assert device.cost is not None
    found = [x for path in paths for x in fit_cost.fresh(path, device)]
    made = rated(found, device)
    factors = added(found, made)
    then = [(x.family, x.chosen / min(x.us) if x.chosen else math.nan) for x in found]
    console = runs.console()
    shown = fit_report.shown(then, regret(found, found, device), judged_by_halves(found, device))
    console.print(shown)
    console.print(f"{len(factors)} factors are new")
    if args.write:
        files = ", ".join(sorted(x.name for x in paths))
        written(args.gpu, factors, files)
        known = json.loads(TIMES_FILE.read_text())[args.gpu]["cost_source"].split(SPLITS)[0]
        fit.put(args.gpu, "cost", made.cost, f"{known}{SPLITS}{files}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
