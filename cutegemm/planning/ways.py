# SPDX-License-Identifier: Apache-2.0
"""Ways to serve a request: operands swapped or not, and how matrices are loaded and stored.

A and B are loaded by TMA, by threads, or by TMA from a copy in workspace that it can address.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.limits import Limits
from cutegemm.config import MatrixConfig, OperandConfig, OutputConfig
from cutegemm.config.numbers import round_up
from cutegemm.config.parts import WORD_BYTES
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.families import THREAD_LOADS
from cutegemm.planning import epilogue_plan as plan_epilogue
from cutegemm.planning import invariance
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.seen import FEW_STAGES
from cutegemm.plans.steps import Copy
from cutegemm.plans.workspace import WORKSPACE_ALIGN
from cutegemm.problems import Operand, Problem
from cutegemm.request import swap
from cutegemm.request.operand_rules import AXES, access_bytes, aligned_copy, gated_half, major
from cutegemm.request.promotion import promotion
from cutegemm.request.requirements import MATRICES, Request
from cutegemm.spec import AUTO, MAX_STAGES, GemmSpec, Tile, tile_fault

# `Instruction.majors` of one that reads only operands that are contiguous along K in shared memory
ONLY_K = ("k",)
# bytes of one cp.async (PTX ISA)
COPY_WIDTHS = (16, 8, 4)
HOW = {
    "relayout": "copied into aligned workspace first",
    "gather": "gathered by the producer's threads",
    "shift": "shifted together from aligned words by the producer's threads",
    "cp_async": "copied by the producer's threads in pieces that its lines allow",
}
# fields of a spec that prune the generator's table
PRUNING = (
    "schedule", "consumers", "cluster", "scheduler", "sms", "ctas_per_sm", "stages", "epilogue_stages",
    "input_stages", "swizzle", "math",
)  # fmt: skip
# their values
PRUNED = operator.attrgetter(*PRUNING)
# greatest K for which stages that threads load are no deeper than this
SHALLOW = 32


@dataclass(frozen=True, kw_only=True)
class Way:
    """A request as its kernel sees it, and how its matrices are loaded and stored."""

    request: Request  # for D's transpose where operands are swapped
    problem: Problem  # with the operand of a gated pair as the half that makes gates
    loads: tuple[str, str]  # of a and b, of `spec.LOADS`
    copies: tuple[Copy, ...]
    workspace_bytes: int  # of the copies
    views: tuple[Operand, Operand]  # a and b as the kernel sees them
    operands: tuple[OperandConfig, OperandConfig]  # as its config has them
    gate: int | None  # elements between the first elements of a gated pair's halves in its view
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    reasons: tuple[str, ...]

    @property
    def spec(self) -> GemmSpec:
        """The spec, of D's transpose where operands are swapped."""
        return self.request.spec

    @property
    def swapped(self) -> bool:
        """Whether operands are swapped."""
        return self.request.factors == ("b", "a")

    @property
    def limits(self) -> Limits:
        """The architecture's."""
        return self.request.device.limits

    @property
    def epilogue(self) -> Graph:
        """The epilogue, of D's transpose where operands are swapped."""
        return self.request.epilogue

    @property
    def gathers(self) -> bool:
        """Whether the producer's threads load an operand."""
        return any(x in THREAD_LOADS for x in self.loads)

    @functools.cached_property
    def most_stages(self) -> int:
        """Stages of a pipeline at most, by default, where K has more than `FEW_STAGES` k tiles.

        Few for groups and for other types, where more were not measured, and with constant operands, whose early loads
        need room beside the launch before.
        """
        a, b = self.operands
        plain = self.request.batches == MATRICES and a.dtype.bytes == b.dtype.bytes == 2
        return FEW_STAGES if self.spec.constants or not plain else MAX_STAGES

    @property
    def promoted(self) -> int:
        """Elements of K between promotions; 0 is never. K of a group along K is known to the device alone."""
        k = None if self.request.batches.adjacent == "k" else self.problem.k
        return promotion(self.spec, self.request.instruction, self.outputs, self.epilogue, k)


