# SPDX-License-Identifier: Apache-2.0
"""Launches and operators are never compiled by torch.compile, also where it leaves their caller to Python."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cutegemm  # noqa: E402
import cutegemm.ops  # noqa: E402  (registers the operators)
from cutegemm.ops import register, shortcuts  # noqa: E402
from cutegemm.ops.products import made  # noqa: E402
from cutegemm.running.backends.uncompiled import uncompiled  # noqa: E402


def compiled_graphs(function, *args):
    """Graphs that are compiled for a caller that has to be left to Python, and its result."""
    graphs = []

    def caller(*args):
        try:
            with torch.no_grad():
                torch._dynamo.graph_break()
            return function(*args)
        finally:
            pass

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return graphs, torch.compile(caller, backend=backend)(*args)


def test_a_function_and_what_it_calls_are_left_to_python():
    """Without the mark each would be compiled by itself."""

    def inner(x):
        return x * 3

    @uncompiled
    def marked(x):
        return inner(x) + 1

    def unmarked(x):
        return inner(x) + 1

    for function, compiles in ((marked, False), (unmarked, True)):
        graphs, found = compiled_graphs(function, torch.ones(2))
        assert torch.equal(found, torch.full((2,), 4.0))
        assert bool(graphs) == compiles


class Calls(TorchDispatchMode):
    """Notes each call of an operator of ours."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "cutegemm":
            self.made.append((op, args))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ("gemm", "grouped_mm", "quantize", "sum_rows"))
def test_nothing_behind_an_operator_is_compiled(name):
    """Neither the planner nor what stands in for a kernel, if Python calls the operator itself."""
    x = torch.randn(8, 8).bfloat16()
    ends = torch.tensor([3, 8], dtype=torch.int32)
    with Calls() as calls:
        if name == "gemm":
            cutegemm.matmul(x, x, fallback="reference")
        elif name == "grouped_mm":
            cutegemm.grouped_mm(x, x.expand(2, 8, 8), ends, fallback="reference")
        elif name == "sum_rows":
            torch.ops.cutegemm.sum_rows(x, ends[None] - 1)
        else:
            torch.ops.cutegemm.quantize(x, "row", torch.float8_e4m3fn, None, False, False)
    ((op, args),) = calls.made
    graphs, found = compiled_graphs(op, *args)
    assert not graphs
    for y, z in zip(pytree.tree_leaves(found), pytree.tree_leaves(op(*args)), strict=True):
        assert torch.equal(y.float(), z.float())


@pytest.mark.parametrize("name", ("autograd", "device"))
def test_an_implementation_is_not_compiled(name, monkeypatch):
    """Nor what it calls before and after `serve`: of autograd's, and of a device's in inference mode."""
    module, inner = (register.tangents, "refuse") if name == "autograd" else (shortcuts, "kind_of")
    original, count = getattr(module, inner), []

    def computing(x):
        count.append(torch.ones(2) + 1)
        return original(x)

    monkeypatch.setattr(module, inner, computing)
    # a graph that no other test has, so that it has no shortcut
    graph = cutegemm.epilogue.define(lambda acc: acc * 0.34375)
    text = made(graph, None, "matrix", (), None).text
    with torch.inference_mode(name == "device"):
        x = torch.randn(8, 8)
        graphs, _ = compiled_graphs(torch.ops.cutegemm.gemm.default, x, x, [], [], [], text)
    assert count and not graphs
