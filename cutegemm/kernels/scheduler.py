# SPDX-License-Identifier: Apache-2.0
"""Which tile a cluster computes next: a linear walk over output tiles, rastered in panels for L2 reuse.

Cluster c of the grid takes tiles c, c + clusters, c + 2 clusters, ... With as many clusters as tiles that
is one tile each; with as many as the GPU holds it is a persistent kernel.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute


def cluster_tiles(extent: Any, block: int, cluster: int) -> Any:
    """Tiles of a whole cluster along one axis: ceil(extent / (block * cluster))."""
    return (extent + (block * cluster - 1)) // (block * cluster)


@cute.jit
def tile_of(index: Any, tiles_m: Any, tiles_n: Any, group: Any, raster: cutlass.Constexpr) -> Any:
    """(m, n, l) of the index-th cluster tile.

    The walk takes `group` tiles along the raster axis, then steps once along the other, to that axis' end;
    then the next panel. The last panel may be narrower.
    """
    per_batch = tiles_m * tiles_n
    batch = index // per_batch
    within = index - batch * per_batch
    along = tiles_m if cutlass.const_expr(raster == "m") else tiles_n
    across = tiles_n if cutlass.const_expr(raster == "m") else tiles_m
    panel = within // (group * across)
    rest = within - panel * (group * across)
    width = cutlass.min(group, along - panel * group)
    step = rest // width
    first = panel * group + rest - step * width
    if cutlass.const_expr(raster == "m"):
        return first, step, batch
    return step, first, batch
