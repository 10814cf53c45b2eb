# SPDX-License-Identifier: Apache-2.0
"""Launches are never compiled by torch.compile, also where it leaves their caller to Python."""

import pytest

torch = pytest.importorskip("torch")

from cutegemm.running.backends.uncompiled import uncompiled  # noqa: E402


def compiled_graphs(function):
    """Graphs that are compiled for a caller that has to be left to Python."""
    graphs = []

    def caller(x):
        try:
            with torch.no_grad():
                torch._dynamo.graph_break()
            return function(x)
        finally:
            pass

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    assert torch.equal(torch.compile(caller, backend=backend)(torch.ones(2)), torch.full((2,), 4.0))
    return graphs


def test_a_function_and_what_it_calls_are_left_to_python():
    """Without the mark each would be compiled by itself."""

    def inner(x):
        return x * 3

    @uncompiled
    def marked(x):
        return inner(x) + 1

    def unmarked(x):
        return inner(x) + 1

    assert len(compiled_graphs(marked)) == 0
    assert len(compiled_graphs(unmarked)) > 0
