# SPDX-License-Identifier: Apache-2.0
"""Planning one row or column of D of 16-bit operands on the CUDA cores: which warps read which columns of B.

Tensor cores would compute rows that do not exist, and TMA loads only aligned columns. Here a column costs its bytes.
"""

from __future__ import annotations

import math

from cutegemm.arch.device import Device
from cutegemm.config import GemvConfig, GemvTile, OperandConfig
from cutegemm.config.gemv import TILES, WARPS, WORD, residents
from cutegemm.problems import Problem
from cutegemm.request.one_row import aligned_lines, as_row
from cutegemm.request.operand_rules import epilogue_inputs, epilogue_outputs
from cutegemm.request.requirements import Request
from cutegemm.spec import AUTO, Tile

# order of the norm that combines the bounds
SHARPNESS = 4


def weighed(asked: Request) -> list[tuple[float, GemvTile]]:
    """(nanoseconds, tile) of every tile that a request allows."""
    of = as_row(asked)
    if of is None:
        return []
    tiles = [x for x in TILES if of.spec.tile in (AUTO, Tile(*x.tile))]
    most = of.device.limits.max_grid
    return [(estimate(of.problem, x, of.device), x) for x in tiles if ctas(of.problem, x) <= most]


def ctas(problem: Problem, x: GemvTile) -> int:
    """CTAs of a row times a matrix."""
    return math.ceil(problem.n / x.columns) * problem.batch


def estimate(problem: Problem, x: GemvTile, device: Device) -> float:
    """Nanoseconds for a row times a matrix: of the warps in turn, of an SM's words, or of memory."""
    rates, aligned = device.lines, aligned_lines(problem.b, whole=True)
    busiest = math.ceil(ctas(problem, x) / device.sms)
    turns = max(1.0, busiest / residents(x, aligned))
    waits = turns * math.ceil(problem.k / x.tile[2]) * (rates.latency + x.own * rates.line)
    words = math.ceil(problem.k / (WORD * device.limits.warp * x.slices)) * x.own * WARPS
    work = busiest * (words * (rates.word + (0.0 if aligned else rates.shift)) + rates.cta)
    memory = problem.min_bytes / (rates.dram * device.dram_gbs)
    return float(rates.launch + sum(x**SHARPNESS for x in (waits, work, memory)) ** (1 / SHARPNESS))


def configured(of: Request, x: GemvTile) -> GemvConfig:
    """The kernel of a tile, of a request that `as_row` gives."""
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
        aligned=aligned_lines(b, whole=True),
    )
