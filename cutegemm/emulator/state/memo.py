# SPDX-License-Identifier: Apache-2.0
"""A bounded memory of what is worked out again and again: masks, branches, boxes, cells."""

from __future__ import annotations

from typing import TypeVar

MOST = 4096  # entries of one memory

K = TypeVar("K")
V = TypeVar("V")


def remember(memo: dict[K, V], key: K, value: V) -> V:
    """Keep a value and return it; a full memory forgets everything first, which costs nothing on a hit."""
    if len(memo) >= MOST:
        memo.clear()
    memo[key] = value
    return value
