# SPDX-License-Identifier: Apache-2.0
"""Speed of transformers' own Llama, two layers with random weights: as it is, compiled, converted, and both.

    python -m benchmarks.llama --out benchmarks/results/llama.json --commit HASH [--models 8b --works decode1]

Prefill and decode run in one CUDA graph, a training step from the host. Nothing is downloaded. Rows are written anew
after every contender of a scenario, all measured beside each other; the last writing has them all. With `--models tiny`
on a machine without a GPU it runs on the CPU, to show that it works: figures of such a run say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks import correctness, results, runs, timing
from benchmarks.results import Measurement, Row
from benchmarks.timing import Contender
from cutegemm import nn

LAYERS = 2
DTYPE = torch.bfloat16
CONTEXT = 512  # tokens in the cache before a decode step
SEED = 0
SHRINK = 64  # of tokens and context, where there is no GPU
BASELINE = "torch"
# the most wanted first: time may run out
NAMES = (BASELINE, "cutegemm_compile", "torch_compile", "cutegemm")
# layers of one tensor, which become one product of the converted model
JOINED = (("q_proj", "k_proj", "v_proj"),)
# On |x - baseline| / |baseline| in the Frobenius norm, of hidden states and of gradients, both rounded at every step.
BOUND = 3e-2

# name -> fields of a LlamaConfig; "70b/8" is what one of eight GPUs holds of it
MODELS: dict[str, dict[str, int]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128},
    "70b/8": {"hidden_size": 8192, "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 1,
              "head_dim": 128},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16},
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a model does in one call.

    Attributes:
        batch, tokens: of the input; a decode step has one token after `CONTEXT` in the cache.
        decode, train: whether it is a decode step, or a forward and backward.
    """

    batch: int
    tokens: int
    decode: bool = False
    train: bool = False


# the shortest to compile first
WORKS = {
    "decode1": Work(1, 1, decode=True),
    "decode32": Work(32, 1, decode=True),
    "prefill": Work(1, 4096),
    "train": Work(2, 2048, train=True),
}


