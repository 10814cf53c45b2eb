# SPDX-License-Identifier: Apache-2.0
"""Quantizes checked arguments to 8-bit values and scales, by the kernel or by torch operations.

Compiled code calls the op `cutegemm::quantize`, so that it runs the same kernel with the same bits. Outputs of an op
must not share memory, so scales that a matrix and its transpose share are returned once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.epilogue.scales import BLOCKS, TENSOR, Kind
from cutegemm.ops.compiled import TAGS, described
from cutegemm.ops.dispatch import DEVICES, redispatched
from cutegemm.ops.quantized import kernel
from cutegemm.ops.quantized.operands import KINDS
from cutegemm.running import tangents
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.numerics import eight_bits
from cutegemm.running.numerics.eight_bits import EXPONENTS, ROW_ALIGN, shape_of

_NAMES = {kind: name for name, kind in KINDS.items()}
_compiling = torch.compiler.is_compiling
_ARGUMENTS = "Tensor x, str kind, ScalarType dtype, Tensor? scale, bool exponents, bool twin"
library = torch.library.Library("cutegemm", "FRAGMENT")
library.define(f"quantize({_ARGUMENTS}) -> Tensor[]", tags=TAGS)


class Quantized(NamedTuple):
    """An 8-bit operand: values (M, K) or (L, M, K), and their scales, as arguments of `Gemm.run`."""

    values: Tensor
    scale: Tensor


def quantized(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> Quantized:
    """x in 8 bits. Its scales, fp32 or `exponents`, are computed unless they are given."""
    values, *found = _made(x, kind, dtype, scale, exponents, False)
    return Quantized(values, found[0] if scale is None else scale)


def twins(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None = None, exponents: bool = False
) -> tuple[Quantized, Quantized]:
    """x and x.mT in 8 bits."""
    values, turned, *found = _made(x, kind, dtype, scale, exponents, True)
    one = found[0] if scale is None else scale
    if _shared(kind):
        return Quantized(values, one), Quantized(turned, one if kind == TENSOR else one.mT)
    return Quantized(values, one), Quantized(turned, found[1])


def _shared(kind: Kind) -> bool:
    """Whether a matrix and its transpose have the same scales."""
    return kind == TENSOR or kind == BLOCKS[1]


def _made(
    x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None, exponents: bool, twin: bool
) -> list[Tensor]:
    """Values, the twin's values, and the computed scales of both; shared scales once.

    Raises:
        InputError: x or its scales have a tangent.
    """
    if _compiling() and not torch._C._are_functorch_transforms_active():
        op: Any = torch.ops.cutegemm.quantize
        found: list[Tensor] = op(x, _NAMES[kind], dtype, scale, exponents, twin)
        return found
    if not _compiling():
        tangents.refuse((("x", x), ("scale", scale)))
    if x.numel() and kernel.fits(x, kind, scale is not None):
        one, other = kernel.quantized_by(kernel.on_gpu, x, kind, dtype, scale, exponents, twin)
    else:
        one, other = eight_bits.quantised(x, kind, dtype, scale, exponents), None
        if twin and _shared(kind):
            other = one[0].mT, one[1]
        elif twin:
            other = eight_bits.quantised(x.mT, kind, dtype, None, exponents)
    values = [rows_aligned(one[0]), *([] if other is None else [rows_aligned(other[0])])]
    scales = [] if scale is not None else [one[1]]
    return values + scales + ([] if other is None or _shared(kind) else [other[1]])


def rows_aligned(values: Tensor) -> Tensor:
    """Values with unit stride along K and a row pitch of a multiple of 16 bytes; a copy if needed."""
    k = values.shape[-1]
    pitch = k + -k % ROW_ALIGN
    if not _compiling() and values.stride()[-2:] == (pitch, 1):
        return values
    if not _compiling() and not values.numel():
        # an empty tensor counts as contiguous, so a copy would keep its strides
        return values.new_empty((*values.shape[:-1], pitch))[..., :k]
    # torch does not pad fp8 on every device, so pad bytes
    wide = torch.nn.functional.pad(values.view(torch.uint8), (0, pitch - k)).contiguous()
    return wide.view(values.dtype)[..., :k]


@uncompiled
def _op(
    x: Tensor, kind: str, dtype: torch.dtype, scale: Tensor | None, exponents: bool, twin: bool
) -> list[Tensor]:
    return _made(x, KINDS[kind], dtype, scale, exponents, twin)


def _described(
    x: Tensor, kind: str, dtype: torch.dtype, scale: Tensor | None, exponents: bool, twin: bool
) -> list[Tensor]:
    """The op on fake tensors: outputs of the right shapes, types and strides."""
    matrices = [x, *([x.mT] if twin else [])]
    scale_type = EXPONENTS if exponents else torch.float32
    outputs = []
    for matrix in matrices:
        k = matrix.shape[-1]
        outputs.append(matrix.new_empty((*matrix.shape[:-1], k + -k % ROW_ALIGN), dtype=dtype)[..., :k])
    for matrix in matrices[: 1 if _shared(KINDS[kind]) else 2] if scale is None else ():
        shape = shape_of(matrix, KINDS[kind])
        if kind == "1x128":
            *lead, m, blocks = shape
            outputs.append(matrix.new_empty((*lead, blocks, m), dtype=scale_type).mT)
        else:
            outputs.append(matrix.new_empty(shape, dtype=scale_type))
    return outputs


def _differentiated(
    keyset: Any, x: Tensor, kind: str, dtype: torch.dtype, scale: Tensor | None, exponents: bool, twin: bool
) -> list[Tensor]:
    """The op where autograd sees it: its results have no gradient."""
    tangents.refuse((("x", x), ("scale", scale)))
    op = torch.ops.cutegemm.quantize.default
    found: list[Tensor] = redispatched(op, keyset, x, kind, dtype, scale, exponents, twin)
    return found


library.impl("quantize", _differentiated, "Autograd", with_keyset=True)
for _device in DEVICES:
    library.impl("quantize", _op, _device.upper())
_traced = described(torch.ops.cutegemm.quantize.default, _op, _described)
torch.library.register_fake("cutegemm::quantize", _traced, lib=library)

__all__ = ["Quantized", "quantized", "rows_aligned", "twins"]
