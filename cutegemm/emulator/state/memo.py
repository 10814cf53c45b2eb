# SPDX-License-Identifier: Apache-2.0
"""A bounded cache of what is computed repeatedly: masks, branches, boxes, cells."""

from __future__ import annotations

from typing import TypeVar

MOST = 4096  # entries of one cache

K = TypeVar("K")
V = TypeVar("V")


def remember(memo: dict[K, V], key: K, value: V) -> V:
    """Cache a value and return it; a full cache is cleared first, which costs nothing on a hit."""
    if len(memo) >= MOST:
        memo.clear()
    memo[key] = value
    return value
