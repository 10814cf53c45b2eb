# SPDX-License-Identifier: Apache-2.0
"""How A and B are loaded: by TMA, by threads, or by TMA from a copy in workspace that it can address."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config import OperandConfig
from cutegemm.config.parts import WORD_BYTES
from cutegemm.errors import PlanError, field_error
from cutegemm.families import THREAD_LOADS
from cutegemm.planning.operand_rules import (
    WORKSPACE_ALIGN,
    access_bytes,
    aligned_copy,
    gated_half,
    major,
    split_copy,
)
from cutegemm.planning.requirements import Request
from cutegemm.planning.steps import Copy, Relayout
from cutegemm.problems import Operand, Problem, round_up
from cutegemm.spec import AUTO

# axes of (rows, columns)
AXES = {"a": ("m", "k"), "b": ("k", "n")}
# bytes of one cp.async (PTX ISA)
COPY_WIDTHS = (16, 8, 4)
HOW = {
    "relayout": "copied into aligned workspace first",
    "gather": "gathered by the producer's threads",
    "shift": "shifted together from aligned words by the producer's threads",
    "cp_async": "copied by the producer's threads in pieces that its lines allow",
}


@dataclass(frozen=True, kw_only=True)
class Loads:
    """How A and B are loaded.

    Attributes:
        chosen: the loads of a and b, of `spec.LOADS`.
        problem: the request's, with the operand of a gated pair as the half that makes gates.
        copies: made for that; workspace_bytes: their size.
        views: a and b as the GEMM kernel sees them.
        pair: the operand that holds a gated pair; gate: elements between the halves' first elements in its view.
        along_k: whether the instruction reads operands along K only.
    """

    chosen: tuple[str, str]
    problem: Problem
    copies: tuple[Copy, ...]
    workspace_bytes: int
    views: tuple[Operand, Operand]
    pair: str | None
    gate: int | None
    along_k: bool = False

    @property
    def gathers(self) -> bool:
        """Whether the producer's threads load an operand."""
        return any(x in THREAD_LOADS for x in self.chosen)

    @cached_property
    def operands(self) -> tuple[OperandConfig, OperandConfig]:
        """A and B as a kernel's config has them."""
        a, b = (
            OperandConfig(
                role=role,
                dtype=view.dtype,
                major="strided" if self.along_k and not along_k(view, role) else major(view, *axes),
                load=load if load in THREAD_LOADS else "tma",
                halves=2 if role == self.pair else 1,
                width=_width(load, view, self.gate if role == self.pair else None),
            )
            for (role, axes), view, load in zip(AXES.items(), self.views, self.chosen, strict=True)
        )
        return a, b

    @property
    def steps(self) -> tuple[Relayout, ...]:
        """The launch that makes the copies, if there are any."""
        return (Relayout.of(self.copies),) if self.copies else ()

    @property
    def places(self) -> dict[str, int]:
        """Byte offset of each copied operand in the workspace; for a gated pair that of its first half."""
        return {x.operand: x.offset for x in reversed(self.copies)}


def ways_in(asked: Request) -> Iterator[tuple[Loads, tuple[str, ...]]]:
    """The possible loads with reasons: as given, by TMA if possible, else of copies or by threads."""
    problem, gate = gated_half(asked.problem, asked.epilogue)
    # the operand that holds a gated pair
    pair = {None: None, "m": "a", "n": "b"}[asked.epilogue.gated_axis]
    each = [(getattr(problem, name), name, gate if name == pair else None) for name in AXES]
    given = [_given(asked, *x) for x in each]
    left = [_ways(asked, *x) if how == AUTO else (how,) for x, how in zip(each, given, strict=True)]
    thin, wide = sorted(AXES, key=lambda name: getattr(problem, name).bytes)
    for first, second in itertools.product(*left):
        how = {"a": first, "b": second}
        if how[wide] == "relayout" and how[thin] in THREAD_LOADS and given.count(AUTO) == len(AXES):
            # copying the smaller one instead costs less and saves more loads by threads
            continue
        chosen = zip(AXES, given, (first, second), strict=True)
        reasons = tuple(
            f"{asked.called(name).upper()} is {HOW[how]}: {_no_tma(asked, getattr(problem, name), name)}"
            for name, asked_for, how in chosen
            if asked_for == AUTO
        )
        yield _with_copies(asked, problem, (first, second), pair, gate), reasons


def _ways(asked: Request, operand: Operand, name: str, gate: int | None) -> tuple[str, ...]:
    """Loads of an operand that TMA cannot address: of a copy, or by threads in the fastest possible way."""
    rates, how = asked.device.loads, asked.instruction
    if how.parts > 1:
        return ("relayout",)
    # threads load by words what has at least 16 bits and is contiguous along an axis
    if operand.dtype.bits <= 8 or how.ignored or not (operand.unit_row or operand.unit_col):
        return "relayout", "gather"
    copies = access_bytes(operand, COPY_WIDTHS, gate) and rates.copy > rates.shift
    return "relayout", "cp_async" if copies else "shift"


