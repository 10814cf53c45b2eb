# SPDX-License-Identifier: Apache-2.0
"""How wide the pieces are in which an epilogue stores a tile."""

from __future__ import annotations

import functools


@functools.lru_cache(1024)
def epilogue_columns(columns: int, element_bytes: int) -> int:
    """EPI_N: the widest piece of at most 128 bytes a row that divides a tile's output columns."""
    return next(n for n in (64, 32, 16, 8) if columns % n == 0 and n * element_bytes <= 128)
