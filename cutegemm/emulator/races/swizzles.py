# SPDX-License-Identifier: Apache-2.0
"""The swizzles that tensor loads write shared memory with, for wgmmas that read with the swizzle of a descriptor."""

from __future__ import annotations

from cutegemm.emulator.races import scan


class Swizzles:
    """The swizzle mode of each tensor load, by its segment."""

    def __init__(self) -> None:
        self.by_segment: dict[int, int] = {}
        self.modes: set[int] = set()

    def load(self, segment: int, mode: int) -> None:
        """A tensor load writes with a mode (`TensorMap.swizzle`)."""
        self.by_segment[segment] = mode
        self.modes.add(mode)

    def differ(self, mode: int) -> bool:
        """Whether any tensor load has another mode."""
        return not self.modes <= {mode}

    def of_word(self, word: int, otherwise: int) -> int:
        """The mode that a cell was written with (`scan.word`); `otherwise` if no tensor load wrote it."""
        return otherwise if word < 0 else self.by_segment.get(scan.access_of(word)[0], otherwise)
