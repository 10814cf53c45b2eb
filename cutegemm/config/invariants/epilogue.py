# SPDX-License-Identifier: Apache-2.0
"""Invariants of an epilogue: its subtiles, its buffers, and the shared memory of the whole kernel."""

from __future__ import annotations

from cutegemm.arch.instructions import INSTRUCTIONS
from cutegemm.config import smem_budget
from cutegemm.config.draft import CHUNK, MAX_STAGES, MOST_BYTES, MOST_COLUMNS, KernelDraft
from cutegemm.config.invariants import roles
from cutegemm.config.invariants.rule import Refusal, Rule
from cutegemm.config.numbers import Number, every, round_up
from cutegemm.config.parts import MatrixConfig, OutputConfig
from cutegemm.epilogue.scales import K_BLOCK


def _typed(x: KernelDraft) -> bool:
    return (x.a.dtype, x.b.dtype, x.arithmetic) in INSTRUCTIONS


def _typed_refused(x: KernelDraft) -> Refusal:
    return "a_dtype", x.a.dtype, "no tensor-core instruction multiplies these operands", "bf16"


def _complete(x: KernelDraft) -> bool:
    """The config has every tensor that the epilogue reads and stores, and a gated operand has both halves."""
    graph = x.epilogue
    counts = len(x.inputs) == len(graph.tensors) and len(x.outputs) == len(graph.stores)
    scalars = set(x.device_scalars) <= set(graph.names("scalar"))
    wanted = {None: (1, 1), "m": (2, 1), "n": (1, 2)}[graph.gated_axis]
    roles_named = tuple(y.role for y in x.operands) == ("a", "b")
    return counts and scalars and roles_named and tuple(y.halves for y in x.operands) == wanted


def _complete_refused(x: KernelDraft) -> Refusal:
    rule = "needs a config of every tensor it reads and stores, and both halves of a gated operand"
    return "epilogue", str(x.epilogue), rule, None


def _stored(x: KernelDraft) -> Number:
    """The family has the outputs' stores; TMA moves matrices with a unit stride."""
    moved = [(y.store, y.major) for y in x.outputs] + [(y.load, y.major) for y in x.inputs]
    loads = all(y.load in ("tma", "direct") for y in x.inputs)
    stores = every(roles.able(x, "stores", y.store) for y in x.outputs)
    return stores & (loads and ("tma", "strided") not in moved)


def _stored_refused(x: KernelDraft) -> Refusal:
    return "store", tuple(y.store for y in x.outputs), "TMA moves matrices with a unit stride", "direct"


def _staged(x: KernelDraft) -> list[MatrixConfig | OutputConfig]:
    """What goes through shared memory in subtiles."""
    return [*(y for y in x.outputs if y.store != "direct"), *(y for y in x.inputs if y.load == "tma")]


def _subtiles(x: KernelDraft) -> Number:
    """Subtiles divide the stored columns, are multiples of the instruction's columns, and fit one swizzle row."""
    legal = (x.epi_n % x.instruction.n_step == 0) & (x.epi_n <= MOST_COLUMNS)
    fit = every(x.epi_n * y.dtype.bytes <= MOST_BYTES for y in _staged(x))
    return legal & fit & (x.stored_columns % x.epi_n == 0)


def _subtiles_refused(x: KernelDraft) -> Refusal:
    rule = f"subtiles divide the {x.stored_columns} columns that a CTA stores, in rows of at most {MOST_BYTES} bytes"
    return "epi_n", x.epi_n, rule, x.instruction.n_step


def _chunks(x: KernelDraft) -> Number:
    """A row of a subtile in shared memory is whole 16-byte chunks, as stmatrix, TMA and the swizzles require."""
    return every(x.epi_n * y.dtype.bytes % CHUNK == 0 for y in _staged(x) if y.major != "m")


def _chunks_refused(x: KernelDraft) -> Refusal:
    matrix = next(y for y in _staged(x) if y.major != "m" and x.epi_n * y.dtype.bytes % CHUNK)
    step = x.b.halves * CHUNK // matrix.dtype.bytes
    rule = f"a row of a staged {matrix.dtype.value} tile must be a multiple of {CHUNK} bytes"
    return "tile.n", x.tile[1], rule, round_up(x.tile[1], step)