class Kind(NamedTuple):
    """What a table follows from: parts of a `Way`."""

    limits: Limits
    operands: tuple[OperandConfig, OperandConfig]
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    epilogue: Graph
    given: tuple[Any, ...] = (AUTO,) * len(PRUNING)  # values of these fields
    pinned: tuple[int | None, int | None] = (None, None)  # as `Request.pinned`
    shallow: bool = False  # whether threads load, and K is within the least depth of their stages
    promoted: int = 0  # as `Way.promoted`
    stages: int = MAX_STAGES  # as `Way.most_stages`

    @staticmethod
    def of(way: Way) -> Kind:
        """The kind of a way."""
        given = PRUNED(way.spec)
        shallow = way.gathers and way.problem.k <= SHALLOW
        seen = way.operands, way.inputs, way.outputs, way.epilogue
        return Kind(way.limits, *seen, given, way.request.pinned, shallow, way.promoted, way.most_stages)

    @property
    def spec(self) -> GemmSpec:
        """A spec with only these fields."""
        return GemmSpec(**dict(zip(PRUNING, self.given, strict=True)))

    @property
    def gathers(self) -> bool:
        """Whether the producer's threads load an operand."""
        return any(x.load != "tma" for x in self.operands)


def only_depth(of: Way | Kind) -> int:
    """Elements of K of every stage where scales of blocks multiply its sums; 0 without them, which allows several."""
    return of.promoted if of.epilogue.scales else 0


class Option(NamedTuple):
    """A config with its predicted nanoseconds."""

    ns: float
    way: Way
    candidate: Candidate

    @property
    def in_d(self) -> Candidate:
        """The candidate in D's coordinates."""
        x = self.candidate
        if not self.way.swapped:
            return x
        (m, n, k), (along, across) = x.tile, x.cluster
        return x._replace(tile=(n, m, k), cluster=(across, along))


# options, fastest first -> the options in the order in which they are tried
Order = Callable[[Iterator[Option]], Iterable[Option]]


def by_cost(found: Iterator[Option]) -> Iterator[Option]:
    """The order of predicted time."""
    return found


def turned(asked: Request) -> tuple[bool, ...]:
    """The orientations to consider: as given, as a given tile needs, or both."""
    spec = asked.spec
    if isinstance(spec.swap, bool) or asked.epilogue.blocks:
        return (spec.swap is True,)
    if isinstance(spec.tile, Tile):
        return (tile_fault(spec.tile, arithmetic=spec.arithmetic) is not None,)
    # it changes a row's partial results
    return (False,) if invariance.along_rows(asked) else (False, True)


def ways_of(asked: Request) -> Iterator[Way]:
    """Every combination of orientation and loads that the spec leaves open."""
    for swapped in turned(asked):
        seen = invariance.pinned(asked, swapped=swapped)
        yield from _loaded(swap.transposed(seen) if swapped else seen)


def _loaded(asked: Request) -> Iterator[Way]:
    """The possible loads of an orientation: as given, by TMA if possible, else of copies or by threads."""
    reasons: list[str] = []
    outputs = plan_epilogue.stored(asked.spec, asked.problem, asked.epilogue, reasons)
    inputs = plan_epilogue.fetched(asked.problem, asked.epilogue, reasons)
    problem, gate = gated_half(asked.problem, asked.epilogue)
    # the operand that holds a gated pair
    pair = {None: "", "m": "a", "n": "b"}[asked.epilogue.gated_axis]
    left, why_not = {}, {}
    for name in AXES:
        operand, beside = getattr(problem, name), gate if name == pair else None
        why_not[name] = _no_tma(asked, operand, name)
        left[name] = _possible(asked, operand, name, beside, why_not[name])
    thin, wide = sorted(AXES, key=lambda name: getattr(problem, name).bytes)
    several = left["a"][1:] and left["b"][1:]  # loads of each
    if several and asked.spec.a_load == asked.spec.b_load == AUTO:
        left[thin] = left[thin][:2]  # beside the other's, the smaller operand's load matters little
    for first, second in itertools.product(*left.values()):
        how = {"a": first, "b": second}
        if how[wide] == "relayout" and how[thin] in THREAD_LOADS and several:
            # copying the smaller one instead costs less and saves more loads by threads
            continue
        why = (
            f"{asked.called(name).upper()} is {HOW[load]}: {why_not[name]}"
            for name, load in how.items()
            if why_not[name] and getattr(asked.spec, f"{name}_load") == AUTO
        )
        every = (*asked.reasons, *why, *reasons)
        yield _way(asked, problem, (first, second), pair, gate, inputs=inputs, outputs=outputs, reasons=every)


