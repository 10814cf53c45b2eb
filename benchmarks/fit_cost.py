# SPDX-License-Identifier: Apache-2.0
"""Fit the rates of the cost model to committed sweeps of training problems, and report its regret.

    python -m benchmarks.fit_cost --gpu "NVIDIA H200"            # fit and print regret per family
    python -m benchmarks.fit_cost --gpu "NVIDIA H200" --write    # also write `cutegemm/arch/times.json`
    python -m benchmarks.fit_cost --gpu NAME --sweeps FILE ... --write      # of another GPU, to its own sweeps

The fit minimizes errors of predicted ratios. For each problem these are the logarithms of measured over predicted
times, minus their mean. Configs near the best of their problem have the largest weight. A large error counts linearly,
not squared. Small terms penalize the mean and the distance of a rate from its start. Rates are positive and change in
the logarithm, by damped Gauss-Newton steps. The mean remaining error of a kernel becomes its own factor
(`planning.known_kernels`). Other GPUs' rates and factors start from the default GPU's. Held-back problems judge the fit
and are not fitted to. Without any, each fifth of the problems is judged by a fit to the others.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks import command_line, fit_report, runs
from benchmarks.fit import write
from benchmarks.fit_tables import BLOCKS, CHAIN, SWEEPS, Measured, fresh, older
from cutegemm.arch.device import CostModel, Device
from cutegemm.arch.records import DEFAULT, RECORD_MHZ, find
from cutegemm.planning import known_kernels
from cutegemm.planning.cost import TEAMS, Counts, counts, nanoseconds
from cutegemm.planning.generator import rows
from cutegemm.planning.seen import Seen
from cutegemm.request.swap import transposed_problem

Column = NDArray[np.float64]

# sweeps of training problems; all configs of a problem were timed in one run
_FRESH = ("", *(f"_{x}" for x in (2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 23, 24)))
FRESH = {
    "NVIDIA H200": [f"fresh{x}_h200.json" for x in _FRESH],
    "NVIDIA H100 80GB HBM3": ["fresh_h100.json"],
}
# sweeps of single candidates and tuning; their problems weigh less, since they have fewer and more similar configs
OLDER = {
    "NVIDIA H200": ["choices.json", "deep_k.json", "planned.json", "tuned_h200.json"],
    "NVIDIA H100 80GB HBM3": ["deep_k_h100.json", "large_h100.json", "tuned_h100.json"],
}
# scales that the epilogue reads for each row and column; factors of their kernels start from those of tensors' scales
ROWS = "row"
# relative slowdown at which the weight falls to 1/e; least weight; error beyond which an error counts linearly
NEAR, LEAST_WEIGHT, ROBUST = 0.12, 0.03, 0.03
# weight of a problem's mean error, and of a rate's squared logarithmic distance from its start
LEVEL, HELD_BACK = 4.0, 0.3
FOLDS, STEPS, LONGEST_STEP = 5, 60, 0.5
# start of the swept GPU: datasheet clocks, else guesses of the right magnitude; other GPUs start from its rates
START = CostModel(
    mma=0.55, smem=0.54, port=120.0, l2=9e3, dram=1.0, straddle=1.2, within=1.0, slim=0.3, stage=10.0,
    lone=30.0, turn=10.0, bare=20.0, mma_turn=0.97, scaled=130.0, scale_read=6.0, promoted=0.2, latency=900.0,
    in_use=1.5, least_free=0.5, void=60.0, tile=600.0, tile_turn=100.0, refill=500.0, piece=100.0,
    piece_turn=100.0, narrow=80.0, store=35.0, line=0.06, partial=2.5, inputs=900.0, input_piece=130.0, sum=700.0,
    sum_rate=25.0, part_store=60.0, add=2500.0, add_rate=1900.0, full=300.0, fill=0.15, fill_beneath=0.2,
    short_rows=0.02, bare_dram=0.02, asked=0.1, asked_alone=0.05, asked_power=0.7, flop=0.75, flop_eight=0.6, lift=60.0,
    l2_energy=9.0, dram_energy=30.0, watts=600.0, slows=1.0, launch=900.0, apart=500.0, cluster=180.0,
    first=500.0, first_bare=300.0, first_two=100.0, first_three=200.0, first_turn=50.0, early_full=1000.0,
    early_cluster=100.0, early_sum=600.0, early_bare=400.0, early_fill=0.15,
)  # fmt: skip
# these stay fixed: known only from kernels with short K, which the sweeps lack; or steps and powers of what is counted
KNOWN = ("line", "inputs", "input_piece", "least_free", "partial", "asked_power")
SCALES = ("", "_2", "_3", "_4", "_few", "_full")
# fp8 GEMMs, whose own rates are fitted last, to these sweeps alone
EIGHT = {"NVIDIA H200": [f"{x}_h200.json" for x in ("eight", "eight_2", *(f"scales{y}" for y in SCALES))]}
# fp8 GEMMs to which only the factors of kernels are fitted. With few k tiles much of their times is that of launches
# and epilogues, whose rates are not fitted to 8-bit operands. Fitting rates to the others, too, does not lower regret.
_MORE = ("full_2", "full_3", "deep", "deep_2", "rows", "rows_2")
_FACTORS = ("shallow", "scales_shallow", "whole", *(f"scales_{x}" for x in _MORE))
ONLY_FACTORS = {"NVIDIA H200": [f"{x}_h200.json" for x in _FACTORS]}
SCALED = ["scaled", "scale_read", "promoted", "flop_eight", "lift"]
NAMES = [x.name for x in dataclasses.fields(CostModel) if x.name not in (*KNOWN, *SCALED)]
# rates known from clocks, widths and the power limit, which are penalized more for changing
FIRM = {"mma": 30.0, "smem": 30.0, "port": 10.0, "l2": 10.0, "dram": 30.0, "watts": 30.0}
# lower bound: the cycles of a WGMMA at the highest clock
LEAST = {"mma": 1e3 / RECORD_MHZ}
# factors of kernels: weight of the prior in configs, error at which outliers are clipped, largest weight of a config
# relative to the mean, and the smallest deviation that is recorded
NONE, OUTLIER, MOST_WEIGHT, LEAST_FACTOR = 2.0, 0.2, 3.0, 0.004


def swept_on(gpu: str) -> list[Path]:
    """The committed sweeps of training problems on a GPU, fp8 GEMMs last."""
    return [SWEEPS / name for name in (*FRESH.get(gpu, ()), *EIGHT.get(gpu, ()), *ONLY_FACTORS.get(gpu, ()))]


class Data:
    """Problems as columns: counted work and measured time of each config."""

    def __init__(self, found: Sequence[Measured], device: Device) -> None:
        self.found = found
        self.sizes = [len(x.us) for x in found]
        self.start = np.cumsum([0, *self.sizes[:-1]])
        self.of = np.repeat(np.arange(len(found)), self.sizes)
        each = [_counted(x, device) for x in found]
        self.counts = Counts(*(np.concatenate(x) for x in zip(*each, strict=True)))
        self.us = np.concatenate([np.array(x.us) for x in found])
        self.best = np.minimum.reduceat(self.us, self.start)
        near = np.exp((1 - self.us / self.best[self.of]) / NEAR) + LEAST_WEIGHT
        total = np.add.reduceat(near, self.start)[self.of]
        self.weight = near / total * np.array([x.weight for x in found])[self.of]
        self.share = near / total
        configs = [c for x in found for _, c in x.configs]
        kinds = known_kernels.kinds(self.counts).astype(int).tolist()
        self.kernels = np.array(
            [known_kernels.name(c, known_kernels.KINDS[x]) for c, x in zip(configs, kinds, strict=True)]
        )
        self.settled = np.array([x.settled for x in found])

    def errors(self, model: CostModel) -> Column:
        """Weighted residuals of the least squares: errors of ratios, then mean errors of problems."""
        ratios, level = self._off(model)
        weighted = np.sqrt(self.weight) * ratios / ROBUST
        return np.concatenate([weighted, np.where(self.settled, level, 0.0) * LEVEL])

    def _off(self, model: CostModel) -> tuple[Column, Column]:
        """Logarithms of measured over predicted times minus their problem's mean, and the means."""
        raw = np.log(self.us * 1e3) - np.log(nanoseconds(self.counts, model))
        level = np.add.reduceat(self.share * raw, self.start)
        return raw - level[self.of], level

    def factors(self, model: CostModel, prior: Mapping[str, float]) -> dict[str, float]:
        """Measured over predicted time of each kernel, shrunk towards the prior's if few problems measured it."""
        names, of = np.unique(self.kernels, return_inverse=True)
        known = np.array([known_kernels.factor_of(x, prior) for x in names.tolist()])
        off = self._off(model)[0] - np.log(known)[of]
        off = np.clip(off - np.add.reduceat(self.share * off, self.start)[self.of], -OUTLIER, OUTLIER)
        weight = np.minimum(self.weight / self.weight.mean(), MOST_WEIGHT)
        means = np.bincount(of, weight * off) / (np.bincount(of, weight) + NONE)
        found = zip(names.tolist(), (known * np.exp(means)).round(3).tolist(), known.tolist(), strict=True)
        return {name: factor for name, factor, x in found if abs(factor - x) >= LEAST_FACTOR}

    def predicted(self, model: CostModel, factors: Mapping[str, float]) -> Column:
        """The predicted nanoseconds of each config."""
        known = np.array([known_kernels.factor_of(x, factors) for x in self.kernels.tolist()])
        return np.asarray(nanoseconds(self.counts, model) * known)

    def chosen(self, predicted: Column) -> NDArray[np.intp]:
        """The place of each problem's config that is predicted fastest."""
        parts = zip(self.start, np.split(predicted, self.start[1:]), strict=True)
        return np.array([first + x.argmin() for first, x in parts])

    def regret(self, model: CostModel, factors: Mapping[str, float]) -> list[float]:
        """The regret of each problem: the time of the config predicted fastest over the least measured time."""
        chosen = self.chosen(self.predicted(model, factors))
        found: list[float] = (self.us[chosen] / self.best).tolist()
        return found


