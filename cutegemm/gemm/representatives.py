# SPDX-License-Identifier: Apache-2.0
"""The representative problem of a spec, for calls that name none."""

from __future__ import annotations

import dataclasses

from cutegemm.arch.instructions import EXACT, multiplying, on_cuda_cores
from cutegemm.config.gemv import TILES
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.planning.simt_tiles import has_tile
from cutegemm.problems import Problem
from cutegemm.problems import problem as make_problem
from cutegemm.spec import AUTO, GemmSpec, Tile
from cutegemm.spec.rules import may_be_fp32, tile_fault

# rows, columns and K
EXTENT = 4096


def representative(spec: GemmSpec) -> Problem:
    """The default problem of a spec: 4096^3, aligned; unspecified types are bf16 and unspecified majors row-major.

    K is odd for a CUDA-core tile that loads single elements, and B is contiguous along K if the instruction
    requires it. A tile of few rows or columns has as many of D, and both operands contiguous along K.
    """
    found = _of(spec, EXTENT)
    on_cores = on_cuda_cores(found.a.dtype, spec.arithmetic)
    if on_cores and isinstance(spec.tile, Tile) and not has_tile(found, spec.tile):
        odd = _of(spec, EXTENT - 1)
        return odd if has_tile(odd, spec.tile) else found
    return found


def _lines(spec: GemmSpec) -> tuple[int, int]:
    """M and N: those of a tile of the CUDA cores that has few rows or columns."""
    m, n, k = spec.tile if isinstance(spec.tile, Tile) and spec.schedule == "simt" else (EXTENT,) * 3
    few = [x.tile for x in TILES]
    return (m, EXTENT) if (m, n, k) in few else (EXTENT, n if (n, m, k) in few else EXTENT)


def operand_types(spec: GemmSpec) -> tuple[DType, DType]:
    """The types of A and B that a spec implies; bf16 if it implies none. One given type is the type of both.

    A spec with fields or a tile of CUDA-core kernels only, or with another `math` than "exact", implies fp32. One
    with zero points, an integer C, or an int32 accumulator or D implies int8.
    """
    shaped = spec.schedule == "simt" and not {"tile", "stages", "split_k"}.isdisjoint(spec.given())
    shaped = shaped and _lines(spec) == (EXTENT, EXTENT)
    if isinstance(spec.tile, Tile) and may_be_fp32(spec):
        shaped = shaped or None not in (tile_fault(spec.tile), tile_fault(spec.tile, True))
    c_whole = isinstance(spec.c_dtype, DType) and spec.c_dtype.whole
    whole = any(spec.zero_points) or c_whole or DType.INT32 in (spec.acc_dtype, spec.d_dtype)
    usual = DType.FP32 if shaped or spec.arithmetic != EXACT else DType.INT8 if whole else DType.BF16
    usual = next((x for x in (spec.a_dtype, spec.b_dtype) if x != AUTO), usual)
    a, b = (usual if x == AUTO else x for x in (spec.a_dtype, spec.b_dtype))
    return a, b


def _of(spec: GemmSpec, k: int) -> Problem:
    a, b = operand_types(spec)
    kinds = tuple(multiplying(a, b, spec.arithmetic))
    along_k = bool(kinds) and all(x.majors == ("k",) for x in kinds)
    along_k |= _lines(spec) != (EXTENT, EXTENT)
    usual = {"a_major": "k", "b_major": "k" if along_k else "n"}
    majors = "".join(x if getattr(spec, name) == AUTO else getattr(spec, name) for name, x in usual.items())
    made = make_problem(
        *_lines(spec), k, dtype=a, b_dtype=b, d_dtype=None if spec.d_dtype == AUTO else spec.d_dtype, majors=majors,
        d_major="n" if spec.d_major == AUTO else spec.d_major,
        epilogue=spec.epilogue if isinstance(spec.epilogue, Graph) else None,
    )  # fmt: skip
    if made.c is None or spec.c_dtype == AUTO:
        return made
    c = dataclasses.replace(made.c, dtype=spec.c_dtype)
    return dataclasses.replace(made, inputs=tuple((name, c if name == "c" else x) for name, x in made.inputs))
