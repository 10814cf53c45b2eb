# SPDX-License-Identifier: Apache-2.0
"""Running a list of launches on the emulator: what the host code of a GEMM asked for, on CPU memory.

    reports = run_steps([Step(ptx, grid, block, cluster, smem, params), ...], [tensor_buffer(a, "A"), ...])

and, around the ordinary door of whoever makes such lists, `run`, which brings options in and findings out.

The caller brings PTX and launches; nothing is known here of how they were planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cutegemm.emulator.launch import Launch, Options, Report, launch
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.result import Result
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.watch.l2 import L2, SECTOR_BYTES
from cutegemm.emulator.watch.meter import combined
from cutegemm.errors import EmulatorError, field_error


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
class Run(Result):
    """What `run` gives: what was found and counted over all launches, and the result."""

    d: Any = None


_PARSED: dict[str, Kernel] = {}
_COLLECTING: ContextVar[tuple[Run, Options] | None] = ContextVar("collecting", default=None)


def kernel_of(ptx: str) -> Kernel:
    """The kernel of a one-kernel PTX text, parsed and translated once per process."""
    kernel = _PARSED.get(ptx)
    if kernel is None:
        kernel = _PARSED[ptx] = Module.parse(ptx).kernel()
    return kernel


def run(gemm: Any, *operands: Any, options: Options | None = None, **call: Any) -> Run:
    """Run a GEMM on CPU tensors on the emulator, with race detector and meters unless `options` says otherwise.

        run = cutegemm.emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5)
        run.d, run.races, run.counters

    Args:
        gemm: whatever has `run(*operands, backend="emulator", **call)` that ends in `run_steps`.
        operands, call: passed on to `gemm.run`.

    Raises:
        EmulatorError: see `launch`; and what `gemm.run` raises.
    """
    if not callable(getattr(gemm, "run", None)):
        raise field_error(EmulatorError, "gemm", gemm, "must be a Gemm, as cutegemm.build gives it")
    if options is not None and not isinstance(options, Options):
        raise field_error(EmulatorError, "options", options, "must be cutegemm.emulator.Options(...)")
    if "backend" in call:
        raise field_error(EmulatorError, "backend", call["backend"], "is the emulator here; leave it out")
    made = Run()
    token = _COLLECTING.set((made, options or Options(races=True, meter=True)))
    try:
        made.d = gemm.run(*operands, backend="emulator", **call)
    finally:
        _COLLECTING.reset(token)
    return made


def run_steps(
    steps: Sequence[Step], buffers: Sequence[Buffer], options: Options | None = None
) -> list[Report]:
    """Run the launches of one run in order, with one L2 cache between them.

    Within `run`, its options hold, and it collects the reports.

    Raises:
        EmulatorError: see `launch`.
    """
    collecting = _COLLECTING.get()
    if collecting is not None:
        options = collecting[1]
    l2, reports = L2(), []
    for step in steps:
        what = Launch(
            grid=step.grid,
            block=step.block,
            cluster=step.cluster,
            smem_bytes=step.smem,
            params=list(step.params),
            buffers=list(buffers),
        )
        reports.append(launch(kernel_of(step.ptx), what, options, l2))
    if collecting is not None:
        collecting[0].reports += reports
        if collecting[1].meter:
            collecting[0].counters = combined([r.sums for r in reports], l2.dirty * SECTOR_BYTES)
    return reports


def tensor_buffer(tensor: Any, name: str) -> Buffer:
    """The bytes a CPU tensor's elements span, by its pointer, shape and strides.

    `tensor` is anything with `data_ptr()`, `shape`, `stride()` and `element_size()`, such as a torch tensor.
    """
    elements = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size = 0 if 0 in tensor.shape else elements * tensor.element_size()
    return Buffer(tensor.data_ptr(), size, name)
