# SPDX-License-Identifier: Apache-2.0
"""Recording launches in a process that has not loaded the DSL or its runtime."""

import subprocess
import sys

SCRIPT = """
import sys
from cutegemm import GemmSpec, Tile, build, problem
gemm = build(GemmSpec(tile=Tile(128, 64, 64)))
launch, = gemm.launches(problem(300, 264, 72))
print(launch.grid, launch.block, launch.smem, "cutlass" in sys.modules)
"""


def test_a_fresh_process_records_from_the_cache():
    """Launches of a cached kernel are recorded without the DSL, as its own process recorded them."""
    first, again = (
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    )
    assert again[:-1] == first[:-1]
    assert again[-1] == "False"