def direct(way: Way) -> Way | None:
    """The same with outputs stored from registers, unless the spec gives stores or all are already."""
    if way.spec.store != AUTO or all(x.store == "direct" for x in way.outputs):
        return None
    outputs = tuple(dataclasses.replace(x, store="direct") for x in way.outputs)
    why = "outputs are stored from registers: the given fields leave no shared memory for staging them"
    return dataclasses.replace(way, outputs=outputs, reasons=(*way.reasons, why))


def along_k(operand: Operand, name: str) -> bool:
    """Whether consecutive elements along K of operand "a" or "b" are adjacent."""
    return operand.unit_col if name == "a" else operand.unit_row


def _no_tma(asked: Request, operand: Operand, name: str) -> str | None:
    """Why TMA cannot load an operand, or None if it can; TMA does not transpose."""
    how = asked.instruction
    if how.parts > 1:
        return f'math="{asked.spec.arithmetic}" multiplies parts of its elements'
    if (why_not := operand.tma_reason()) or how.majors != ONLY_K or along_k(operand, name):
        return why_not
    return "it is not contiguous along K"


def _possible(
    asked: Request, operand: Operand, name: str, gate: int | None, why_not: str | None
) -> tuple[str, ...]:
    """The loads of an operand: as given, else by TMA, else of a copy or by threads in the fastest possible way."""
    given, how = getattr(asked.spec, f"{name}_load"), asked.instruction
    bytewise, contiguous = operand.dtype.bits == 8, operand.unit_row or operand.unit_col
    if given == AUTO:
        if why_not is None:
            return ("tma",)
        if how.parts > 1:
            return ("relayout",)
        # threads load by words what has at least 16 bits and is contiguous along an axis
        if bytewise or how.ignored or not contiguous:
            return "relayout", "gather"
        return ("relayout", "shift", *(["cp_async"] if access_bytes(operand, COPY_WIDTHS, gate) else []))
    pieces = given in ("shift", "cp_async")
    if how.parts > 1 and given != "relayout":
        rule, nearest = f"{why_not}, which a copy makes", "relayout"
    elif given == "tma" and why_not:
        rule, nearest = f"TMA cannot address {asked.called(name).upper()}: {why_not}", "relayout"
    elif bytewise and pieces:
        rule = f"{operand.dtype.value} operands are loaded by TMA, copied first or gathered by threads"
        nearest = "relayout" if why_not else "tma"
    elif pieces and not contiguous:
        rule, nearest = "neither dimension has unit stride", "gather"
    elif given == "cp_async" and not access_bytes(operand, COPY_WIDTHS, gate):
        rule, nearest = f"its lines begin at no multiples of {min(COPY_WIDTHS)} bytes", "shift"
    else:
        return (given,)
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


def _way(
    asked: Request, problem: Problem, loads: tuple[str, str], pair: str, gate: int | None, **more: Any
) -> Way:
    """The way of some loads, with their copies and the operands as the GEMM kernel sees them."""
    how, copies = asked.instruction, list[Copy]()
    only_along_k = how.majors == ONLY_K
    offset, views, operands = 0, [problem.a, problem.b], []
    for i, (name, load) in enumerate(zip(AXES, loads, strict=True)):
        source, halves = views[i], 2 if name == pair else 1
        if load == "relayout":
            by_rows = name == "b" if only_along_k else None
            parts = how if how.parts > 1 else None
            target, size = aligned_copy(source, asked.device.limits, by_rows, parts)
            views[i] = target
            if by_rows and (parts or not along_k(source, name)):
                # a copy that transposes has adjacent columns
                source, target = source.transposed, target.transposed
            whole = round_up(size, WORKSPACE_ALIGN)
            one = Copy(operand=name, source=source, target=target, offset=offset, run=how.run if parts else 0)
            copies.append(one)
            if name == pair and gate is not None:
                beside = gate * source.dtype.bytes
                copies.append(dataclasses.replace(one, source_offset=beside, offset=offset + whole))
                gate = whole // source.dtype.bytes
            offset += halves * whole
        strided = only_along_k and not along_k(views[i], name)
        operands.append(
            OperandConfig(
                role=name,
                dtype=source.dtype,
                major="strided" if strided else major(views[i], *AXES[name]),
                load=load if load in THREAD_LOADS else "tma",
                halves=halves,
                width=_width(load, views[i], gate if name == pair else None),
            )
        )
    return Way(
        request=asked,
        problem=problem,
        loads=loads,
        copies=tuple(copies),
        workspace_bytes=offset,
        views=(views[0], views[1]),
        operands=(operands[0], operands[1]),
        gate=gate,
        **more,
    )
