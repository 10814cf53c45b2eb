# SPDX-License-Identifier: Apache-2.0
"""Our functions and modules compared with torch's: host time per call, training steps, graph replay.

    python -m benchmarks.pytorch --out benchmarks/results/pytorch.json --commit HASH [--seconds 170] [--what host,mlp]

Host times are of consecutive calls without waiting for the GPU; all others are device times. Every contender is
compared with the first one before it is timed; a contender that fails has a row with its error. Without a GPU small
cases run on the CPU, as a test; their times mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import command_line, correctness, host_time, libraries, models, results, runs, timing
from benchmarks.pytorch_cases import (
    CHAIN,
    Call,
    Makers,
    Results,
    Sizes,
    host_calls,
    of_linear,
    of_mlp,
    of_replay,
)
from benchmarks.results import Measurement, Row

QUICK = timing.Regime(name="sustained", preheat=0.05, rest=0.0, sample=0.03, rounds=8)
HOST_ROUNDS = 20

HOST = ("matmul", "linear", "linear bias", "matmul grad", "linear grad", "linear bias grad")
CASES = {
    "host": tuple(f"host {x}" for x in HOST),
    "linear": ("linear step", "linear bias step"),
    "replay": ("replay",),
    "mlp": ("mlp gelu step",),
}
CONTENDERS = {
    "host matmul": ("torch", "cutegemm", "run"),
    "replay": ("bare", "cutegemm_compile", "torch_compile"),
    "mlp gelu step": ("torch", "torch_compile", "cutegemm", "cutegemm_compile"),
}
# on the relative Frobenius error compared with the first contender
BOUND = 3e-2


class Bench:
    """Checks and times one case after another.

    Args:
        device: torch device; "cpu" shrinks every case.
        regime: of device times.
        sensors: of the GPU.
        compiler: compiles models and functions.
    """

    def __init__(
        self,
        device: str,
        regime: timing.Regime = QUICK,
        sensors: timing.Readable | None = None,
        compiler: Callable[[Any], Any] = libraries.max_autotune,
    ) -> None:
        self._device, self._regime, self._sensors, self._compiler = device, regime, sensors, compiler
        self._sizes = Sizes() if device == "cuda" else Sizes().shrunk()

    def keys(self, case: str) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""
        names = CONTENDERS.get(case, ("torch", "cutegemm"))
        return [{"suite": "pytorch", "what": case, "contender": x, "regime": self._name(case)} for x in names]

    def _name(self, case: str) -> str:
        return "host" if case.startswith("host") else self._regime.name

    def _makers(self, case: str) -> Makers:
        if case.startswith("host "):
            return host_calls(case.removeprefix("host "), self._sizes, self._device)
        if case.startswith("linear"):
            return of_linear(self._sizes, self._device, "bias" in case)
        if case == "replay":
            return of_replay(self._sizes, self._device, self._compiler)
        return of_mlp(self._sizes, self._device, self._compiler)

    def measure(self, case: str) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, with times or its error; and all errors."""
        ready: dict[str, Call] = {}
        errors: dict[str, str] = {}
        peaks: dict[str, float | None] = {}
        expected: Results = {}
        makers: dict[str, Any] = {}
        try:
            makers = self._makers(case)
        except Exception as error:
            errors = {row["contender"]: _text(error) for row in self.keys(case)}
        for name, make in makers.items():
            try:
                call = make()
                found = call()
                expected = expected or {key: x.detach().clone() for key, x in found.items()}
                _check(found, expected)
                del found
                peaks[name] = models.peak_mib(call) if self._device == "cuda" else None
                ready[name] = call
            except Exception as error:  # an error of one contender must not stop the others
                errors[name] = _text(error)
        del expected
        times: dict[str, Measurement] = {}
        try:
            times = self._times(case, ready)
        except Exception as error:
            errors |= dict.fromkeys(ready, _text(error))
        rows = []
        baseline = "bare" if case == "replay" else "torch"
        compared = {row["contender"]: row for row in results.compare(times, baseline)}
        for key in self.keys(case):
            name = key["contender"]
            row = dict.fromkeys(results.PYTORCH_FIELDS) | compared.get(name, {}) | key
            row |= {"peak_mib": peaks.get(name), "error": errors.get(name)}
            if name in times:
                m = times[name]
                row |= {"sm_mhz": m.sm_mhz, "watts": m.watts, "samples": list(m.samples)}
            rows.append(row)
        return rows, list(errors.items())

    def _times(self, case: str, ready: dict[str, Call]) -> dict[str, Measurement]:
        on_gpu = self._device == "cuda"
        if case.startswith("host"):
            wait = torch.cuda.synchronize if on_gpu else lambda: None
            return host_time.time_calls(ready, rounds=HOST_ROUNDS if on_gpu else 1, wait=wait)
        contenders = [timing.Contender(name, _ignoring(call)) for name, call in ready.items()]
        device: timing.Replayer = models.Host()
        if on_gpu:
            device = models.Uncaptured() if case.endswith("step") else timing.Device()
        found = timing.measure(contenders, [None], self._regime, device=device, sensors=self._sensors)
        return {name: m.divided(CHAIN) for name, m in found.items()} if case == "replay" else found


def _ignoring(call: Call) -> Callable[[Any], Any]:
    return lambda _: call()


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:400]


def _check(found: Results, expected: Results) -> None:
    """Compare results with the first contender's.

    Raises:
        ValueError: a result differs by more than the bound.
    """
    for name, want in expected.items():
        error = correctness.relative_error(found[name].detach(), want)
        if not error <= BOUND:
            raise ValueError(f"{name}: relative Frobenius error {error:.2e} must be at most {BOUND:.2e}")


def describe(row: Row) -> str:
    """A row on one line."""
    head = f"{row['what']:22} {row['contender']:17}"
    if row["us"] is None:
        return f"{head} {row['error'] or 'not timed'}"
    peak = "" if row["peak_mib"] is None else f" | {row['peak_mib']:9.1f} MiB"
    return f"{head} {row['us']:10.2f} us ({row['us_min']:.2f} to {row['us_max']:.2f}){peak}{results.ratio_text(row)}"


def cases_of(what: Sequence[str]) -> list[str]:
    """The cases of some kinds, in the order of measurement."""
    return [case for kind, cases in CASES.items() if kind in what for case in cases]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("pytorch", __doc__)
    parser.add_argument("--what", type=runs.names_among(list(CASES)), default=list(CASES))
    runs.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender failed or was wrong."""
    args = parse(arguments)
    cases = cases_of(args.what)
    if not torch.cuda.is_available():
        console, failed = runs.console(), 0
        quick = dataclasses.replace(QUICK, preheat=0.0, sample=1e-3, rounds=2)
        bench = Bench("cpu", quick, compiler=lambda x: torch.compile(x, backend="aot_eager"))
        for case in cases:
            rows, errors = bench.measure(case)
            failed += len(errors)
            for row in rows:
                console.print(describe(row), markup=False)
        return 1 if failed else 0
    console, sensors, out = runs.open_run(args)
    bench = Bench("cuda", sensors=sensors)
    seconds = args.seconds if math.isfinite(args.seconds) else 170.0
    return runs.report(
        runs.run(cases, bench, out, seconds=seconds, console=console, describe=describe), console
    )


if __name__ == "__main__":
    warnings.simplefilter("once")
    sys.exit(main(sys.argv[1:]))
