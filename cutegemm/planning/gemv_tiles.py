# SPDX-License-Identifier: Apache-2.0
"""Planning a few rows or columns of D of 16-bit operands on the CUDA cores: which warps read which columns of B.

Tensor cores would compute rows that do not exist, and TMA loads only aligned columns. Here a column costs its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cutegemm.arch.device import Device
from cutegemm.config import GemvConfig, GemvTile, OperandConfig
from cutegemm.config.gemv import WARPS, WORD
from cutegemm.problems import Problem
from cutegemm.request.few_rows import aligned, as_rows, compared, early_operands, has_rivals
from cutegemm.request.operand_rules import displaces, epilogue_inputs, epilogue_outputs
from cutegemm.request.requirements import Request

# order of the norm that combines the bounds
SHARPNESS = 4


def weighed(asked: Request, tuned: Sequence[GemvTile] = ()) -> list[tuple[float, GemvTile]]:
    """(nanoseconds, tile) of the tiles to compare and of tuned ones, on the scale of the tensor cores' times."""
    of = as_rows(asked)
    if of is None:
        return []
    # launches with constant operands overlap, and those of the tensor cores are predicted longer than they then take
    scale, whole = of.device.thresholds.constant_few_rows if has_rivals(of) else 1.0, aligned(of)
    tiles = {x.tile: x for x in (*compared(of), *tuned)}
    return [(scale * estimate(of.problem, x, of.device, whole), x) for x in tiles.values()]


def estimate(problem: Problem, x: GemvTile, device: Device, whole: bool) -> float:
    """Nanoseconds of a launch, in waves of the CTAs that an SM holds; D's rows lie along M."""
    rates, ctas = device.few_rows, int(x.ctas(problem.n)) * problem.batch
    # of a word of each of a warp's columns, which meet the same words of A
    row = rates.row + (0.0 if whole else rates.shift) + x.own * rates.product
    word = x.own * rates.word + x.rows * row
    waits = math.ceil(problem.k / x.tile[2]) * (rates.latency + x.words * rates.alone * word)
    # of one CTA on each SM: its instructions, and its bytes
    steps = math.ceil(problem.k / (WORD * device.limits.warp * x.slices))
    work = steps * WARPS * word + rates.cta + x.own * x.rows * rates.sum
    memory = problem.min_bytes * min(1.0, device.sms / ctas) / (rates.dram * device.dram_gbs)

    def wave(held: int) -> float:
        """Of `held` CTAs on each SM: a CTA's latencies, the SM's instructions and memory combined."""
        return float(sum(y**SHARPNESS for y in (waits, held * work, held * memory)) ** (1 / SHARPNESS))

    waves, rest = divmod(math.ceil(ctas / device.sms), x.residents)
    return rates.launch + waves * wave(x.residents) + (wave(rest) if rest else 0.0)


def configured(of: Request, x: GemvTile) -> GemvConfig:
    """The kernel of a tile, of a request that `as_rows` gives."""
    a, b = (OperandConfig(role=x, dtype=of.problem.a.dtype, major="k") for x in "ab")
    early, known = early_operands(of, x), of.device.thresholds
    return GemvConfig(
        operands=(a, b),
        inputs=epilogue_inputs(of.epilogue, of.problem),
        outputs=epilogue_outputs(of.epilogue, of.problem),
        device_scalars=of.problem.device_scalars,
        limits=of.device.limits,
        **vars(x),
        epilogue=of.epilogue,
        aligned=aligned(of),
        trigger="start" if early or of.problem.min_bytes <= known.early_few_rows else "mainloop",
        early=early,
        evict_first=("b",) if displaces(of.problem, "b", of.device, weights=of.called("b") == "b") else (),
    )
