# SPDX-License-Identifier: Apache-2.0
"""`cutegemm emulate`: runs a kernel on the CPU, with a profiler's counters and the race detector's findings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutegemm.cli import inputs
from cutegemm.cli.output import print_facts, table, wrapped
from cutegemm.errors import InputError, field_error

if TYPE_CHECKING:
    from cutegemm.cli.facts.emulation import EmulatedRun

# first bytes of an artefact
ZIP = b"PK"


def emulate(
    what: Annotated[
        list[str], typer.Argument(metavar="M N K | FILE", help="a problem, a PTX file, or an artefact")
    ],
    spec: inputs.Spec = "", epilogue: inputs.Epilogue = "", gpu: inputs.GpuName = "",
    dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
    groups: inputs.Groups = None, along: inputs.Along = "",
    races: Annotated[bool, typer.Option(help="look for races")] = True,
    policy: Annotated[str, typer.Option(help="when copies complete: eager, lazy or random")] = "eager",
    entry: Annotated[str, typer.Option(help="for FILE.ptx: the kernel, if the file has several")] = "",
    grid: Annotated[str, typer.Option(help="for FILE.ptx: CTAs, such as 4 or 4x2")] = "1",
    block: Annotated[str, typer.Option(help="for FILE.ptx: threads of a CTA")] = "128",
    cluster: Annotated[str, typer.Option(help="for FILE.ptx: CTAs of a cluster")] = "1",
    arg: Annotated[
        list[str] | None, typer.Option(help="for FILE.ptx, in order: a number, or an array such as f16:128x64")
    ] = None,
    json: inputs.Json = False,
) -> None:  # fmt: skip
    """Run a kernel on the CPU; exits with 1 for findings.

    The kernel runs exactly as compiled, with a race detector and a profiler's counters.
    """
    from cutegemm.cli.facts import emulation
    from cutegemm.compiling.progress import announced

    of_files = {"--grid": grid != "1", "--block": block != "128", "--cluster": cluster != "1", "--arg": arg}
    of_problems = {
        "--spec": spec, "--epilogue": epilogue, "--gpu": gpu, "--dtype": dtype, "--b-dtype": b_dtype,
        "--batch": batch != 1, "--majors": majors, "--groups": groups, "--along": along,
    }  # fmt: skip
    with announced(lambda: "emulating"):
        path = Path(what[0])
        if len(what) == 1 and path.is_file() and path.open("rb").read(len(ZIP)) == ZIP:
            _refuse(of_problems | of_files, "an artefact has its own problems and launches")
            facts = emulation.emulate_artefact(path, races, policy)
        elif len(what) == 1:
            _refuse(of_problems, "describes M N K; FILE is compiled")
            shape = {"grid": grid, "block": block, "cluster": cluster}
            facts = emulation.emulate_file(path, shape, arg or [], races, policy, entry=entry or None)
        else:
            extents = _extents(what)
            _refuse(of_files, "is for FILE.ptx; the plan of M N K has its own launch")
            case = inputs.case(
                extents, spec, epilogue, gpu, dtype=dtype, b_dtype=b_dtype, batch=batch, majors=majors,
                groups=groups, along=along,
            )  # fmt: skip
            facts = emulation.emulate_problem(case, races, policy)
    print_facts("emulate", facts, as_text, json)
    if facts.findings:
        raise typer.Exit(1)


def _refuse(options: dict[str, Any], rule: str) -> None:
    """Refuse options that would be ignored."""
    for name, given in options.items():
        if given:
            raise InputError(rule, field=name)


def _extents(words: list[str]) -> tuple[int, int, int]:
    if len(words) != 3 or not all(x.isdecimal() for x in words):
        raise field_error(
            InputError, "M N K", " ".join(words), "must be three extents, or one PTX file", "256 256 256"
        )
    m, n, k = map(int, words)
    return m, n, k


def as_text(facts: EmulatedRun) -> str:
    """The run, a paragraph for each aspect."""
    lines = [wrapped("ran", f"{facts.what}; {facts.launches} launch{'es' * (facts.launches != 1)}")]
    if facts.error is not None:
        lines.append(wrapped("D", f"relative error {facts.error:.1e} against fp64"))
    lines.append(wrapped("findings", f"{len(facts.findings)}"))
    lines += [wrapped("", x) for x in facts.findings]
    lines += [wrapped("untested" if not i else "", x.strip()) for i, x in enumerate(facts.untested)]
    if facts.printed:
        lines += ["printed", *facts.printed.splitlines()]
    rows = []
    for x in facts.roles:
        waits = ", ".join(f"{kind} {n:,} ({x.blocked.get(kind, 0):,})" for kind, n in x.waits.items())
        rows.append((str(x.launch), x.name, _warps(x.warps), f"{x.instructions:,}", waits))
    if rows:
        lines += ["", "roles, with warp instructions and waits (of them blocked)"]
        lines.append(table(("", "role", "warps", "instr.", "waits"), rows, right=(3,)))
    if facts.counters:
        counters = [(name.replace("_", " "), f"{value:,}") for name, value in facts.counters.items()]
        lines += ["", "counters", table(("", ""), counters, right=(1,))]
    return "\n".join(lines)


def _warps(numbers: list[int]) -> str:
    """Warp numbers as ranges, such as "0-3, 8"."""
    # number minus index is constant within a run of consecutive numbers
    groups = itertools.groupby(enumerate(sorted(numbers)), lambda x: x[1] - x[0])
    runs = [[x for _, x in group] for _, group in groups]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
