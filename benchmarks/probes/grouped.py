# SPDX-License-Identifier: Apache-2.0
"""Grouped GEMMs compared with torch's, a dense GEMM, copies of rows and bf16; and whole MoE layers.

    python -m benchmarks.probes.grouped --compile-only          # without a GPU: kernels go to CUTEGEMM_CACHE_DIR
    python -m benchmarks.probes.grouped --out FILE.json --commit HASH [--seconds 540] [--kinds forward,weight]

bf16, B K-major. Kinds of work:

    host        host time per call
    replay      a graph that is replayed with other group ends
    forward     groups of rows; with "alone" all rows belong to one expert, compared with our dense GEMM
    moe         `nn.MoE` compared with transformers' block under torch.compile; "moe_backward" with all gradients, and
                "moe_step" the same with every call enqueued by the host, as in a training loop
    weight      gradient of a weight: groups along K
    gather      rows by index, compared with a copy before torch's launch and before ours
    scatter     results weighted and summed by token, compared with torch's sum after torch's launch and after ours
    fp8_rows    fp8 with scales of rows, compared with our bf16; "fp8_blocks" has scales of 1 x 128 and 128 x 128

Each is checked, then timed interleaved by graph replay (but for `host` and `moe_step`), on draws that together access
twice L2. Rows are written at once, the most important first, and the same command continues. At the end it compares
the file's rows with their targets.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.console import Console

from benchmarks import command_line, host_time, models, results, runs, timing
from benchmarks.probes import grouped_cases, grouped_mixtures
from benchmarks.probes.grouped_cases import LAYERS, OURS, SPREADS, TOKENS, TORCH, Case, Draw
from benchmarks.probes.grouped_kernels import recorded
from benchmarks.probes.grouped_mixtures import COMPILED, MODELS, THEIRS, Layers
from benchmarks.results import Measurement, Row
from benchmarks.timing import Contender
from cutegemm.arch.device import Device
from cutegemm.ops.groups.grouped import planned

SUITE = "grouped"
READ = 4.58e6  # read bandwidth of an H200 in bytes per microsecond
REGIME = timing.Regime(name="probe", preheat=0.1, rest=0.0, sample=0.02, rounds=4)
HOST_ROUNDS = 20
# on the relative Frobenius error, of GEMMs rounded once and of layers rounded at every step
BOUND, LAYER_BOUND = 1e-2, 3e-2
# share of tokens that must be near: rounding may change a token's last expert
NEAR = 0.8
# kinds of work and spreads of tokens, the most important first
TIERS = (
    ("host", ("uniform",)), ("replay", ("uniform",)), ("forward", ("uniform",)), ("moe", ("uniform",)),
    ("weight", ("uniform",)), ("moe_backward", ("uniform",)), ("moe_step", ("uniform",)), ("gather", ("uniform",)),
    ("scatter", ("uniform",)), ("fp8_rows", ("uniform",)), ("fp8_blocks", ("uniform",)), ("forward", ("alone",)),
    ("forward", ("zipf", "half")), ("weight", ("zipf", "half")), ("gather", ("zipf", "half")),
    ("scatter", ("zipf", "half")),
)  # fmt: skip
KINDS = tuple(dict.fromkeys(kind for kind, _ in TIERS))
STEPS = (1024, 4096, 16384)  # tokens of a training step
OF_LAYERS = {"host": ["qwen3-down"], "replay": ["qwen3-up"], "gather": ["up"], "scatter": ["down"]}


def cases_of(
    kinds: Iterable[str], layers: Iterable[str], tokens: Iterable[int], spreads: Iterable[str]
) -> list[Case]:
    """The cases of parsed options, the most important first."""
    found = []
    for kind, of_tier in TIERS:
        if kind not in kinds:
            continue
        names = [x for x in layers if any(x.endswith(y) for y in OF_LAYERS.get(kind, [""]))]
        counts = [16] if kind == "host" else [256] if kind == "replay" else list(tokens)
        if kind in grouped_mixtures.KINDS:
            names, counts = list(MODELS), [x for x in tokens if kind == "moe" or x in STEPS]
        found += [Case(kind, x, count, y) for y in of_tier if y in spreads for x in names for count in counts]
    return found


class Bench:
    """Checks and times one case after another.

    Args:
        sensors: of the GPU, read during samples.
        regime: of timing.
        device: captures graphs and times them.
        memory: torch device of the operands; on "cpu" ours uses the reference.
        layers: of models.
    """

    def __init__(
        self,
        sensors: timing.Readable | None = None,
        regime: timing.Regime = REGIME,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        layers: Layers | None = None,
    ) -> None:
        self.sensors, self.regime, self.memory = sensors, regime, memory
        self.device = device or timing.Device()
        self.fallback = "error" if memory == "cuda" else "reference"
        self.layers = layers or Layers(device=memory, fallback=self.fallback)
        self.weights: tuple[str, Any] = ("", None)

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""
        names = [OURS, THEIRS, COMPILED]
        if case.kind not in grouped_mixtures.KINDS:
            names = [x.name for x in grouped_cases.contenders(case)]
        regime = "host" if case.kind == "host" else self.regime.name
        return [{"suite": SUITE, "what": str(case), "contender": x, "regime": regime} for x in names]

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, with times or the reason for missing times; and all reasons."""
        refused: dict[str, str] = {}
        times: dict[str, Measurement] = {}
        roof = plan = None
        try:
            sets, who, bound = self._made(case)
            who = self._right(case, sets, who, bound, refused)
            times = self._times(case, sets, who)
            if isinstance(sets[0], Draw):
                plan = _plan(case, sets[0])
                roof = sum(grouped_cases.bytes_of(case, x) for x in sets) / len(sets) / READ
        except Exception as error:  # an error of one contender must not stop the others
            refused |= {
                x["contender"]: runs.reason(error) for x in self.keys(case) if x["contender"] not in refused
            }
        layered = case.kind in grouped_mixtures.KINDS
        beside = results.compare(times, THEIRS if layered else grouped_cases.baseline(case))
        found = {row["contender"]: row for row in beside}
        rows = []
        for key in self.keys(case):
            name = key["contender"]
            row = dict.fromkeys(results.GROUPED_FIELDS) | found.get(name, {}) | vars(case) | key
            row |= {"roof_us": roof, "plan": plan if name == OURS else None, "refused": refused.get(name)}
            rows.append({field: row[field] for field in results.GROUPED_FIELDS})
        return rows, list(refused.items())

    def _made(self, case: Case) -> tuple[list[Any], list[Contender], float]:
        """A case's draws, its contenders, and the bound on the difference of their results."""
        if case.kind in grouped_mixtures.KINDS:
            self.weights = "", None
            layers = self.layers.of(case.layer)
            return (
                grouped_mixtures.sets_of(case, self.memory),
                grouped_mixtures.contenders(case, layers),
                LAYER_BOUND,
            )
        self.layers.known = "", {}
        if self.weights[0] != case.layer:
            self.weights = "", None
            self.weights = case.layer, grouped_cases.weights(case.layer, self.memory)
        sets = grouped_cases.sets_of(case, self.weights[1])
        if case.kind.startswith("fp8"):
            sets = grouped_cases.in_8_bits(sets, case.kind)
        # fp8 differs from bf16 by the quantization error
        return (
            sets,
            grouped_cases.contenders(case, self.fallback),
            6e-2 if case.kind.startswith("fp8") else BOUND,
        )

    def _right(
        self, case: Case, sets: list[Any], who: list[Contender], bound: float, refused: dict[str, str]
    ) -> list[Contender]:
        """The contenders that agree with the baseline; reasons for the others are added to `refused`."""
        others = {x.name: x for x in who}
        told = others[THEIRS if THEIRS in others else "bf16" if "bf16" in others else TORCH].call(sets[0])
        found = []
        for x in who:
            try:
                if not (x.name == "dense" and case.spread != "alone"):
                    self._check(x.call(sets[0]), told, bound)
                if case.kind == "replay":
                    self._replayed(x, sets, who[-1])
                found.append(x)
            except Exception as error:
                refused[x.name] = runs.reason(error)
        return found

    def _check(self, found: torch.Tensor, told: torch.Tensor, bound: float) -> None:
        """Compare results with the baseline's.

        Raises:
            ValueError: too many rows differ by more than the bound.
        """
        near = (found.float() - told.float()).norm(dim=-1) <= bound * told.float().norm(dim=-1)
        share, least = float(near.float().mean()), NEAR if bound == LAYER_BOUND else 1.0
        if not share >= least:
            raise ValueError(f"{share:.4f} of the rows are within {bound}: must be at least {least}")

    def _replayed(self, x: Contender, sets: list[Draw], torchs: Contender) -> None:
        """Capture a call and replay it with the group ends of other draws.

        Raises:
            ValueError: a replay is wrong.
        """
        first, found = sets[0], []
        static = Draw(**vars(first) | {"ends": first.ends.clone()})
        replay = self.device.capture(lambda: found.append(x.call(static)))
        for other in sets:
            static.ends.copy_(other.ends)
            replay()
            self._check(found[-1], torchs.call(Draw(**vars(first) | {"ends": other.ends})), BOUND)

    def _times(self, case: Case, sets: list[Any], who: list[Contender]) -> dict[str, Measurement]:
        if case.kind == "host":
            calls: Any = {x.name: lambda x=x: x.call(sets[0]) for x in who}
            wait: Callable[[], None] = torch.cuda.synchronize if self.memory == "cuda" else lambda: None
            return host_time.time_calls(calls, rounds=HOST_ROUNDS if self.memory == "cuda" else 1, wait=wait)
        step = case.kind == "moe_step" and self.memory == "cuda"
        device = models.Uncaptured() if step else self.device
        return timing.measure(who, sets, self.regime, device=device, sensors=self.sensors)


