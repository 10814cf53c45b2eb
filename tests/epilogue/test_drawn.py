# SPDX-License-Identifier: Apache-2.0
"""The drawn graphs of the support package: enough of everything, and the same on every machine."""

from collections import Counter

from cutegemm.epilogue.graph import GATED, LEAVES, OPERATIONS, REDUCTIONS
from tests.support.epilogues import seeded_graph


def test_a_hundred_and_fifty_seeds_hold_every_form():
    """Every operation, leaf, kind of output and gated layout occurs, a choice between constants cast too."""
    graphs = [seeded_graph(seed) for seed in range(150)]
    nodes = Counter(x.op for graph in graphs for x in graph.nodes)
    assert not {*OPERATIONS, *LEAVES} - set(nodes)
    assert {graph.gated for graph in graphs} == set(GATED)
    outputs = [x for graph in graphs for x in graph.outputs]
    assert {(x.kind, x.axis, x.partial) for x in outputs if x.kind != "store"} == {
        (kind, axis, partial) for kind in REDUCTIONS for axis in (None, 0, 1) for partial in (False, True)
    }
    assert {x.major for x in outputs} == {None, "n", "m"}
    assert any(_casts_a_choice(graph) for graph in graphs)


def _casts_a_choice(graph) -> bool:
    """Whether a cast takes one of two constants."""
    taken = [graph.nodes[x.args[0]] for x in graph.nodes if x.op == "cast"]
    return any(x.op == "where" and all(graph.nodes[a].op == "const" for a in x.args[1:]) for x in taken)


def test_a_seed_is_a_graph():
    """Drawn again it is the same one; another seed's is another."""
    drawn = seeded_graph.__wrapped__(7)
    assert drawn == seeded_graph(7) and drawn is not seeded_graph(7)
    assert len({seeded_graph(seed) for seed in range(150)}) > 140
