# SPDX-License-Identifier: Apache-2.0
"""The ladder on this machine: `python -m handwritten`.

With a Hopper GPU every stage is checked against fp64, then timed beside cuBLAS and the builder's kernel.
Without one the tables show what needs none (resources, occupancy, arithmetic intensity, instruction mix).

    python -m handwritten                               table at 4096^3
    python -m handwritten --sizes 8192 --beta 0.5       another problem, with C
    python -m handwritten --json out.json --plot out.png
    python -m handwritten --readme results/h200.json    write README.md's figures and the headers' from a results file

A run with --json saves after each step and, called again, goes on where it stopped: a stage that hung or
broke the CUDA context is on record and not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from cutegemm.errors import CompileError, GemmError
from handwritten import report, worklog
from handwritten.compile import FOLDER
from handwritten.registry import stages
from handwritten.rung import Stage

SCHEMA = 1
EXIT_BROKEN = 3  # the CUDA context is lost; calling again resumes
UNFINISHED = "did not finish"
LARGE = 2 * 4096**3  # M * N * K beyond which stages without reuse would take minutes


def has_gpu() -> bool:
    """Tell whether a Hopper GPU is here; torch is not needed to say no."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "handwritten", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", default="4096", help="M=N=K or MxNxK, comma-separated (default 4096)")
    parser.add_argument("--dtypes", default="fp32,bf16", help="of fp32, bf16, fp16 (default fp32,bf16)")
    parser.add_argument("--beta", type=float, default=0.0, help="D = A @ B + beta * C (default 0)")
    parser.add_argument("--stages", default="", help="keys, names or numbers, comma-separated (default all)")
    parser.add_argument("--rounds", type=int, default=7, help="samples per contender (default 7)")
    parser.add_argument("--json", type=Path, help="save checks and rows here; resumes")
    parser.add_argument("--plot", type=Path, help="draw the ladder here (PNG)")
    parser.add_argument(
        "--no-builder", dest="builder", action="store_false", help="leave the builder's kernels out"
    )
    parser.add_argument("--commit", default="unknown", help="recorded with the results")
    parser.add_argument(
        "--readme",
        type=Path,
        help="write README.md's figures and the headers' from this results file and stop",
    )
    return parser.parse_args(arguments)


def extents(text: str) -> tuple[int, int, int]:
    """Read "4096" or "128x128x16384"."""
    numbers = [int(number) for number in text.split("x")]
    return tuple(numbers * 3 if len(numbers) == 1 else numbers)