def _plan(case: Case, x: Draw) -> str | None:
    """Our kernel's tile, cluster, schedule and grouped axis, for kinds without an epilogue."""
    given = {
        "forward": (x.a, x.b, x.ends),
        "weight": (x.above.T, x.a, x.ends),
        "gather": (x.tokens, x.b, x.ends, None, x.rows),
    }
    if case.kind not in given:
        return None
    config: Any = planned(*given[case.kind]).config
    return f"{config.tile} {config.cluster} {config.schedule} {config.grouped}"


def compile_all(cases: list[Case], record: Device, console: Console) -> int:
    """Compile all our kernels that will be timed, without a GPU. Returns their number."""
    with recorded(record) as configs:
        known: tuple[str, Any] = ("", None)
        for case in cases:
            if case.kind in grouped_mixtures.KINDS:
                grouped_mixtures.launched(case)
                continue
            if known[0] != case.layer:
                known = case.layer, grouped_cases.weights(case.layer, "cpu", empty=True)
            x = grouped_cases.drawn(case, known[1], 0, empty=True)
            if case.kind.startswith("fp8"):
                x = grouped_cases.shaped_in_8_bits(x, case.kind)
            # with copies, and in bf16, ours is the kernel of plain rows
            plain = dataclasses.replace(case, kind="forward")
            for of in (case, plain) if case.kind != "weight" else (case,):
                names = (OURS, "dense") if case.spread == "alone" else (OURS,)
                for contender in (c for c in grouped_cases.contenders(of) if c.name in names):
                    contender.call(x)
    return runs.compiled(configs, len(cases), console)


