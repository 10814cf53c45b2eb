# SPDX-License-Identifier: Apache-2.0
"""The forms of groups: where they lie in A, B and D, and which epilogues their kernels support."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import BLOCKS, K_BLOCK, ROW
from cutegemm.errors import InputError, field_error
from cutegemm.problems import Operand, Problem
from cutegemm.spec import GemmSpec


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
        return not (self.deep and name in ("a", "b"))

    def kept(self, spec: GemmSpec, problem: Problem) -> set[str]:
        """The operands, inputs and outputs that the average problem has as they are."""
        if self.packed:
            kinds = spec.epilogue.tensors if isinstance(spec.epilogue, Graph) else {}
            return {self.weights, *(name for name, kind in kinds.items() if kind in self.own)}
        others = {name for name, _ in (*problem.inputs, *problem.outputs)}
        return others if self.deep else {"a", "b", *others}


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
        raise field_error(InputError, "epilogue", graph.gated, f"groups {along} have no gated pairs", None)
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
        if form == "depth":
            rule = "groups along K may start inside a block of K, so block scales are not supported"
            raise field_error(InputError, x.name, kind, rule, ROW)
        if packed is not None and packed.axis == x.axis and x.extent > 1:
            what = "rows" if x.axis == "m" else "columns"
            raise field_error(InputError, x.name, kind, f"groups may start in blocks of {what}", BLOCKS[0])


__all__ = ["FORMS", "PACKED", "Form", "all_groups", "check_form"]
