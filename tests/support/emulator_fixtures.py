# SPDX-License-Identifier: Apache-2.0
"""What the calibration tests share: fixtures recorded on an H200, and running a probe on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cutegemm.emulator import Buffer, Launch, Module, launch

FIXTURES = Path(__file__).parents[1] / "emulator" / "fixtures"


def recorded(name: str) -> dict[str, np.ndarray]:
    """A fixture written by `benchmarks.emulator_record` or `benchmarks.emulator_nsight`."""
    with np.load(FIXTURES / name) as arrays:
        return dict(arrays)


def run_probe(ptx: str, kernel: str, grid: int, threads: int, arrays: list[np.ndarray]) -> np.ndarray:
    """Run a kernel on arrays passed by pointer; returns the first, which it fills."""
    arrays = [np.ascontiguousarray(x) for x in arrays]
    what = Launch(
        grid=(grid, 1, 1),
        block=(threads, 1, 1),
        params=[x.ctypes.data.to_bytes(8, "little") for x in arrays],
        buffers=[Buffer(x.ctypes.data, x.nbytes, f"p{i}") for i, x in enumerate(arrays)],
    )
    launch(Module.parse(ptx).kernel(kernel), what)
    return arrays[0]
