# SPDX-License-Identifier: Apache-2.0
"""Speed of decode chains: layers in one CUDA graph, each reading the output of the one before.

    python -m benchmarks.chain --out benchmarks/results/chain.json --commit HASH [--chains 7168x7168 --rows 1,16]

y[M, N] = x[M, K] W[N, K]^T, with more weights than L2 holds. A third contender only reads the weights; its speed in the
same run is the roof. Times are per layer, averaged over the chain.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import cutegemm
from benchmarks import command_line, contenders, correctness, results, runs, timing
from benchmarks.results import Measurement, Row
from benchmarks.suites import CHAIN_BYTES, CHAIN_ROWS, CHAINS
from benchmarks.timing import Contender
from cutegemm import GemmSpec, KernelPlan
from cutegemm.errors import GemmError

Layer = tuple[int, int]  # N, K
ROOF = "read"  # the contender that reads the weights
WEIGHT = "b"  # the operand that no kernel writes
DTYPE = torch.bfloat16
NAMES = (contenders.OURS, contenders.BASELINE)
UNDECLARED = "cutegemm_undeclared"  # ours, the weights not declared constant


def label(layers: Sequence[Layer]) -> str:
    """Layers in one word, such as "14336x4096-4096x14336"."""
    return "-".join(f"{n}x{k}" for n, k in layers)


@dataclass(frozen=True)
class Chain:
    """Layers at one M, repeated until the weights have at least `weight_bytes`."""

    layers: tuple[Layer, ...]
    m: int
    weight_bytes: int = CHAIN_BYTES

    @property
    def depth(self) -> int:
        """The number of layers that run."""
        once = sum(n * k for n, k in self.layers) * DTYPE.itemsize
        return len(self.layers) * max(1, math.ceil(self.weight_bytes / once))

    @property
    def shapes(self) -> list[Layer]:
        """(N, K) of every layer that runs."""
        return [self.layers[i % len(self.layers)] for i in range(self.depth)]

    @property
    def layer_bytes(self) -> float:
        """Average bytes of a layer's weights."""
        return sum(n * k for n, k in self.shapes) * DTYPE.itemsize / self.depth

    def __str__(self) -> str:
        return f"chain {label(self.layers)} M {self.m}"


@dataclass(frozen=True)
class Operands:
    """A chain's memory.

    Attributes:
        x: (M, K) of the first layer.
        flat: all weights, contiguous.
        weights: (N, K) views of `flat`.
        outputs: (M, N) of each layer.
    """

    x: torch.Tensor
    flat: torch.Tensor
    weights: list[torch.Tensor]
    outputs: list[torch.Tensor]


