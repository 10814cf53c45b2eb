# SPDX-License-Identifier: Apache-2.0
"""`cutegemm diff`: compares two specs so that only real changes show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cutegemm.cli import inputs
from cutegemm.cli.output import print_facts, table, wrapped

if TYPE_CHECKING:
    from cutegemm.cli.facts.difference import Difference
    from cutegemm.cli.facts.machine_code import CodeChange

# opcodes that are listed per language, and lines of a unified diff
OPCODES, LINES = 12, 40


def diff(
    first: Annotated[str, typer.Argument(metavar="SPEC1", help='such as "tile=(128, 64)"')],
    second: Annotated[str, typer.Argument(metavar="SPEC2")],
    m: Annotated[int, typer.Argument(min=1, help="rows of D")] = 256,
    n: Annotated[int, typer.Argument(min=1, help="columns of D")] = 256,
    k: Annotated[int, typer.Argument(min=1, help="columns of A, rows of B")] = 256,
    epilogue: inputs.Epilogue = "", gpu: inputs.GpuName = "",
    dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
    groups: inputs.Groups = None, along: inputs.Along = "",
    code: Annotated[bool, typer.Option("--code", help="print the changed lines of PTX and SASS")] = False,
    ir: Annotated[bool, typer.Option("--ir", help="also compare the MLIR that the DSL traces")] = False,
    emulate: Annotated[bool, typer.Option(help="run both in the emulator and compare counters")] = True,
    time: Annotated[bool, typer.Option(help="time both specs if there is a GPU")] = True,
    json: inputs.Json = False,
) -> None:  # fmt: skip
    """Compare two specs; exits with 1 if kernels differ.

    Plan, code, resources, the emulator's counters, and the time if there is a GPU.
    """
    from cutegemm.cli.facts.difference import difference
    from cutegemm.compiling.progress import announced

    side = partial(
        inputs.case, (m, n, k), epilogue=epilogue, gpu=gpu, dtype=dtype, b_dtype=b_dtype, batch=batch,
        majors=majors, groups=groups, along=along,
    )  # fmt: skip
    one, two = (side(spec=inputs.spec_of(x, name)) for name, x in (("SPEC1", first), ("SPEC2", second)))
    with announced(lambda: "comparing"):
        facts = difference(one, two, emulate=emulate, time=time, trace=ir)
    print_facts("diff", facts, partial(as_text, code=code), json)
    if not facts.same:
        raise typer.Exit(1)


def as_text(facts: Difference, code: bool = False) -> str:
    """Both specs, and a table for each aspect."""
    heads = zip(("problem", "first", "second"), (facts.problem, *facts.specs), strict=True)
    lines = [wrapped(*x) for x in heads]
    if facts.same:
        return "\n".join([*lines, "both give the same kernel"])
    for title in ("plan", "resources", "counters"):
        rows = [(_cut(x.name), _cut(x.before, 24), x.after) for x in getattr(facts, title)]
        if rows:
            lines += ["", title, table(("", "first", "second"), rows)]
    if facts.counters_note:
        lines.append(wrapped("counters", facts.counters_note))
    for change in facts.code:
        lines += ["", *_code(change, code)]
    if facts.time is not None:
        rows = [(x.name, f"{x.us:,.2f} us", f"{x.spread:.1%}") for x in facts.time.rows]
        lines += ["", f"time on {facts.time.gpu}", table(("", "a call", "spread"), rows, right=(1, 2))]
        lines.append(f"  {facts.time.verdict}")
    else:
        lines += ["", wrapped("time", facts.time_note)]
    return "\n".join(lines)


def _cut(words: str, most: int = 30) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _code(change: CodeChange, lines: bool) -> list[str]:
    name = change.language.upper()
    if not change.lines:
        return [f"{name}: the same {change.before:,} instructions"]
    text = [f"{name}: {change.before:,} and {change.after:,} instructions"]
    rows = [(_cut(x, 44), f"{a:,}", f"{b:,}") for x, (a, b) in list(change.opcodes.items())[:OPCODES]]
    if rows:
        text.append(table(("opcode", "first", "second"), rows, right=(1, 2)))
    if len(change.opcodes) > OPCODES:
        text.append(f"  and {len(change.opcodes) - OPCODES} more")
    if lines:
        text += [_cut(x, 80) for x in change.lines[:LINES]]
        if len(change.lines) > LINES:
            text.append(f"{len(change.lines) - LINES:,} more lines; --json has all")
    return text
