# SPDX-License-Identifier: Apache-2.0
"""The epilogue graph: what it refuses, what it lists, and that it travels as data."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given

from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph, Node, Result, linear_combination
from cutegemm.errors import SpecError
from tests.support.epilogues import graphs

ACC = Node("acc")
D = (Result("d", 0),)


@given(graphs(gated="any", forms=True))
def test_graphs_survive_json(graph):
    """A graph comes back from JSON equal, with an equal hash and the same text."""
    again = Graph.from_data(json.loads(json.dumps(graph.to_data())))
    assert again == graph and hash(again) == hash(graph) and str(again) == str(graph)


def test_the_blas_epilogue():
    """Without C there is no leaf that reads it."""
    with_c, without = linear_combination(True), linear_combination(False)
    assert with_c.names("matrix") == ("c",) and without.names("matrix") == ()
    assert with_c.numbers == {"alpha": "scalar", "beta": "scalar"} and without.numbers == {"alpha": "scalar"}


def test_inputs_and_outputs_by_kind():
    """Tensors and numbers with their kinds in order of first use, stores apart from reductions."""
    nodes = (
        ACC,
        Node("row", value="r"),
        Node("col", value="c"),
        Node("matrix", value="m"),
        Node("row", value="r"),
    )
    nodes += (Node("scalar", value="s"), Node("integer", value="i"), Node("const", value=1.0))
    results = (Result("x", 0, "sum"), Result("d", 1), Result("y", 0, "max", axis=1), Result("pre", 2))
    graph = Graph(nodes, results)
    assert graph.tensors == {"r": "row", "c": "col", "m": "matrix"}
    assert graph.numbers == {"s": "scalar", "i": "integer"}
    assert graph.names("col", "row") == ("r", "c")
    assert [x.name for x in graph.stores] == ["d", "pre"] and [x.name for x in graph.reductions] == ["x", "y"]


MALFORMED = {
    "unknown operation": ((Node("relu", (0,)),), D, "epilogue='relu': unknown operation at node 0"),
    "too few operands": ((ACC, Node("add", (0,))), D, "epilogue=(0,): node 1 (add) takes 2 earlier nodes"),
    "itself": ((ACC, Node("mul", (0, 1))), D, "epilogue=(0, 1): node 1 (mul) takes 2 earlier nodes"),
    "negative": ((ACC, Node("sub", (0, -1))), D, "epilogue=(0, -1): node 1 (sub) takes 2 earlier nodes"),
    "leaf with operand": ((Node("acc", (0,)),), D, "epilogue=(0,): node 0 (acc) takes 0 earlier nodes"),
    "no output": ((ACC,), (), "epilogue=(): must have an output"),
    "no such node": ((ACC,), (Result("d", 1),), "epilogue=1: output d must be one of the 1 nodes"),
    "same name": (
        (ACC,), (*D, *D), "epilogue='d': outputs must have different names, identifiers",
    ),
    "no identifier": (
        (ACC,), (Result("a b", 0),), "epilogue='a b': outputs must have different names, identifiers",
    ),
    "output named as an input": (
        (ACC, Node("row", value="r")), (Result("r", 1),), "epilogue='r': an output may not have an input's name",
    ),
    "truth value stored": (
        (ACC, Node("lt", (0, 0))), (Result("d", 1),),
        "epilogue='truth': output d must be a number; nearest legal value: 'where(value, 1, 0)'",
    ),
    "truth value reduced": (
        (ACC, Node("lt", (0, 0))), (Result("x", 1, "sum"),),
        "epilogue='truth': output x must be a number; nearest legal value: 'where(value, 1, 0)'",
    ),
    "integer stored": (
        (ACC, Node("integer", value="i")), (Result("d", 1),), "epilogue='integer': output d must be a number",
    ),
    "truth value added": (
        (ACC, Node("lt", (0, 0)), Node("add", (0, 1))), D,
        "epilogue='add': takes (number, number), not (number, truth)",
    ),
    "number negated": ((ACC, Node("not", (0,))), D, "epilogue='not': takes (truth), not (number)"),
    "random of numbers": (
        (ACC, Node("random", (0, 0))), D, "epilogue='random': takes (integer, integer), not (number, number)",
    ),
    "named accumulator": ((Node("acc", value="gate"),), D, "epilogue='gate': node 0 (acc) must be one of (None,)"),
    "NaN": (
        (ACC, Node("const", value=float("nan"))), D,
        "epilogue=nan: node 1 (const) must be a float in the range of fp32, neither NaN nor -0.0",
    ),
    "negative zero": (
        (ACC, Node("const", value=-0.0)), D,
        "epilogue=-0.0: node 1 (const) must be a float in the range of fp32, neither NaN nor -0.0",
    ),
    "too large": (
        (ACC, Node("const", value=1e39)), D,
        "epilogue=1e+39: node 1 (const) must be a float in the range of fp32, neither NaN nor -0.0",
    ),
    "cast to nothing": (
        (ACC, Node("cast", (0,), "int4")), D,
        "epilogue='int4': node 1 (cast) must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32",
    ),
    "unnamed input": ((ACC, Node("row")), D, "epilogue=None: node 1 (row) must name an input"),
    "keyword": ((ACC, Node("row", value="in")), D, "epilogue='in': node 1 (row) must name an input"),
    "operation with a value": (
        (ACC, Node("neg", (0,), "x")), D, "epilogue='x': node 1 (neg) carries no value",
    ),
    "reserved name": (
        (ACC, Node("row", value="out")), D,
        "epilogue='out': an input may not have this name; nearest legal value: 'out_'",
    ),
    "keyword of a run": (
        (ACC, Node("row", value="groups")), D,
        "epilogue='groups': an input may not have this name; nearest legal value: 'groups_'",
    ),
    "two kinds": (
        (ACC, Node("row", value="r"), Node("col", value="r")), D,
        "epilogue='r': an input is of one kind, not both row and col",
    ),
    "a parameter's name": (
        (ACC,), (Result("a", 0),),
        "epilogue='a': an output may not have the name of a parameter of a run: a, b, acc, backend, groups, out, self, "
        "workspace",
    ),
    "d reduced": (
        (ACC,), (Result("d", 0, "sum"),),
        "epilogue='d': d is the stored matrix; give the reduction another name",
    ),
    "kind": (
        (ACC,),
        (Result("d", 0, "mean"),),
        "d.kind='mean': must be one of ('store', 'sum', 'max', 'logsumexp', 'scale')",
    ),
    "dtype": (
        (ACC,), (Result("d", 0, dtype="int4"),),
        "d.dtype='int4': of a store must be one of (None, 'fp16', 'bf16', 'fp32', 'fp8_e4m3', 'fp8_e5m2', 'int8', "
        "'uint8', 'int32')",
    ),
    "reduction's dtype": (
        (ACC,), (Result("x", 0, "sum", dtype="bf16"),), "x.dtype='bf16': of a sum must be one of (None,)",
    ),
    "major": ((ACC,), (Result("d", 0, major="k"),), "d.major='k': of a store must be one of (None, 'n', 'm')"),
    "store's axis": ((ACC,), (Result("d", 0, axis=1),), "d.axis=1: of a store must be one of (None,)"),
    "axis": ((ACC,), (Result("x", 0, "max", axis=2),), "x.axis=2: of a max must be one of (None, 0, 1)"),
    "partial": ((ACC,), (Result("d", 0, partial=True),), "d.partial=True: of a store must be one of (False,)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_graphs_are_refused(case):
    """When they are made, with the field, the value and the rule."""
    nodes, outputs, message = MALFORMED[case]
    with pytest.raises(SpecError) as e:
        Graph(nodes, outputs)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("nodes", "gated", "message"),
    [
        ((ACC,), "halves", "epilogue=None: node 0 (acc) must be one of ('gate', 'up')"),
        (
            (Node("acc", value="gate"),),
            "thirds",
            "gated='thirds': must be one of (None, 'halves', 'interleaved')",
        ),
        (
            (Node("acc", value="gate"), Node("row", value="up")),
            "halves",
            "epilogue='up': an input may not have this name; nearest legal value: 'up_'",
        ),
    ],
)
def test_malformed_gated_graphs_are_refused(nodes, gated, message):
    """A gated graph's accumulators are gate and up, which no input is then."""
    with pytest.raises(SpecError) as e:
        Graph(nodes, D, gated)
    assert str(e.value) == message
    Graph((ACC, Node("row", value="up")), D)


def test_an_axis_may_be_any_integer():
    """NumPy's integers name an axis as Python's do, and the graph keeps Python's."""
    graph = epi.define(lambda acc: epi.Output(d=acc, o=epi.Sum(acc, axis=np.int64(1))))
    assert graph == epi.define(lambda acc: epi.Output(d=acc, o=epi.Sum(acc, axis=1)))
    assert type(graph.reductions[0].axis) is int


def test_a_function_may_have_more_operations_than_python_has_stack_frames():
    """Its graph is in the same order as that of a short one, and has text and gradients."""

    @epi.define
    def deep(acc, *, bias: epi.Row):
        for _ in range(sys.getrecursionlimit()):
            acc = 0.5 * (acc + bias)
        return acc

    assert deep.nodes[:5] == (
        Node("acc"), Node("row", value="bias"), Node("add", (0, 1)), Node("const", value=0.5), Node("mul", (3, 2)),
    )  # fmt: skip
    assert str(deep).count("bias") == sys.getrecursionlimit() and epi.backward(deep).outputs
