# SPDX-License-Identifier: Apache-2.0
"""Planning one row, or one column, of D of 16-bit operands on the CUDA cores: which warps read which lines of B.

The tensor cores would compute rows that do not exist, and TMA does not load lines that begin anywhere. Here a line
costs its bytes alone, whatever its alignment.
"""

from __future__ import annotations

import math

from cutegemm.arch.device import Device
from cutegemm.config import GemvConfig, GemvTile, OperandConfig
from cutegemm.config.gemv import ELEMENT_BYTES, RESIDENTS, TILES, WARPS, WORD
from cutegemm.problems import Operand, Problem
from cutegemm.request import swap
from cutegemm.request.operand_rules import access_bytes, epilogue_inputs, epilogue_outputs
from cutegemm.request.requirements import MATRICES, Request
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, Tile

# a line of fewer elements may have no whole word
LEAST_K = 16
# order of the norm that combines the bounds
SHARPNESS = 4


def seen(asked: Request) -> Request | None:
    """The request with D's row along M, of D's transpose if D is a column; None if these kernels cannot serve it."""
    problem, spec, graph = asked.problem, asked.spec, asked.epilogue
    if 1 not in (problem.m, problem.n) or problem.k < LEAST_K or asked.batches != MATRICES:
        return None
    if (
        problem.a.dtype.bytes != ELEMENT_BYTES
        or graph.gated
        or graph.reductions
        or graph.scales
        or graph.blocks
    ):
        return None
    left = all(getattr(spec, x) == AUTO for x in (*TENSOR_CORE_FIELDS, "stages", "split_k"))
    if not left or spec.batch_invariant is True or spec.schedule not in (AUTO, "simt"):
        return None
    found = asked if problem.m == 1 else swap.transposed(asked)
    a, b = found.problem.a, found.problem.b
    return found if a.unit_col and b.unit_row and _aligned(a) else None


def _aligned(x: Operand, *, whole: bool = False) -> bool:
    """Whether all lines of a matrix begin, and if `whole` end, at words of a load."""
    return access_bytes(x, (WORD * ELEMENT_BYTES,), whole=whole) > 0


def weighed(asked: Request) -> list[tuple[float, GemvTile]]:
    """(nanoseconds, tile) of every tile that serves a request."""
    of = seen(asked)
    if of is None:
        return []
    given = tuple(of.spec.tile) if isinstance(of.spec.tile, Tile) else None
    tiles = [x for x in TILES if given in (None, x.tile)]
    return [(estimate(of.problem, x, of.device), x) for x in tiles]


def estimate(problem: Problem, x: GemvTile, device: Device) -> float:
    """Nanoseconds for a row times a matrix: of the warps in turn, of an SM's words, or of memory."""
    rates, aligned = device.lines, _aligned(problem.b, whole=True)
    busiest = math.ceil(math.ceil(problem.n / x.columns) * problem.batch / device.sms)
    turns = max(1.0, busiest / RESIDENTS[aligned][x.own])
    waits = turns * math.ceil(problem.k / x.tile[2]) * (rates.latency + x.own * rates.line)
    words = math.ceil(problem.k / (WORD * device.limits.warp * x.slices)) * x.own * WARPS
    work = busiest * (words * (rates.word + (0.0 if aligned else rates.shift)) + rates.cta)
    memory = problem.min_bytes / (rates.dram * device.dram_gbs)
    longest = (waits**SHARPNESS + work**SHARPNESS + memory**SHARPNESS) ** (1 / SHARPNESS)
    return float(rates.launch + longest)


def configured(of: Request, x: GemvTile) -> GemvConfig:
    """The kernel of a tile, of a request that `seen` gives."""
    a, b = of.problem.a, of.problem.b.transposed
    return GemvConfig(
        operands=(
            OperandConfig(role="a", dtype=a.dtype, major="k"),
            OperandConfig(role="b", dtype=b.dtype, major="k"),
        ),
        inputs=epilogue_inputs(of.epilogue, of.problem),
        outputs=epilogue_outputs(of.epilogue, of.problem),
        device_scalars=of.problem.device_scalars,
        limits=of.device.limits,
        own=x.own,
        slices=x.slices,
        epilogue=of.epilogue,
        aligned=_aligned(b, whole=True),
    )
