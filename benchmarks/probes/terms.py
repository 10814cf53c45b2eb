# SPDX-License-Identifier: Apache-2.0
"""Terms of the cost model, each by two kernels or problems that differ in it alone: measured and predicted difference.

    python -m benchmarks.probes.terms --compile-only               # without a GPU
    python -m benchmarks.probes.terms --out FILE --commit HASH     # on a GPU, under a minute

Each pair names the counts of `planning.cost` that differ and why the hardware takes time for them. Predictions are by
rates alone, without factors of kernels. D is checked against torch; both are timed interleaved, from beyond L2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import command_line, contenders, correctness, environment, inputs, runs, timing
from benchmarks.results import Row
from benchmarks.timing import Contender
from cutegemm import Gemm, GemmSpec, KernelPlan, Problem, Tile, files, problem
from cutegemm.arch.device import Device
from cutegemm.errors import GemmError
from cutegemm.planning import cost, generator
from cutegemm.planning.planner import plan
from cutegemm.planning.ranking import gemm_of
from cutegemm.planning.why import option_of

REGIME = timing.Regime(name="terms", preheat=0.05, rest=0.0, sample=0.01, rounds=6)
# relative Frobenius error of D's first rows that rounding cannot explain, and these rows
WRONG, CHECKED = 0.1, 128
Extents = tuple[int, int, int]  # M, N and K
Operands = dict[str, torch.Tensor]  # of a run, by name


@dataclass(frozen=True)
class Side:
    """One kernel of a pair: fields of its spec, the problem, and whether the epilogue reads C."""

    fields: dict[str, Any]
    extents: Extents
    dtype: str = "bf16"
    reads_c: bool = False

    @property
    def spec(self) -> GemmSpec:
        """Never swapped, so that counts are those of the problem as it stands."""
        return GemmSpec(**{"swap": False, **self.fields})

    @property
    def problem(self) -> Problem:
        """TN, D in bf16."""
        more = {"c_dtype": "bf16"} if self.reads_c else {}
        return problem(*self.extents, dtype=self.dtype, majors="kk", d_dtype="bf16", **more)

    def plan(self, device: Device) -> KernelPlan:
        """The kernel, whatever the database says."""
        return plan(self.spec, self.problem, device)

    def counts(self, device: Device) -> cost.Counts:
        """What the kernel does."""
        _, way, candidate = option_of(self.plan(device))
        return cost.counts(gemm_of(way), device, generator.rows([candidate]))

    def sets(self, memory: str) -> list[Operands]:
        """Arguments of runs, which together exceed L2."""
        m, n, k = self.extents
        size = 1 if self.dtype == "fp8" else 2
        each = size * (m + n) * k + 2 * m * n * (2 if self.reads_c else 1)
        count = min(64, max(2, -(-inputs.ROTATION_BYTES // each)))
        return [self._drawn(seed, memory) for seed in range(count)]

    def _drawn(self, seed: int, memory: str) -> Operands:
        source = torch.Generator(memory).manual_seed(seed)
        (m, n, k), taken = self.extents, torch.float8_e4m3fn if self.dtype == "fp8" else torch.bfloat16

        def normal(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.randn(rows, columns, generator=source, device=memory).to(dtype)

        found = {"a": normal(m, k, taken), "b": normal(n, k, taken).T}
        found |= {"c": normal(m, n, torch.bfloat16)} if self.reads_c else {}
        return found | {"out": torch.empty(m, n, device=memory, dtype=torch.bfloat16)}


@dataclass(frozen=True)
class Pair:
    """Two kernels that differ in one term.

    Attributes:
        name: of the term.
        why: what the hardware does, and why it takes time.
        counts: columns of `cost.Counts` that differ; all others are nearly equal.
        first, second: the kernels.
    """

    name: str
    why: str
    counts: tuple[str, ...]
    first: Side
    second: Side

    def predicted(self, device: Device) -> tuple[float, float]:
        """Nanoseconds of both."""
        first, second = (float(cost.nanoseconds(x.counts(device), device.cost)[0]) for x in self.sides)
        return first, second

    def alone(self, device: Device) -> float:
        """Nanoseconds by which the first becomes slower if only the named counts change to those of the second."""
        first, second = (x.counts(device) for x in self.sides)
        changed = first._replace(**{name: getattr(second, name) for name in self.counts})
        return float((cost.nanoseconds(changed, device.cost) - cost.nanoseconds(first, device.cost))[0])

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both kernels."""
        return self.first, self.second


