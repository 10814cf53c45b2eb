# SPDX-License-Identifier: Apache-2.0
"""What candidates run on: a GPU, or what a test puts in its place."""

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
    """What captures and times, and what it is.

    Attributes:
        record: the planner's figures.
        memory: torch's name of where operands lie.
        backend: of runs, as `Gemm.run` takes it.
    """

    record: Device
    memory: str
    backend: str

    def versions(self) -> str:
        """Versions of what makes kernels and runs them."""
        ...

    def one_pass(self, prepared: Prepared, sets: Sequence[Operands]) -> Callable[[], None]:
        """What enqueues a call on every set of operands."""
        ...

    def sound(self) -> bool:
        """Whether it still runs anything, after an error."""
        ...


class Gpu(timing.Device):
    """The current CUDA device.

    Raises:
        HardwareError: there is none, or it is no Hopper GPU.
    """

    memory, backend = "cuda", "gpu"

    def __init__(self) -> None:
        index, self.record = current_device()
        if index is None:
            raise HardwareError(
                "tuning times kernels on a Hopper GPU (compute capability 9.0), and there is none"
            )

    def versions(self) -> str:
        """The DSL's and CUDA's."""
        return f"nvidia-cutlass-dsl {kernel_cache.dsl_version()}, CUDA {torch.version.cuda}"

    def one_pass(self, prepared: Prepared, sets: Sequence[Operands]) -> Callable[[], None]:
        """Calls on every set of operands, in turn."""
        calls = [(x.given, x.places, x.numbers) for x in sets]

        def work() -> None:
            for given, places, numbers in calls:
                prepared(given, places, numbers, None)

        return work

    def sound(self) -> bool:
        """Whether the CUDA context is not lost; after an illegal access every later call fails."""
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device=self.memory).item()
        except torch.OutOfMemoryError:
            return True
        except RuntimeError:
            return False
        return True
