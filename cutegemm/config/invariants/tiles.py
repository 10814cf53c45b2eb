# SPDX-License-Identifier: Apache-2.0
"""Invariants of a tile: whole instructions, accumulators that registers hold, swizzles, and TMA's boxes.

A spec's given tile is refused by the same steps and limits (`least_steps`, `rows_step`, `widest`), for every
instruction that its operand types allow.
"""

from __future__ import annotations

import dataclasses
import functools

from cutegemm.arch.instructions import EXACT, Instruction, multiplying
from cutegemm.arch.limits import Limits
from cutegemm.config import registers
from cutegemm.config.draft import WIDEST_OF_FOUR, KernelDraft
from cutegemm.config.invariants.rule import Refusal, Rule, positive
from cutegemm.config.numbers import Number, among, every, round_up, some
from cutegemm.config.parts import WORD_BYTES, OperandConfig
from cutegemm.dtypes import DType
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.layouts.hardware import CORE_ROWS, SWIZZLE_SPANS

COUNTED = (
    "tile", "cluster", "stages", "consumers", "epi_n", "epilogue_stages", "input_stages", "ctas_per_sm", "splits",
    "cluster_splits", "slices", "adders",
)  # fmt: skip


def rows_step(limits: Limits, team: Number = 1, halves: int = 1) -> Number:
    """The step of a tile's rows: whole instructions of each warpgroup that shares it."""
    return limits.mma_m * team * halves


def columns_step(kind: Instruction, halves: int = 1) -> int:
    """The step of a tile's columns."""
    return kind.n_step * halves


def depth_step(kind: Instruction) -> int:
    """The step of a tile's elements of K."""
    return max(kind.k, kind.run)


def least_steps(limits: Limits, a: object, b: object, arithmetic: str = EXACT) -> tuple[int, int, int]:
    """The least steps of rows, columns and K of one warpgroup's tile over all instructions of an arithmetic.

    Args:
        a, b: the operands' types; anything but a `DType` means any type.
    """
    return rows_step(limits), *_least_of_types(a, b, arithmetic)


@functools.cache
def _least_of_types(a: object, b: object, arithmetic: str) -> tuple[int, int]:
    """The steps of columns and of K."""
    kinds = tuple(multiplying(a, b, arithmetic)) or tuple(multiplying(None, None, arithmetic))
    return min(map(columns_step, kinds)), min(map(depth_step, kinds))


def widest(limits: Limits) -> tuple[str, int]:
    """The rule, and the most columns that a tile has."""
    return f"one wgmma has at most {limits.mma_max_n} columns", limits.mma_max_n


def _columns_step(x: KernelDraft) -> int:
    return columns_step(x.instruction, x.b.halves)


def _columns_refused(x: KernelDraft) -> Refusal:
    step = _columns_step(x)
    half = "each half of a gated tile" if x.b.halves == 2 else "a tile"
    rule = f"{half} must be a multiple of {x.instruction.n_step} columns"
    return "tile.n", x.tile[1], rule, round_up(x.tile[1], step)


def _rows_step(x: KernelDraft) -> Number:
    return rows_step(x.limits, x.team, x.a.halves)


def _rows_refused(x: KernelDraft) -> Refusal:
    step, gated = _rows_step(x), "gated " if x.a.halves == 2 else ""
    rule = f"{x.team} warpgroups take a multiple of {step} rows of a {gated}tile"
    return "tile.m", x.tile[0], rule, round_up(x.tile[0], step)


def _widest_refused(x: KernelDraft) -> Refusal:
    return "tile.n", x.tile[1], *widest(x.limits)


def _width(x: KernelDraft) -> Number:
    """An instruction of the tile's width exists."""
    return among(x.mma_columns, x.instruction.columns)


def _width_refused(x: KernelDraft) -> Refusal:
    legal = x.instruction.columns
    rule = f"no wgmma of {x.a.dtype.value} and {x.b.dtype.value} has {x.mma_columns} columns"
    return "tile.n", x.tile[1], rule, min(legal, key=lambda n: abs(n - x.mma_columns))


