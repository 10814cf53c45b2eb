# SPDX-License-Identifier: Apache-2.0
"""What of a large set of tests a run of this commit takes."""

from __future__ import annotations

import functools
import os
import subprocess
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