def _blocks(x: KernelDraft) -> Number:
    """A CTA stores whole blocks of columns; two warpgroups that share a tile have the rows of a block of 128."""
    if not x.epilogue.blocks or x.grouped:
        return not x.epilogue.blocks
    found = (x.stored_columns % K_BLOCK == 0) | (x.stores ^ True)
    if any(y.block > 1 for y in x.epilogue.blocks):
        found = (
            found & (x.team == 2) & (x.rows % K_BLOCK == 0) & (x.split_reduction != "launch") & x.multiplies
        )
    return found


def _blocks_refused(x: KernelDraft) -> Refusal:
    if x.grouped:
        return "grouped", x.grouped, "kernels of groups store no scales of blocks", ""
    if x.stored_columns % K_BLOCK and x.stores:
        slices = f"{x.slices} CTAs of a cluster each store" if x.slices > 1 else "a CTA stores"
        rule = f"{slices} whole blocks of {K_BLOCK} columns"
        return "tile.n", x.tile[1], rule, round_up(x.tile[1], K_BLOCK * x.b.halves * x.slices)
    if x.split_reduction == "launch":
        rule = f"a block of {K_BLOCK} rows is quantised by the warpgroups that multiply it"
        return "split_reduction", x.split_reduction, rule, "cluster"
    rule = f"two warpgroups share the {K_BLOCK} rows of a block"
    if x.pingpong:
        return "schedule", x.schedule, rule, "cooperative"
    if x.team != 2 and x.rows >= K_BLOCK:
        return "consumers", x.consumers, rule, 2
    return "tile.m", x.tile[0], rule, round_up(x.tile[0], K_BLOCK * x.a.halves)


def _output_buffers_refused(x: KernelDraft) -> Refusal:
    rule = f"a warpgroup stores {x.subtiles} subtiles a tile; more buffers than that are never filled"
    return "epilogue_stages", x.epilogue_stages, rule, x.subtiles


def _input_buffers_refused(x: KernelDraft) -> Refusal:
    subtiles = x.subtiles
    rule = f"must divide the {subtiles} subtiles that a warpgroup reads of a tile"
    legal = (y for y in range(1, min(subtiles, MAX_STAGES) + 1) if subtiles % y == 0)
    nearest = min((abs(y - x.input_stages), -y, y) for y in legal)[-1]
    return "input_stages", x.input_stages, rule, nearest


def _memory_refused(x: KernelDraft) -> Refusal:
    limit = x.smem_limit
    if not x.multiplies:
        rule = f"the epilogue needs {smem_budget.smem_bytes(x):,} bytes of shared memory, a CTA has {limit:,}"
        return "input_stages", x.input_stages, rule, 1
    fits = smem_budget.room(x)
    if fits < 1:
        need = smem_budget.stage_bytes(x) + smem_budget.Contents.of(x).beside + smem_budget.STAGE_BARRIERS
        rule = f"one stage and the epilogue need {need:,} bytes of shared memory, a CTA has {limit:,}"
        return "tile", x.tile, rule, None
    rule = f"each stage takes {smem_budget.stage_bytes(x):,} bytes; {limit:,} hold {fits} beside the epilogue"
    return "stages", x.stages, rule, fits


FIRST = (Rule(_typed, _typed_refused, needs_tile=False), Rule(_complete, _complete_refused, needs_tile=False))
LATER = (
    Rule(_stored, _stored_refused, needs_tile=False),
    Rule(_blocks, _blocks_refused),
    # before the rule of subtiles: a tile whose rows are not whole chunks has no legal subtiles
    Rule(_chunks, _chunks_refused),
    Rule(_subtiles, _subtiles_refused),
)
BUFFERS = (
    Rule(lambda x: x.epilogue_stages <= x.subtiles, _output_buffers_refused),
    Rule(lambda x: x.subtiles % x.input_stages == 0, _input_buffers_refused),
)
MEMORY = Rule(lambda x: smem_budget.smem_bytes(x) <= x.smem_limit, _memory_refused)
