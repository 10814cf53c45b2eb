# SPDX-License-Identifier: Apache-2.0
"""Launches and options; both check their fields when they are created."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, cast

from cutegemm.checks import among, integer, integers, truth
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.state.completion import POLICIES
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import Buffer
from cutegemm.errors import EmulatorError, check, field_error

# Bytes of shared memory one CTA may use on sm_90 (227 KiB), CUDA programming guide, table 28.
SHARED_LIMIT = 232448
# CUDA programming guide, table 28: CTAs of a grid and threads of a CTA along each dimension, threads of a CTA.
MAX_EXTENTS = {"grid": ((1 << 31) - 1, 65535, 65535), "block": (1024, 1024, 64), "cluster": (16, 16, 16)}
MAX_THREADS = 1024
MOST = (1 << 63) - 1  # a seed, or a number of warps or CTAs
PTX_RULE = "must be PTX text, a module or a kernel"
MAX_CLUSTER = 16  # CTAs per cluster with the non-portable attribute


@dataclass(frozen=True)
class Launch:
    """A launch: geometry, dynamic shared memory in bytes, parameters, and the memory that it may access.

    Parameters are bytes in order (`params`, with the `buffers` they point into). For `run_ptx` and `run_sequence` they
    may be `args` instead: NumPy arrays, CPU tensors, numbers, tensor maps, bytes (`arguments.pack`).

    ptx: text, module or kernel; `launch` takes it as a separate argument.
    grid, block, cluster: up to three numbers, or one.
    smem: bytes of dynamic shared memory, or "auto" (the default with `args`): the most a CTA may have, if the
        kernel declares such memory.
    pdl: the launch may start before the previous one has ended (programmatic stream serialisation).
    entry: name of the kernel, if the PTX contains several.
    shared_parts: (name, first byte, bytes) of regions of dynamic shared memory, the smallest first; reports use the
        names.

    Raises:
        EmulatorError: a field has another type, or exceeds a limit of the hardware.
    """

    ptx: str | Module | Kernel | None = None
    _: KW_ONLY
    grid: tuple[int, ...] | int
    block: tuple[int, ...] | int
    cluster: tuple[int, ...] | int = (1, 1, 1)
    smem_bytes: int = 0
    params: Sequence[bytes] = field(default_factory=list)
    buffers: Sequence[Buffer] = field(default_factory=list)
    args: Sequence[Any] | None = None
    smem: int | str | None = None
    pdl: bool = False
    entry: str | None = None
    shared_parts: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        def need(name: str, legal: bool, rule: str) -> None:
            check(legal, EmulatorError, rule, field=name, value=getattr(self, name))

        for name in MAX_EXTENTS:
            object.__setattr__(self, name, _extents(name, getattr(self, name)))
        ptx = self.ptx
        need("ptx", ptx is None or isinstance(ptx, (str, Module, Kernel)), PTX_RULE)
        smem_bytes = integer(EmulatorError, "smem_bytes", self.smem_bytes, 0, SHARED_LIMIT)
        object.__setattr__(self, "smem_bytes", smem_bytes)
        if not among(self.smem, (None, "auto")):
            need("smem", not isinstance(self.smem, str), "bytes, or 'auto'")
            object.__setattr__(self, "smem", integer(EmulatorError, "smem", self.smem, 0, SHARED_LIMIT))
        need("params", list_of(bytes, self.params), "must be a list of bytes, one for each parameter")
        need("buffers", list_of(Buffer, self.buffers), "must be a list of emulator.Buffer(...)")
        need("args", self.args is None or isinstance(self.args, (tuple, list)), "must be a list of arguments")
        need("entry", self.entry is None or isinstance(self.entry, str), "must be the name of a kernel")
        truth(EmulatorError, "pdl", self.pdl)
        named = isinstance(self.shared_parts, tuple) and all(map(_is_part, self.shared_parts))
        need("shared_parts", named, "must be a tuple of (name, first byte, bytes)")

    @property
    def extents(self) -> tuple[Triple, Triple, Triple]:
        """Grid in CTAs, block in threads, cluster in CTAs."""
        return cast("tuple[Triple, Triple, Triple]", (self.grid, self.block, self.cluster))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the emulator runs and observes a launch.

    policy: "eager", "lazy" or "random" completion of asynchronous operations; `seed` is for "random".
    warps_per_group: warps that start in lockstep; None for the whole CTA (fast), 1 to interleave every warp.
    resident_ctas: how many CTAs can be on the device together; None for what fits on 132 SMs.
    races: run the race detector, with one warp per group.
    strict: also report what only the text of the PTX ISA forbids (label "by the letter"), such as relying on a
        wgmma.wait_group of another warp of the warpgroup.
    suppressions: a file of findings to leave out, one `KIND-PATTERN : TEXT-PATTERN` per line. The report lists them
        as `suppressed`.
    meter: count sectors, wavefronts, bytes, operations, cache traffic, and the instructions and waits of each role.
    max_seconds: stop with an error after this time.
    progress: show a bar of finished CTAs after one second; None does so when standard error is a terminal.
    """

    policy: str = "eager"
    seed: int = 0
    warps_per_group: int | None = None
    resident_ctas: int | None = None
    races: bool = False
    strict: bool = False
    suppressions: str | Path | None = None
    meter: bool = False
    max_seconds: float | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        def need(name: str, legal: bool, rule: str) -> None:
            check(legal, EmulatorError, rule, field=name, value=getattr(self, name))

        need("policy", among(self.policy, POLICIES), f"one of {', '.join(POLICIES)}")
        for name, low in {"seed": 0, "warps_per_group": 1, "resident_ctas": 1}.items():
            value = getattr(self, name)
            if value is not None or name == "seed":
                object.__setattr__(self, name, integer(EmulatorError, name, value, low, MOST))
        for name in ("races", "strict", "meter"):
            truth(EmulatorError, name, getattr(self, name))
        need("progress", self.progress is None or isinstance(self.progress, bool), "True, False or None")
        file = self.suppressions
        need("suppressions", file is None or isinstance(file, (str, Path)), "the path of a file, or None")
        limit = self.max_seconds
        number = isinstance(limit, Real) and not isinstance(limit, bool) and limit >= 0
        need("max_seconds", limit is None or number, "a number of seconds from 0, or None")


