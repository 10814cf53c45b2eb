# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers of each reader."""

import numpy as np

from cutegemm.emulator.races.shadow import ShadowRow
from tests.support.resident import give_back, resident

ROWS, CELLS = 200, 1 << 17  # of 1 MB


def test_rows_take_the_memory_that_readers_touch():
    """Many warps that read a little of a large region, in a process that has freed as much before; rows are zeros."""
    # once 24 MB were freed the C library keeps smaller blocks for later
    np.ones(3 << 20)
    blocks = [np.ones(CELLS) for _ in range(ROWS)]
    # free memory at the end would go back
    last = blocks.pop()
    blocks.clear()
    give_back()
    before = resident()
    rows = [ShadowRow(CELLS) for _ in range(ROWS)]
    for i, row in enumerate(rows):
        row.cells[i] = 7
    assert resident() - before < 20
    assert all(row.cells.sum() == 7 for row in rows) and last.all()
