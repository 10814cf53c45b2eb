# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel's epilogue: loads, stores, subtiles, staging buffers. Each rule is one function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from cutegemm.config import KernelDraft, MatrixConfig, OutputConfig, smem_budget
from cutegemm.config.invariants import BUFFERS, MEMORY, check, satisfied
from cutegemm.config.invariants.tiles import RULES, rows_step
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.candidates import given
from cutegemm.plans.subtiles import sliced
from cutegemm.problems import Operand, Problem
from cutegemm.request.operand_rules import epilogue_inputs, epilogue_outputs, major
from cutegemm.spec import AUTO, MAX_STAGES, GemmSpec, Tile

# bytes of shared memory per consumer warpgroup for stored subtiles
STAGING_BYTES = 16 * 1024
# buffers with which TMA reads one while the next is written
LEAST_BUFFERS = 2
# stages beyond which inputs may take shared memory, and below which stored subtiles give up a buffer
MAX_RING_STAGES = 4
# bytes of shared memory that the mainloop's pipeline keeps from the inputs
RING_BYTES = 144 * 1024


def stored(spec: GemmSpec, problem: Problem, epilogue: Graph, reasons: list[str]) -> tuple[OutputConfig, ...]:
    """The store of each output."""
    return tuple(
        dataclasses.replace(x, store=_store(spec, result.name, dict(problem.outputs)[result.name], reasons))
        for result, x in zip(epilogue.stores, epilogue_outputs(epilogue, problem), strict=True)
    )


def _store(spec: GemmSpec, name: str, operand: Operand, reasons: list[str]) -> str:
    why_not = operand.tma_store_reason()
    shown = name.upper() if name == "d" else name
    if spec.store == "tma" and why_not:
        rule = f"TMA cannot store {shown}: {why_not}"
        raise field_error(PlanError, "store", "tma", rule, "staged")
    if spec.store != AUTO:
        return spec.store
    if why_not is None:
        return "tma"
    words = "element by element" if major(operand, "m", "n") == "strided" else "in words shifted together"
    reasons.append(f"{shown} is stored {words}, through shared memory: {why_not}")
    return "staged"


def fetched(problem: Problem, epilogue: Graph, reasons: list[str]) -> tuple[MatrixConfig, ...]:
    """The load of each tensor input: TMA for matrices that it can address."""
    found, operands = [], dict(problem.inputs)
    for (name, kind), matrix in zip(epilogue.tensors.items(), epilogue_inputs(epilogue, problem)):
        if kind == "matrix":
            why_not = operands[name].tma_reason()
            if why_not is None:
                matrix = dataclasses.replace(matrix, load="tma")
            else:
                reasons.append(f"{name} is read element by element: {why_not}")
        found.append(matrix)
    return tuple(found)


def with_buffers(spec: GemmSpec, draft: KernelDraft, most: int) -> KernelDraft:
    """The draft with staging buffers for outputs, subtiles for inputs, and as many of `most` stages as fit.

    If TMA loads only some rows of each, there may be more. Unspecified buffers give way to given stages.
    """
    draft = dataclasses.replace(draft, epilogue_stages=_staging_buffers(spec, draft))
    draft = dataclasses.replace(draft, input_stages=_input_stages(spec, draft))
    if spec.epilogue_stages != AUTO or spec.input_stages != AUTO:
        check(draft, BUFFERS)
    room = smem_budget.room(draft)
    third = spec.epilogue_stages == AUTO and draft.epilogue_stages > LEAST_BUFFERS
    if third and room < given(spec.stages, MAX_RING_STAGES):
        # a stage hides more latency than a third buffer
        fewer = dataclasses.replace(draft, epilogue_stages=LEAST_BUFFERS)
        if (more := smem_budget.room(fewer)) > room:
            draft, room = fewer, more
    if room < given(spec.stages, 1):
        if spec.epilogue_stages == AUTO:
            draft = dataclasses.replace(draft, epilogue_stages=1)
        if spec.input_stages == AUTO:
            draft = dataclasses.replace(draft, input_stages=1)
        room = smem_budget.room(draft)
    if room < 1:
        raise _no_room(spec, draft)
    most = min(room, most if draft.a.box_rows == 0 else MAX_STAGES)
    return dataclasses.replace(draft, stages=given(spec.stages, smem_budget.room_beside_l1(draft, most)))


