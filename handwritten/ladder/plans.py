# SPDX-License-Identifier: Apache-2.0
"""Launches of a stage for a problem as plain data: grid, threads, shared memory and arguments.

A plan describes tensor maps instead of encoding them, so it can be made, printed, tested and emulated without a GPU.
`launch.py` launches it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cutegemm.arch.records import H200
from cutegemm.errors import GemmError, check
from handwritten.ladder.problem import ELEMENT_BYTES, Matrix, Problem

if TYPE_CHECKING:
    from handwritten.ladder.stage import Stage

MAX_GRID_Y = 65_535  # CTAs along y, CUDA C++ Programming Guide, technical specifications
SPLIT_TILES = 8  # minimum k tiles per split, so that filling the pipeline pays off
SWIZZLE_BYTES = 128  # the only swizzle the TMA stages use: one row of a box is 128 bytes


@dataclass(frozen=True)
class TensorMap:
    """A 2-D tensor map, contiguous dimension first: arguments of `cuTensorMapEncodeTiled`."""

    dtype: str
    pointer: int
    extents: tuple[int, int]
    pitch_bytes: int
    box: tuple[int, int]


@dataclass(frozen=True)
class Workspace:
    """A pointer into the plan's workspace, `offset` bytes in."""

    offset: int = 0


Scalar = ctypes.c_int | ctypes.c_float | ctypes.c_longlong | ctypes.c_void_p
Argument = Scalar | TensorMap | Workspace


