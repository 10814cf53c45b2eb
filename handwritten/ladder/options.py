# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m handwritten`, checked before anything is compiled or measured."""

from __future__ import annotations

import argparse
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

from handwritten.ladder.problem import ELEMENT_BYTES
from handwritten.ladder.registry import stages
from handwritten.ladder.stage import Stage

DESCRIPTION = """The ladder on this machine.

With a Hopper GPU every stage is checked against fp64, then timed with cuBLAS
and cutegemm's kernel. Without one the tables show resources, occupancy,
arithmetic intensity and instruction mix.

    python -m handwritten                             table at 4096^3
    python -m handwritten --sizes 8192 --beta 0.5     another problem, with C
    python -m handwritten --json out.json --plot out.png
    python -m handwritten --emulate                   on this CPU, no GPU
    python -m handwritten --readme results/h200.json  write README.md's figures

A run with --json saves after each step. The same command continues it, and
does not retry a stage that hung or broke the CUDA context.
"""
MAX_EXTENT = 2**31 - 1  # of M, N and K: the kernels take them as int

Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The parsed options; `sizes` are M, N and K of each problem."""

    sizes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    beta: float
    stages: tuple[Stage, ...]
    rounds: int
    json: Path | None
    plot: Path | None
    builder: bool
    commit: str
    readme: Path | None
    emulate: bool


def _items(text: str) -> list[str]:
    """Split a list at its commas, without duplicates."""
    found = list(dict.fromkeys(item.strip() for item in text.split(",")))
    if "" in found:
        raise argparse.ArgumentTypeError(f"{text!r}: must be values separated by single commas")
    return found


def extents(text: str) -> Shape:
    """Parse "4096" or "128x128x16384".

    Raises:
        argparse.ArgumentTypeError: the text is neither, or an extent is not positive or too large.
    """
    parts = text.split("x")
    if len(parts) not in (1, 3) or not all(part.isdecimal() and part.isascii() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: must be M=N=K or MxNxK, as in 4096 or 128x128x16384")
    numbers = [int(part) for part in parts]
    for number in numbers:
        if not 1 <= number <= MAX_EXTENT:
            nearest = min(max(number, 1), MAX_EXTENT)
            raise argparse.ArgumentTypeError(
                f"{text!r}: extents must be from 1 to {MAX_EXTENT}; nearest legal value: {nearest}"
            )
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return m, n, k


def _sizes(text: str) -> tuple[Shape, ...]:
    return tuple(dict.fromkeys(extents(item) for item in _items(text)))


def _dtypes(text: str) -> tuple[str, ...]:
    for item in _items(text):
        if item not in ELEMENT_BYTES:
            raise argparse.ArgumentTypeError(f"{item!r}: must be among {', '.join(ELEMENT_BYTES)}")
    return tuple(_items(text))


def _stages(text: str) -> tuple[Stage, ...]:
    """Return the stages with these labels in the ladder's order; a number stands for all its variants."""
    labels = _items(text)
    for label in labels:
        if not any(stage.called(label) for stage in stages()):
            keys = ", ".join(stage.key for stage in stages())
            raise argparse.ArgumentTypeError(f"{label!r}: must be the number, name or key of one of {keys}")
    return tuple(stage for stage in stages() if any(stage.called(label) for label in labels))


def _rounds(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 1; nearest legal value: 1")
    return int(text)


def _beta(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a finite number")
    return value


def _picture(text: str) -> Path:
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("charts need matplotlib; pip install matplotlib")
    return Path(text)


def parse(arguments: list[str]) -> Options:
    """Parse the command line. An illegal argument exits with status 2 and prints field, value and rule."""
    parser = argparse.ArgumentParser(
        "python -m handwritten",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--sizes", type=_sizes, help="M=N=K or MxNxK, comma-separated (default 4096; 64 with --emulate)")
    add("--dtypes", type=_dtypes, default="fp32,bf16", help="of fp32, bf16, fp16 (default fp32,bf16)")
    add("--beta", type=_beta, default=0.0, help="D = A @ B + beta * C (default 0)")
    add(
        "--stages",
        type=_stages,
        default=stages(),
        help="keys, names or numbers, comma-separated (default all)",
    )
    add("--emulate", action="store_true", help="run each stage in the emulator: correctness, races, counters")
    add("--rounds", type=_rounds, default=7, help="samples per contender (default 7)")
    add("--json", type=Path, help="save checks and rows here (resumes); with --emulate the counters")
    add("--plot", type=_picture, help="draw the ladder here (PNG)")
    add("--no-builder", dest="builder", action="store_false", help="without cutegemm's kernels")
    add("--commit", default="unknown", help="recorded with the results")
    add(
        "--readme",
        type=Path,
        help="only write the figures of README.md and the headers from this results file",
    )
    words = parser.parse_args(arguments)
    words.sizes = words.sizes or _sizes("64" if words.emulate else "4096")
    options = Options(**vars(words))
    if not any(dtype in stage.dtypes for stage in options.stages for dtype in options.dtypes):
        keys = ", ".join(stage.key for stage in options.stages)
        legal = ", ".join(dict.fromkeys(dtype for stage in options.stages for dtype in stage.dtypes))
        parser.error(f"argument --dtypes: {','.join(options.dtypes)}: {keys} take {legal}")
    return options
