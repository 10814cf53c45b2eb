# SPDX-License-Identifier: Apache-2.0
"""Planning a CUDA-core kernel."""

from __future__ import annotations

import dataclasses
import math

from cutegemm.config import OperandConfig, OutputConfig, SimtConfig, SimtTile
from cutegemm.dtypes import DType
from cutegemm.planning import simt_tiles
from cutegemm.planning.candidates import Order
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.operands import check_grid, epilogue_inputs, gated_half, major
from cutegemm.planning.reductions import plan_reductions
from cutegemm.planning.request import Request
from cutegemm.planning.steps import Multiply
from cutegemm.problems import Operand

# elements that a global access may move, widest first; 16-bit elements go one by one
FP32_WIDTHS = (4, 2)
OUTPUT_WIDTHS = (4,)


def plan_simt(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem that runs on the CUDA cores. There is one choice, so `order` has nothing to order.

    Raises:
        PlanError: the grid is larger than a launch may be.
    """
    problem, device = asked.problem, asked.device
    tile = simt_tiles.choose(
        problem,
        device,
        pairs=asked.epilogue.gated is not None,
        invariant=asked.spec.batch_invariant is True,
    )
    config, half, gate = _configured(asked, tile)
    tiles = (math.ceil(problem.m / config.tile[0]), math.ceil(problem.n / config.tile[1]), problem.batch)
    count = math.prod(tiles)
    check_grid(count * config.split, device.limits)
    reductions = plan_reductions(config, problem, tiles, 0)
    multiply = Multiply.of(
        problem,
        (problem.a, half),
        config=config,
        gate=gate,
        raster=("m", 8),
        clusters=count,
        parts=reductions.parts,
        in_workspace=reductions.partials,
    )
    return KernelPlan(
        spec=asked.spec,
        problem=problem,
        device=device,
        steps=(multiply, *reductions.steps),
        workspace_bytes=reductions.workspace_bytes,
        tiles=tiles,
        waves=count / device.sms,
        accumulators=config.thread_tile[0] * config.thread_tile[1],
        reasons=asked.reasons,
    )


def _configured(asked: Request, tile: SimtTile) -> tuple[SimtConfig, Operand, int | None]:
    """The kernel of a tile, and B and its gate as the kernel sees them."""
    problem, epilogue = asked.problem, asked.epilogue
    widths = FP32_WIDTHS if problem.a.dtype is DType.FP32 else ()
    outputs = dict(problem.outputs)
    seen, gate = gated_half(problem, epilogue)
    half = seen.b
    vector = (
        vector_elements(problem.a, widths),
        vector_elements(half, widths, gate),
        min((vector_elements(x, OUTPUT_WIDTHS) for x in outputs.values()), default=1),
    )
    if tile.staged and tile.slices == 1 and min(vector[:2]) == 1:
        # loads of single elements hold many more addresses; where warps share K a few of them are spilled instead
        tile = dataclasses.replace(tile, residents=max(1, tile.residents // 2))
    config = SimtConfig(
        operands=(
            OperandConfig(role="a", dtype=problem.a.dtype, major=major(problem.a, "m", "k")),
            OperandConfig(
                role="b", dtype=half.dtype, major=major(half, "k", "n"), halves=2 if epilogue.gated else 1
            ),
        ),
        inputs=epilogue_inputs(epilogue, problem),
        outputs=tuple(
            OutputConfig(dtype=outputs[x.name].dtype, major=major(outputs[x.name], "m", "n"))
            for x in epilogue.stores
        ),
        device_scalars=problem.device_scalars,
        limits=asked.device.limits,
        **dataclasses.asdict(tile),
        epilogue=epilogue,
        vector=vector,
    )
    return config, half, gate


def vector_elements(x: Operand, widths: tuple[int, ...], gate: int | None = None) -> int:
    """Elements per global access of a CUDA-core kernel: the first of `widths` that every line allows, or 1."""
    if not (x.unit_row or x.unit_col):
        return 1
    extent, leading = (x.cols, x.strides[0]) if x.unit_col else (x.rows, x.strides[1])
    batch = x.strides[2] if x.batch > 1 else 0
    for width in widths:
        whole = all(v % width == 0 for v in (extent, leading, batch, gate or 0))
        if whole and x.align % (width * x.dtype.bytes) == 0:
            return width
    return 1