@dataclass(frozen=True)
class Launch:
    """One kernel launch; grid counts CTAs (clusters are fixed in the source), smem is dynamic bytes."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    smem: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Plan:
    """The launches of one run in order, and their workspace, whose first bytes are zeroed before."""

    launches: list[Launch] = field(default_factory=list)
    workspace_bytes: int = 0
    zeroed_bytes: int = 0


PlanFunction = Callable[["Stage", Problem, int], Plan]


def plan(stage: Stage, problem: Problem, sms: int) -> Plan:
    """Return a stage's launches for a problem on a GPU of `sms` multiprocessors.

    Raises:
        GemmError: the stage does not support the dtype, or the problem is outside its limits.
    """
    legal = ", ".join(stage.dtypes)
    check(
        problem.dtype in stage.dtypes, GemmError, f"dtype={problem.dtype!r}: stage {stage.key} takes {legal}"
    )
    stage.limits.verify(stage.key, problem)
    return stage.planner(stage, problem, sms)


def _pointer(matrix: Matrix | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(0 if matrix is None else matrix.pointer)


def _pitch(matrix: Matrix | None) -> ctypes.c_longlong:
    return ctypes.c_longlong(0 if matrix is None else matrix.pitch)


def _grid(stage: Stage, problem: Problem, splits: int = 1) -> tuple[int, int, int]:
    """One CTA per tile: x over N, y over M, z over splits of K."""
    m, n, _ = problem.mnk
    grid = (-(-n // stage.constants["BN"]), -(-m // stage.constants["BM"]), splits)
    limit = MAX_GRID_Y * stage.constants["BM"]
    check(
        grid[1] <= MAX_GRID_Y,
        GemmError,
        f"M={m}: stage {stage.key} has one row of CTAs per tile; at most {limit}",
    )
    return grid


def _sizes(problem: Problem) -> tuple[Argument, ...]:
    return tuple(ctypes.c_int(extent) for extent in problem.mnk)


def plan_pointers(stage: Stage, problem: Problem, sms: int = H200.sms) -> Plan:
    """One CTA per tile, operands by pointer: the kernel signature of the SIMT and WMMA stages."""
    arguments = (
        *_sizes(problem),
        ctypes.c_float(problem.alpha),
        _pointer(problem.a),
        _pitch(problem.a),
        _pointer(problem.b),
        _pitch(problem.b),
        *_c_and_d(problem),
    )
    constants = stage.constants
    return Plan(
        [Launch("gemm", _grid(stage, problem), constants["THREADS"], constants.get("SMEM", 0), arguments)]
    )


def _c_and_d(problem: Problem) -> tuple[Argument, ...]:
    c, d = problem.c, problem.d
    return (ctypes.c_float(problem.beta), _pointer(c), _pitch(c), _pointer(d), _pitch(d))


def tensor_map(problem: Problem, matrix: Matrix, box_strided: int) -> TensorMap:
    """Describe the tiles of an operand: boxes of 128 contiguous bytes by `box_strided` rows."""
    size = ELEMENT_BYTES[problem.dtype]
    box = (SWIZZLE_BYTES // size, box_strided)
    # the pitch of a single row is arbitrary, but the driver needs a legal stride
    pitch = -(-matrix.pitch * size // 16) * 16
    return TensorMap(problem.dtype, matrix.pointer, matrix.extents, pitch, box)


def _operand_maps(stage: Stage, problem: Problem) -> tuple[TensorMap, TensorMap]:
    """Return the maps of A and B: K-major tiles are one tall box, M- or N-major tiles are 64-wide boxes."""
    constants, a, b = stage.constants, problem.a, problem.b
    a_rows = constants.get("A_BOX", constants["BM"])
    b_rows = constants.get("B_BOX", constants["BN"])
    return (
        tensor_map(problem, a, constants["BK"] if a.col_major else a_rows),
        tensor_map(problem, b, b_rows if b.col_major else constants["BK"]),
    )


def plan_tma(stage: Stage, problem: Problem, sms: int = H200.sms) -> Plan:
    """One CTA per tile, A and B by tensor map, C and D by pointer."""
    arguments = (
        *_operand_maps(stage, problem),
        *_sizes(problem),
        ctypes.c_float(problem.alpha),
        *_c_and_d(problem),
    )
    constants = stage.constants
    return Plan([Launch("gemm", _grid(stage, problem), constants["THREADS"], constants["SMEM"], arguments)])


def plan_persistent(stage: Stage, problem: Problem, sms: int = H200.sms) -> Plan:
    """As many clusters as fit on the GPU, at most one per pair of tiles; every operand by tensor map."""
    constants, (m, n, _) = stage.constants, problem.mnk
    cluster = constants["CLUSTER"]
    pairs = -(-m // (cluster * constants["BM"])) * -(-n // constants["BN"])
    span = constants["SPAN"]
    d_map = tensor_map(problem, problem.d, span)
    c_map = d_map if problem.c is None else tensor_map(problem, problem.c, span)
    floats = (ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta))
    arguments = (*_operand_maps(stage, problem), c_map, d_map, *_sizes(problem), *floats)
    grid = (cluster * min(pairs, sms // cluster), 1, 1)
    return Plan([Launch("gemm", grid, constants["THREADS"], constants["SMEM"], arguments)])


def split_count(stage: Stage, problem: Problem, sms: int) -> int:
    """Choose the number of splits: enough CTAs to fill the GPU, each with at least SPLIT_TILES k tiles."""
    x, y, _ = _grid(stage, problem)
    tiles = -(-problem.mnk[2] // stage.constants["BK"])
    wanted = max(1, min(sms // (x * y), tiles // SPLIT_TILES))
    per_split = -(-tiles // wanted)
    return -(-tiles // per_split)  # no split is empty


def plan_split_k_atomic(
    stage: Stage, problem: Problem, sms: int = H200.sms, splits: int | None = None
) -> Plan:
    """Several CTAs per tile add into one fp32 tile of the workspace; counters follow the tiles, and all are zeroed."""
    splits = splits or split_count(stage, problem, sms)
    grid = _grid(stage, problem, splits)
    constants, tiles = stage.constants, grid[0] * grid[1]
    sums_bytes = tiles * constants["BM"] * constants["BN"] * 4
    workspace = (Workspace(0), Workspace(sums_bytes))
    alpha = ctypes.c_float(problem.alpha)
    arguments = (*_operand_maps(stage, problem), *_sizes(problem), alpha, *_c_and_d(problem), *workspace)
    size = sums_bytes + 4 * tiles
    return Plan([Launch("gemm", grid, constants["THREADS"], constants["SMEM"], arguments)], size, size)


def plan_split_k_workspace(
    stage: Stage, problem: Problem, sms: int = H200.sms, splits: int | None = None
) -> Plan:
    """Several CTAs per tile, each with a slab of fp32 sums, and a second kernel that adds the slabs."""
    splits = splits or split_count(stage, problem, sms)
    grid = _grid(stage, problem, splits)
    constants = stage.constants
    arguments = (*_operand_maps(stage, problem), *_sizes(problem), Workspace(0))
    m, n, _ = problem.mnk
    sizes = (ctypes.c_int(m), ctypes.c_int(n), ctypes.c_int(splits), ctypes.c_float(problem.alpha))
    quads = constants["BN"] // 8
    reduction = (*sizes, Workspace(0), *_c_and_d(problem))
    launches = [
        Launch("gemm", grid, constants["THREADS"], constants["SMEM"], arguments),
        Launch("reduce", (*grid[:2], quads), constants["CONSUMERS"] * 128, 0, reduction),
    ]
    return Plan(launches, splits * grid[0] * grid[1] * constants["BM"] * constants["BN"] * 4)
