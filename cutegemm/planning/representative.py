# SPDX-License-Identifier: Apache-2.0
"""The problem that stands for a spec where none is named."""

from __future__ import annotations

from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.problems import Problem
from cutegemm.problems import problem as make_problem
from cutegemm.spec import AUTO, GemmSpec


def representative(spec: GemmSpec) -> Problem:
    """The problem a bare spec is planned for: 4096^3, aligned, bf16 and row-major where the spec leaves it open."""
    ab = next((x for x in (spec.a_dtype, spec.b_dtype) if x != AUTO), DType.BF16)
    majors = ("k" if spec.a_major == AUTO else spec.a_major) + ("n" if spec.b_major == AUTO else spec.b_major)
    return make_problem(
        4096, 4096, 4096, dtype=ab, d_dtype=None if spec.d_dtype == AUTO else spec.d_dtype, majors=majors,
        d_major="n" if spec.d_major == AUTO else spec.d_major,
        epilogue=spec.epilogue if isinstance(spec.epilogue, Graph) else None,
        input_dtype=None if spec.c_dtype == AUTO else spec.c_dtype,
    )  # fmt: skip
