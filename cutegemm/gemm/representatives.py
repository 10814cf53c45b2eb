# SPDX-License-Identifier: Apache-2.0
"""The problem that stands for a spec where none is named."""

from __future__ import annotations

from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.planning.simt_tiles import has_tile
from cutegemm.problems import Problem
from cutegemm.problems import problem as make_problem
from cutegemm.spec import AUTO, GemmSpec, Tile

# rows, columns and K
EXTENT = 4096


def representative(spec: GemmSpec) -> Problem:
    """The problem a bare spec is planned for: 4096^3, aligned, bf16 and row-major where the spec leaves it open.

    A spec that says how the CUDA cores do it means fp32, and K is odd where its tile takes elements one by one.
    """
    shaped = spec.schedule == "simt" and {"tile", "stages", "split_k"} & set(spec.given())
    ab = next((x for x in (spec.a_dtype, spec.b_dtype) if x != AUTO), DType.FP32 if shaped else DType.BF16)
    found = _of(spec, ab, EXTENT)
    if ab is DType.FP32 and isinstance(spec.tile, Tile) and not has_tile(found, spec.tile):
        odd = _of(spec, ab, EXTENT - 1)
        return odd if has_tile(odd, spec.tile) else found
    return found


def _of(spec: GemmSpec, ab: DType, k: int) -> Problem:
    majors = ("k" if spec.a_major == AUTO else spec.a_major) + ("n" if spec.b_major == AUTO else spec.b_major)
    return make_problem(
        EXTENT, EXTENT, k, dtype=ab, d_dtype=None if spec.d_dtype == AUTO else spec.d_dtype, majors=majors,
        d_major="n" if spec.d_major == AUTO else spec.d_major,
        epilogue=spec.epilogue if isinstance(spec.epilogue, Graph) else None,
        input_dtype=None if spec.c_dtype == AUTO else spec.c_dtype,
    )  # fmt: skip
