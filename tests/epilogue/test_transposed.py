# SPDX-License-Identifier: Apache-2.0
"""`Graph.transposed`: the same epilogue on the transposed product."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph, Node, Result
from cutegemm.errors import SpecError
from cutegemm.running.numerics import reference
from tests.support.epilogues import graphs, random_inputs

LIBRARY = {name: getattr(epi, name)() for name in sorted({*epi.library.__all__} - {"linear_combination"})} | {
    "linear_combination": epi.linear_combination(True),
    "swiglu interleaved": epi.swiglu("interleaved"),
    "scaled row": epi.scaled("row"),
}


@epi.define
def everything(acc, *, r: epi.Row, c: epi.Col, x: epi.Matrix, seed: epi.Integer, offset: epi.Integer):
    """Everything that has a direction."""
    h = epi.dropout(acc + r, 0.5, seed, offset) * c
    return epi.Output(
        d=epi.Store(h + x, major="m"),
        rows=epi.Sum(h, 0),
        columns=epi.Max(h, 1, partial=True),
        all=epi.LogSumExp(h),
    )


def assert_transposed(graph, batch=()):
    """On integers, whose products are exact in any order: stored outputs are the transposes to fp64's last bits."""
    generator = torch.Generator().manual_seed(1)
    m, n = 5, 8
    a, b = (
        torch.randint(-3, 4, (*batch, *shape), generator=generator).double() for shape in ((m, 3), (3, n))
    )
    inputs = random_inputs(graph, (*batch, m, n // 2 if graph.gated else n), generator)
    swapped_inputs = {name: x.mT if graph.tensors.get(name) == "matrix" else x for name, x in inputs.items()}
    expected = reference.evaluate(graph, a, b, inputs, torch.float64)
    got = reference.evaluate(graph.transposed(), b.mT, a.mT, swapped_inputs, torch.float64)
    for x in graph.outputs:
        if x.kind == "store":
            # torch's vectorised functions and those of strided tensors differ in the last bit
            torch.testing.assert_close(
                got[x.name].mT, expected[x.name], rtol=1e-14, atol=1e-300, equal_nan=True
            )
        else:
            torch.testing.assert_close(got[x.name], expected[x.name], equal_nan=True)


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_library_transposed_gives_the_transposes(name, batch):
    """Every ready epilogue on B^T A^T gives the transposes of what it gives on A B."""
    assert_transposed(LIBRARY[name], batch)


@given(graphs(gated="any", forms=True), st.sampled_from([(), (2,)]))
def test_drawn_graphs_transposed_give_the_transposes(graph, batch):
    """As the library does, dropped and random elements included."""
    assert_transposed(graph, batch)


@given(graphs(gated="any", forms=True))
def test_transposing_twice_is_the_identity(graph):
    """And the transpose keeps the names of inputs and outputs, in their order."""
    transposed = graph.transposed()
    assert transposed.transposed() == graph
    assert list(transposed.tensors) == list(graph.tensors) and transposed.numbers == graph.numbers
    assert [x.name for x in transposed.outputs] == [x.name for x in graph.outputs]
    assert Graph.from_data(transposed.to_data()) == transposed


def test_everything_that_has_a_direction_is_exchanged():
    """Kinds of inputs, axes, majors and the mark; matrices and numbers stay."""
    transposed = everything.transposed()
    assert transposed.tensors == {"r": "col", "c": "row", "x": "matrix"} and transposed.swapped
    assert [(x.major, x.axis) for x in transposed.outputs] == [
        ("n", None),
        (None, 1),
        (None, 0),
        (None, None),
    ]
    assert str(transposed).startswith("# of the transposed product\n")


def test_a_graph_without_gates_and_random_numbers_is_not_marked():
    """So that its kernel serves both products, and a written transpose equals it."""

    @epi.define
    def per_column(acc, *, bias: epi.Col):
        return acc + bias

    assert epi.bias().transposed() == per_column and not per_column.swapped
    assert epi.linear_combination(True).transposed() == epi.linear_combination(True)
    with pytest.raises(SpecError) as e:
        Graph((Node("acc"),), (Result("d", 0),), swapped=True)
    assert str(e.value) == (
        "swapped=True: must be a truth value, and False where the graph has no gated pair and no random; "
        "nearest legal value: False"
    )


def test_gated_pairs_lie_along_the_other_axis():
    """Which a kernel can tell; a graph that is not gated has none."""
    graph = epi.swiglu()
    assert (graph.gated_axis, graph.transposed().gated_axis, epi.bias().gated_axis) == ("n", "m", None)
    assert graph.transposed().gated == graph.gated


@given(graphs(reductions=False, most_outputs=1))
def test_the_gradient_of_the_transpose_is_the_transpose_of_the_gradient(graph):
    """For every drawn graph with a stored output."""
    assert epi.backward(graph.transposed()) == epi.backward(graph).transposed()


def test_a_transposed_graph_is_another_one():
    """Dropout with rows and columns exchanged is not the dropout of the same graph: kernels must tell them apart."""
    transposed = everything.transposed()
    assert dataclasses.replace(transposed, swapped=False) != transposed
