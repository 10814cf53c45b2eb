# SPDX-License-Identifier: Apache-2.0
"""Speed of transformers' models, two layers with random weights: original, compiled, converted, and both.

    python -m benchmarks.models --out benchmarks/results/models.json --commit HASH [--models qwen3_4b --works decode1]
    python -m benchmarks.models --from-host ...           # the host enqueues every call, as eager PyTorch does
    python -m benchmarks.models --compile-only ...        # without a GPU: kernels go to CUTEGEMM_CACHE_DIR

Inference replays a CUDA graph unless --from-host is given; a training step always runs from the host. Nothing is
downloaded. After each contender of a scenario, all contenders so far are measured again together, and their rows are
replaced. Without a GPU the tiny models run on the CPU, as a test; their times mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console

from benchmarks import command_line, correctness, results, runs, timing
from benchmarks.libraries import compiled_anew, default_mode, max_autotune
from benchmarks.model_cases import DEFAULT_WORKS, MODELS, TINY, WORKS, Scenario, Step, make_model
from benchmarks.probes.grouped_kernels import recorded
from benchmarks.results import Measurement, Row
from benchmarks.timing import Contender
from cutegemm.arch.device import Device
from cutegemm.config import Config

SHRINK = 64  # divisor of tokens and context without a GPU
BASELINE = "torch"
# Most important first, since time may run out. "plain" converts layer by layer; others join layers with one input.
NAMES = (BASELINE, "cutegemm_compile", "torch_compile", "cutegemm", "cutegemm_plain")
# For inference, measured if named: weights and activations in fp8 with scales of rows.
EIGHT_BITS = "cutegemm_fp8_compile"
# Compiled in torch's default mode, which compiles faster and leaves GEMMs to cuBLAS; measured if named.
DEFAULT_MODE = ("torch_default", "cutegemm_default")
SUITE = "models"
# On |x - baseline| / |baseline| in the Frobenius norm, of hidden states and gradients, which are rounded at every step.
# An e4m3 element is off by up to 2**-4, and every GEMM has two rounded operands.
BOUND, EIGHT_BITS_BOUND = 3e-2, 0.12


def check(step: Step, expected: dict[str, torch.Tensor], bound: float = BOUND) -> None:
    """Run once and compare every result with the baseline's.

    Raises:
        WrongResult: a result differs by more than the bound.
    """
    step()
    for name, want in expected.items():
        error = correctness.relative_error(step.result[name], want)
        if not error <= bound:
            raise correctness.WrongResult(
                f"relative Frobenius error {error:.2e} of {name}: must be at most {bound:.2e}"
            )


class Host:
    """A `timing.Replayer` for the CPU, without graphs."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return launch

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds that `work` takes."""
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def rest(self, seconds: float) -> None:
        """Do nothing: a CPU needs no rest."""


class Uncaptured(timing.Device):
    """A GPU without graphs: the host enqueues every call."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return launch


def peak_mib(call: Callable[[], Any]) -> float:
    """Peak MiB that a call adds to the allocated GPU memory."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Bench:
    """Checks and times one scenario after another.

    Args:
        regime: of timing.
        sensors: of the GPU, read during samples.
        compiler, default: compile models, with and without autotuning.
        names: the contenders.
        memory: torch device.
        graphs: whether inference replays a CUDA graph.
        keep: stores the rows so far, after every contender.
        seconds: time from now after which no contender starts.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        compiler: Callable[[Any], Any] = max_autotune,
        default: Callable[[Any], Any] = default_mode,
        names: tuple[str, ...] = NAMES,
        memory: str = "cuda",
        graphs: bool = True,
        keep: Callable[[list[Row]], None] = lambda rows: None,
        seconds: float = math.inf,
    ) -> None:
        self._regime, self._sensors = regime, sensors
        self._compiler, self._default = compiler, default
        self._names, self._memory, self._keep = names, memory, keep
        self._graphs, self._end = graphs, time.monotonic() + seconds

    def keys(self, scenario: Scenario) -> list[Row]:
        """The key fields of the rows that `measure(scenario)` returns."""
        fixed = {"suite": SUITE, "what": str(scenario), "dtype": "bf16", "m": _tokens(scenario)}
        return [
            fixed | {"contender": name, "regime": self._regime.name}
            for name in possible(scenario, self._names)
        ]

    def measure(self, scenario: Scenario) -> tuple[list[Row], runs.Failures]:
        """Rows of the correct contenders, and (contender, reason) of the others."""
        # all models of transformers share the function that torch compiles
        compiled_anew()
        right: list[Contender] = []
        failures: runs.Failures = []
        peaks: dict[str, float | None] = {}
        expected: dict[str, torch.Tensor] = {}
        found: list[Row] = []
        for name in possible(scenario, self._names):
            if time.monotonic() > self._end:
                failures.append((name, "no time was left"))
                continue
            try:
                step = self._step(scenario, name)
                if not expected:
                    # torch's result, even if torch is not timed
                    baseline = step if name == BASELINE else self._step(scenario, BASELINE)
                    baseline()
                    expected = dict(baseline.result)
                    del baseline
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                    check(step, expected, EIGHT_BITS_BOUND if name == EIGHT_BITS else BOUND)
                peaks[name] = self._peak(step)
                # together with those before it; a step that cannot be captured is not measured again
                found = self._timed(scenario, [*right, Contender(name, step)], peaks)
                right.append(Contender(name, step))
                self._keep(found)
            except Exception as error:  # an error of one contender must not stop the others
                failures.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))
        return found, failures

    def _step(self, scenario: Scenario, name: str) -> Step:
        """A call of a contender's model."""
        compiler = self._default if name in DEFAULT_MODE else self._compiler
        return Step(scenario, make_model(scenario, name, self._memory, compiler), self._memory)

    def _timed(self, scenario: Scenario, right: list[Contender], peaks: dict[str, float | None]) -> list[Row]:
        """Rows of contenders, measured together."""
        device: timing.Replayer = Host()
        if self._memory == "cuda":
            device = timing.Device() if self._graphs and not scenario.shape.train else Uncaptured()
        times = timing.measure(right, [None], self._regime, device=device, sensors=self._sensors)
        return rows(scenario, times, peaks, self._regime.name)

    def _peak(self, step: Step) -> float | None:
        """Peak MiB that a call adds to weights and inputs; None on a CPU."""
        if self._memory != "cuda":
            return None
        step.result = {}
        return peak_mib(step)