def _is_part(value: Any) -> bool:
    """Whether a value is (name, first byte, bytes)."""
    named = isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str)
    return named and integers(value[1:]) is not None


def _extents(name: str, value: object) -> Triple:
    """Grid, block or cluster as three numbers within the hardware's bounds."""
    single = integers((value,))
    sizes = single if single is not None else integers(value)
    if sizes is None or not 1 <= len(sizes) <= 3:
        raise field_error(EmulatorError, name, value, "must be one to three positive whole numbers")
    sizes = (*sizes, 1, 1)[:3]
    near = tuple(min(max(x, 1), most) for x, most in zip(sizes, MAX_EXTENTS[name], strict=True))
    if near != sizes:
        raise field_error(EmulatorError, name, sizes, f"must be from 1 to {MAX_EXTENTS[name]}", near)
    threads = math.prod(near)
    if name == "block" and threads > MAX_THREADS:
        raise field_error(EmulatorError, name, sizes, f"1 to {MAX_THREADS} threads", (MAX_THREADS, 1, 1))
    if name == "cluster" and threads > MAX_CLUSTER:
        raise field_error(EmulatorError, name, sizes, f"at most {MAX_CLUSTER} CTAs", (MAX_CLUSTER, 1, 1))
    return cast("Triple", near)


def list_of(kind: type, value: object) -> bool:
    """Whether a value is a tuple or list of objects of a class."""
    return isinstance(value, (tuple, list)) and all(isinstance(x, kind) for x in value)


def checked_options(options: object) -> Options | None:
    """The options of a call, or None; anything else is an EmulatorError."""
    if options is not None and not isinstance(options, Options):
        raise field_error(EmulatorError, "options", options, "must be cutegemm.emulator.Options(...)")
    return options
