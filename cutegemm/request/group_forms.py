# SPDX-License-Identifier: Apache-2.0
"""The forms of groups: where they lie in A, B and D, what their kernels support, and an average group."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from cutegemm.arch.instructions import TF32, TF32X3
from cutegemm.config.numbers import round_up
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import BLOCK_KINDS, BLOCKS, K_BLOCK
from cutegemm.errors import InputError, PlanError, field_error
from cutegemm.problems import Operand, Problem
from cutegemm.spec import AUTO, GemmSpec

# standard deviations of a group's rows, were they drawn one by one, that its tile has room for beyond the average
SPREAD = 2.0
# rows up to which the series of buckets has several of each power of two
FINE = 512
# rows of a group below which loading weights bounds the time
FEW_ROWS = 128
# Averages of groups that are planned as if twice as large. Loading weights bounds them, so a tile with room for twice
# their rows takes hardly longer; but where groups are less even, a second tile of one loads its weights again. Smaller
# groups have columns of WGMMA, as few as they need.
ROOM_FROM, ROOM_TO = 16, 32
# largest extent of an average group: more rows or depth change nothing of its kernel
MOST_AVERAGE = 1 << 30


class Form(NamedTuple):
    """How groups lie."""

    axis: str  # of the kernel's GEMM, along which they lie
    swapped: str  # the same where operands are swapped
    operand: str = ""  # what holds all groups in one matrix, as D does; "" where each group has a matrix of D
    weights: str = ""  # the operand that has a matrix for each group beside it
    own: tuple[str, ...] = ()  # kinds of the epilogue's inputs that may have a part for each group

    @property
    def packed(self) -> bool:
        """Whether groups lie in one matrix of D."""
        return bool(self.operand)

    @property
    def deep(self) -> bool:
        """Whether groups lie along K."""
        return self.axis == "k"

    def apart(self, name: str, kind: str | None) -> bool:
        """Whether each group has a matrix or vector of its own of an operand, an output, or an input of a kind."""
        if self.packed:
            return name == self.weights or kind in self.own
        return not (self.deep and (name in ("a", "b") or kind in BLOCK_KINDS))

    def kept(self, spec: GemmSpec, problem: Problem) -> set[str]:
        """The operands, inputs and outputs that the average problem has as they are."""
        kinds = spec.epilogue.tensors if isinstance(spec.epilogue, Graph) else {}
        if self.packed:
            return {self.weights, *(name for name, kind in kinds.items() if kind in self.own)}
        others = {name for name, _ in (*problem.inputs, *problem.outputs)}
        if self.deep:
            return {name for name in others if kinds.get(name) not in BLOCK_KINDS}
        return {"a", "b", *others}


# along M of one A and D; along N of one B and D; the first rows of a batch each; along K, with a batch of D each
FORMS = {
    "rows": Form("m", "n", "a", "b", ("row", "blocks_n")),
    "columns": Form("n", "m", "b", "a", ("col", "blocks_m")),
    "masked": Form("m", "n"),
    "depth": Form("k", "k"),
}
PACKED = {name: x for name, x in FORMS.items() if x.packed}


def all_groups(batched: Problem, form: str, kinds: dict[str, str]) -> Problem:
    """The problem of groups, as `plan_groups` takes it, from one with a batch for each group.

    Each group has its own weights, and its own inputs of the epilogue of a kind that may differ by group.

    Args:
        batched: contiguous, with `batch` groups; M of "rows", N of "columns" and K of "depth" are those of all groups.
        form: one of `FORMS`.
        kinds: of the epilogue's inputs, by name.
    """
    how, groups = FORMS[form], batched.batch

    def lying(name: str, x: Operand) -> Operand:
        if not how.apart(name, kinds.get(name)):
            return dataclasses.replace(x, batch=1)
        if kinds.get(name) in how.own:
            return dataclasses.replace(x, batch=groups, strides=(*x.strides[:2], x.rows * x.cols))
        return x

    return dataclasses.replace(
        batched,
        a=lying("a", batched.a),
        b=lying("b", batched.b),
        inputs=tuple((name, lying(name, x)) for name, x in batched.inputs),
        outputs=tuple((name, lying(name, x)) for name, x in batched.outputs),
    )


def check_form(graph: Graph, form: str) -> None:
    """Raise an `InputError` for an epilogue that kernels of groups do not support in a form."""
    if form in ("depth", "columns") and graph.gated:
        along = "along K" if form == "depth" else "of columns"
        rule = "groups of rows and masked groups have; multiply without an epilogue and apply the gate to D"
        raise field_error(
            InputError, "epilogue.gated", graph.gated, f"groups {along} have no gated pairs: {rule}"
        )
    axis, what = 1, "rows or along K reduce each row"
    if form == "columns":
        axis, what = 0, "columns reduce each column"
    for result in graph.reductions:
        field = f"epilogue.{result.name}"
        if result.partial:
            rule = "groups support finished reductions only"
            raise field_error(InputError, f"{field}.partial", True, rule, False)
        if result.axis != axis:
            raise field_error(InputError, f"{field}.axis", result.axis, f"groups of {what} of D", axis)
    for result in graph.outputs:
        if result.block:
            rule = "groups cannot store quantized blocks; store D and call cutegemm.quantize"
            kind = ("block", result.block, K_BLOCK)
            raise field_error(InputError, f"epilogue.{result.name}", kind, rule)
    packed = PACKED.get(form)
    for x in graph.scales:
        kind = ("block", x.extent, K_BLOCK)
        if packed is not None and packed.axis == x.axis and x.extent > 1:
            what = "rows" if x.axis == "m" else "columns"
            raise field_error(InputError, x.name, kind, f"groups may start in blocks of {what}", BLOCKS[0])


def average_problem(spec: GemmSpec, problem: Problem, form: Form, indexed: bool) -> Problem:
    """The problem of batches that are all as large as an average group; `indexed` says that indices name rows."""
    groups, a, b = problem.batch, problem.a, problem.b
    if form.deep:
        depth = min(1 << max(math.ceil(problem.k / groups) - 1, 0).bit_length(), MOST_AVERAGE)
        a = dataclasses.replace(a, cols=depth, batch=groups, strides=(*a.strides[:2], depth * a.strides[1]))
        b = dataclasses.replace(b, rows=depth, batch=groups, strides=(*b.strides[:2], depth * b.strides[0]))
        return dataclasses.replace(problem, k=depth, a=a, b=b, inputs=_of_depth(spec, problem, depth))
    if not form.packed:
        return problem
    average = getattr(problem, form.axis) / groups
    # rows that threads load and 8-bit tiles cost more
    if ROOM_FROM < average <= ROOM_TO and problem.a.dtype.bits >= 16 and not indexed:
        average *= 2
    rows = min(rows_of_average(average), MOST_AVERAGE)
    kept, along = form.kept(spec, problem), "mn".index(form.axis)

    def batched(name: str, x: Operand) -> Operand:
        if name in kept:
            return x
        changed: dict[str, Any] = {("rows", "cols")[along]: rows, "batch": groups}
        return dataclasses.replace(x, strides=(*x.strides[:2], rows * x.strides[along]), **changed)

    changed: dict[str, Any] = {form.axis: rows, form.operand: batched("", getattr(problem, form.operand))}
    for name in ("inputs", "outputs"):
        changed[name] = tuple((x, batched(x, y)) for x, y in getattr(problem, name))
    return dataclasses.replace(problem, **changed)


def few_groups(spec: GemmSpec, problem: Problem, form: Form) -> Problem:
    """A problem of a packed form, as if all rows were in two groups, so that strides between weights still count."""
    count, kept = 2, form.kept(spec, problem)

    def of_few(name: str, x: Operand) -> Operand:
        return dataclasses.replace(x, batch=count) if name in kept else x

    a, b = of_few("a", problem.a), of_few("b", problem.b)
    inputs = tuple((name, of_few(name, x)) for name, x in problem.inputs)
    return dataclasses.replace(problem, batch=count, a=a, b=b, inputs=inputs)


def _of_depth(spec: GemmSpec, problem: Problem, depth: int) -> tuple[tuple[str, Operand], ...]:
    """The inputs of a problem of another K: block scales have as many blocks of it."""
    scales = spec.epilogue.scales if isinstance(spec.epilogue, Graph) else ()
    changed: dict[str, Any] = {
        x.name: {"cols" if x.axis == "m" else "rows": math.ceil(depth / K_BLOCK)} for x in scales
    }
    return tuple((name, dataclasses.replace(x, **changed.get(name, {}))) for name, x in problem.inputs)


def rows_of_average(average: float) -> int:
    """Rows of a tile's worth of a group: of sizes that scatter as those of random routing do, nearly all.

    The next of a series that grows by a quarter to a half, later by doubling.
    """
    return _bucket(math.ceil(average + SPREAD * math.sqrt(average)))


def _bucket(value: int) -> int:
    """The number of the series that is not less than a value."""
    whole = 1 << max(value - 1, 0).bit_length()
    parts = 1 if whole <= 16 or whole > FINE else 2 if whole <= 64 else 4
    found: int = round_up(value, max(whole // 2 // parts, 1))
    return found


def usual_rows(average: float) -> float:
    """The average rows of groups of one bucket (`rows_of_average`): a power of two, as most tokens and groups are.

    Where none is among them, their middle. 0 says that all groups have as many rows as the average problem: with few
    rows a group's second tile reads its weights again, which takes longer than the cost model counts.
    """
    if average <= 0 or 1 <= average < FEW_ROWS:
        return 0.0
    power = float(2.0 ** math.floor(math.log2(average)))
    last = rows_of_average(average)
    if average < 1 or rows_of_average(power) == last:
        return power
    if rows_of_average(2 * power) == last:
        return 2 * power
    first = last // 2 if last > FINE else next((x for x in range(last - 1, 0, -1) if _bucket(x) == x), 0)
    # of an average a with a + SPREAD * sqrt(a) rows
    return (math.sqrt(SPREAD**2 / 4 + (first + last) / 2) - SPREAD / 2) ** 2


def without_tensor_cores() -> PlanError:
    """The error of groups on CUDA cores."""
    return field_error(PlanError, "schedule", "simt", "groups are multiplied by tensor cores", AUTO)


def copied(name: str) -> PlanError:
    """The error of an operand that would be copied before the launch; `name` is that of its load."""
    return field_error(PlanError, name, "relayout", "groups are not copied before their launch", AUTO)


def check_fixed(spec: GemmSpec, form: Form) -> None:
    """Refuse fields that no kernel of groups has."""
    if spec.schedule == "simt":
        raise without_tensor_cores()
    whole = "groups take persistent kernels without splits"
    if (spec.depth or 1) > 1:
        raise field_error(PlanError, "cluster", spec.cluster, whole, spec.plane)
    for name in ("a_load", "b_load"):
        if getattr(spec, name) == "relayout":
            raise copied(name)
    if spec.arithmetic == TF32X3:
        rule = "a copy before cuts elements into parts, and groups are not copied before their launch"
        raise field_error(PlanError, "math", spec.math, rule, TF32)
    early = "where operands are loaded is known when earlier launches have written the groups' ends"
    fixed = [("split_k", 1, whole), ("constant", AUTO, early)]
    if spec.scheduler != "dynamic":
        fixed.append(("scheduler", "persistent", whole))
    if not form.deep:
        fixed.append(("input_stages", 1, "threads read what the epilogue of groups of rows reads"))
    for name, legal, rule in fixed:
        if getattr(spec, name) not in (AUTO, legal):
            raise field_error(PlanError, name, getattr(spec, name), rule, legal)
