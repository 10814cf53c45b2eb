# SPDX-License-Identifier: Apache-2.0
"""Entry points: run a GEMM, PTX with arrays and numbers as arguments, or a list of launches.

    run = cutegemm.emulator.run(gemm, a, b, c, alpha=1.0, beta=0.5)       # run.d, run.findings, run.counters
    result = emulator.run_ptx(ptx, grid=4, block=128, args=[x, y, 100])   # result.findings, result.counters
    reports = run_steps([Step(ptx, grid, block, cluster, smem, params), ...], [tensor_buffer(a, "A"), ...])

`run` calls the GEMM's own `run`, whose host code calls `run_steps`. That call gets the options of `run`, which collects
its reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.checks import integer, integers
from cutegemm.emulator.launching.arguments import pack
from cutegemm.emulator.launching.launch import Ready, checked, kernel_of, launch_all, program_of
from cutegemm.emulator.launching.report import Report, Result
from cutegemm.emulator.launching.request import SHARED_LIMIT, Launch, Options, checked_options, list_of
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.state.memory import Buffer, View
from cutegemm.emulator.watch.written import WatchedOutput
from cutegemm.errors import EmulatorError, check, field_error

WATCHED = Options(races=True, meter=True)


@dataclass(frozen=True)
class Step:
    """One launch of a run: the kernel's PTX and what the host code passes to it."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: Sequence[bytes]
    pdl: bool = False  # whether it may start before the previous launch has ended
    shared_parts: tuple[tuple[str, int, int], ...] = ()  # names of regions of shared memory (`Launch`)


@dataclass(repr=False)
class Run(Result):
    """The result of `run`: D, and the reports of all launches."""

    d: Any = None


@dataclass
class _Collecting:
    """A call of `run` that is in progress."""

    run: Run
    options: Options
    constant: list[Buffer] | None


