# SPDX-License-Identifier: Apache-2.0
"""Planning a CUDA-core kernel."""

from __future__ import annotations

import dataclasses
import math

from cutegemm.config import OperandConfig, OutputConfig, SimtConfig, SimtTile
from cutegemm.planning import simt_tiles
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.launches import plan_reductions
from cutegemm.planning.operand_rules import epilogue_inputs, gated_half, grid_fault, major
from cutegemm.planning.requirements import Request
from cutegemm.planning.simt_tiles import OUTPUT_WIDTHS, loads, vector_elements
from cutegemm.planning.steps import Multiply
from cutegemm.planning.ways import Order
from cutegemm.problems import Operand


def plan_simt(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem that runs on the CUDA cores, whose tiles have a model of their own instead of an `order`.

    Raises:
        PlanError: what is given names no tile of theirs, or the grid is larger than a launch may be.
    """
    problem, device = asked.problem, asked.device
    tile = simt_tiles.choose(asked)
    config, half, gate = _configured(asked, tile)
    tiles = (math.ceil(problem.m / config.tile[0]), math.ceil(problem.n / config.tile[1]), problem.batch)
    count = math.prod(tiles)
    if count * config.split > device.limits.max_grid:
        raise grid_fault(asked.spec, problem, count * config.split, device.limits)
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
        reasons=asked.reasons,
    )


def _configured(asked: Request, tile: SimtTile) -> tuple[SimtConfig, Operand, int | None]:
    """The kernel of a tile, and B and its gate as the kernel sees them."""
    problem, epilogue = asked.problem, asked.epilogue
    outputs = dict(problem.outputs)
    seen, gate = gated_half(problem, epilogue)
    half = seen.b
    vector = (
        *(loads(tile, seen, gate) or (1, 1)),
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
