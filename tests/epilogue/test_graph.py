# SPDX-License-Identifier: Apache-2.0
"""The epilogue graph: what it refuses, what it computes, and that it travels as data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.epilogue import Graph, Node, linear_combination
from cutegemm.errors import SpecError

ARITHMETIC = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}


def evaluate(graph, acc, **named):
    """The graph's d for numbers."""

    def leaf(node):
        return acc if node.op == "acc" else node.value if node.op == "const" else named[node.value]

    return graph.evaluate(leaf, ARITHMETIC)["d"]


@st.composite
def graphs(draw):
    """Graphs of a few leaves and operations on earlier nodes."""
    leaves = [Node("acc"), Node("matrix", value="c"), Node("scalar", value="alpha"), Node("const", value=2.0)]
    nodes = draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=4))
    for _ in range(draw(st.integers(0, 5))):
        earlier = st.integers(0, len(nodes) - 1)
        nodes.append(Node(draw(st.sampled_from(sorted(ARITHMETIC))), (draw(earlier), draw(earlier))))
    return Graph(tuple(nodes), (("d", draw(st.integers(0, len(nodes) - 1))),))


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9))
def test_the_blas_epilogue(alpha, beta, acc, c):
    """alpha * acc + beta * c with C, alpha * acc without; without C there is no leaf that reads it."""
    with_c, without = linear_combination(True), linear_combination(False)
    assert evaluate(with_c, acc, alpha=alpha, beta=beta, c=c) == alpha * acc + beta * c
    assert evaluate(without, acc, alpha=alpha) == alpha * acc
    assert with_c.names("matrix") == ("c",) and without.names("matrix") == ()
    assert with_c.names("scalar") == ("alpha", "beta") and without.names("scalar") == ("alpha",)


@given(graphs())
def test_graphs_survive_json(graph):
    """A graph comes back from JSON equal, with an equal hash, meaning the same."""
    again = Graph.from_data(json.loads(json.dumps(graph.to_data())))
    assert again == graph and hash(again) == hash(graph)
    assert evaluate(again, 3.0, c=5.0, alpha=7.0) == evaluate(graph, 3.0, c=5.0, alpha=7.0)


@given(graphs(), st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5))
def test_the_text_of_a_graph_is_its_formula(graph, acc, c, alpha):
    """The printed formula, read as Python, has the graph's value."""
    text = str(graph)
    assert text.startswith("d = ")
    assert eval(text[4:], {"acc": acc, "c": c, "alpha": alpha}) == evaluate(graph, acc, c=c, alpha=alpha)


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ((Node("relu", (0,)),), (("d", 0),), "epilogue='relu': unknown operation at node 0"),
        ((Node("acc"), Node("add", (0,))), (("d", 1),), "epilogue=(0,): node 1 (add) takes 2 earlier nodes"),
        ((Node("acc"), Node("mul", (0, 1))), (("d", 1),), "epilogue=(0, 1): node 1 (mul) takes 2 earlier nodes"),
        ((Node("acc"), Node("sub", (0, -1))), (("d", 1),), "epilogue=(0, -1): node 1 (sub) takes 2 earlier nodes"),
        ((Node("acc", (0,)),), (("d", 0),), "epilogue=(0,): node 0 (acc) takes 0 earlier nodes"),
        ((Node("acc"),), (), "epilogue=(): must have exactly the output d"),
        ((Node("acc"),), (("e", 0),), "epilogue=(('e', 0),): must have exactly the output d"),
        ((Node("acc"),), (("d", 1),), "epilogue=(('d', 1),): the output must be one of the 1 nodes"),
    ],
)
def test_malformed_graphs_are_refused(nodes, outputs, message):
    """Unknown operations, operands that are not earlier nodes, and missing outputs are refused when made."""
    with pytest.raises(SpecError) as e:
        Graph(nodes, outputs)
    assert str(e.value) == message