_COLLECTING: ContextVar[_Collecting | None] = ContextVar("collecting", default=None)


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
            earlier launch may still be writing any memory except these tensors.

    Raises:
        EmulatorError: see `launch`. Also the errors of `gemm.run`.
    """
    if not callable(getattr(gemm, "run", None)):
        raise field_error(EmulatorError, "gemm", gemm, "must be a Gemm, as cutegemm.build gives it")
    options = checked_options(options) or WATCHED
    if "backend" in call:
        raise field_error(EmulatorError, "backend", call["backend"], "is the emulator here; leave it out")
    collecting = _Collecting(Run(), options, _constant_buffers(constant))
    token = _COLLECTING.set(collecting)
    try:
        collecting.run.d = gemm.run(*operands, backend="emulator", **call)
    finally:
        _COLLECTING.reset(token)
    return collecting.run


def run_steps(
    steps: Sequence[Step],
    buffers: Sequence[Buffer],
    options: Options | None = None,
    outputs: Sequence[WatchedOutput] = (),
) -> list[Report]:
    """Run the launches of one run in order, with one L2 cache for all of them.

    Within `run` the options of `run` apply. There, elements of `outputs` (`output`) that no launch wrote are a finding
    of the last launch.

    Raises:
        EmulatorError: see `launch`; steps, buffers or outputs have another type.
    """
    check(
        list_of(Step, steps),
        EmulatorError,
        "must be a list of emulator.Step(...)",
        field="steps",
        value=steps,
    )
    rule = "must be a list of emulator.output(...)"
    check(list_of(WatchedOutput, outputs), EmulatorError, rule, field="outputs", value=outputs)
    collecting, options = _COLLECTING.get(), checked_options(options) or Options()
    constant = None
    if collecting is not None:
        options, constant = collecting.options, collecting.constant
    ready = []
    for step in steps:
        kernel = kernel_of(step.ptx)
        what = Launch(
            grid=step.grid,
            block=step.block,
            cluster=step.cluster,
            smem_bytes=step.smem,
            params=step.params,
            buffers=buffers,
            shared_parts=step.shared_parts,
            pdl=step.pdl and constant is not None,
        )
        ready.append((kernel, checked(kernel, what)))
    if not ready:
        return []
    result = launch_all(ready, options, constant, outputs if collecting is not None else ())
    if collecting is not None:
        collecting.run.reports += result.reports
        collecting.run.counters = result.counters or collecting.run.counters
    return result.reports


def run_ptx(
    ptx: str | Module | Kernel,
    *,
    grid: tuple[int, ...] | int,
    block: tuple[int, ...] | int,
    args: Sequence[Any] = (),
    cluster: tuple[int, ...] | int = (1, 1, 1),
    smem: int | str = "auto",
    entry: str | None = None,
    options: Options | None = None,
) -> Result:
    """Run one launch of a kernel on host memory, with race detector and meters unless `options` says otherwise.

    Neither torch nor the DSL is needed.

    Args:
        ptx: PTX text with one entry (or several, and `entry` names one), or a parsed module or kernel.
        grid, block, cluster: up to three numbers each; CTAs, threads, CTAs.
        args: one for each parameter: NumPy arrays, CPU tensors, numbers, `tensor_map(...)`, bytes, None.
        smem: bytes of dynamic shared memory; "auto" gives the most a CTA may have, if the kernel declares such memory.

    Raises:
        EmulatorError: see `launch`; or an argument does not fit its parameter.
    """
    if not isinstance(args, (tuple, list)):
        raise field_error(EmulatorError, "args", args, "must be a list, one for each parameter")
    single = Launch(ptx, grid=grid, block=block, args=args, cluster=cluster, smem=smem, entry=entry)
    return run_sequence([single], options)


def run_sequence(
    launches: Sequence[Launch], options: Options | None = None, *, constant: Sequence[Any] | None = None
) -> Result:
    """Run launches in stream order; those with `pdl=True` use programmatic dependent launch.

    The launches run one after another, so their results do not depend on overlap. On hardware an earlier launch that
    triggered early may still be running until a later launch executes griddepcontrol.wait. The race detector reports
    accesses that conflict with the earlier launch, if they come before that wait or in threads that no waiting thread
    released. Memory that no launch of the sequence writes may be read at any time. With `constant`, the first launch
    may have `pdl=True` too: then an unknown launch before it may still be writing any memory except these arrays.

        emulator.run_sequence([
            emulator.Launch(ptx, grid=132, block=384, args=[a, b, c]),
            emulator.Launch(ptx, grid=132, block=384, args=[c, b, d], pdl=True),
        ])

    Args:
        constant: arrays or CPU tensors that no launch before the sequence writes.

    Raises:
        EmulatorError: see `run_ptx`; `launches` is empty.
    """
    if not list_of(Launch, launches):
        raise field_error(EmulatorError, "launches", launches, "must be a list of emulator.Launch(...)")
    if not launches:
        raise field_error(EmulatorError, "launches", launches, "at least one launch")
    options = checked_options(options) or WATCHED
    buffers = _constant_buffers(constant)
    return launch_all([_ready(one) for one in launches], options, buffers)


def _constant_buffers(constant: Any) -> list[Buffer] | None:
    if constant is not None and not isinstance(constant, (tuple, list)):
        raise field_error(EmulatorError, "constant", constant, "must be a list of arrays or CPU tensors")
    if constant is None:
        return None
    return [View.needed(f"constant[{i}]", x).buffer("constant") for i, x in enumerate(constant)]


def _ready(one: Launch) -> Ready:
    """The kernel of a launch, and the launch with its arguments packed and its shared memory sized."""
    kernel = kernel_of(one.ptx, one.entry)
    smem = one.smem
    if smem is None:
        smem = "auto" if one.args is not None and not one.smem_bytes else one.smem_bytes
    if one.args is not None:
        params, buffers = pack(kernel, one.args)
        one = replace(one, params=params, buffers=[*one.buffers, *buffers], args=None)
    left = max(SHARED_LIMIT - program_of(kernel).shared_size, 0)
    if smem == "auto":
        dynamic = any(v.space == "shared" and v.size is None for v in kernel.variables.values())
        smem = left if dynamic else 0
    size = integer(EmulatorError, "smem", smem, 0, left)
    return kernel, checked(kernel, replace(one, smem_bytes=size, smem=None))


def output(tensor: Any, name: str, tile: tuple[int, int] | None = None) -> WatchedOutput:
    """An output that the launches must write completely: a CPU tensor or NumPy array.

    Args:
        name: its name in reports.
        tile: rows and columns that a CTA writes, for reports.

    Raises:
        EmulatorError: `tensor` is neither (`View.of`); `name` is not a str, or `tile` is not two extents.
    """
    view = View.needed("tensor", tensor)
    check(isinstance(name, str), EmulatorError, "must be a str", field="name", value=name)
    extents = None if tile is None else integers(tile)
    if tile is not None and (extents is None or len(extents) != 2 or min(extents) < 1):
        raise field_error(EmulatorError, "tile", tile, "must be None or (rows, columns), both at least 1")
    return WatchedOutput(view, name, None if extents is None else (extents[0], extents[1]))


def tensor_buffer(tensor: Any, name: str) -> Buffer:
    """The memory of a CPU tensor or NumPy array, from its first to its last element.

    Raises:
        EmulatorError: `tensor` is neither (`View.of`).
    """
    return View.needed("tensor", tensor).buffer(name)