def possible(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """The contenders among `names` that a scenario has: fp8 does not train."""
    return [name for name in names if not (name == EIGHT_BITS and scenario.shape.train)]


def _tokens(scenario: Scenario) -> int:
    return scenario.shape.batch * scenario.shape.tokens


def rows(
    scenario: Scenario, times: dict[str, Measurement], peaks: dict[str, float | None], regime: str
) -> list[Row]:
    """Rows of one scenario whose contenders were measured together."""
    found = []
    for row in results.compare(times, BASELINE):
        peak = peaks[row["contender"]]
        row |= {"suite": SUITE, "what": str(scenario), "dtype": "bf16", "m": _tokens(scenario)}
        row |= {"regime": regime, "tokens_s": _tokens(scenario) / row["us"] * 1e6, "peak_mib": peak}
        found.append({field: row[field] for field in results.LLAMA_FIELDS})
    return found


def describe(row: Row) -> str:
    """A row on one line."""
    peak = "" if row["peak_mib"] is None else f" | {row['peak_mib']:9.1f} MiB"
    speed = f"{row['us']:10.1f} us | {row['tokens_s']:12.0f} tokens/s"
    return f"{row['what']:16} {row['contender']:17} {speed}{peak}{results.ratio_text(row)}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("models", __doc__)
    add = parser.add_argument
    real = [name for name in MODELS if name not in TINY]
    add("--models", type=runs.names_among(list(MODELS)), default=real, help=f"default {','.join(real)}")
    add("--works", type=runs.names_among(list(WORKS)), default=list(DEFAULT_WORKS), help=", ".join(WORKS))
    more = [EIGHT_BITS, *DEFAULT_MODE]
    words = f"of {', '.join(NAMES)} (default) and {', '.join(more)}. Compiling takes most of the time"
    names = runs.names_among([*NAMES, *more])
    add("--contenders", type=names, default=list(NAMES), help=words)
    add("--from-host", action="store_true", help="no CUDA graphs: inference as in eager PyTorch")
    return runs.parsed_or_compiling(parser, arguments)


def without_inductor(model: Any) -> Any:
    """A model compiled for the CPU, whose graphs call the same operations as on a GPU."""
    return torch.compile(model, backend="aot_eager")


def kernels(found: Sequence[Scenario], names: Sequence[str], record: Device) -> list[Config]:
    """The configs that converted models launch on a GPU, found without one; their results are undefined here."""
    wanted: dict[Config, None] = {}
    ours = [name for name in names if name.startswith("cutegemm")]
    for scenario in found:
        compiled_anew()
        for name in possible(scenario, ours):
            with recorded(record) as launched:
                Step(scenario, make_model(scenario, name, "cpu", without_inductor), "cpu")()
            wanted |= launched
    return list(wanted)


def scenarios(args: argparse.Namespace, scale: int = 1) -> list[Scenario]:
    """The scenarios of parsed options; on a CPU only tiny models, all of them if none is named."""
    names = args.models
    if scale > 1:
        names = [name for name in names if name in TINY] or TINY
    found = [Scenario(model, work, scale) for model in names for work in args.works]
    return [x for x in found if x.possible]


def show(scenarios: Sequence[Scenario], names: tuple[str, ...], console: Console) -> int:
    """Run scenarios on the CPU and print their rows. Returns 1 if a contender failed or was wrong."""
    quick = dataclasses.replace(timing.REGIMES["sustained"], preheat=0.0, sample=1e-3, rounds=2)
    compiler = without_inductor
    bench = Bench(quick, None, compiler=compiler, default=compiler, names=names, memory="cpu")
    failed = 0
    for scenario in scenarios:
        measured, failures = bench.measure(scenario)
        for row in measured:
            console.print(describe(row), markup=False)
        for name, why in failures:
            console.print(f"{scenario} {name}: NOT TIMED: {why}", markup=False)
        failed += len(failures)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender failed or was wrong."""
    args = parse(arguments)
    if args.compile_only:
        every = scenarios(args)
        runs.compiled(kernels(every, args.contenders, runs.record_of(args.gpu)), len(every), runs.console())
        return 0
    if not torch.cuda.is_available():
        return show(scenarios(args, SHRINK), tuple(args.contenders), runs.console())
    console, sensors, out = runs.open_run(args)
    # a running model heats the GPU, so a short preheat is enough
    name = "from_host" if args.from_host else "sustained"
    regime = dataclasses.replace(timing.REGIMES["sustained"], name=name, preheat=0.1, sample=0.03)
    names = tuple(args.contenders)
    graphs = not args.from_host
    bench = Bench(regime, sensors, names=names, graphs=graphs, keep=out.put, seconds=args.seconds)
    outcome = runs.run(scenarios(args), bench, out, seconds=args.seconds, console=console, describe=describe)
    for (what, timed, mode), ratio in results.compiled_ratios(out.rows).items():
        console.print(f"{what:16} {timed:9} cutegemm_{mode} x torch_{mode} {ratio:.3f}", markup=False)
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
