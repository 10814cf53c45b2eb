# SPDX-License-Identifier: Apache-2.0
"""What `batch_invariant` requires of a plan: a row of D has the same bits for every M and at every row index.

Every instruction adds 16 products along K to an accumulator at once, and every kernel takes a tile's K in order. So
tiles, schedules, clusters and swapped operands change no bit of a sum and may depend on M. These change bits:

    serpentine rasters      never used: a tile's place would decide from which end its k tiles are added
    splits of K             as many as the spec says, 1 by default; they end at multiples of the tile's depth, which is
                            therefore the same for every M
    reductions along rows   a partial result covers a tile's columns, whose number is the same for every M; in a swapped
                            kernel it covers 16 columns of any tile, so D is always swapped or never; on the CUDA cores
                            it covers a warp's columns, 32 in every tile (`simt_tiles`)
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cutegemm.config import KernelConfig, SimtConfig
from cutegemm.planning.candidates import BLOCK_K, Candidate
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.request.requirements import Request, requested
from cutegemm.spec import AUTO

# columns of a tile if they must be the same for every M: near the best for both few and many rows
COLUMNS = 128
# the axis of D over which a result per row is reduced
ALONG_ROWS = 1


def along_rows(asked: Request) -> bool:
    """Whether the bits of a row's reduction would depend on the choice of a kernel."""
    reduces = any(x.axis == ALONG_ROWS and not x.block for x in asked.epilogue.reductions)
    return asked.spec.batch_invariant is True and reduces


def pinned(asked: Request, swapped: bool) -> Request:
    """The request with the columns and depth that every tile must have, unless it gives a tile or has one depth."""
    spec = asked.spec
    if spec.batch_invariant is not True or spec.tile != AUTO:
        return asked
    columns = COLUMNS if along_rows(asked) and not swapped else None
    depth = BLOCK_K if spec.split_k not in (AUTO, 1) and not asked.epilogue.scales else None
    return dataclasses.replace(asked, pinned=(columns, depth))


def allows(asked: Request, candidate: Candidate) -> bool:
    """Whether a candidate's tile has the request's pinned columns and depth."""
    return all(x in (None, y) for x, y in zip(asked.pinned, candidate.tile[1:], strict=True))


def keeps(own: KernelPlan, other: KernelPlan) -> bool:
    """Whether a plan whose choices came from elsewhere, such as a database, gives rows the bits of the planner's own.

    The planner assumes that given choices are the same for every M, and so does not refuse those for one M alone.

    Args:
        own: of the spec that was asked; other: of the same with more fields.
    """
    return own.spec.batch_invariant is not True or _order(own) == _order(other)


def _order(made: KernelPlan) -> tuple[Any, ...]:
    """What decides in which order a row's products and results are added."""
    config, order = made.config, tuple[Any, ...]()
    if isinstance(config, SimtConfig) and config.shares:
        order = (config.slices, config.split, config.tile[2])
    if isinstance(config, KernelConfig) and config.splits > 1:
        order = (config.splits, config.cluster_splits, config.split_reduction, config.tile[2])
    reduced = along_rows(requested(made.spec, made.problem, made.device)[0])
    return isinstance(config, SimtConfig), order, made.partial_width[ALONG_ROWS] if reduced else None