def _counted(x: Measured, device: Device) -> Counts:
    """The counted work of a problem's configs, in their order."""
    made, order = [], []
    if not x.plain:  # what CTAs shared did not delay the next launch
        known = dataclasses.replace(device.thresholds, early_shared=sys.maxsize)
        device = dataclasses.replace(device, thresholds=known)
    for swapped in (False, True):
        places = [i for i, (turned, _) in enumerate(x.configs) if turned == swapped]
        if places:
            seen = transposed_problem(x.problem) if swapped else x.problem
            scaled = x.scales in BLOCKS
            # a thread reads scales of columns, which are A's rows if swapped
            read = scaled and (swapped or x.scales == "blocks") / 4
            more = {"read": read, "vectors": x.scales == ROWS, "promoted": x.promote, "stages": x.stages}
            of = Seen.of(seen, constant=x.family == CHAIN, scaled=scaled, **more)
            done = counts(of, device, rows([x.configs[i][1] for i in places]))
            if not x.plain:
                done = done._replace(shared=done.shared * (done.team == TEAMS.index("bare")))
            made.append(done)
            order += places
    back = np.argsort(order)
    return Counts(*(np.concatenate(column)[back] for column in zip(*made, strict=True)))


def fit(data: Data, start: CostModel, steps: int = STEPS, names: Sequence[str] = NAMES) -> CostModel:
    """The best rates from a start."""
    begin = np.log([getattr(start, x) for x in names])
    firm = np.array([FIRM.get(x, HELD_BACK) for x in names])
    least_of = np.log([LEAST.get(x, 1e-30) for x in names])

    def model(at: Column) -> CostModel:
        return dataclasses.replace(start, **dict(zip(names, np.exp(at).tolist(), strict=True)))

    def costs(errors: Column, at: Column) -> float:
        robust = 2 * (np.sqrt(1 + errors**2) - 1)
        return float(robust.sum() + (firm * (at - begin) ** 2).sum())

    at, damping = begin, 1.0
    errors = data.errors(start)
    least = costs(errors, at)
    for _ in range(steps):
        slopes = np.stack([(data.errors(model(at + x)) - errors) / 1e-3 for x in 1e-3 * np.eye(len(at))], 1)
        weighted = slopes / np.sqrt(1 + errors**2)[:, None]
        square = weighted.T @ slopes + np.diag(firm)
        slope = weighted.T @ errors + firm * (at - begin)
        before = least
        for _ in range(8):
            step = -np.linalg.solve(square + damping * np.diag(np.diag(square)), slope)
            tried = np.maximum(at + np.clip(step, -LONGEST_STEP, LONGEST_STEP), least_of)
            new = data.errors(model(tried))
            if (cost := costs(new, tried)) < least:
                at, errors, least, damping = tried, new, cost, max(damping / 3, 1e-6)
                break
            damping *= 3
        if before - least < 1e-4 * before:
            break
    return model(at)