Wanted = Callable[[Row], float | None]


def _of(
    kinds: tuple[str, ...], tokens: Callable[[int], bool], spreads: tuple[str, ...] = SPREADS[:3]
) -> Callable[[Row], bool]:
    return lambda row: row["kind"] in kinds and tokens(row["tokens"]) and row["spread"] in spreads


# targets: name, rows, other contender, mean and least ratio
GOALS = (
    ("forward, up to 64 tokens", _of(("forward",), lambda x: x <= 64), TORCH, 1.5, 1.2),
    ("forward, 256", _of(("forward",), lambda x: x == 256), TORCH, 1.35, 1.2),
    ("forward, 1024 and 4096", _of(("forward",), lambda x: x in (1024, 4096)), TORCH, 1.25, 1.05),
    ("forward, 16384", _of(("forward",), lambda x: x == 16384), TORCH, 1.08, 1.0),
    ("forward, 16384, of a dense GEMM", _of(("forward",), lambda x: x == 16384), "dense", 0.93, None),
    ("forward, up to 256, of the time to read", _of(("forward",), lambda x: x <= 256), "roof", 0.85, None),
    ("one expert alone, of our dense GEMM", _of(("forward",), lambda x: True, ("alone",)), "dense", 0.95, None),
    ("a weight's gradient, up to 4096", _of(("weight",), lambda x: x <= 4096), TORCH, 1.4, 1.0),
    ("a weight's gradient, 16384", _of(("weight",), lambda x: x == 16384), TORCH, 1.08, 1.0),
    ("gather and scatter, over torch", _of(("gather", "scatter"), lambda x: True), TORCH, 1.2, 1.05),
    ("gather and scatter, over copies", _of(("gather", "scatter"), lambda x: True), "copied", 1.2, 1.05),
    ("fp8 by rows, over bf16", _of(("fp8_rows",), lambda x: True), "bf16", None, None),
    ("fp8 by blocks, up to 256, over bf16", _of(("fp8_blocks",), lambda x: x <= 256), "bf16", 1.6, 1.1),
    ("fp8 by blocks, 16384, over bf16", _of(("fp8_blocks",), lambda x: x == 16384), "bf16", 1.5, 1.1),
    ("a replayed graph", _of(("replay",), lambda x: True), TORCH, None, None),
    ("nn.MoE", _of(("moe",), lambda x: True), THEIRS, 1.25, None),
    ("nn.MoE with gradients", _of(("moe_backward",), lambda x: True), THEIRS, 1.15, None),
    ("nn.MoE with gradients, from the host", _of(("moe_step",), lambda x: True), THEIRS, None, None),
)  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    """A line per target with the ratios of a file's rows; for layers also those of ours compiled."""
    lines = []
    times = {(row["what"], row["contender"]): row["us"] for row in rows if row["us"] is not None}
    for row in rows:
        if row["kind"] == "host" and row["us"] is not None:
            lines.append(
                f"host time of {row['contender']}: {row['us']:.2f} us"
                + (" (wanted 12)" if row["contender"] == OURS else "")
            )
    for name, chosen, other, mean, least in GOALS:
        for ours in (OURS, COMPILED):
            ratios = []
            for row in rows:
                us = times.get((row["what"], ours))
                if row["contender"] != ours or not chosen(row) or us is None:
                    continue
                base = row["roof_us"] if other == "roof" else times.get((row["what"], other))
                if base is not None:
                    ratios.append(base / us)
            if ratios:
                wanted = [f"mean {mean}"] * (mean is not None) + [f"least {least}"] * (least is not None)
                found = f"{results.geometric_mean(ratios):.3f}, least {min(ratios):.3f} of {len(ratios)}"
                lines.append(
                    f"{name}{'' if ours == OURS else ', compiled'}: {found}"
                    + f" (wanted {', '.join(wanted)})" * bool(wanted)
                )
    return lines


