# SPDX-License-Identifier: Apache-2.0
"""Runs candidates: on a GPU, or on a test's fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from cutegemm.arch.device import Device
from cutegemm.compiling import kernel_cache
from cutegemm.errors import HardwareError
from cutegemm.running.backends.launcher import current_device
from cutegemm.running.kind import Prepared
from cutegemm.tuning import timing
from cutegemm.tuning.random_operands import Operands


class Bench(timing.Replayer, Protocol):
    """Captures and times candidates on one device."""

    record: Device  # the planner's figures of the device
    memory: str  # torch's device of the operands
    backend: str  # of runs, as in `Gemm.run`

    def versions(self) -> str:
        """Versions of the DSL and of CUDA."""
        ...

    def one_pass(self, prepared: Prepared, sets: Sequence[Operands]) -> Callable[[], None]:
        """A function that enqueues a call on every set of operands."""
        ...

    def sound(self) -> bool:
        """Whether the device still works after an error."""
        ...


class GpuBench(timing.CudaDevice):
    """The current CUDA device.

    Raises:
        HardwareError: there is none, or it is not a Hopper GPU.
    """

    memory, backend = "cuda", "gpu"

    def __init__(self) -> None:
        index, self.record = current_device()
        if index is None:
            raise HardwareError(
                "tuning times kernels on a Hopper GPU (compute capability 9.0), and there is none"
            )

    def versions(self) -> str:
        """See `Bench`."""
        return f"nvidia-cutlass-dsl {kernel_cache.version()}, CUDA {torch.version.cuda}"

    def one_pass(self, prepared: Prepared, sets: Sequence[Operands]) -> Callable[[], None]:
        """See `Bench`."""
        calls = [(x.given, x.places, x.numbers) for x in sets]

        def work() -> None:
            for given, places, numbers in calls:
                prepared(given, places, numbers, None)

        return work

    def sound(self) -> bool:
        """See `Bench`; after an illegal access every later call on the CUDA context fails."""
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device=self.memory).item()
        except torch.OutOfMemoryError:
            return True
        except RuntimeError:
            return False
        return True