def _no_room(spec: GemmSpec, config: KernelDraft) -> PlanError:
    """The refusal if no stage fits; its nearest value is a smaller depth, fewer buffers or a smaller tile."""
    rule = MEMORY.error(config).rule
    for field, value, nearest, smaller in _smaller(spec, config):
        if smem_budget.room(smaller) >= 1 and satisfied(smaller, RULES):
            return field_error(PlanError, field, value, rule, nearest)
    # no single field fixes it: the fewest buffers are nearest
    for field in ("input_stages", "epilogue_stages"):
        if (value := getattr(config, field)) > 1:
            return field_error(PlanError, field, value, rule, 1)
    return field_error(PlanError, "tile", Tile(*config.tile), rule)


def _smaller(spec: GemmSpec, config: KernelDraft) -> Iterator[tuple[str, object, object, KernelDraft]]:
    """(field, its value, a smaller one, the config with it), of fields that may be changed, in order."""
    m, n, k = config.tile
    deepest = min(config.smem_limit * k // smem_budget.stage_bytes(config), k - 1)
    step = config.instruction.k
    depths = range(deepest // step * step, 0, -step)
    columns_step = config.columns_step * config.b.halves
    columns = range(n - columns_step, 0, -columns_step)
    lines_step = rows_step(config.limits, config.team, config.a.halves)
    rows = range(m - lines_step, 0, -lines_step)
    if spec.tile != AUTO:
        yield from (("tile.k", k, x, _tiled(config, (m, n, x))) for x in depths)
    for x in range(config.input_stages - 1, 0, -1):
        if config.subtiles % x == 0:
            yield "input_stages", config.input_stages, x, dataclasses.replace(config, input_stages=x)
    for x in range(config.epilogue_stages - 1, 0, -1):
        yield "epilogue_stages", config.epilogue_stages, x, dataclasses.replace(config, epilogue_stages=x)
    if spec.tile == AUTO:
        return
    yield from (("tile.n", n, x, _tiled(config, (m, x, k))) for x in columns)
    # with splits, fewer columns save nothing once a slice cannot be narrower
    yield from (("tile.m", m, x, _tiled(config, (x, n, k))) for x in rows)
    # no extent alone: the most rows and columns that fit with the least depth, and the greatest depth
    for x, y in sorted(((x, y) for x in (m, *rows) for y in (n, *columns)), key=math.prod, reverse=True):
        if smem_budget.room(_tiled(config, (x, y, step))) >= 1:
            yield from (("tile", Tile(m, n, k), Tile(x, y, z), _tiled(config, (x, y, z))) for z in depths)


def _tiled(config: KernelDraft, tile: tuple[int, int, int]) -> KernelDraft:
    """The config with another tile, and its subtiles and slices."""
    smaller = dataclasses.replace(config, tile=tile, slices=1)
    return sliced(smaller, max(1, smaller.cluster_splits))


def _input_stages(spec: GemmSpec, config: KernelDraft) -> int:
    """Prefetched subtiles of matrix inputs: the most that leave the pipeline its share, a divisor of a tile's subtiles.

    More loads then overlap the mainloop; fewer leave it more stages.
    """
    if isinstance(spec.input_stages, int):
        return spec.input_stages
    each = sum(config.limits.mma_m * config.epi_n * x.dtype.bytes for x in config.inputs if x.load == "tma")
    if each == 0:
        return 1
    ring = min(math.ceil(RING_BYTES / smem_budget.stage_bytes(config)), MAX_RING_STAGES)
    wanted = given(spec.stages, ring)
    for count in range(config.subtiles, 0, -1):
        # with pingpong the other's mainloop hides late loads
        late = config.pingpong and count * each > STAGING_BYTES
        if config.subtiles % count == 0 and not late:
            size = smem_budget.smem_bytes(dataclasses.replace(config, input_stages=count), wanted)
            if size <= config.smem_limit:
                return count
    return 1


def _staging_buffers(spec: GemmSpec, config: KernelDraft) -> int:
    """Staging buffers per warpgroup and output: for all subtiles of a tile, or TMA reads some while others are written.

    16 KiB per warpgroup is two buffers of the widest subtiles; narrow subtiles get more, since each takes TMA as long.
    """
    if isinstance(spec.epilogue_stages, int):
        return spec.epilogue_stages
    reads = any(x.load == "tma" for x in config.inputs)
    if reads and not config.pingpong:
        # shared memory is better spent on inputs, whose loads the mainloop then hides
        return 1
    each = sum(config.limits.mma_m * config.epi_n * x.dtype.bytes for x in config.outputs if x.store == "tma")
    # stages of the pipeline are worth more than a third buffer
    most = min(config.subtiles, 2) if reads else config.subtiles
    return max(1, min(STAGING_BYTES // each, most)) if each else 1
