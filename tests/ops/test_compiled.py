# SPDX-License-Identifier: Apache-2.0
"""Inductor's code: calls of ops by name, their results and gradients, and who else sees them."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cutegemm
from cutegemm.ops import compiled
from cutegemm.ops.groups import row_sum

BF16 = torch.bfloat16
OPS = torch.ops.cutegemm


def operands():
    """x, a weight, a bias, weights of groups, and their ends."""
    torch.manual_seed(1)
    shapes = (32, 64), (96, 64), (96,), (3, 64, 16)
    return *(torch.randn(x, dtype=BF16) for x in shapes), torch.tensor([5, 5, 32], dtype=torch.int32)


def everything(x, weight, bias, experts, ends):
    """One call of each op that returns new tensors."""
    y = cutegemm.linear(x, weight, bias, fallback="reference")
    groups = cutegemm.grouped_mm(x, experts, ends, fallback="reference")
    summed = row_sum.row_sum(groups, torch.arange(32).reshape(16, 2))
    values, scales = cutegemm.quantize(x, "row")
    return y, groups, summed, values.float(), scales


class Seen(TorchDispatchMode):
    """Names of the ops that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


def test_generated_code_calls_the_functions():
    """By their names, with the results of the ops."""
    from torch._inductor.utils import run_and_get_code

    given = operands()
    expected = everything(*given)
    found, code = run_and_get_code(torch.compile(everything, fullgraph=True), *given)
    text = "\n".join(code)
    for name in ("gemm", "grouped_mm", "sum_rows", "quantize"):
        assert f"torch.ops.cutegemm.compiled_{name}(" in text and f"cutegemm.{name}.default(" not in text
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


def test_a_dispatch_mode_sees_the_op():
    """As if generated code had called it."""
    x, index = torch.randn(8, 4), torch.arange(8).reshape(4, 2)
    with Seen() as seen:
        found = OPS.compiled_sum_rows(x, index)
    assert seen.names == {"cutegemm::sum_rows"} and torch.equal(found, OPS.sum_rows(x, index))


def test_the_profiler_sees_the_op():
    """By its name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        OPS.compiled_sum_rows(torch.randn(8, 4), torch.arange(8).reshape(4, 2))
    assert "cutegemm::sum_rows" in {event.name for event in profile.events()}


def test_a_compiled_step_has_the_gradients_of_an_eager_one():
    """Both backward GEMMs and the bias' sum."""
    x, weight, bias, *_ = operands()
    found = []

    def layer(x, weight, bias):
        return cutegemm.linear(x, weight, bias, fallback="reference").square()

    for call in (torch.compile(layer, fullgraph=True), layer):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        call(*leaves).sum().backward()
        found.append([t.grad for t in leaves])
    for mine, eager in zip(*found, strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("cpp", [False, True])
def test_python_names_stand_in_generated_python_alone(monkeypatch, cpp):
    """The last kernel of the op gets the name; in C++ it keeps its own."""
    op = OPS.gemm.default
    old, new = (SimpleNamespace(op_overload=op, python_kernel_name="op") for _ in range(2))
    graph = SimpleNamespace(cpp_wrapper=cpp, operations=[old, new, SimpleNamespace()])
    taken = {}
    lowering = SimpleNamespace(
        V=SimpleNamespace(graph=graph),
        fallback_handler=lambda op, add_to_fallback_set: lambda *args: "found",
        register_lowering=lambda op, type_promotion_kind: lambda f: taken.setdefault(op, f),
    )
    monkeypatch.setitem(compiled.sys.modules, compiled._LOWERING, lowering)
    compiled._lower(op)
    assert taken[op](1, 2) == "found"
    assert (old.python_kernel_name, new.python_kernel_name) == (
        "op",
        "op" if cpp else "torch.ops.cutegemm.compiled_gemm",
    )


def test_another_interface_of_torch_leaves_ops_as_they_are(monkeypatch):
    """Tracing does not fail where a lowering cannot be registered."""
    monkeypatch.setitem(compiled.sys.modules, compiled._LOWERING, SimpleNamespace())
    monkeypatch.setattr(compiled, "_lowered", set())
    x, weight, *_ = (t.to("meta") for t in operands())
    assert cutegemm.linear(x, weight, fallback="reference").shape == (32, 96)
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(32, 64, dtype=BF16), torch.empty(96, 64, dtype=BF16)
        assert cutegemm.linear(*fake, fallback="reference").shape == (32, 96)
    assert compiled._lowered
