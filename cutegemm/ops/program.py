# SPDX-License-Identifier: Apache-2.0
"""A `Program`: everything about a call of the op that is no tensor and no number, and its form as text. No torch.

The text is JSON with single quotes, of the spec's given fields and the epilogue's graph. It travels through compilers,
exported programs and caches of other processes as an argument of the op, which finds its `Gemm` by it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cutegemm.epilogue.graph import Graph, Result, linear_combination
from cutegemm.epilogue.library import bias
from cutegemm.errors import InputError, SpecError, field_error
from cutegemm.gemm import Gemm, representative
from cutegemm.running.arguments.call import Memo
from cutegemm.running.arguments.named import integer, number
from cutegemm.spec import GemmSpec

# How a call's operands are meant, see `Program.form`.
FORMS = ("matrix", "linear", "input", "weight")
PLAIN, PLAIN_WITH_C, BIASED = linear_combination(False), linear_combination(True), bias()


@dataclass(frozen=True, eq=False)
class Program:
    """What one kind of product is. Programs are told apart by identity, which is quick; `kept` makes equal ones one.

    Attributes:
        spec: without an epilogue.
        graph: the epilogue.
        form: how operands are meant. "matrix": A (M, K) or (L, M, K), B (K, N) or (L, K, N), as `Gemm.run` takes them.
            The others fold leading dimensions into rows: "linear" is x (..., K) by a weight (N, K), transposed, as
            torch.nn.functional.linear has it; "input" is (..., N) by that weight, its gradient of x; "weight" is
            (..., N) transposed by (..., K), its gradient of the weight, (N, K).
        scalars: the graph's scalars that are passed as 0-d tensors.
        backend: as of `Gemm.run`; None is the GPU where there is a Hopper GPU, else the reference.
        final: whether it is part of a gradient, which has none of its own.
        merged: two stores, as wide as each other, that lie side by side in one tensor: they are one output, which is
            named and placed as the first.
    """

    spec: GemmSpec
    graph: Graph
    form: str = "matrix"
    scalars: tuple[str, ...] = ()
    backend: str | None = None
    final: bool = False
    merged: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise field_error(InputError, "form", self.form, f"must be one of {', '.join(FORMS)}")
        for x in self.graph.reductions:
            if x.partial:
                rule = "partial results lie as the tiles have them: only Gemm.run gives them"
                raise field_error(SpecError, f"{x.name}.partial", True, rule, False)

    @cached_property
    def text(self) -> str:
        """This program as text; `decode` reads it."""
        data = {
            "spec": self.spec.to_data(),
            "epilogue": self.graph.to_data(),
            "form": self.form,
            "scalars": list(self.scalars),
            "backend": self.backend,
            "final": self.final,
            "merged": list(self.merged),
        }
        # names are identifiers; Inductor writes text into C++ (`cpp_wrapper`) without escaping double quotes
        return json.dumps(data, separators=(",", ":")).replace('"', "'")

    @cached_property
    def gemm(self) -> Gemm:
        """The kernels; planned now, compiled when a call needs them."""
        spec = self.spec if self.plain else dataclasses.replace(self.spec, epilogue=self.graph)
        return Gemm(spec, representative(spec))

    @cached_property
    def plans(self) -> dict[Any, Any]:
        """Plans of its gradient, by what needs one; kept by `autograd`."""
        return {}

    @cached_property
    def plain(self) -> bool:
        """Whether D is alpha * A B, or that and beta * C, by numbers."""
        return self.graph in (PLAIN, PLAIN_WITH_C) and not self.scalars

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a call gives, in their order."""
        return tuple(x.name for x in self.results)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """What a call gives: the graph's outputs, but for those that lie in another one's tensor."""
        return tuple(x for x in self.graph.outputs if x.name not in self.merged[1:])

    @cached_property
    def alone(self) -> bool:
        """Whether a call gives D and nothing else."""
        return self.outputs == ("d",)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that the epilogue reads, in their order."""
        return (*self.graph.tensors, *self.scalars)

    @cached_property
    def along_columns(self) -> bool:
        """Whether the tensors that the epilogue reads are rows, which have no dimension of x."""
        return set(self.graph.tensors.values()) <= {"row"}

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """The names of the scalars passed by value."""
        return tuple(
            name for name, kind in self.graph.numbers.items() if kind == "scalar" and name not in self.scalars
        )

    @cached_property
    def integers(self) -> tuple[str, ...]:
        """The names of the integers."""
        return tuple(name for name, kind in self.graph.numbers.items() if kind == "integer")

    def named(self, numbers: Any, integers: Any) -> dict[str, Any]:
        """The numbers of a call by name."""
        return dict(zip(self.numbers, numbers, strict=True)) | dict(zip(self.integers, integers, strict=True))

    def derived(self, graph: Graph, form: str | None = None, merged: tuple[str, ...] = ()) -> Program:
        """A program that this one's gradient needs: another graph, on the same backend."""
        scalars = tuple(x for x in graph.numbers if x in self.scalars)
        return kept(Program(GemmSpec(), graph, form or self.form, scalars, self.backend, True, merged))


def check_number(name: str, kind: str, value: Any) -> float | int:
    """A number that the epilogue reads.

    Raises:
        InputError: it is none.
    """
    return integer(name, value) if kind == "integer" else number(name, value)


_programs: Memo[Program] = Memo()


def kept(program: Program) -> Program:
    """The program of the same text that is known, with what is built for it; this one where there is none."""
    known = _programs.get(program.text)
    if known is None:
        _programs.put(program.text, program)
        return program
    return known


def decode(text: str) -> Program:
    """The program that a text is of.

    Raises:
        SpecError: it is no text of a program.
    """
    known = _programs.get(text)
    if known is not None:
        return known
    try:
        data = json.loads(text.replace("'", '"'))
        spec, graph = GemmSpec.from_data(data["spec"]), Graph.from_data(data["epilogue"])
        scalars, merged = tuple(data["scalars"]), tuple(data["merged"])
        program = Program(spec, graph, data["form"], scalars, data["backend"], data["final"], merged)
    except (ValueError, KeyError, TypeError) as error:
        rule = f"must be the text of a product, as cutegemm.ops.program writes it ({error})"
        raise field_error(SpecError, "program", text, rule) from error
    _programs.put(text, program)
    return program


__all__ = ["BIASED", "FORMS", "PLAIN", "PLAIN_WITH_C", "Program", "check_number", "decode", "kept"]
