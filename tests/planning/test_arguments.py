# SPDX-License-Identifier: Apache-2.0
"""Recording launches in a process that has not loaded the DSL or its runtime."""

import subprocess
import sys

from cutegemm import GemmSpec, Tile, build, problem

SCRIPT = """
import sys
from cutegemm import GemmSpec, Tile, build, problem
gemm = build(GemmSpec(tile=Tile(128, 64, 64)))
launch, = gemm.launches(problem(300, 264, 72))
print(launch.grid, launch.block, launch.smem, "cutlass" in sys.modules, sep="; ")
"""


def test_a_fresh_process_records_from_the_cache():
    """Launches of a cached kernel are recorded without the DSL, as the process that compiled it recorded them."""
    (launch,) = build(GemmSpec(tile=Tile(128, 64, 64))).launches(problem(300, 264, 72))
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split("; ") == [*map(str, (launch.grid, launch.block, launch.smem)), "False\n"]
