# SPDX-License-Identifier: Apache-2.0
"""`cutegemm bench` and `cutegemm tune`: times on the GPU, and the search for the fastest kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutegemm.cli import inputs
from cutegemm.cli.output import print_facts, table, wrapped

if TYPE_CHECKING:
    from cutegemm.cli.facts.comparison import Comparison


def bench(
    m: inputs.M, n: inputs.N, k: inputs.K, spec: inputs.Spec = "", epilogue: inputs.Epilogue = "",
    dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
    groups: inputs.Groups = None, along: inputs.Along = "",
    json: inputs.Json = False,
) -> None:  # fmt: skip
    """Time a kernel and torch's function; needs a Hopper GPU.

    The rounds are interleaved, so that both run at the same clocks.
    """
    from cutegemm.cli.facts import comparison
    from cutegemm.compiling.progress import announced

    case = inputs.case(
        (m, n, k), spec, epilogue, dtype=dtype, b_dtype=b_dtype, batch=batch, majors=majors,
        groups=groups, along=along,
    )  # fmt: skip
    with announced(lambda: "timing"):
        facts = comparison.compared({comparison.OURS: case})
    print_facts("bench", facts, as_text, json)


def as_text(facts: Comparison) -> str:
    """One line per contender, and the verdict."""
    rows = [
        (x.name, f"{x.us:,.2f} us", f"{x.spread:.1%}", f"{x.tflops:,.1f}", f"{x.factor:.3f} x")
        for x in facts.rows
    ]
    head = wrapped("problem", facts.problem), wrapped("gpu", f"{facts.gpu}; {facts.versions}")
    heads = ("", "a call", "spread", "TFLOP/s", f"of {facts.rows[-1].name}")
    return "\n".join([*head, table(heads, rows, right=(1, 2, 3, 4)), facts.verdict])


def tune(
    m: inputs.M, n: inputs.N, k: inputs.K, spec: inputs.Spec = "", epilogue: inputs.Epilogue = "",
    dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
    groups: inputs.NoGroups = None, along: inputs.NoAlong = "",
    candidates: Annotated[int, typer.Option(min=1, help="how many kernels are measured at most")] = 32,
    seconds: Annotated[float | None, typer.Option(help="start no further candidate after this time")] = None,
    again: Annotated[bool, typer.Option("--again", help="also measure a problem that has an entry")] = False,
    json: inputs.Json = False,
) -> None:  # fmt: skip
    """Find the fastest kernel for build; needs a Hopper GPU.

    Candidates for M N K are measured in interleaved rounds. Ctrl-C keeps the results so far.
    """
    from cutegemm.cli.facts import comparison

    inputs.refuse_groups(groups, along, "tune")
    case = inputs.case((m, n, k), spec, epilogue, dtype=dtype, b_dtype=b_dtype, batch=batch, majors=majors)
    facts = comparison.tuned(case, candidates=candidates, seconds=seconds, again=again)
    print_facts("tune", facts, lambda x: "\n".join(wrapped("", y.text, 0) for y in x.outcomes), json)
    if facts.interrupted:
        raise typer.Exit(130)
