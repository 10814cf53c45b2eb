# SPDX-License-Identifier: Apache-2.0
"""A graph's text is Python of the epilogue language: traced again, or computed with numbers, it is the graph."""

import math

import pytest
from hypothesis import given

from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph, Node, Result
from cutegemm.epilogue.graph import ACCUMULATORS
from cutegemm.epilogue.value import Trace, apply
from cutegemm.errors import SpecError
from tests.support.epilogues import graphs

LANGUAGE = {
    **{name: getattr(epi, name) for name in epi.functions.__all__},
    **{name: getattr(epi, name) for name in ("Store", "Sum", "Max", "LogSumExp")},
    "inf": math.inf,
}


def trace_again(graph, text):
    """The graph that a text describes, with the inputs of a graph."""
    trace = Trace()
    names = {x or "acc": trace.record("acc", value=x) for x in (ACCUMULATORS if graph.gated else (None,))}
    names |= {x: trace.record(kind, value=x) for x, kind in {**graph.tensors, **graph.numbers}.items()}
    exec(text, dict(LANGUAGE), names)
    outputs = {x.name: names[x.name] for x in graph.outputs}
    outputs = {name: epi.Store(x) if isinstance(x, epi.Value) else x for name, x in outputs.items()}
    return trace.graph([x.result(name) for name, x in outputs.items()], graph.gated)


@given(graphs(gated="any", forms=True))
def test_the_text_traces_to_the_same_graph(graph):
    """Parentheses, intermediate values and outputs are those of the graph, exactly."""
    assert trace_again(graph, str(graph)) == graph


@given(graphs(gated="any", reductions=False))
def test_the_text_has_the_fewest_parentheses(graph):
    """Without any one pair the text is no Python, or of another graph."""
    text = str(graph)
    for start in (i for i, x in enumerate(text) if x == "(" and not text[i - 1].isalnum()):
        depth, end = 1, start + 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        try:
            again = trace_again(graph, text[:start] + text[start + 1 : end - 1] + text[end:])
        except (SyntaxError, TypeError, SpecError):
            continue
        assert again != graph, f"no need of the parentheses at {start} of\n{text}"


def text_of(function):
    """The text of D."""
    return str(epi.define(lambda acc: function(acc)))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x, "d = acc"),
        (lambda x: x + 1 - x * 2 / x, "d = acc + 1.0 - acc * 2.0 / acc"),
        (lambda x: x - (x + 1), "d = acc - (acc + 1.0)"),
        (lambda x: x / (x * 2), "d = acc / (acc * 2.0)"),
        (lambda x: (x + 1) * 2, "d = (acc + 1.0) * 2.0"),
        (lambda x: -(x + 1), "d = -(acc + 1.0)"),
        (lambda x: -x * -2, "d = -acc * -2.0"),
        (lambda x: abs(x), "d = abs(acc)"),
        (lambda x: epi.cast(x, "fp8"), "d = cast(acc, 'fp8_e4m3')"),
        (lambda x: epi.where((x < 1) & ~(x == 0), x, 0), "d = where((acc < 1.0) & ~(acc == 0.0), acc, 0.0)"),
        (lambda x: epi.exp(x) * epi.exp(x), "t0 = exp(acc)\nd = t0 * t0"),
        (lambda x: epi.max(x, -math.inf), "d = max(acc, -inf)"),
    ],
)
def test_formulas(function, text):
    """As a person would write them; what is used twice has a name."""
    assert text_of(function) == text


def test_outputs_and_inputs():
    """Stores with a type, reductions with their axis, gated accumulators by name."""

    @epi.define(gated="halves")
    def graph(gate, up, *, t0: epi.Row):
        h = epi.silu(gate) * up + t0
        return epi.Output(
            d=h,
            q=epi.Store(h, "fp8", "m"),
            amax=epi.AbsMax(h),
            s=epi.Sum(h, 0),
            lse=epi.LogSumExp(h, 1, True),
        )

    assert str(graph).splitlines() == [
        "t_0 = 0.5 * gate",
        "t_1 = (t_0 + t_0 * tanh(t_0)) * up + t0",
        "d = t_1",
        "q = Store(t_1, dtype='fp8_e4m3', major='m')",
        "amax = Max(abs(t_1))",
        "s = Sum(t_1, axis=0)",
        "lse = LogSumExp(t_1, axis=1, partial=True)",
    ]


def test_values_that_no_output_needs_are_not_shown():
    """A graph built by hand may hold them; they count as no use."""
    nodes = (Node("acc"), Node("exp", (0,)), Node("neg", (1,)), Node("abs", (1,)))
    assert str(Graph(nodes, (Result("d", 2),))) == "d = -exp(acc)"


def test_operations_on_constants():
    """A negated constant, as a derivative may have it."""
    trace = Trace()
    x = apply("neg", trace.constant(2.0)) + trace.record("acc")
    assert str(trace.graph([Result("d", x.index)])) == "d = -2.0 + acc"
