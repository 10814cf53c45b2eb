# SPDX-License-Identifier: Apache-2.0
"""Kernels from outside: PTX with arrays and numbers as arguments, one launch or several in a row.

    result = emulator.run_ptx(ptx, grid=4, block=128, args=[x, y, 100])
    result.findings, result.counters, result.coverage

Neither torch nor the DSL is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cutegemm.checks import integer
from cutegemm.emulator.launching.arguments import pack
from cutegemm.emulator.launching.context import Chain
from cutegemm.emulator.launching.launch import checked, kernel_of, launch_all, program_of
from cutegemm.emulator.launching.report import Result
from cutegemm.emulator.launching.request import SHARED_LIMIT, Launch, Options, checked_options
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.state.views import View
from cutegemm.errors import EmulatorError, field_error


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

    Args:
        ptx: PTX text with one entry (or several, and `entry` names one), or a parsed module or kernel.
        grid, block, cluster: up to three numbers each; CTAs, threads, CTAs.
        args: one for each parameter: NumPy arrays, CPU tensors, numbers, `tensor_map(...)`, bytes, None.
        smem: bytes of dynamic shared memory; "auto" gives all a CTA may have, if the kernel declares such memory.

    Raises:
        EmulatorError: see `launch`; or an argument does not fit its parameter.
    """
    if not isinstance(args, (tuple, list)):
        raise field_error(EmulatorError, "args", args, "must be a list, one for each parameter")
    made = Launch(ptx, grid=grid, block=block, args=args, cluster=cluster, smem=smem, entry=entry)
    return run_sequence([made], options)


def run_sequence(
    launches: Sequence[Launch], options: Options | None = None, *, constant: Sequence[Any] | None = None
) -> Result:
    """Run launches in stream order: those with `pdl=True` under programmatic dependent launch.

    Results are those of launches that run one after the other. An earlier launch that triggered early may still be
    running until a later launch executes griddepcontrol.wait. The race detector reports accesses before that wait, and
    in threads that no waiting thread released, which conflict with the earlier launch. Memory that no launch of the
    sequence writes may be read at any time. With `constant`, an unknown launch before the sequence may still write all
    memory except these arrays when a first launch with `pdl=True` starts.

        emulator.run_sequence([
            emulator.Launch(ptx, grid=132, block=384, args=[a, b, c]),
            emulator.Launch(ptx, grid=132, block=384, args=[c, b, d], pdl=True),
        ])

    Args:
        constant: arrays or CPU tensors that no launch before the sequence writes.

    Raises:
        EmulatorError: see `run_ptx`; `launches` is empty.
    """
    if not isinstance(launches, (tuple, list)) or not all(isinstance(x, Launch) for x in launches):
        raise field_error(EmulatorError, "launches", launches, "must be a list of emulator.Launch(...)")
    if not launches:
        raise field_error(EmulatorError, "launches", launches, "at least one launch")
    options = checked_options(options) or Options(races=True, meter=True)
    if constant is not None and not isinstance(constant, (tuple, list)):
        raise field_error(EmulatorError, "constant", constant, "must be a list of arrays or CPU tensors")
    views = [View.needed(f"constant[{i}]", x) for i, x in enumerate(constant or ())]
    ready = [_ready(one) for one in launches]
    chain = Chain([program_of(kernel) for kernel, _ in ready], [b for _, what in ready for b in what.buffers])
    if constant is not None:
        chain.constant = [view.buffer("constant") for view in views]
    return launch_all(ready, options, chain)


def _ready(one: Launch) -> tuple[Kernel, Launch]:
    """The kernel of a launch, and the launch with its arguments packed and its shared memory sized."""
    kernel = kernel_of(one.ptx, one.entry)
    asked = one.smem
    if asked is None:
        asked = "auto" if one.args is not None and not one.smem_bytes else one.smem_bytes
    if one.args is not None:
        params, buffers = pack(kernel, one.args)
        one = replace(one, params=params, buffers=[*one.buffers, *buffers], args=None)
    left = max(SHARED_LIMIT - program_of(kernel).shared_size, 0)
    if asked == "auto":
        dynamic = any(v.space == "shared" and v.size is None for v in kernel.variables.values())
        asked = left if dynamic else 0
    size = integer(EmulatorError, "smem", asked, 0, left)
    return kernel, checked(kernel, replace(one, smem_bytes=size, smem=None))