def held_back(
    found: Sequence[Measured], device: Device, start: CostModel, prior: Mapping[str, float]
) -> list[float]:
    """The regret of each problem under a fit without its fifth; NaN of older sweeps, which are in every fit."""
    regret = [math.nan] * len(found)
    judged = [i for i, x in enumerate(found) if x.settled] or list(range(len(found)))
    for part in range(FOLDS):
        out = judged[part::FOLDS]
        left = set(out)
        data = Data([x for i, x in enumerate(found) if i not in left], device)
        made = fit(data, start)
        factors = {**prior, **data.factors(made, prior)}
        regret_out = Data([found[i] for i in out], device).regret(made, factors)
        for i, value in zip(out, regret_out, strict=True):
            regret[i] = value
    return regret


def fitted(
    device: Device, paths: Sequence[Path], more: Sequence[Path] = ()
) -> tuple[CostModel, dict[str, float], Table]:
    """A GPU's rates and factors of kernels, fitted to sweeps of `sweep_table` and older ones, and the table of regret.

    Raises:
        ValueError: no problem can be fitted to.
    """
    unrated = ONLY_FACTORS.get(device.name, ())
    measured = [(path, x) for path in paths for x in fresh(path, device)]
    judged = [x for _, x in measured if not x.scales]
    eight = [x for _, x in measured if x.scales]
    rated = [x for path, x in measured if x.scales and path.name not in unrated and not x.held_back]
    others = older(more, device, START)
    found = judged + others
    if not found:
        raise ValueError("sweeps: must have problems of 16-bit operands that TMA can load")
    start, prior = (START, {}) if device.name == DEFAULT.name else (DEFAULT.cost, DEFAULT.kernels)
    known = [x for x in found if not x.held_back]
    model = fit(Data(known, device), start)
    # overlap of launches is not a property of a kernel
    factors = Data([x for x in known if x.family != CHAIN], device).factors(model, prior)
    if eight:
        model = fit(Data(rated, device), model, names=SCALED) if rated else model
        for rows in (False, True):
            some = [x for x in eight if not x.held_back and (x.scales == ROWS) == rows]
            if some:
                factors |= Data(some, device).factors(model, {**prior, **factors})
        judged = judged + eight
    reported = judged or others
    regret = Data(reported, device).regret(model, {**prior, **factors})
    if any(x.held_back for x in judged):
        held = [r if x.held_back else math.nan for x, r in zip(judged, regret, strict=True)]
    else:
        # fp8 problems have no folds of their own
        held = held_back(found, device, start, prior)[: len(reported) - len(eight)] + [math.nan] * len(eight)
    then = [(x.family, x.chosen / min(x.us) if x.chosen else math.nan) for x in reported]
    return model, factors, fit_report.shown(then, regret, held)


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("fit_cost", __doc__)
    parser.add_argument("--gpu", default="NVIDIA H200", help="its name as the driver reports it")
    parser.add_argument("--sms", type=int, default=DEFAULT.sms, help="SMs of a GPU without a record")
    parser.add_argument(
        "--sweeps", type=Path, nargs="+", help="of `sweep_table`; default: the committed ones"
    )
    parser.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args(arguments)
    if args.sweeps is None and args.gpu not in OLDER:
        parser.error(f"--gpu {args.gpu}: must be one of {', '.join(OLDER)}, or --sweeps must be given")
    console = runs.console()
    paths = args.sweeps or swept_on(args.gpu)
    more = [] if args.sweeps else [SWEEPS / name for name in OLDER[args.gpu]]
    try:
        model, factors, table = fitted(find(args.gpu, sms=args.sms), paths, more)
    except ValueError as error:
        parser.error(f"--{error}")
    console.print(table)
    console.print(", ".join(f"{x} {getattr(model, x):.4g}" for x in (*NAMES, *SCALED)))
    if args.write:
        files = ", ".join(sorted(x.name for x in [*paths, *more]))
        write(args.gpu, model, factors, f"fitted by benchmarks.fit_cost to {files}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