def pairs(device: Device) -> list[Pair]:
    """The pairs, in sizes that suit a GPU's SMs and clusters; `edge`: greatest N, in eights, of a short launch."""
    sms, columns, fours = device.sms, 128 * (device.sms - 12), device.resident_clusters(4)
    square, tall, half = _tile(128, 128), _tile(256, 128), _tile(64, 128)
    small = {**_tile(64, 64), "raster": ("m", 8)}
    deep, split = (12 * 64, fours // 3 * 64, 8192), {**small, "split_k": 4}
    eight = {**square, "tile": Tile(128, 128, 128)}
    edge = (device.thresholds.early_bytes // 2 - 8 * 2048) // (2048 + 8) // 8 * 8
    return [
        Pair(
            "wave quantization",
            "one work tile more than SMs: one SM computes two, and the others wait",
            ("waves", "share"),
            Side(tall, (256, sms * 128, 4096)),
            Side(tall, (256, (sms + 1) * 128, 4096)),
        ),
        Pair(
            "stages",
            "a launch of one stage is its ramp; each further one adds the time of an SM's slowest unit",
            ("stages", "traffic", "flops", "memory", "asked"),
            Side(square, (1024, 1024, 64)),
            Side(square, (1024, 1024, 1024)),
        ),
        Pair(
            "rows that straddle L2 lines",
            "a row of a stage that does not begin at a line of 128 bytes touches two of them",
            ("astride",),
            Side(square, (2048, 2048, 4160)),
            Side(square, (2048, 2048, 4144)),
        ),
        Pair(
            "rows that begin within L2 sectors",
            "a row of a stage that begins within a sector of 32 bytes touches one more (`boxes.cu`)",
            ("within",),
            Side(square, (2048, 2048, 4144)),
            Side(square, (2048, 2048, 4152)),
        ),
        Pair(
            "rows outside an operand",
            "TMA writes zeros to shared memory for them, more slowly than it loads",
            ("void",),
            Side(tall, (512, columns // 2, 8192)),
            Side(tall, (257, columns // 2, 8192)),
        ),
        Pair(
            "multicast",
            "L2 delivers a line once for all CTAs of a cluster; small tiles alone need more than it delivers",
            ("fetched", "traffic", "doubled", "shared"),
            Side({**small, "cluster": (2, 2)}, deep),
            Side(small, deep),
        ),
        Pair(
            "edges of a tile",
            "64 x 256 computes as much as 128 x 128, but more bytes come through L2's and the SM's ports",
            ("landed", "fetched", "traffic", "ring"),
            Side({**square, "consumers": 1}, (2048, 2048, 4096)),
            Side(_tile(64, 256), (2048, 2048, 4096)),
        ),
        Pair(
            "stores beside the mainloop",
            "in pingpong one warpgroup stores its tile while the other multiplies",
            ("team",),
            Side({**half, "schedule": "pingpong", "consumers": 2}, (8192, 8192, 256)),
            Side(half, (8192, 8192, 256)),
        ),
        Pair(
            "stores of unaligned rows",
            "TMA cannot store them: threads do, and sectors at both ends of a row are written twice",
            ("lines",),
            Side(square, (8192, 4096, 256)),
            Side(square, (8192, 4094, 256)),
        ),
        Pair(
            "matrices that the epilogue reads",
            "C comes from memory after the mainloop, into buffers that the pipeline then lacks",
            ("inputs", "memory", "ring"),
            Side(square, (4096, 4096, 1024)),
            Side(square, (4096, 4096, 1024), reads_c=True),
        ),
        Pair(
            "reduction in a cluster",
            "CTAs exchange sums through shared memory, which a reduction launch overlaps with its prologue",
            ("held", "doubled", "beneath", "launched", "left", "shared"),
            Side({**split, "split_reduction": "launch"}, (256, 384, 16384)),
            Side({**split, "cluster": (1, 1, 4)}, (256, 384, 16384)),
        ),
        Pair(
            "reduction in workspace",
            "the last CTA of a tile reads all sums, which SMs of a reduction launch read in parallel",
            ("met", "launched", "left", "beneath"),
            Side({**split, "split_reduction": "launch"}, (256, 384, 16384)),
            Side({**split, "split_reduction": "workspace"}, (256, 384, 16384)),
        ),
        Pair(
            "launches that begin early",
            "the prologue of the next launch overlaps the end of a short one",
            ("beneath",),
            Side(_tile(64, 40), (8, edge, 2048)),
            Side(_tile(64, 40), (8, edge + 8, 2048)),
        ),
        Pair(
            "loads by threads",
            "a warpgroup issues an instruction for every 16 bytes, TMA one for a box",
            ("loaded", "once"),
            Side(square, (2048, 2048, 4096)),
            Side({**square, "a_load": "cp_async"}, (2048, 2048, 4096)),
        ),
        Pair(
            "a copy before the launch",
            "it takes a launch, and reads and writes A",
            ("once",),
            Side(square, (2048, 2048, 4096)),
            Side({**square, "a_load": "relayout"}, (2048, 2048, 4096)),
        ),
        Pair(
            "promotion of fp8 sums",
            "CUDA cores add partial sums to fp32 ones while the tensor cores wait, and take power",
            ("promoted", "lifted"),
            Side({**eight, "promote": None}, (4096, 4096, 4096), "fp8"),
            Side({**eight, "promote": 128}, (4096, 4096, 4096), "fp8"),
        ),
    ]


def _tile(m: int, n: int) -> dict[str, Any]:
    """Fields of a cooperative kernel without a cluster, whose CTAs have lists of tiles."""
    fixed = {"schedule": "cooperative", "cluster": (1, 1), "raster": ("m", 8), "scheduler": "persistent"}
    return {"tile": Tile(m, n, 64), "consumers": 2 if m > 64 else 1, **fixed}


class Bench:
    """Checks and times one pair after another.

    Args:
        record: of the GPU.
        sensors: of the GPU, read during samples.
        device: captures graphs and times them.
        memory: torch device of the operands.
        regime: of timing.
    """

    def __init__(
        self,
        record: Device,
        sensors: timing.Readable | None = None,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        regime: timing.Regime = REGIME,
    ) -> None:
        self._record, self._sensors, self._regime = record, sensors, regime
        self._device, self._memory = device or timing.Device(), memory

    def measure(self, pair: Pair) -> Row:
        """The row of a pair.

        Raises:
            GemmError: a kernel is refused.
            RuntimeError: D is wrong.
        """
        sets = [x.sets(self._memory) for x in pair.sides]
        # as many sets as the smaller problem needs
        both = [list(itertools.islice(itertools.cycle(x), max(map(len, sets)))) for x in sets]
        calls = [checked(x, one[0]) for x, one in zip(pair.sides, both, strict=True)]
        sides = [Contender(str(i), lambda x, i=i: calls[i](x[i])) for i in range(2)]
        times = timing.measure(
            sides,
            list(zip(*both, strict=True)),
            self._regime,
            device=self._device,
            sensors=self._sensors,
        )
        return row(pair, self._record, [x.us for x in times.values()])


def checked(side: Side, one: Operands) -> Callable[[Operands], Any]:
    """The call of a kernel whose D is right.

    Raises:
        GemmError: it is refused.
        RuntimeError: it is wrong.
    """
    gemm = Gemm(side.spec)

    def call(x: Operands) -> Any:
        return gemm.run(**x)

    wanted = one["a"][:CHECKED].float() @ one["b"].float()
    if side.reads_c:
        wanted += one["c"][:CHECKED].float()
    error = correctness.relative_error(call(one)[:CHECKED], wanted)
    if not error < WRONG:
        raise RuntimeError(f"error {error:.3g} of the norm")
    return call


def row(pair: Pair, device: Device, us: Sequence[float]) -> Row:
    """A pair's entry in the results file: both kernels, with measured and predicted microseconds."""
    made = [x.plan(device) for x in pair.sides]
    shown = [
        {"size": list(x.extents), "plan": contenders.plan_label(y)}
        for x, y in zip(pair.sides, made, strict=True)
    ]
    return {
        "name": pair.name,
        "why": pair.why,
        "counts": list(pair.counts),
        "kernels": shown,
        "measured_us": [round(x, 3) for x in us],
        "predicted_us": [round(x / 1e3, 3) for x in pair.predicted(device)],
    }


def describe(row: Row) -> str:
    """A row on one line: the first kernel's time, the measured and the predicted difference."""
    us, predicted = row["measured_us"], row["predicted_us"]
    apart = f"measured {us[1] - us[0]:+8.2f} us, predicted {predicted[1] - predicted[0]:+8.2f}"
    return f"{row['name']:34} {us[0]:8.2f} us (predicted {predicted[0]:8.2f}); {apart}"


def main(arguments: Sequence[str]) -> int:
    """Measure every pair; returns 1 if a kernel was refused or wrong."""
    parser = command_line.parser("probes.terms", __doc__)
    args = runs.parsed_or_compiling(parser, arguments)
    with contenders.no_database():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    """Compile the kernels of every pair, then measure them unless told not to."""
    console = runs.console()
    if args.compile_only:
        device = runs.record_of(args.gpu)
        compiled(pairs(device), device, console)
        return 0
    # imported here, since it calls the driver
    from cutegemm.running.backends.launcher import current_device

    environment.select(args.device)
    sensors, device = environment.sensors(args.device), current_device()[1]
    every = pairs(device)
    compiled(every, device, console)
    return measured(
        every, Bench(device, sensors), environment.record(args.commit, sensors, args.device), args.out
    )


def compiled(found: Sequence[Pair], device: Device, console: Console) -> None:
    """Compile all kernels in parallel."""
    steps = [step for pair in found for x in pair.sides for step in x.plan(device).steps]
    runs.compiled([x.config for x in steps], 2 * len(found), console)


def measured(found: Sequence[Pair], bench: Bench, where: Row, out: Path) -> int:
    """Measure pairs and write the file after each; returns 1 if a kernel was refused or wrong."""
    console, rows, failed = runs.console(), [], {}
    for pair in found:
        try:
            rows.append(bench.measure(pair))
            console.print(describe(rows[-1]), markup=False)
        except (GemmError, RuntimeError) as error:
            failed[pair.name] = runs.reason(error)
            console.print(f"{pair.name}: NOT TIMED: {failed[pair.name]}", markup=False)
        text = json.dumps({"environment": where, "pairs": rows, "failed": failed}, indent=1)
        files.replace(out, text.encode() + b"\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
