# SPDX-License-Identifier: Apache-2.0
"""What of a large set of tests a run of this commit takes."""

from __future__ import annotations

import functools
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "CUTEGEMM_COMBINATIONS_SEED"


@functools.cache
def seed() -> int:
    """The run's seed: the environment's, or the first digits of HEAD's hash."""
    if given := os.environ.get(VARIABLE):
        return int(given)
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(found.stdout[:8], 16) if found.returncode == 0 else 0


def taken(rows: Iterable[str], slices: int, number: int) -> set[str]:
    """Of a test's rows, by name, those that a run with a seed takes: one in `slices` on average, and never none.

    A name is taken in every test or in none, so that tests of the same kernels compile the same ones.
    """
    drawn = {row: random.Random(f"{row} {number}").random() for row in rows}
    return {row for row, x in drawn.items() if x < 1 / slices} or {min(drawn, key=lambda row: drawn[row])}
