# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel's epilogue: loads, stores, subtiles, staging buffers. Each rule is one function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TypeVar

from cutegemm.config import KernelDraft, MatrixConfig, OutputConfig, smem_budget
from cutegemm.config.invariants import BUFFERS, MEMORY, check
from cutegemm.config.invariants.tiles import rows_step
from cutegemm.config.numbers import Number, least
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.operand_rules import epilogue_inputs, major, widest
from cutegemm.problems import Operand, Problem
from cutegemm.spec import AUTO, GemmSpec, Tile

# most stages by default; more if TMA loads only part of each
MOST_STAGES = 8
MOST_NARROW_STAGES = 16
# bytes of shared memory per consumer warpgroup for stored subtiles
STAGING_BYTES = 16 * 1024
# buffers with which TMA reads one while the next is written
LEAST_BUFFERS = 2
# stages beyond which inputs may take shared memory, and below which stored subtiles give up a buffer
MAX_RING_STAGES = 4
# bytes of shared memory that the mainloop's pipeline keeps from the inputs
RING_BYTES = 144 * 1024

# a draft or a config, and the same returned
Kernel = TypeVar("Kernel", bound=KernelDraft)


def stored(spec: GemmSpec, problem: Problem, epilogue: Graph, reasons: list[str]) -> tuple[OutputConfig, ...]:
    """The store of each output."""
    operands = dict(problem.outputs)
    return tuple(
        OutputConfig(
            dtype=operands[x.name].dtype,
            major=major(operands[x.name], "m", "n"),
            store=_store(spec, x.name, operands[x.name], reasons),
        )
        for x in epilogue.stores
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


def subtile_columns(
    columns: Number, outputs: tuple[OutputConfig, ...], inputs: tuple[MatrixConfig, ...]
) -> Number:
    """EPI_N: columns of the widest subtile that divides a tile's, by the widest element that shared memory holds."""
    widths = [x.dtype.bytes for x in outputs] + [x.dtype.bytes for x in inputs if x.load == "tma"]
    return least(columns & -columns, widest(max(widths, default=2)))


def sliced(config: Kernel, most: int) -> Kernel:
    """The config with its tile's columns divided into the most slices of whole subtiles, at most so many."""
    step = config.columns_step
    slices = max((x for x in range(1, most + 1) if config.columns % (step * x) == 0), default=1)
    columns = subtile_columns(config.columns // slices, config.outputs, config.inputs)
    return dataclasses.replace(config, slices=slices, epi_n=columns)


def with_buffers(spec: GemmSpec, draft: KernelDraft) -> KernelDraft:
    """The draft with staging buffers for outputs, subtiles for inputs, and as many mainloop stages as fit.

    Unspecified buffers give way to given stages.
    """
    draft = dataclasses.replace(draft, epilogue_stages=_staging_buffers(spec, draft))
    if draft.input_stages != (held := _input_stages(spec, draft)):
        draft = dataclasses.replace(draft, input_stages=held)
    if isinstance(spec.epilogue_stages, int) or isinstance(spec.input_stages, int):
        check(draft, BUFFERS)
    room = smem_budget.room(draft)
    wanted = spec.stages if isinstance(spec.stages, int) else MAX_RING_STAGES
    if room < wanted and spec.epilogue_stages == AUTO and draft.epilogue_stages > LEAST_BUFFERS:
        # a stage hides more latency than a third buffer
        fewer = dataclasses.replace(draft, epilogue_stages=LEAST_BUFFERS)
        if (more := smem_budget.room(fewer)) > room:
            draft, room = fewer, more
    if room < (spec.stages if isinstance(spec.stages, int) else 1):
        if spec.epilogue_stages == AUTO:
            draft = dataclasses.replace(draft, epilogue_stages=1)
        if spec.input_stages == AUTO:
            draft = dataclasses.replace(draft, input_stages=1)
        room = smem_budget.room(draft)
    if room < 1:
        raise _no_room(spec, draft)
    if isinstance(spec.stages, int):
        return dataclasses.replace(draft, stages=spec.stages)
    most = MOST_STAGES if draft.a.box_rows == 0 else MOST_NARROW_STAGES
    return dataclasses.replace(draft, stages=min(room, most))


def _no_room(spec: GemmSpec, config: KernelDraft) -> PlanError:
    """The refusal if no stage fits; its nearest value is a smaller depth, fewer buffers or a smaller tile."""
    rule = MEMORY.error(config).rule
    m, n, k = config.tile
    deepest = min(config.smem_limit * k // smem_budget.stage_bytes(config), k - 1)
    step = config.instruction.k
    depths = range(deepest // step * step, 0, -step)
    if spec.tile != AUTO and (flatter := _largest(config, [(m, n, x) for x in depths])):
        return field_error(PlanError, "tile.k", k, rule, flatter[2])
    inputs = [x for x in range(1, config.input_stages) if config.subtiles % x == 0]
    legal = {
        "input_stages": {x: dataclasses.replace(config, input_stages=x) for x in inputs},
        "epilogue_stages": {
            x: dataclasses.replace(config, epilogue_stages=x) for x in range(1, config.epilogue_stages)
        },
    }
    for field, fewer in legal.items():
        fits = [x for x, smaller in fewer.items() if smem_budget.room(smaller) >= 1]
        if fits:
            return field_error(PlanError, field, getattr(config, field), rule, max(fits))
    if spec.tile != AUTO and (error := _smaller(config, rule, depths)):
        return error
    # no single field fixes it: the fewest buffers are nearest
    for field, fewer in legal.items():
        if fewer:
            return field_error(PlanError, field, getattr(config, field), rule, 1)
    return field_error(PlanError, "tile", Tile(*config.tile), rule)


def _smaller(config: KernelDraft, rule: str, depths: Iterable[int]) -> PlanError | None:
    """The refusal of a given tile's columns, rows or all extents, if a smaller tile fits."""
    m, n, k = config.tile
    step = config.columns_step * config.b.halves
    columns = range(n - step, 0, -step)
    if narrower := _largest(config, [(m, x, k) for x in columns]):
        return field_error(PlanError, "tile.n", n, rule, narrower[1])
    # with splits, fewer columns save nothing once a slice cannot be narrower
    step = rows_step(config.limits, config.team, config.a.halves)
    rows = range(m - step, 0, -step)
    if lower := _largest(config, [(x, n, k) for x in rows]):
        return field_error(PlanError, "tile.m", m, rule, lower[0])
    # no extent alone: the most rows and columns that fit with the least depth, then the greatest depth
    sizes = sorted(((x, y) for x in (m, *rows) for y in (n, *columns)), key=math.prod, reverse=True)
    least = _largest(config, [(x, y, config.instruction.k) for x, y in sizes])
    found = least and _largest(config, [(*least[:2], x) for x in depths])
    return field_error(PlanError, "tile", Tile(m, n, k), rule, Tile(*found)) if found else None


def _largest(config: KernelDraft, tiles: Iterable[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """The first of some tiles of which a stage fits beside the epilogue, with its own subtiles and slices."""
    for tile in tiles:
        smaller = dataclasses.replace(config, tile=tile, slices=1)
        columns = subtile_columns(smaller.columns, config.outputs, config.inputs)
        smaller = dataclasses.replace(smaller, epi_n=columns)
        if smaller.cluster_splits > 1:
            smaller = sliced(smaller, smaller.cluster_splits)
        if smem_budget.room(smaller) >= 1:
            return tile
    return None


def _input_stages(spec: GemmSpec, config: KernelDraft) -> int:
    """Prefetched subtiles of matrix inputs: the most that leave the pipeline its share, a divisor of a tile's subtiles.

    More loads then overlap the mainloop; fewer leave it more stages.
    """
    if isinstance(spec.input_stages, int):
        return spec.input_stages
    subtiles = config.subtiles
    legal = [x for x in range(subtiles, 0, -1) if subtiles % x == 0]
    each = sum(config.limits.mma_m * config.epi_n * x.dtype.bytes for x in config.inputs if x.load == "tma")
    if each == 0:
        return 1
    ring = min(math.ceil(RING_BYTES / smem_budget.stage_bytes(config)), MAX_RING_STAGES)
    wanted = spec.stages if isinstance(spec.stages, int) else ring
    for count in legal:
        # with pingpong the other's mainloop hides late loads
        late = config.pingpong and count * each > STAGING_BYTES
        size = smem_budget.smem_bytes(dataclasses.replace(config, input_stages=count), wanted)
        if size <= config.smem_limit and not late:
            return count
    return 1


def _staging_buffers(spec: GemmSpec, config: KernelDraft) -> int:
    """Staging buffers per warpgroup and output: TMA reads some while the next is written.

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
