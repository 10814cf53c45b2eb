# SPDX-License-Identifier: Apache-2.0
"""`Program`: all of an op call except tensors and numbers, and its text form. Imports no torch.

The text is JSON with single quotes: the spec's specified fields and the epilogue's graph. It is an argument of the op,
also in compiled and exported programs and in caches of other processes; the op looks up its `Gemm` by it.
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

# Legal values of `Program.form`.
FORMS = ("matrix", "linear", "input", "weight")
PLAIN, PLAIN_WITH_C, BIASED = linear_combination(False), linear_combination(True), bias()


@dataclass(frozen=True, eq=False)
class Program:
    """One kind of GEMM. Programs are compared by identity, which is fast; `kept` makes equal programs identical.

    Attributes:
        spec: without an epilogue.
        graph: the epilogue.
        form: shapes of the operands. "matrix": A (M, K) or (L, M, K), B (K, N) or (L, K, N), as for `Gemm.run`.
            The others fold leading dimensions into rows. "linear" is x (..., K) by a transposed weight (N, K), as in
            torch.nn.functional.linear; "input" is (..., N) by that weight, the gradient of x; "weight" is
            (..., N) transposed by (..., K), the gradient of the weight, (N, K).
        scalars: the graph's scalars that are passed as 0-d tensors.
        backend: as for `Gemm.run`; None is the GPU for CUDA tensors, else the reference.
        final: whether it is part of a gradient and so cannot be differentiated.
        merged: two stores of equal width that are side by side in one tensor; this is one output, with the name and
            position of the first.
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
                rule = "the layout of partial results depends on the tile: only Gemm.run returns them"
                raise field_error(SpecError, f"{x.name}.partial", True, rule, False)
        # a traced backward pass reads these, and Python 3.11 computes a cached property under a lock
        _ = self.alone, self.inputs, self.numbers, self.integers

    @cached_property
    def text(self) -> str:
        """This program as text, for `decode`."""
        data = {
            "spec": self.spec.to_data(),
            "epilogue": self.graph.to_data(),
            "form": self.form,
            "scalars": list(self.scalars),
            "backend": self.backend,
            "final": self.final,
            "merged": list(self.merged),
        }
        # single quotes, because Inductor's `cpp_wrapper` does not escape double ones in C++; names are identifiers
        return json.dumps(data, separators=(",", ":")).replace('"', "'")

    @cached_property
    def gemm(self) -> Gemm:
        """The kernels; planned here, compiled when a call needs them."""
        spec = self.spec if self.plain else dataclasses.replace(self.spec, epilogue=self.graph)
        return Gemm(spec, representative(spec))

    @cached_property
    def plans(self) -> dict[Any, Any]:
        """Cache of gradient plans by the arguments that need gradients; `autograd` fills it."""
        return {}

    @cached_property
    def plain(self) -> bool:
        """Whether D is alpha * A B, or alpha * A B + beta * C, with numbers as factors."""
        return self.graph in (PLAIN, PLAIN_WITH_C) and not self.scalars

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of a call's outputs, in order."""
        return tuple(x.name for x in self.results)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """A call's outputs: the graph's outputs, except those merged into another one's tensor."""
        return tuple(x for x in self.graph.outputs if x.name not in self.merged[1:])

    @cached_property
    def alone(self) -> bool:
        """Whether D is the only output."""
        return self.outputs == ("d",)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the epilogue's tensor inputs, in order."""
        return (*self.graph.tensors, *self.scalars)

    @cached_property
    def along_columns(self) -> bool:
        """Whether all tensor inputs of the epilogue are rows, which have no dimension of x."""
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

    @cached_property
    def short(self) -> bool:
        """Whether calls may have shortcuts, which pass a launch at most one number, alpha, and allocate all outputs."""
        if self.integers or self.scalars or self.merged:
            return False
        return not self.numbers or (self.plain and len(self.numbers) == 1)

    def named(self, numbers: Any, integers: Any) -> dict[str, Any]:
        """The numbers of a call by name."""
        return dict(zip(self.numbers, numbers, strict=True)) | dict(zip(self.integers, integers, strict=True))

    def derived(self, graph: Graph, form: str | None = None, merged: tuple[str, ...] = ()) -> Program:
        """A program for this one's gradient: another graph, on the same backend."""
        scalars = tuple(x for x in graph.numbers if x in self.scalars)
        return kept(Program(GemmSpec(), graph, form or self.form, scalars, self.backend, True, merged))


def check_number(name: str, kind: str, value: Any) -> float | int:
    """Check a number that the epilogue reads.

    Raises:
        InputError: it is not a number.
    """
    return integer(name, value) if kind == "integer" else number(name, value)


_programs: Memo[Program] = Memo()


def kept(program: Program) -> Program:
    """The cached program with the same text, which may have kernels; adds this one if there is none."""
    known = _programs.get(program.text)
    if known is None:
        _programs.put(program.text, program)
        return program
    return known


def decode(text: str) -> Program:
    """The program of a text.

    Raises:
        SpecError: it is not the text of a program.
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
