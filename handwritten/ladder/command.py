# SPDX-License-Identifier: Apache-2.0
"""The command `python -m handwritten`: tables, checks, timings, charts."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import track

from cutegemm.errors import CompileError, GemmError
from handwritten.ladder import bounds, report, toolkit, worklog
from handwritten.ladder.options import Options, parse
from handwritten.ladder.source import FOLDER

EXIT_WRONG = 1  # a stage is wrong or broken
EXIT_REFUSED = 2  # an argument or a file is wrong, or a package is missing


def has_gpu() -> bool:
    """Tell whether this machine has a Hopper GPU; False without torch."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status. Errors are one line on stderr."""
    options = parse(arguments)
    try:
        if options.readme:
            worklog.write(options.readme, FOLDER)
            return 0
        toolkit.require()
        if options.emulate:
            return emulated(options, report.console())
        return (with_gpu if has_gpu() else without_gpu)(options, report.console())
    except (GemmError, OSError) as error:
        print(f"python -m handwritten: {error}", file=sys.stderr)
        return EXIT_REFUSED


def emulated(options: Options, console: Console) -> int:
    """Run every stage in the emulator and show its counters; returns 1 if one is wrong or has races."""
    from handwritten.ladder.emulated import Outcome, emulate  # imports the emulator

    status, rows = 0, []
    for shape in options.sizes:
        done: list[Outcome] = []
        for stage in track(options.stages, "emulating", console=console, transient=True):
            dtype = next((x for x in options.dtypes if x in stage.dtypes), None)
            if dtype is None:
                continue
            try:
                done.append(emulate(stage, dtype, shape, options.beta))
            except GemmError as error:
                status = EXIT_WRONG
                console.print(f"{stage.key}: {error}", markup=False)
                for finding in (x for x in getattr(error, "findings", ()) if str(x) not in str(error)):
                    console.print(f"{stage.key}: {finding}", markup=False)
        console.print(report.counted(done, shape))
        rows += [outcome.row(shape) for outcome in done]
        for outcome in done:
            for finding in outcome.findings:
                status = EXIT_WRONG
                console.print(f"{outcome.stage.key}: {finding}", markup=False)
    if options.json:
        bounds.write(options.json, rows, options.commit)
    return status


def without_gpu(options: Options, console: Console) -> int:
    """Show the results that need no GPU, and list the others."""
    chosen, dtypes = options.stages, options.dtypes
    title = "The ladder, as compiled for sm_90a"
    console.print(report.table([], title, dtypes, width=console, chosen=chosen))
    left_out = "TFLOP/s, share of cuBLAS and speed-up (and --json, --plot)"
    try:
        console.print(report.mix(dtypes, width=console, chosen=chosen))
    except CompileError as error:
        left_out += f"; and the instruction mix ({error})"
    console.print(f"No Hopper GPU here; left out: {left_out}.", markup=False)
    return 0


def with_gpu(options: Options, console: Console) -> int:
    """Check every stage, time the correct ones on every problem, and show the results."""
    from handwritten.ladder.session import Session  # imports torch

    session = Session(options, console)
    for stage in track(options.stages, "checking against fp64", console=console):
        session.check(stage)
    problems = [(dtype, shape) for shape in options.sizes for dtype in options.dtypes]
    for dtype, shape in track(problems, "timing", console=console):
        session.time(dtype, shape)
    rows = session.document["rows"]
    for shape in options.sizes:
        found = report.of_problem(rows, *shape, options.beta)
        title = f"{'x'.join(map(str, shape))}, beta {options.beta:g}"
        console.print(report.table(found, title, options.dtypes, width=console, chosen=options.stages))
    if options.plot:
        from handwritten.ladder import plot  # imports matplotlib

        plot.plot(rows, options.plot)
    if session.failed:
        console.print(f"wrong or broken: {', '.join(session.failed)}", style="red")
    return EXIT_WRONG if session.failed else 0
