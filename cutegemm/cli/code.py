# SPDX-License-Identifier: Apache-2.0
"""`cutegemm ptx` and `cutegemm sass`: the code of the kernel that `build` would run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cutegemm.cli import given
from cutegemm.cli.output import print_facts

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write it there")]


def _printing(language: str, says: str) -> Callable[..., None]:
    """The command that prints one language."""

    def show(
        m: given.M, n: given.N, k: given.K, spec: given.Spec = "", epilogue: given.Epilogue = "",
        gpu: given.GpuName = "", dtype: given.Dtype = "", batch: given.Batch = 1, majors: given.Majors = "",
        out: Out = None, json: given.Json = False,
    ) -> None:  # fmt: skip
        from cutegemm.cli.facts.machine_code import code_of

        asked = given.asked((m, n, k), spec, epilogue, gpu, dtype=dtype, batch=batch, majors=majors)
        found = code_of(asked, language)
        if out is not None:
            out.write_text(found.text, "utf-8")
        told = f"{len(found.text.splitlines()):,} lines written to {out}"
        print_facts(language, found, lambda x: told if out else x.text, json)

    show.__name__, show.__doc__ = language, says
    return show


ptx = _printing("ptx", "Print the PTX of the GEMM kernel, compiled or cached.")
sass = _printing("sass", "Print the SASS of the GEMM kernel; needs nvdisasm.")