def _depth_refused(x: KernelDraft) -> Refusal:
    step = depth_step(x.instruction)
    return "tile.k", x.tile[2], f"must be a multiple of {step}", round_up(x.tile[2], step)


def _accumulators(x: KernelDraft) -> Number:
    """A thread's registers hold its share of the tile; the reduction launch holds a slice of it."""
    return True if not x.multiplies else x.held_values <= registers.most_accumulators(x)


def _accumulators_refused(x: KernelDraft) -> Refusal:
    most_held, team = registers.most_accumulators(x), x.team
    held = x.held_values
    rule = f"{registers.holder(x)} {held} accumulators per thread, more than {most_held}"
    step = x.columns_step * x.b.halves
    # slices are chosen for the tile, and each would hide a remainder
    fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(KernelDraft)} | {"slices": 1}
    for columns in range(x.tile[1] // step * step, 0, -step):
        narrower = KernelDraft(**fields | {"tile": (x.tile[0], columns, x.tile[2])})
        if narrower.held_values <= most_held:
            return "tile.n", x.tile[1], rule, columns
    rows = most_held * 2 * team // x.tile[1] // team * rows_step(x.limits, team)
    return "tile.m", x.tile[0], rule, max(rows, rows_step(x.limits, team))


def _halves(x: KernelDraft) -> Number:
    """If a wgmma takes half of a tile's columns, a half is whole rows of every swizzle."""
    return (x.mma_columns == x.tile[1]) | (x.tile[1] == x.limits.mma_max_n)


def _halves_refused(x: KernelDraft) -> Refusal:
    widest = x.limits.mma_max_n
    rule = f"three consumer warpgroups take up to {WIDEST_OF_FOUR} columns, or {widest} in two halves"
    return "tile.n", x.tile[1], rule, WIDEST_OF_FOUR


def legal_swizzles(operand: OperandConfig, rows: int, depth: int) -> list[str]:
    """The swizzles whose rows divide a tile's contiguous extent, widest first."""
    extent = (depth if operand.k_major else rows) * operand.dtype.bits // 8
    return [name for name, span in reversed(SWIZZLE_SPANS.items()) if extent % span == 0]


def _swizzled(x: KernelDraft) -> Number:
    """A row of the swizzle divides the tile's contiguous extent."""
    return every(
        some(
            (item.operand.swizzle == name) & (item.contiguous % span == 0)
            for name, span in SWIZZLE_SPANS.items()
        )
        for item in x.stage
    )


def _swizzled_refused(x: KernelDraft) -> Refusal:
    for item in x.stage:
        swizzle, legal = item.operand.swizzle, legal_swizzles(item.operand, *item.half)
        if swizzle not in legal:
            span = SWIZZLE_SPANS.get(swizzle, "its span")
            rule = f"the tile is contiguous over {item.contiguous} bytes, no multiple of {span}"
            # a spec gives both operands one
            both = (
                name for name in legal if all(name in legal_swizzles(y.operand, *y.half) for y in x.stage)
            )
            return "swizzle", swizzle, rule, next(both, None)
    raise AssertionError("every swizzle is legal")


def _boxes(x: KernelDraft) -> Number:
    """A box of fewer rows than the tile is not multicast and consists of whole groups of a K-major operand."""
    found: Number = True
    for item in x.stage:
        operand, few = item.operand, item.operand.box_rows
        alone = (item.peers == 1) & (operand.load == "tma" and operand.k_major and operand.halves == 1)
        whole = (few % CORE_ROWS == 0) & (few < item.box[0]) & (few > 0)
        found = found & ((few == 0) | (alone & whole))
    return found


def _boxes_refused(x: KernelDraft) -> Refusal:
    rows = f"a multiple of {CORE_ROWS} rows below the tile's"
    rule = f"a box is {rows}, of one K-major operand that TMA loads for one CTA"
    return "box_rows", tuple(y.box_rows for y in x.operands), rule, 0


def _majors(x: KernelDraft) -> bool:
    """The instruction supports the operands' majors in shared memory."""
    return all(("k" if y.k_major else "mn") in x.instruction.majors for y in x.operands)


def _majors_refused(x: KernelDraft) -> Refusal:
    operand = next(y for y in x.operands if not y.k_major)
    rule = f"wgmma reads {operand.dtype.value} operands contiguous along K only"
    return f"{operand.role}_major", operand.major, rule, "k"


def _promoted(x: KernelDraft) -> Number:
    """Consumers with a producer promote partial sums after whole stages. Those of integers are scaled, or stay as exact
    as they are."""
    if not x.promote or not x.multiplies:
        return not x.epilogue.scales or not x.multiplies
    if x.promote != K_BLOCK if x.epilogue.scales else x.instruction.accumulator is not DType.FP32:
        return False
    scaled = x.tile[2] == K_BLOCK if x.epilogue.scales else True
    return (
        scaled
        & (x.promote % x.tile[2] == 0)
        & (x.producers > 0)
        & (x.promote % depth_step(x.instruction) == 0)
    )


def _promoted_refused(x: KernelDraft) -> Refusal:
    if x.instruction.accumulator is not DType.FP32 and not x.epilogue.scales:
        rule = f"sums of products of {x.a.dtype.value} are exact, and would not be in fp32"
        return "promote", x.promote, rule, "auto"
    if x.producers == 0:
        rule = "partial sums are promoted to fp32, which needs a producer"
        return "schedule", x.schedule, rule, "cooperative"
    if x.epilogue.scales:
        rule = f"a stage is the {K_BLOCK} elements of K that have one scale"
        return "tile.k", x.tile[2], rule, K_BLOCK
    if x.promote % (step := depth_step(x.instruction)):
        rule = f"must be a multiple of the {step} elements of K that an instruction multiplies"
        return "promote", x.promote, rule, round_up(x.promote, step)
    rule = f"must divide the {x.promote} elements of K after which partial sums are promoted"
    legal = (y for y in range(step, x.promote + 1, step) if x.promote % y == 0)
    return "tile.k", x.tile[2], rule, min(legal, key=lambda y: (abs(y - x.tile[2]), -y))


def _widths(x: KernelDraft) -> bool:
    """cp.async copies 4, 8 or 16 bytes, TMA words of 16; both need a unit stride."""
    legal = {"cp_async": (4, 8, WORD_BYTES), "shift": (0, WORD_BYTES)}
    return all(
        among(y.width, legal.get(y.load, (0,))) and (y.load not in legal or y.major != "strided")
        for y in x.operands
    )


def _widths_refused(x: KernelDraft) -> Refusal:
    rule = "copies of 4, 8 or 16 bytes need a unit stride, and other loads have no width"
    return "width", tuple((y.load, y.major, y.width) for y in x.operands), rule, 0


def _unrounded(x: KernelDraft) -> list[OperandConfig]:
    """Operands whose elements the load must round, and whose load copies bytes."""
    rounds = x.multiplies and x.instruction.ignored
    return [y for y in x.operands if rounds and y.load in ("cp_async", "shift")]


def _unrounded_refused(x: KernelDraft) -> Refusal:
    operand = _unrounded(x)[0]
    rule = f'math="{x.arithmetic}" rounds elements as they are loaded, which copies of bytes do not'
    return f"{operand.role}_load", operand.load, rule, "relayout"


RULES = (
    positive(*COUNTED),
    Rule(lambda x: x.tile[1] % _columns_step(x) == 0, _columns_refused),
    Rule(lambda x: x.tile[0] % _rows_step(x) == 0, _rows_refused),
    Rule(lambda x: x.tile[1] <= widest(x.limits)[1], _widest_refused),
    Rule(_width, _width_refused),
    Rule(lambda x: x.tile[2] % depth_step(x.instruction) == 0, _depth_refused),
    Rule(_promoted, _promoted_refused),
)
LATER = (
    Rule(_swizzled, _swizzled_refused),
    Rule(_boxes, _boxes_refused),
    Rule(lambda x: not _unrounded(x), _unrounded_refused, needs_tile=False),
    Rule(_widths, _widths_refused, needs_tile=False),
    Rule(_halves, _halves_refused),
    Rule(_majors, _majors_refused, needs_tile=False),
)
ACCUMULATORS = Rule(_accumulators, _accumulators_refused)
