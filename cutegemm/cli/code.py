# SPDX-License-Identifier: Apache-2.0
"""`cutegemm ptx` and `cutegemm sass`: the code of the kernel that `build` would run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cutegemm.cli import inputs
from cutegemm.cli.output import print_facts

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write it to a file")]


def _command(language: str, doc: str) -> Callable[..., None]:
    """The command that prints the code in one language."""

    def show(
        m: inputs.M, n: inputs.N, k: inputs.K, spec: inputs.Spec = "", epilogue: inputs.Epilogue = "",
        gpu: inputs.GpuName = "",
        dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
        groups: inputs.Groups = None, along: inputs.Along = "",
        out: Out = None, json: inputs.Json = False,
    ) -> None:  # fmt: skip
        from cutegemm.cli.facts.machine_code import code_of

        case = inputs.case(
            (m, n, k), spec, epilogue, gpu, dtype=dtype, b_dtype=b_dtype, batch=batch, majors=majors,
            groups=groups, along=along,
        )  # fmt: skip
        facts = code_of(case, language)
        if out is not None:
            out.write_text(facts.text, "utf-8")
        written = f"{len(facts.text.splitlines()):,} lines written to {out}"
        print_facts(language, facts, lambda x: written if out else x.text, json)

    show.__name__, show.__doc__ = language, doc
    return show


ptx = _command("ptx", "Print the PTX of the GEMM kernel, compiled or cached.")
sass = _command("sass", "Print the SASS of the GEMM kernel; needs nvdisasm.")
