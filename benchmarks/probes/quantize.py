# SPDX-License-Identifier: Apache-2.0
"""Bandwidth of `cutegemm.quantize` compared with a copy of its input.

    python -m benchmarks.probes.quantize --out FILE --commit HASH [--shapes 8192x4096,16384x14336] [--seconds 60]

Inputs are normally distributed bf16. Results are compared with the CPU's. "of copy" is the bytes that must move per
microsecond, over those of `x.clone()`: every output once, and the input once, or twice where all rows share a scale.
The goal is 0.85 from 64 MB.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cutegemm
from benchmarks import command_line, results, runs, timing
from benchmarks.results import Row
from benchmarks.timing import Contender
from cutegemm.ops.quantized.made import Quantized

SUITE = "quantize"
COPY, OURS = "copy", "cutegemm"
KINDS: dict[str, Any] = {
    "1 x 128": ("block", 1, 128),
    "128 x 128": ("block", 128, 128),
    "row": "row",
    "tensor": "tensor",
}
SHAPES = [(8192, 4096), (16384, 14336)]
CHECKED = 512  # rows that are compared with the CPU's where rows or their blocks have scales of their own
WHOLE = 2**26  # most elements of x that are compared if every output depends on all rows
REGIME = timing.Regime(name="quantize", preheat=0.1, rest=0.0, sample=0.02, rounds=6)


@dataclass(frozen=True)
class Work:
    """One call: x of M x K in bf16.

    Attributes:
        m, k: extents of x.
        kind: name of the kind of scales.
        transposed: whether x.mT is quantized too.
    """

    m: int
    k: int
    kind: str
    transposed: bool

    @property
    def reads(self) -> int:
        """How often x must be read: twice if a scale depends on all rows, once for the maximum."""
        return 2 if self.kind == "tensor" or (self.kind == "row" and self.transposed) else 1

    def __str__(self) -> str:
        return f"{self.kind}{' and transposed' if self.transposed else ''}"

    def __call__(self, x: torch.Tensor) -> list[Quantized]:
        if self.transposed:
            return list(cutegemm.quantize(x, KINDS[self.kind], transposed=True))
        return [cutegemm.quantize(x, KINDS[self.kind])]


class Bench:
    """Checks and times one call after another."""

    def __init__(
        self,
        sensors: timing.Readable | None,
        *,
        regime: timing.Regime = REGIME,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
    ) -> None:
        self._sensors, self._regime, self._memory = sensors, regime, memory
        self._device = device or timing.Device()

    def keys(self, work: Work) -> list[Row]:
        """The key fields of the rows that `measure(work)` returns."""
        fixed = {"suite": SUITE, "what": str(work), "m": work.m, "k": work.k, "regime": self._regime.name}
        return [fixed | {"contender": name} for name in (OURS, COPY)]

    def measure(self, work: Work) -> tuple[list[Row], runs.Failures]:
        """The rows of our kernel and of a copy."""
        generator = torch.Generator(self._memory).manual_seed(0)
        sets = [
            torch.randn(work.m, work.k, generator=generator, device=self._memory).bfloat16() for _ in range(2)
        ]
        made = work(sets[0])
        if not _right(work, sets[0], made):
            return [], [(OURS, "the values or scales differ from the CPU's")]
        moved = {
            OURS: work.reads * sets[0].nbytes + sum(y.nbytes for pair in made for y in pair),
            COPY: 2 * sets[0].nbytes,
        }
        calls: dict[str, Callable[[torch.Tensor], Any]] = {OURS: work, COPY: torch.clone}
        contenders = [Contender(name, call) for name, call in calls.items()]
        times = timing.measure(contenders, sets, self._regime, device=self._device, sensors=self._sensors)
        rate = {name: moved[name] / times[name].us for name in times}
        found = []
        for row in results.compare(times, COPY):
            row |= {"suite": SUITE, "what": str(work), "m": work.m, "k": work.k, "regime": self._regime.name}
            row["of_copy"] = rate[row["contender"]] / rate[COPY]
            found.append({field: row[field] for field in results.QUANTIZE_FIELDS})
        return found, []


def _right(work: Work, x: torch.Tensor, made: Sequence[Quantized]) -> bool:
    """Whether values and scales are the CPU's, of the first rows if later ones do not change these."""
    together = work.kind == "tensor" or work.transposed
    if together and x.numel() > WHOLE:
        return True  # the same call on a smaller x is compared
    some = x if together else x[:CHECKED]
    for found, wanted in zip(made, work(some.cpu()), strict=True):
        for one, other in zip(found, wanted, strict=True):
            part = one[: other.shape[0]] if other.dim() else one
            if not torch.equal(part.cpu().float(), other.float()):
                return False
    return True


def works(shapes: Sequence[tuple[int, int]]) -> Iterator[Work]:
    """Every kind on every shape, then with the transposed twin."""
    for transposed in (False, True):
        for m, k in shapes:
            yield from (Work(m, k, kind, transposed) for kind in KINDS)


def shapes_of(text: str) -> list[tuple[int, int]]:
    """Parse M x K, comma-separated.

    Raises:
        ArgumentTypeError: the text is malformed.
    """
    try:
        found = [(int(m), int(k)) for m, k in (x.split("x") for x in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be M x K, as in 8192x4096,64x512") from None
    return found


def describe(row: Row) -> str:
    """A row on one line."""
    what = f"{row['m']} x {row['k']} {row['what']:24} {row['contender']:8}"
    return f"{what} {row['us']:8.1f} us | of copy {row['of_copy']:.2f}"


def main(arguments: Sequence[str]) -> int:
    """Time every kind; returns 1 if a result was wrong."""
    parser = command_line.parser("probes.quantize", __doc__)
    parser.add_argument("--shapes", type=shapes_of, default=SHAPES)
    runs.add_options(parser)
    args = parser.parse_args(arguments)
    console, sensors, out = runs.open_run(args)
    outcome = runs.run(
        list(works(args.shapes)),
        Bench(sensors),
        out,
        seconds=args.seconds,
        console=console,
        describe=describe,
    )
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