def along_k(operand: Operand, name: str) -> bool:
    """Whether consecutive elements along K of operand "a" or "b" are adjacent."""
    return operand.unit_col if name == "a" else operand.unit_row


def _only_along_k(asked: Request) -> bool:
    """Whether the instruction reads operands only if they are contiguous along K in shared memory."""
    return asked.instruction.majors == ("k",)


def _no_tma(asked: Request, operand: Operand, name: str) -> str | None:
    """Why TMA cannot load an operand, or None if it can; TMA does not transpose."""
    if asked.instruction.parts > 1:
        return f'math="{asked.spec.arithmetic}" multiplies parts of its elements'
    if (why_not := operand.tma_reason()) or not _only_along_k(asked) or along_k(operand, name):
        return why_not
    return "it is not contiguous along K"


def _given(asked: Request, operand: Operand, name: str, gate: int | None) -> str:
    """The load that the spec gives an operand; if unspecified, "tma" if possible, else "auto"."""
    given: str = getattr(asked.spec, f"{name}_load")
    why_not, bytewise = _no_tma(asked, operand, name), operand.dtype.bits == 8
    if given == AUTO and why_not is None:
        return "tma"
    pieces = given in ("shift", "cp_async")
    if asked.instruction.parts > 1 and given not in (AUTO, "relayout"):
        rule, nearest = f"{why_not}, which a copy makes", "relayout"
    elif given == "tma" and why_not:
        rule, nearest = f"TMA cannot address {asked.called(name).upper()}: {why_not}", "relayout"
    elif bytewise and pieces:
        rule = f"{operand.dtype.value} operands are loaded by TMA, copied first or gathered by threads"
        nearest = "relayout" if why_not else "tma"
    elif pieces and asked.instruction.ignored:
        rule = (
            f'math="{asked.spec.arithmetic}" rounds elements as they are loaded, which copies of bytes do not'
        )
        nearest = "relayout"
    elif pieces and not (operand.unit_row or operand.unit_col):
        rule, nearest = "neither dimension has unit stride", "gather"
    elif given == "cp_async" and not access_bytes(operand, COPY_WIDTHS, gate):
        rule, nearest = f"its lines begin at no multiples of {min(COPY_WIDTHS)} bytes", "shift"
    else:
        return given
    raise field_error(PlanError, f"{asked.called(name)}_load", given, rule, nearest)


def _width(load: str, operand: Operand, gate: int | None) -> int:
    """`OperandConfig.width`."""
    if load == "cp_async":
        return access_bytes(operand, COPY_WIDTHS, gate)
    if load != "shift" or gate is not None:
        return 0
    leading = operand.strides[0] if operand.unit_col else operand.strides[1]
    batches = operand.strides[2] * operand.dtype.bytes if operand.batch > 1 else WORD_BYTES
    fits = 0 < leading * WORD_BYTES < LIMITS.tma_max_stride and 0 < batches < LIMITS.tma_max_stride
    return WORD_BYTES if fits and batches % WORD_BYTES == 0 else 0


def _with_copies(
    asked: Request, problem: Problem, chosen: tuple[str, str], pair: str | None, gate: int | None
) -> Loads:
    """The loads with their copies, the workspace of these, and the operands as the GEMM kernel sees them."""
    limits, how = asked.device.limits, asked.instruction
    copies: list[Copy] = []
    offset, views = 0, {"a": problem.a, "b": problem.b}
    for name, load in zip(views, chosen, strict=True):
        if load != "relayout":
            continue
        source = views[name]
        by_rows = name == "b" if _only_along_k(asked) else None
        if how.parts > 1:
            target, size = split_copy(source, not by_rows, how)
        else:
            target, size = aligned_copy(source, limits, by_rows)
        views[name] = target
        if by_rows and (how.parts > 1 or not along_k(source, name)):
            # a copy that transposes has adjacent columns
            source, target = source.transposed, target.transposed
        halves = (0,) if name != pair or gate is None else (0, gate)
        whole, element = round_up(size, WORKSPACE_ALIGN), source.dtype.bytes
        for half in halves:
            beside = half * element
            copies.append(
                Copy(
                    operand=name,
                    source=source,
                    target=target,
                    source_offset=beside,
                    offset=offset,
                    run=how.run if how.parts > 1 else 0,
                )
            )
            offset += whole
        if len(halves) == 2:
            gate = whole // element
    return Loads(
        chosen=chosen,
        problem=problem,
        copies=tuple(copies),
        workspace_bytes=offset,
        views=(views["a"], views["b"]),
        pair=pair,
        gate=gate,
        along_k=_only_along_k(asked),
    )
