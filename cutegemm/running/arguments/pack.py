# SPDX-License-Identifier: Apache-2.0
"""`pack`: copies an operand once into the layout that kernels read fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm import checks
from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config import L2_LINE
from cutegemm.errors import InputError
from cutegemm.problems import Operand, alignment, operand_of
from cutegemm.request.operand_rules import aligned_copy

if TYPE_CHECKING:
    from torch import Tensor

# axes of (rows, columns)
AXES = {"a": ("m", "k"), "b": ("k", "n")}


@checks.keywords()
def pack(weight: Tensor, role: str, *, major: str | None = None) -> Tensor:
    """Copy an operand into the layout that kernels read fastest: unit stride, and rows aligned to 128 bytes.

    An operand that TMA cannot address (unaligned rows, no unit stride) is copied into workspace in every run, because
    its values may have changed. For a constant operand, such as a weight, call this once. The result is an
    ordinary tensor with the same shape, values, type and device. Nothing else keeps a copy, not even
    `GemmSpec.constant`. Pickling and `torch.save` keep the strides; `clone`, `contiguous` and `to(device)` do not, so
    pack on the device that uses it. The copy is work of the current stream: a run that declares the operand `constant`
    may read it early, so synchronize before the first one.

    Args:
        weight: (M, K) or (L, M, K) of role "a", (K, N) or (L, K, N) of role "b"; any strides.
        role: "a" or "b".
        major: the unit-stride axis of the copy: "k", or "m" for a and "n" for b. None keeps that of the weight, or
            takes "k" if it has none, or 8-bit elements. B of a gated pair should be "k"-major.

    Returns:
        A view of new memory, or the weight itself if it has this layout already.

    Raises:
        InputError: an argument is not one of these.

    Example:
        >>> packed = pack(torch.randn(4099, 8191).bfloat16(), "b")      # doctest: +SKIP
        >>> gemm.run(a, packed)                                         # doctest: +SKIP
    """
    # imports torch
    import torch

    from cutegemm.running.arguments.describe import MULTIPLIED, check_tensor

    checks.choice(InputError, "role", role, tuple(AXES))
    check_tensor("weight", weight, (2, 3), MULTIPLIED)
    if major is not None:
        checks.choice(InputError, "major", major, AXES[role])
    source = operand_of(weight)
    by_columns = _by_columns(source, role, major)
    if weight.numel() == 0 or (
        _whole_lines(source, by_columns) and alignment(weight.data_ptr()) == LIMITS.tma_align
    ):
        return weight
    # a matrix shared by all batches is copied once
    shared = weight.dim() == 3 and source.batch == 1
    strides = (source.cols, 1, 0) if by_columns else (1, source.rows, 0)
    tight = Operand(
        dtype=source.dtype, rows=source.rows, cols=source.cols, strides=strides, batch=source.batch
    )
    target, size = aligned_copy(tight, LIMITS)
    memory = torch.zeros(size // source.dtype.bytes, dtype=weight.dtype, device=weight.device)
    row, col, step = target.strides
    matrices = memory.as_strided((source.batch, source.rows, source.cols), (step, row, col))
    with torch.no_grad():
        matrices.copy_(weight[:1] if shared else weight)
    if weight.dim() == 2:
        return matrices[0]
    return matrices.expand(weight.shape) if shared else matrices


def _by_columns(source: Operand, role: str, major: str | None) -> bool:
    """Whether the copy's columns are adjacent: by `major`, else as in the source, else if they are along K."""
    if major is not None:
        return AXES[role][1] == major
    if source.dtype.bits > 8 and (source.unit_row or source.unit_col):
        return source.unit_col
    return AXES[role][1] == "k"


def _whole_lines(source: Operand, by_columns: bool) -> bool:
    """Whether a matrix has unit stride along the axis and starts every row or column on an L2 cache line."""
    unit, leading = (
        (source.unit_col, source.strides[0]) if by_columns else (source.unit_row, source.strides[1])
    )
    return unit and all(x * source.dtype.bytes % L2_LINE == 0 for x in (leading, source.strides[2]))


__all__ = ["pack"]