def make_operands(chain: Chain, device: str) -> Operands:
    """Draw x with variance 1 and weights with variance 1 / K, so every output has variance 1."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=DTYPE)

    flat = torch.empty(sum(n * k for n, k in chain.shapes), device=device, dtype=DTYPE)
    weights = [
        part.view(n, k)
        for part, (n, k) in zip(flat.split([n * k for n, k in chain.shapes]), chain.shapes, strict=True)
    ]
    for weight in weights:
        weight.copy_(draw(*weight.shape) * weight.shape[1] ** -0.5)
    outputs = [torch.empty(chain.m, n, device=device, dtype=DTYPE) for n, _ in chain.shapes]
    return Operands(draw(chain.m, chain.layers[0][1]), flat, weights, outputs)


Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]  # (x, W^T, out)


def layered(name: str, multiply: Callable[[int], Multiply], plan: str | None = None) -> Contender:
    """A contender whose call runs the chain; `multiply(i)` computes layer i."""

    def call(operands: Operands) -> None:
        x = operands.x
        for i, (weight, out) in enumerate(zip(operands.weights, operands.outputs, strict=True)):
            multiply(i)(x, weight.T, out)
            x = out

    return Contender(name, call, plan)


def spec(*, constant: bool) -> GemmSpec:
    """The measured spec, with weights declared constant or not."""
    return GemmSpec(constant=(WEIGHT,)) if constant else GemmSpec()


def make(name: str, chain: Chain, declared: GemmSpec) -> Contender:
    """Our chain, cuBLAS's, or the kernel that reads the weights.

    Raises:
        GemmError: cutegemm refuses a layer.
    """
    if name == contenders.BASELINE:
        return layered(name, lambda i: lambda x, weight, out: torch.mm(x, weight, out=out))
    if name == ROOF:
        # as integers, whose maximum takes one operation per element and no NaN test
        return Contender(name, lambda operands: operands.flat.view(torch.int32).amax())
    if name == UNDECLARED:
        declared = spec(constant=False)
    problems = {(n, k): cutegemm.problem(chain.m, n, k, majors="kk") for n, k in chain.layers}
    gemms = {layer: cutegemm.build(declared, solved) for layer, solved in problems.items()}
    plans = [gemms[layer].kernel(problems[layer]).plan for layer in chain.layers]
    shapes = chain.shapes

    def multiply(i: int) -> Multiply:
        gemm = gemms[shapes[i]]
        return lambda x, weight, out: gemm.run(x, weight, out=out)

    return layered(name, multiply, plan_words(declared, plans))


def plan_words(declared: GemmSpec, plans: Sequence[KernelPlan]) -> str:
    """The plans of a chain on one line."""
    words = "weights constant: " if declared.constant else ""
    return words + " | ".join(map(contenders.plan_label, plans))


def check(contender: Contender, operands: Operands) -> None:
    """Fill every output with NaN, run the chain once, and compare each layer with fp64 of its input.

    This detects a layer that reads its input too early, or the output of another layer.

    Raises:
        WrongResult: a layer is wrong; names the layer.
    """
    for out in operands.outputs:
        out.fill_(math.nan)
    contender.call(operands)
    x = operands.x
    for i, (weight, out) in enumerate(zip(operands.weights, operands.outputs, strict=True)):
        error = correctness.relative_error(out, x.double() @ weight.T.double())
        bound = correctness.FROBENIUS_BOUND[DTYPE]
        if not error <= bound:
            raise correctness.WrongResult(
                f"layer {i}: relative Frobenius error {error:.2e}: must be at most {bound:.2e}"
            )
        x = out


class Bench:
    """Checks and times one chain after another.

    Args:
        regime: of timing.
        sensors: of the GPU, read during samples.
        constant: whether to declare the weights constant.
        names: of the contenders.
        device: captures graphs and times them.
        memory: torch device of the operands.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        constant: bool = True,
        names: Sequence[str] = NAMES,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
    ) -> None:
        self._regime, self._sensors = regime, sensors
        self._spec, self._names = spec(constant=constant), names
        self._device = device or timing.Device()
        self._memory = memory

    def keys(self, chain: Chain) -> list[Row]:
        """The key fields of the rows that `measure(chain)` returns."""
        fixed = {"suite": "chain", "what": label(chain.layers), "dtype": "bf16", "m": chain.m}
        return [fixed | {"contender": name, "regime": self._regime.name} for name in self._names]

    def measure(self, chain: Chain) -> tuple[list[Row], runs.Failures]:
        """Rows of the correct contenders, and (contender, reason) of the others."""
        operands = make_operands(chain, self._memory)
        right: list[Contender] = []
        failures: runs.Failures = []
        for name in self._names:
            try:
                contender = make(name, chain, self._spec)
                check(contender, operands)
                right.append(contender)
            except (GemmError, correctness.WrongResult) as error:
                failures.append((name, str(error)))
        everyone = [*right, make(ROOF, chain, self._spec)]
        times = timing.measure(everyone, [operands], self._regime, device=self._device, sensors=self._sensors)
        plans = {contender.name: contender.plan for contender in right}
        return rows(chain, times, plans=plans, regime=self._regime.name), failures


def rows(
    chain: Chain, times: dict[str, Measurement], *, plans: dict[str, str | None], regime: str
) -> list[Row]:
    """Rows of one chain with times per layer; all contenders were measured together."""
    layered = {name: measured.divided(chain.depth) for name, measured in times.items()}
    roof = chain.layer_bytes / layered.pop(ROOF).us / 1e3
    found = []
    for row in results.compare(layered, contenders.BASELINE):
        speed = chain.layer_bytes / row["us"] / 1e3
        row |= {"suite": "chain", "what": label(chain.layers), "dtype": "bf16", "m": chain.m}
        row |= {"layers": chain.depth, "bytes": chain.layer_bytes, "plan": plans.get(row["contender"])}
        row |= {"regime": regime, "gb_s": speed, "roof_gb_s": roof, "of_roof": speed / roof}
        found.append({field: row[field] for field in results.CHAIN_FIELDS})
    return found


def describe(row: Row) -> str:
    """A row on one line: us a layer | TB/s | share of the roof | x baseline."""
    return (
        f"chain {row['what']:24} M {row['m']:3} {row['contender']:10} {row['us']:8.2f} us a layer | "
        f"{row['gb_s'] / 1e3:5.2f} TB/s | {row['of_roof']:5.1%} of the read roof{results.ratio_text(row)}"
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("chain", __doc__)
    legal = [label(layers) for layers in CHAINS]
    add = parser.add_argument
    add("--chains", type=runs.names_among(legal), default=legal, help=f"default {','.join(legal)}")
    add("--rows", type=_rows, default=list(CHAIN_ROWS), help="M, comma-separated; default 1,16,32")
    add("--undeclared", action="store_true", help="do not declare the weights constant")
    runs.add_options(parser)
    return parser.parse_args(arguments)


def _rows(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers from 1, comma-separated")
    return [int(part) for part in parts]


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender refused a layer or was wrong."""
    args = parse(arguments)
    console, sensors, out = runs.open_run(args)
    chains = [Chain(layers, m) for layers in CHAINS if label(layers) in args.chains for m in args.rows]
    bench = Bench(timing.REGIMES["sustained"], sensors, constant=not args.undeclared)
    outcome = runs.run(chains, bench, out, seconds=args.seconds, console=console, describe=describe)
    ratios = [row["ratio"] for row in out.rows if row["contender"] == contenders.OURS and row["ratio"]]
    if ratios:
        console.print(
            f"x cuBLAS: geometric mean {results.geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
        )
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