@dataclass(frozen=True)
class Scenario:
    """A model at work; `scale` divides the tokens of a call, for a run that only shows that it works."""

    model: str
    work: str
    scale: int = 1

    @property
    def shape(self) -> Work:
        """Its work, scaled."""
        work = WORKS[self.work]
        return dataclasses.replace(work, tokens=max(1, work.tokens // self.scale))

    def __str__(self) -> str:
        return f"{self.model} {self.work}"


def make_model(scenario: Scenario, name: str, device: str, compiler: Callable[[Any], Any]) -> Any:
    """A contender's model: the same random weights for all, converted or not, compiled or not."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes = MODELS[scenario.model]
    config = transformers.LlamaConfig(
        vocab_size=256, num_hidden_layers=LAYERS, max_position_embeddings=8192,
        # every layer adds as much as it is given: an error in one is seen
        initializer_range=sizes["hidden_size"] ** -0.5, **sizes,
    )  # fmt: skip
    torch.manual_seed(SEED)
    with torch.device(device):
        model = transformers.LlamaModel(config).to(DTYPE)
    work = scenario.shape
    model.train(work.train)
    if name.startswith("cutegemm"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.convert(model, constant_weights=not work.train, swiglu=[LlamaMLP], joined=JOINED)
    return compiler(model) if name.endswith("compile") else model


class Step:
    """One call of a model, with inputs and cache of its own."""

    def __init__(self, scenario: Scenario, model: Any, device: str) -> None:
        import transformers

        self.model, self.work = model, scenario.shape
        config = getattr(model, "_orig_mod", model).config
        generator = torch.Generator(device).manual_seed(SEED)
        shape = (self.work.batch, self.work.tokens, config.hidden_size)
        self.x = torch.randn(shape, generator=generator, device=device, dtype=DTYPE)
        # a direction for the gradient: that of a norm's output along itself is zero
        self.target = torch.randn(shape, generator=generator, device=device)
        self.result: dict[str, torch.Tensor] = {}
        self.cache: Any = None
        self.positions: torch.Tensor | None = None
        if self.work.decode:
            context = max(1, CONTEXT // scenario.scale)
            self.context = context
            self.cache = transformers.StaticCache(config=config, max_cache_len=context + 1)
            earlier = torch.randn(
                (self.work.batch, context, config.hidden_size),
                generator=generator,
                device=device,
                dtype=DTYPE,
            )
            with torch.no_grad():
                getattr(model, "_orig_mod", model)(
                    inputs_embeds=earlier, past_key_values=self.cache, use_cache=True
                )
            self.positions = torch.full((1, 1), context, device=device)

    def __call__(self, _: Any = None) -> None:
        """Run; what came out lies in `result`."""
        if self.work.train:
            for p in self.model.parameters():
                p.grad = None
            out = self.model(inputs_embeds=self.x, use_cache=False).last_hidden_state
            (out.float() * self.target).sum().backward()
            weights = getattr(self.model, "_orig_mod", self.model).layers[0].self_attn.o_proj.weight
            self.result = {"hidden": out.detach(), "gradient": weights.grad}
            return
        options: dict[str, Any] = {"use_cache": False}
        if self.cache is not None:
            for layer in self.cache.layers:
                # every call writes the same place
                layer.cumulative_length.fill_(self.context)
            options = {"past_key_values": self.cache, "use_cache": True, "position_ids": self.positions}
        with torch.no_grad():
            self.result = {"hidden": self.model(inputs_embeds=self.x, **options).last_hidden_state}


def check(step: Step, expected: dict[str, torch.Tensor]) -> None:
    """Run once and hold every result to the baseline's.

    Raises:
        WrongResult: one differs by more than the bound.
    """
    step()
    for name, want in expected.items():
        error = float((step.result[name].double() - want.double()).norm() / want.double().norm())
        if not error <= BOUND:
            raise correctness.WrongResult(
                f"relative Frobenius error {error:.2e} of {name}: must be at most {BOUND:.2e}"
            )


class Host:
    """A `timing.Replayer` for the CPU: a call is a call, a second is a second."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return launch

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds that `work` takes."""
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def rest(self, seconds: float) -> None:
        """Nothing to cool."""


class Uncaptured(timing.Device):
    """A GPU whose work is enqueued by the host at every call."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return launch


def peak_mib(call: Callable[[], Any]) -> float:
    """MiB that a call adds at most to what lies in the GPU's memory before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def max_autotune(model: Any) -> Any:
    """torch.compile at its fastest; CUDA graphs are left to the timing."""
    return torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)


class Bench:
    """Checks and times one scenario after another.

    Args:
        regime: of timing.
        sensors: of the GPU, read meanwhile.
        compiler: of models.
        names: the contenders.
        memory: torch's name of the device.
        keep: takes the rows of the contenders measured so far, whenever there is one more.
        seconds: from now on; later no contender is begun.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        compiler: Callable[[Any], Any] = max_autotune,
        names: tuple[str, ...] = NAMES,
        memory: str = "cuda",
        keep: Callable[[list[Row]], None] = lambda rows: None,
        seconds: float = math.inf,
    ) -> None:
        self._regime, self._sensors, self._compiler = regime, sensors, compiler
        self._names, self._memory, self._keep = names, memory, keep
        self._end = time.monotonic() + seconds

    def keys(self, scenario: Scenario) -> list[Row]:
        """The key fields of the rows that measuring a scenario gives."""
        fixed = {"suite": "llama", "what": str(scenario), "dtype": "bf16", "m": _tokens(scenario)}
        return [fixed | {"contender": name, "regime": self._regime.name} for name in self._names]

    def measure(self, scenario: Scenario) -> tuple[list[Row], runs.Failures]:
        """Rows of the contenders that are right, and (contender, why) of the others."""
        right: list[Contender] = []
        failures: runs.Failures = []
        peaks: dict[str, float | None] = {}
        expected: dict[str, torch.Tensor] = {}
        found: list[Row] = []
        for name in self._names:
            if time.monotonic() > self._end:
                failures.append((name, "no time was left"))
                continue
            try:
                step = self._step(scenario, name)
                if not expected:
                    # torch's, also where it is not among those that are timed
                    baseline = step if name == BASELINE else self._step(scenario, BASELINE)
                    baseline()
                    expected = dict(baseline.result)
                    del baseline
                check(step, expected)
                peaks[name] = self._peak(step)
                # beside those before it: a step that cannot be captured is left out of what follows
                found = self._timed(scenario, [*right, Contender(name, step)], peaks)
                right.append(Contender(name, step))
                self._keep(found)
            except Exception as error:  # whatever one contender dies of, the others are measured
                failures.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))
        return found, failures

    def _step(self, scenario: Scenario, name: str) -> Step:
        """A call of a contender's model."""
        return Step(scenario, make_model(scenario, name, self._memory, self._compiler), self._memory)

    def _timed(self, scenario: Scenario, right: list[Contender], peaks: dict[str, float | None]) -> list[Row]:
        """Rows of contenders, measured beside each other."""
        device: timing.Replayer = Host()
        if self._memory == "cuda":
            device = Uncaptured() if scenario.shape.train else timing.Device()
        times = timing.measure(right, [None], self._regime, device=device, sensors=self._sensors)
        return rows(scenario, times, peaks, self._regime.name)

    def _peak(self, step: Step) -> float | None:
        """MiB that a call adds at most to what lay in memory before it, weights and inputs; None on a CPU."""
        if self._memory != "cuda":
            return None
        step.result = {}
        return peak_mib(step)