class Run:
    """Checks and measurements in progress, saved after each step when there is a file."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        from handwritten import measure

        self.options, self.console = options, console
        wanted = options.stages.split(",") if options.stages else []
        self.stages = [s for s in stages() if not wanted or {s.key, s.key[3:], str(s.number)} & set(wanted)]
        self.document: dict[str, Any] = {"schema": SCHEMA, "environment": {}, "checks": {}, "rows": []}
        digest = measure.source_digest()
        if options.json and options.json.exists():
            saved = json.loads(options.json.read_text())
            if saved["environment"].get("sources") == digest:  # figures of other sources are not kept
                self.document = saved
        self.document["environment"] = measure.environment(options.commit)

    def save(self) -> None:
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            part = self.options.json.with_suffix(".part")
            part.write_text(json.dumps(self.document, indent=1) + "\n")
            os.replace(part, self.options.json)

    def leave(self, message: str) -> None:
        """Save and exit at once: with a lost context even freeing a tensor may block."""
        self.save()
        self.console.print(message)
        os._exit(EXIT_BROKEN)

    def check(self, stage: Stage) -> None:
        """Verify a stage once; the record says "did not finish" until it has."""
        import torch

        from handwritten import verify

        checks = self.document["checks"]
        if stage.key in checks:
            return
        checks[stage.key] = {"error": None, "failure": UNFINISHED}
        self.save()
        try:
            checks[stage.key] = {"error": verify.verify(stage), "failure": None}
        except verify.WrongResult as error:
            checks[stage.key]["failure"] = str(error)
        except verify.Hang as error:
            checks[stage.key]["failure"] = f"hang: {error}"
            self.leave(f"{stage.key}: hang")
        except (RuntimeError, GemmError) as error:
            checks[stage.key]["failure"] = f"{type(error).__name__}: {error}"
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                self.leave(f"{stage.key}: {error}")
        self.save()
        if checks[stage.key]["failure"]:
            self.console.print(f"[red]{stage.key}: {checks[stage.key]['failure']}")

    def case(self, dtype: str, shape: tuple[int, int, int]) -> None:
        """Time every right stage that can take the problem, unless it has been timed already."""
        from handwritten import measure, twins

        case = measure.Case(dtype, *shape, self.options.beta)
        done = [
            row for row in report.of_size(self.document["rows"], *shape, case.beta) if row["dtype"] == dtype
        ]
        calls = {
            stage.key: measure.stage_call(stage, case)
            for stage in self.stages
            if self._timed(stage, dtype, shape)
        }
        if shape == worklog.SPLIT_K_SHAPE:
            for stage in self.stages:
                if stage.key in calls and stage.number in (21, 22):
                    calls[worklog.one_part(stage.key)] = measure.stage_call(stage, case, splits=1)
        calls = {name: call for name, call in calls.items() if name not in {row["contender"] for row in done}}
        if not calls:
            return
        if self.options.builder:
            timed = [stage for stage in self.stages if stage.key in calls]
            try:
                calls |= twins.builder_calls(timed, dtype, shape, case.beta)
            except GemmError as error:
                self.console.print(f"builder left out of {dtype} {shape}: {error}")
        self.document["rows"] = [row for row in self.document["rows"] if row not in done]
        self.document["rows"] += done + [
            row
            for row in measure.measure(case, calls, self.options.rounds)
            if row["contender"] not in {old["contender"] for old in done}
        ]
        self.save()

    def _timed(self, stage: Stage, dtype: str, shape: tuple[int, int, int]) -> bool:
        right = not self.document["checks"][stage.key]["failure"]
        slow = stage.intensity(stage.dtypes[0]) < 1 and shape[0] * shape[1] * shape[2] > LARGE
        return right and not slow and stage.takes(dtype, *shape) if dtype in stage.dtypes else False


def without_gpu(console: Console, dtypes: tuple[str, ...]) -> int:
    """Show what needs no GPU, and say what is left out."""
    console.print(report.table([], "The ladder, as compiled for sm_90a", dtypes))
    left_out = "TFLOP/s, share of cuBLAS and speed-up (and --json, --plot)"
    try:
        console.print(report.mix(dtypes))
    except CompileError as error:
        left_out += f"; and the instruction mix ({error})"
    console.print(f"No Hopper GPU here: left out {left_out}.")
    return 0


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    options, console = parse(arguments), Console()
    if options.readme:
        worklog.write(options.readme, FOLDER)
        return 0
    dtypes = tuple(options.dtypes.split(","))
    if not has_gpu():
        return without_gpu(console, dtypes)
    run = Run(options, console)
    for stage in track(run.stages, "checking against fp64", console=console):
        run.check(stage)
    problems = [(dtype, extents(size)) for size in options.sizes.split(",") for dtype in dtypes]
    for dtype, shape in track(problems, "timing", console=console):
        run.case(dtype, shape)
    for size in options.sizes.split(","):
        shape = extents(size)
        rows = report.of_size(run.document["rows"], *shape, options.beta)
        console.print(report.table(rows, f"{'x'.join(map(str, shape))}, beta {options.beta:g}", dtypes))
    if options.plot:
        report.plot(run.document["rows"], options.plot)
    failed = [key for key, check in run.document["checks"].items() if check["failure"]]
    if failed:
        console.print(f"[red]wrong or broken: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
