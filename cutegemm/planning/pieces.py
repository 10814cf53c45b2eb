# SPDX-License-Identifier: Apache-2.0
"""How wide the pieces are in which an epilogue stores a tile."""

from __future__ import annotations

import math

from cutegemm.config.draft import MOST_BYTES, MOST_COLUMNS


def epilogue_columns(columns: int, element_bytes: int) -> int:
    """EPI_N: the widest piece that divides a tile's output columns, a power of two."""
    return math.gcd(columns, widest(element_bytes))


def widest(element_bytes: int) -> int:
    """Columns of the widest piece of all, a power of two."""
    return min(MOST_COLUMNS, MOST_BYTES // element_bytes)
