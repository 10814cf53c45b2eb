# SPDX-License-Identifier: Apache-2.0
"""Running a built GEMM on the emulator: its own compiled kernels and host code, CPU tensors in and out.

    outcome = cutegemm.emulator.run(gemm, a, b, c, alpha=2.0, beta=0.5)
    outcome.d, outcome.races, outcome.counters

A `Gemm` is asked for its launches (`gemm.launches(...)`); nothing is known here of how it plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cutegemm.emulator.launch import Launch, Options, Report, launch
from cutegemm.emulator.memory import Buffer
from cutegemm.emulator.parse import Kernel, Module


@dataclass(frozen=True)
class Step:
    """One launch of a run: the kernel's PTX and what the host code passed to it."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: Sequence[bytes]


@dataclass
class Outcome:
    """The result tensor and one report per launch."""

    d: Any
    reports: list[Report] = field(default_factory=list)

    @property
    def races(self) -> list:
        """Findings of the race detector in every launch."""
        return [f for r in self.reports for f in r.races]

    @property
    def counters(self) -> dict[str, float]:
        """Counters, added over the launches."""
        total: dict[str, float] = {}
        for report in self.reports:
            for name, value in report.counters.items():
                total[name] = total.get(name, 0) + value
        return total


_PARSED: dict[str, Kernel] = {}


def kernel_of(ptx: str) -> Kernel:
    """The kernel of a one-kernel PTX text, parsed and translated once per process."""
    kernel = _PARSED.get(ptx)
    if kernel is None:
        kernel = _PARSED[ptx] = Module.parse(ptx).kernel()
    return kernel


def run_steps(steps: Sequence[Step], buffers: Sequence[Buffer], options: Options | None = None) -> list[Report]:
    """Run the launches of one run in order.

    Raises:
        EmulatorError: see `launch`.
    """
    reports = []
    for step in steps:
        what = Launch(grid=step.grid, block=step.block, cluster=step.cluster, smem_bytes=step.smem,
                      params=list(step.params), buffers=list(buffers))  # fmt: skip
        reports.append(launch(kernel_of(step.ptx), what, options))
    return reports


def tensor_buffer(tensor: Any, name: str) -> Buffer:
    """The bytes a CPU tensor's elements span, by its pointer, shape and strides.

    `tensor` is anything with `data_ptr()`, `shape`, `stride()` and `element_size()`, such as a torch tensor.
    """
    elements = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size = 0 if 0 in tensor.shape else elements * tensor.element_size()
    return Buffer(tensor.data_ptr(), size, name)
