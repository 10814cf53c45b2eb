# SPDX-License-Identifier: Apache-2.0
"""What the commands of `cache` did."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.compiling.exchange import Kept


@dataclass(frozen=True)
class CacheDone:
    """What a command of `cache` did: in which folder, to how many kernels; and, of `list` and `clear`, which."""

    action: str
    folder: str
    count: int
    bytes: int
    kernels: list[Kept]


__all__ = ["CacheDone"]