def _tokens(scenario: Scenario) -> int:
    return scenario.shape.batch * scenario.shape.tokens


def rows(
    scenario: Scenario, times: dict[str, Measurement], peaks: dict[str, float | None], regime: str
) -> list[Row]:
    """Rows of one scenario, measured together."""
    found = []
    for row in results.compare(times, BASELINE):
        peak = peaks[row["contender"]]
        row |= {"suite": "llama", "what": str(scenario), "dtype": "bf16", "m": _tokens(scenario)}
        row |= {"regime": regime, "tokens_s": _tokens(scenario) / row["us"] * 1e6, "peak_mib": peak}
        found.append({field: row[field] for field in results.LLAMA_FIELDS})
    return found


def describe(row: Row) -> str:
    """A row on one line."""
    peak = "" if row["peak_mib"] is None else f" | {row['peak_mib']:9.1f} MiB"
    ratio = "" if row["ratio"] is None else f" | x {row['baseline']} {row['ratio']:.3f}"
    speed = f"{row['us']:10.1f} us | {row['tokens_s']:12.0f} tokens/s"
    return f"{row['what']:16} {row['contender']:17} {speed}{peak}{ratio}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.llama",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    real = [name for name in MODELS if name != "tiny"]
    add("--models", type=runs.names_among(list(MODELS)), default=real, help=f"default {','.join(real)}")
    add("--works", type=runs.names_among(list(WORKS)), default=list(WORKS), help=f"default {','.join(WORKS)}")
    words = f"of {', '.join(NAMES)}; default all. Compiling takes most of the time"
    add("--contenders", type=runs.names_among(list(NAMES)), default=list(NAMES), help=words)
    runs.add_options(parser)
    return parser.parse_args(arguments)


def show(scenarios: Sequence[Scenario], names: tuple[str, ...], console: Console) -> int:
    """Run scenarios on the CPU and print what came of them; nothing is kept. 1 when a contender failed or was wrong."""
    quick = dataclasses.replace(timing.REGIMES["sustained"], preheat=0.0, sample=1e-3, rounds=2)
    compiler: Callable[[Any], Any] = lambda x: torch.compile(x, backend="aot_eager")
    bench = Bench(quick, None, compiler=compiler, names=names, memory="cpu")
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
    """Run the command; 1 when a contender failed or was wrong."""
    args = parse(arguments)
    if not torch.cuda.is_available():
        found = [
            Scenario(model, work, SHRINK) for model in args.models if model == "tiny" for work in args.works
        ]
        return show(found, tuple(args.contenders), runs.console())
    console, sensors, out = runs.open_run(args)
    scenarios = [Scenario(model, work) for model in args.models for work in args.works]
    # a model at work heats the GPU by itself
    regime = dataclasses.replace(timing.REGIMES["sustained"], preheat=0.1, sample=0.03)
    names = tuple(args.contenders)
    bench = Bench(regime, sensors, names=names, keep=out.put, seconds=args.seconds)
    outcome = runs.run(scenarios, bench, out, seconds=args.seconds, console=console, describe=describe)
    for what, ratio in results.compiled_ratios(out.rows).items():
        console.print(f"{what:16} cutegemm_compile x torch_compile {ratio:.3f}", markup=False)
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
