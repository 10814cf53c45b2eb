# SPDX-License-Identifier: Apache-2.0
"""Running a list of launches on the emulator: what the host code of a GEMM asked for, on CPU memory.

    reports = run_steps([Step(ptx, grid, block, cluster, smem, params), ...], [tensor_buffer(a, "A"), ...])

The caller brings PTX and launches; nothing is known here of how they were planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


_PARSED: dict[str, Kernel] = {}


def kernel_of(ptx: str) -> Kernel:
    """The kernel of a one-kernel PTX text, parsed and translated once per process."""
    kernel = _PARSED.get(ptx)
    if kernel is None:
        kernel = _PARSED[ptx] = Module.parse(ptx).kernel()
    return kernel


def run_steps(
    steps: Sequence[Step], buffers: Sequence[Buffer], options: Options | None = None
) -> list[Report]:
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
