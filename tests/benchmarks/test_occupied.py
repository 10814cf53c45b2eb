# SPDX-License-Identifier: Apache-2.0
"""Schedulers beside a kernel that holds SMs: what can be checked without a GPU."""

import numpy as np

from benchmarks import occupied
from cutegemm import emulator, problem
from cutegemm.planning.planner import plan


def test_the_spinning_kernel_counts_itself_and_ends_when_it_is_told():
    """It ends at the flag, with every CTA counted, and takes an SM's shared memory."""
    flags = np.array([1, 0], np.int32)
    result = emulator.run_ptx(
        occupied.compiled("PTX").decode().rstrip("\0"), grid=20, block=occupied.SPIN_THREADS, args=[flags]
    )
    assert flags.tolist() == [1, 20] and not result.findings
    limits = plan(occupied.SPECS["dynamic"], problem(4096, 4096, 4096)).device.limits
    assert occupied.SPIN_SHARED == limits.smem_bytes


def test_rounds_turn_the_order():
    """Every other round replays the contenders in reverse order; each result is the median of its own times."""
    log = []

    def replay(name, times):
        return lambda: (log.append(name), next(times))[1]

    replays = {"x": replay("x", iter([1.0, 9.0, 2.0])), "y": replay("y", iter([4.0, 5.0, 6.0]))}
    assert occupied.medians(replays, 3) == {"x": 2.0, "y": 5.0}
    assert log == ["x", "y", "y", "x", "x", "y"]


def test_every_scheduler_plans():
    """The schedulers that are compared differ in that alone."""
    configs = {name: plan(spec, problem(4096, 4096, 4096)).config for name, spec in occupied.SPECS.items()}
    assert configs["dynamic"].dynamic and not configs["a CTA per tile"].persistent
    assert {(x.tile, x.cluster) for name, x in configs.items() if name != "a CTA per tile"} == {
        (configs["persistent"].tile, configs["persistent"].cluster)
    }
