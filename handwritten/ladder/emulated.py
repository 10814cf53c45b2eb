# SPDX-License-Identifier: Apache-2.0
"""Runs stages in the emulator on NumPy arrays: `python -m handwritten --emulate`. Needs neither a GPU nor torch."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm import emulator
from cutegemm.emulator.state import tensors
from cutegemm.errors import EmulatorError
from handwritten.ladder.plans import Plan, TensorMap, Workspace
from handwritten.ladder.problem import Matrix, Problem
from handwritten.ladder.stage import Stage

KINDS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
SWIZZLE_128B = 3  # value of the mode in a tensor map
SMS = 4  # few, so that persistent CTAs have several tiles and split-K has several splits
SIZE = 64  # M = N = K of `--emulate`
# half an ulp of 1; below, the bound of one fp32 accumulation on the tensor cores, which truncate
ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
STEP = 2.0**-22
ALIGN = 256  # bytes: alignment of every matrix, as of device memory


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one stage.

    Attributes:
        stage, dtype: the stage and the type of its operands.
        error: the largest error over its bound (Higham, section 3.1); at most 1 if correct.
        counters: of the emulator, by name, summed over launches.
        conflicts: shared-memory wavefronts above the minimum of the same accesses.
        instructions: warp instructions.
        findings: of the race detector.
        seconds: on this machine.
    """

    stage: Stage
    dtype: str
    error: float
    counters: Mapping[str, float]
    conflicts: int
    instructions: int
    findings: tuple[Any, ...]
    seconds: float

    def row(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """The row for `bounds.write`: stage, type, extents (M, N, K) and all counts."""
        counts = {**self.counters, "shared_conflicts": self.conflicts, "warp_instructions": self.instructions}
        return {
            "stage": self.stage.key,
            "dtype": self.dtype,
            "shape": list(shape),
            "counts": {name: int(value) for name, value in sorted(counts.items()) if value},
        }


@functools.cache
def module(stage: Stage, dtype: str, majors: str) -> emulator.Module:
    """The stage's PTX, parsed once."""
    return emulator.Module.parse(stage.compiled(dtype, majors).ptx)


def parameter(argument: Any, workspace: int) -> bytes:
    """A kernel parameter in the driver's encoding; `workspace` is an address."""
    if isinstance(argument, TensorMap):
        described = tensors.TensorMap(
            base=argument.pointer,
            kind=KINDS[argument.dtype],
            dims=argument.extents,
            strides=(argument.pitch_bytes,),
            box=argument.box,
            swizzle=SWIZZLE_128B,
        )
        return tensors.encode(described)
    if isinstance(argument, Workspace):
        return bytes(ctypes.c_void_p(workspace + argument.offset))
    return bytes(argument)


def launched(
    stage: Stage,
    plan: Plan,
    dtype: str,
    majors: str,
    buffers: Sequence[emulator.Buffer],
    workspace: int,
    options: emulator.Options,
) -> list[emulator.Report]:
    """The reports of a plan's launches, in order."""
    reports = []
    for launch in plan.launches:
        what = emulator.Launch(
            grid=launch.grid,
            block=(launch.threads, 1, 1),
            smem_bytes=launch.smem,
            params=[parameter(argument, workspace) for argument in launch.arguments],
            buffers=list(buffers),
        )
        kernel = module(stage, dtype, majors).kernel(launch.kernel)
        reports.append(emulator.launch(kernel, what, options))
    return reports


def emulate(stage: Stage, dtype: str, shape: tuple[int, int, int], beta: float = 0.0) -> Outcome:
    """Run one stage on random operands, compare with fp64, and count.

    Raises:
        EmulatorError: the kernel cannot continue, or the result is wrong; has the findings so far.
        GemmError: the stage does not support the shape.
    """
    m, n, k = shape
    drawn = np.random.default_rng(0)
    a, b, c = (_rounded(drawn.standard_normal(x).astype(np.float32), dtype) for x in ((m, k), (k, n), (m, n)))
    stored = {name: _placed(_stored(x, dtype)) for name, x in (("A", a), ("B", b), ("C", c), ("D", c))}
    # NaN in every type
    stored["D"].view(np.uint8).fill(0xFF)
    address = {name: x.ctypes.data for name, x in stored.items()}
    matrix = {
        name: Matrix(address[name], rows, cols, cols)
        for name, (rows, cols) in {"A": (m, k), "B": (k, n), "C": (m, n), "D": (m, n)}.items()
    }
    problem = Problem(dtype, matrix["A"], matrix["B"], matrix["D"], matrix["C"] if beta else None, 1.0, beta)
    plan = stage.plan(problem, SMS)
    workspace = _placed(np.full(max(plan.workspace_bytes, 16), 0xAB, np.uint8))
    workspace[: plan.zeroed_bytes] = 0
    place = workspace.ctypes.data
    buffers = [emulator.Buffer(address[name], x.nbytes, name) for name, x in stored.items()]
    buffers.append(emulator.Buffer(place, workspace.nbytes, "workspace"))
    begun = time.perf_counter()
    reports = launched(stage, plan, dtype, "rr", buffers, place, emulator.Options(races=True, meter=True))
    seconds = time.perf_counter() - begun
    exact = a.astype(np.float64) @ b.astype(np.float64) + beta * c
    size = np.abs(a).astype(np.float64) @ np.abs(b) + abs(beta) * np.abs(c)
    bound = ROUNDOFF[dtype] * np.abs(exact) + STEP * (4 + k**0.5) * size
    error = float(np.max(np.abs(_loaded(stored["D"], dtype) - exact) / bound))
    findings = tuple(f for x in reports for f in x.races)
    if not error <= 1:
        wrong = EmulatorError(f"stage {stage.key} is wrong by {error:.1f} times its bound")
        wrong.findings = findings
        raise wrong
    counters: dict[str, float] = {}
    for report in reports:
        for name, value in report.sums.items():
            counters[name] = counters.get(name, 0.0) + value
    return Outcome(
        stage=stage,
        dtype=dtype,
        error=error,
        counters=counters,
        conflicts=sum(x.units - x.ideal for r in reports for x in r.lines if x.space == "shared"),
        instructions=sum(sum(x.instructions.values()) for x in reports),
        findings=findings,
        seconds=seconds,
    )


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 values rounded to the type."""
    return _loaded(_stored(x, dtype), dtype)


def _stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """Values as stored in memory, rounded to nearest even; bf16 as 16 bits."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.int16)
    return np.ascontiguousarray(x.astype(np.float16 if dtype == "fp16" else np.float32))


def _placed(x: np.ndarray) -> np.ndarray:
    """A copy at an aligned address."""
    memory = np.empty(x.nbytes + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    placed = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    placed[...] = x
    return placed


def _loaded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as fp32."""
    if dtype == "bf16":
        return (x.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


__all__ = ["SIZE", "Outcome", "emulate", "launched", "module", "parameter"]
