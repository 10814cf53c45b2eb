# SPDX-License-Identifier: Apache-2.0
"""One epilogue of every kind."""

from __future__ import annotations

from cutegemm import epilogue as epi
from cutegemm.epilogue import Col, Graph, Matrix, Output, Row, Scalar, Store, Sum


@epi.define
def several(acc, *, bias: Row, slope: Col, scale: Scalar):
    """Stores of three types and both majors, and a sum of all elements."""
    h = acc + bias
    return Output(d=h * scale, pre=Store(acc, "fp32", "m"), small=Store(h * slope, "bf16"), total=Sum(h))


@epi.define
def column_sums(acc, *, residual: Matrix):
    """A reduction over rows that needs a finishing launch, and a matrix input."""
    h = acc + residual
    return Output(d=h, sums=Sum(h, axis=0))


@epi.define
def stores(acc, *, bias: Row):
    """Stores of two types and both majors, without a sum."""
    h = acc + bias
    return Output(d=h, pre=Store(acc, "fp32", "m"))


# name -> graph; None is the plain epilogue, with C if there is one
GRAPHS: dict[str, Graph | None] = {
    "plain": None,
    # C as an input of an epilogue, and scalars that may be device tensors
    "blas": epi.linear_combination(True),
    "row_vector": epi.bias_act("gelu"),
    "both_vectors": epi.scaled("both"),
    "matrix": epi.bias_act_residual("relu"),
    "gated_halves": epi.swiglu("halves"),
    "gated_interleaved": epi.geglu("interleaved"),
    "row_max": epi.row_max(),
    "row_partials": epi.softmax_partials(),
    "no_d": epi.cross_entropy_partials(),
    "column_sums": column_sums,
    "fp8_amax": epi.quantize_fp8("fp8_e4m3"),
    "several": several,
    "random": epi.dropout_residual(0.25),
}
