# SPDX-License-Identifier: Apache-2.0
"""Scales of 8-bit operands of groups: one for all, per row, or per block of 128 elements along K.

a (M, K), b (G, K, N)         scale_a (M,), (M, K / 128);               scale_b (N,), (G, N), (G, N / 128, K / 128)
a (G, M, K), b (K, N)         scale_a (M,), (G, M), (G, M / 128, K / 128);      scale_b (N,), (N, K / 128)
a (G, C, K), b (G, K, N)      scale_a (G, C), (G, C, K / 128);          scale_b as for groups of rows
a (M, K), b (K, N)            scale_a (M,), (G, M), (M, K / 128);       scale_b (N,), (G, N), (N, K / 128)

Blocks of groups along K are those of the whole K: groups that meet inside a block share its scale. Either operand may
have blocks of 128 x 128 there, such as (M / 128, K / 128).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cutegemm.ops.groups.gathering import gathered
from cutegemm.ops.quantized.operands import NONE, Kinds, operand_scales, reads
from cutegemm.ops.quantized.quantize import EIGHT_BITS
from cutegemm.running.groups import Groups


def group_scales(
    groups: Groups | None, a: Tensor, b: Tensor, epilogue: Any, spec: Any, inputs: dict[str, Any]
) -> tuple[Kinds, dict[str, Any]]:
    """The kinds of a call's scales, which follow from their shapes, and the scales by name. Removes them from `inputs`.

    Args:
        groups: None for batches of matrices, which have the scales of `matmul`.
        a, b, epilogue, spec, inputs: of the call.

    Raises:
        InputError: an operand or a scale needs a gradient, or a scale's shape matches no kind.
    """
    if a.dtype not in EIGHT_BITS and b.dtype not in EIGHT_BITS:
        return NONE, {}
    if groups is None:
        return operand_scales("matrix", a, b, epilogue, spec, inputs)
    how = groups.how(a, b)
    count = groups.ends.shape[0] - how.lead
    rows = (count, *a.shape[:-1]) if how.form == "depth" else a.shape[:-1]
    free = rows, (b.shape[-1],) if how.form == "columns" else (count, b.shape[-1])
    return operand_scales("matrix", a, b, epilogue, spec, inputs, free)


def scales_of_rows(
    a: Tensor, rows: Tensor, epilogue: Any, spec: Any, inputs: dict[str, Any]
) -> dict[str, Tensor]:
    """The scales of the gathered rows of A; empty unless A has scales of rows or of blocks 1 x 128.

    Raises:
        InputError: as for `gathered`.
    """
    scale = inputs.get("scale_a")
    if a.dtype not in EIGHT_BITS or not isinstance(scale, Tensor) or reads(epilogue, spec):
        return {}
    if scale.dim() not in (1, 2) or scale.shape[0] != a.shape[0]:
        return {}
    found = gathered(scale[:, None] if scale.dim() == 1 else scale, rows)
    return {"scale_a": found[:, 0] if scale.dim() == 1 else found}


__all__ = ["group_scales", "scales_of_rows"]
