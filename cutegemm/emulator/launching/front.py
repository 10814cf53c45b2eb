# SPDX-License-Identifier: Apache-2.0
"""Running a list of launches: what the host code of a GEMM launches, on CPU memory.

    reports = run_steps([Step(ptx, grid, block, cluster, smem, params), ...], [tensor_buffer(a, "A"), ...])

`run` wraps a GEMM's own `run`: it passes options to `run_steps` and collects the reports. How the launches were planned
is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cutegemm.checks import integers
from cutegemm.emulator.launching.context import Alone, Chain
from cutegemm.emulator.launching.launch import checked, kernel_of, launch_all, program_of
from cutegemm.emulator.launching.report import Report, Result
from cutegemm.emulator.launching.request import Launch, Options, checked_options
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.state.views import View
from cutegemm.emulator.watch.findings import read_suppressions, without_suppressed
from cutegemm.emulator.watch.written import WatchedOutput, Written
from cutegemm.errors import EmulatorError, check, field_error


@dataclass(frozen=True)
class Step:
    """One launch of a run: the kernel's PTX and what the host code passed to it."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: Sequence[bytes]
    pdl: bool = False  # whether it may start before the launch before it has ended
    shared_parts: tuple[tuple[str, int, int], ...] = ()  # names of what lies in shared memory (`Launch`)


@dataclass(repr=False)
class Run(Result):
    """The result of `run`: D, and the reports of all launches."""

    d: Any = None


_Constant = list[Buffer] | None
_COLLECTING: ContextVar[tuple[Run, Options, _Constant] | None] = ContextVar("collecting", default=None)


def run(
    gemm: Any,
    *operands: Any,
    options: Options | None = None,
    constant: Sequence[Any] | None = None,
    **call: Any,
) -> Run:
    """Run a GEMM on CPU tensors on the emulator, with race detector and meters unless `options` says otherwise.

        run = cutegemm.emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5)
        run.d, run.races, run.counters

    Args:
        gemm: a `Gemm`, or an object whose `run(*operands, backend="emulator", **call)` ends in `run_steps`.
        operands, call: arguments of `gemm.run`.
        constant: CPU tensors. If given, launches overlap as programmatic dependent launch allows, and an unknown
            earlier launch may still write all memory except these tensors.

    Raises:
        EmulatorError: see `launch`. Also the errors of `gemm.run`.
    """
    if not callable(getattr(gemm, "run", None)):
        raise field_error(EmulatorError, "gemm", gemm, "must be a Gemm, as cutegemm.build gives it")
    options = checked_options(options)
    if "backend" in call:
        raise field_error(EmulatorError, "backend", call["backend"], "is the emulator here; leave it out")
    if constant is not None and not isinstance(constant, (tuple, list)):
        raise field_error(EmulatorError, "constant", constant, "must be a list of CPU tensors")
    kept = None if constant is None else [tensor_buffer(x, "constant") for x in constant]
    made = Run()
    token = _COLLECTING.set((made, options or Options(races=True, meter=True), kept))
    try:
        made.d = gemm.run(*operands, backend="emulator", **call)
    finally:
        _COLLECTING.reset(token)
    return made


def run_steps(
    steps: Sequence[Step],
    buffers: Sequence[Buffer],
    options: Options | None = None,
    outputs: Sequence[WatchedOutput] = (),
) -> list[Report]:
    """Run the launches of one run in order, with one L2 cache between them.

    Within `run`, its options hold, and it collects the reports; elements of `outputs` (`output`) that no launch wrote
    are a finding of the last one.

    Raises:
        EmulatorError: see `launch`; steps, buffers or outputs of another type.
    """
    if not isinstance(steps, (tuple, list)) or not all(isinstance(step, Step) for step in steps):
        raise field_error(EmulatorError, "steps", steps, "must be a list of emulator.Step(...)")
    if not isinstance(outputs, (tuple, list)) or not all(isinstance(x, WatchedOutput) for x in outputs):
        raise field_error(EmulatorError, "outputs", outputs, "must be a list of emulator.output(...)")
    collecting, options = _COLLECTING.get(), checked_options(options)
    if collecting is not None:
        options = collecting[1]
    ready = []
    for step in steps:
        what = Launch(
            grid=step.grid,
            block=step.block,
            cluster=step.cluster,
            smem_bytes=step.smem,
            params=step.params,
            buffers=buffers,
            shared_parts=step.shared_parts,
            pdl=step.pdl,
        )
        kernel = kernel_of(step.ptx)
        ready.append((kernel, checked(kernel, what)))
    written = Written(outputs) if collecting is not None and outputs else None
    context: Alone | Chain = Alone(written)
    if collecting is not None and collecting[2] is not None:
        context = Chain([program_of(kernel) for kernel, _ in ready], list(buffers), collecting[2], written)
    made = launch_all(ready, options, context)
    if written is not None and made.reports:
        rules = read_suppressions(options.suppressions) if options and options.suppressions else []
        kept, suppressed = without_suppressed(written.findings(), rules)
        made.reports[-1].findings += kept
        made.reports[-1].suppressed += suppressed
    if collecting is not None:
        collecting[0].reports += made.reports
        collecting[0].counters = made.counters or collecting[0].counters
    return made.reports


def output(tensor: Any, name: str, tile: tuple[int, int] | None = None) -> WatchedOutput:
    """An output that the launches must write in full: a CPU tensor or NumPy array.

    Args:
        name: what reports call it.
        tile: rows and columns of it that a CTA writes, for reports.

    Raises:
        EmulatorError: `tensor` is neither (`View.of`); `name` is not a str, or `tile` is not two extents.
    """
    view = View.needed("tensor", tensor)
    check(isinstance(name, str), EmulatorError, "must be a str", field="name", value=name)
    if tile is None:
        return WatchedOutput(view, name)
    extents = integers(tile)
    if extents is None or len(extents) != 2 or min(extents) < 1:
        raise field_error(EmulatorError, "tile", tile, "must be None or (rows, columns), both at least 1")
    return WatchedOutput(view, name, (extents[0], extents[1]))


def tensor_buffer(tensor: Any, name: str) -> Buffer:
    """The bytes that the elements of a CPU tensor or NumPy array span, by its pointer, shape and strides.

    Raises:
        EmulatorError: `tensor` is neither (`View.of`).
    """
    return View.needed("tensor", tensor).buffer(name)