def describe(row: Row) -> str:
    """A row on one line."""
    head = f"{row['what']:38} {row['contender']:20}"
    if row["us"] is None:
        return f"{head} {row['refused']}"
    roof = "" if row["roof_us"] is None else f" | roof {row['roof_us']:.1f}"
    return f"{head} {row['us']:10.2f} us{results.ratio_text(row)}{roof}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("probes.grouped", __doc__)
    add = parser.add_argument
    for name, values in (("kinds", KINDS), ("layers", tuple(LAYERS)), ("spreads", SPREADS)):
        add(f"--{name}", type=runs.names_among(values), default=list(values), help=", ".join(values))
    tokens = [str(x) for x in TOKENS]
    add("--tokens", type=runs.names_among(tokens), default=tokens, help=", ".join(tokens))
    add("--compile-only", action="store_true", help="compile the kernels and measure nothing")
    runs.add_gpu(parser, "GPU that --compile-only plans for")
    runs.add_options(parser, required="--compile-only" not in arguments)
    args = parser.parse_args(arguments)
    args.cases = cases_of(args.kinds, args.layers, [int(x) for x in args.tokens], args.spreads)
    return args


def main(arguments: list[str]) -> int:
    """Run the command; 1 when a contender failed or was wrong."""
    args = parse(arguments)
    if args.compile_only:
        compile_all(args.cases, runs.record_of(args.gpu), runs.console())
        return 0
    console, sensors, out = runs.open_run(args)
    bench = Bench(sensors)
    outcome = runs.run(args.cases, bench, out, seconds=args.seconds, console=console, describe=describe)
    for line in summary(out.rows):
        console.print(line, markup=False)
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
