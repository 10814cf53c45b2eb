# SPDX-License-Identifier: Apache-2.0
"""Requests that kernels of one row or column of D support (`planning.one_line`)."""

from __future__ import annotations

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.gemv import ELEMENT_BYTES, TILES, WORD
from cutegemm.problems import Operand
from cutegemm.request import swap
from cutegemm.request.operand_rules import access_bytes
from cutegemm.request.requirements import MATRICES, Request
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, Tile

# a line of fewer elements may have no whole word
LEAST_K = 16
# elements along N and K that the kernel's 32-bit integers count, rounded up to any tile
MOST = LIMITS.max_extent - max(x for tile in TILES for x in tile.tile)
# what `as_row` checks
NEEDS = (
    f"D of one row or column, 16-bit operands contiguous along K with K of {LEAST_K:,} to {MOST:,}, the vector aligned "
    "to 16 bytes, an epilogue without gates, scales and reductions, and no stages, split_k or batch_invariant"
)
# fields that only other kernels have. `constant` is among them: its early loads save more than these kernels gain
OTHERS = (*TENSOR_CORE_FIELDS, "stages", "split_k")


def as_row(asked: Request) -> Request | None:
    """The request with D's row along M, of D's transpose if D is a column; None if no kernel of one row supports it."""
    problem, spec, graph = asked.problem, asked.spec, asked.epilogue
    if 1 not in (problem.m, problem.n) or asked.batches != MATRICES:
        return None
    if not LEAST_K <= problem.k <= MOST or problem.a.dtype.bytes != ELEMENT_BYTES:
        return None
    if graph.gated or graph.reductions or graph.scales or graph.blocks or spec.batch_invariant is True:
        return None
    # a tile without a schedule is one of the tensor cores
    if spec.schedule != "simt" and (spec.schedule != AUTO or isinstance(spec.tile, Tile)):
        return None
    if any(getattr(spec, x) != AUTO for x in OTHERS):
        return None
    ways: list[Request] = [asked] if problem.m == 1 else []
    ways += [swap.transposed(asked)] if problem.n == 1 else []
    for of in ways:
        a, b, tile = of.problem.a, of.problem.b, of.spec.tile
        legal = not isinstance(tile, Tile) or tile.m == 1
        if legal and a.unit_col and b.unit_row and aligned_lines(a) and of.problem.n <= MOST:
            return of
    return None


def aligned_lines(x: Operand, *, whole: bool = False) -> bool:
    """Whether all lines of a matrix begin, and if `whole` end, at words of a load."""
    return access_bytes(x, (WORD * ELEMENT_BYTES,), whole=whole) > 0
