# SPDX-License-Identifier: Apache-2.0
"""Gradient epilogues against torch's autograd of the forward reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import epilogue as epi
from cutegemm.epilogue.derivative import DERIVATIVES
from cutegemm.epilogue.graph import OPERATIONS
from cutegemm.errors import SpecError
from cutegemm.running.numerics import reference
from tests.support.epilogues import graphs, random_inputs

M, N = 5, 4


def operands(accumulator, gated=None):
    """A and B whose product is the given accumulator; a pair of them if gated."""
    if gated == "halves":
        accumulator = torch.cat(accumulator, -1)
    elif gated == "interleaved":
        accumulator = torch.stack(accumulator, -1).flatten(-2)
    return accumulator, torch.eye(accumulator.shape[-1], dtype=torch.float64)


class Rounded(torch.autograd.Function):
    """A cast that passes the gradient as it is; torch's own rounds it too, and stops it where fp8 saturates."""

    @staticmethod
    def forward(ctx, x, dtype):
        """As the reference."""
        return CAST(x, dtype)

    @staticmethod
    def backward(ctx, gradient):
        """As the derivative's rule says."""
        return gradient, None


CAST = reference.OPERATIONS["cast"]


def gradients(graph, inputs, generator, shape=(M, N), output="d"):
    """(by autograd, by the gradient epilogue), each name -> tensor, in fp64."""
    count = 2 if graph.gated else 1
    saved = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]
    upstream = torch.randn(shape, generator=generator, dtype=torch.float64)
    numeric = {name: torch.as_tensor(x, dtype=torch.float64) for name, x in inputs.items()}
    numeric |= {name: inputs[name] for name, kind in graph.numbers.items() if kind == "integer"}
    leaves = {x: v.clone().requires_grad_() for x, v in numeric.items() if isinstance(v, torch.Tensor)}
    acc = [x.clone().requires_grad_() for x in saved]
    a, b = operands(acc, graph.gated) if graph.gated else operands(acc[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reference.OPERATIONS, "cast", Rounded.apply)
        forward = reference.evaluate(graph, a, b, {**numeric, **leaves}, torch.float64)[output]
    named = dict(zip(("dgate", "dup") if graph.gated else ("d",), acc))
    named |= {f"d{name}": x for name, x in leaves.items()}
    if forward.requires_grad:
        forward.backward(upstream)
    expected = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in named.items()}
    given = {**numeric, **dict(zip(("saved_gate", "saved_up") if graph.gated else ("saved_acc",), saved))}
    back = epi.backward(graph, output)
    got = reference.evaluate(back, *operands(upstream), given, torch.float64)
    return expected, got


def assert_equal_where_finite(expected, got):
    """The same names and values; where autograd itself has NaN or an infinity anything goes."""
    assert set(got) == set(expected)
    for name, x in expected.items():
        ordinary = x.isfinite() & (x.abs() < 1e6)
        torch.testing.assert_close(
            got[name][ordinary], x[ordinary], rtol=1e-6, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_every_operation_has_a_rule():
    """None is left out."""
    assert set(DERIVATIVES) == set(OPERATIONS)


@given(graphs(gated="any", reductions=False), st.integers(0, 99))
def test_random_graphs(graph, seed):
    """The gradients of accumulators and all inputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = random_inputs(graph, (M, N), generator)
    assert_equal_where_finite(*gradients(graph, inputs, generator))


ONE = {
    "neg": lambda x: -x, "abs": abs, "exp": epi.exp, "tanh": epi.tanh, "sigmoid": epi.sigmoid, "erf": epi.erf,
    "log": lambda x: epi.log(x * x), "sqrt": lambda x: epi.sqrt(x * x + 1), "rsqrt": lambda x: epi.rsqrt(x * x + 1),
    "floor": lambda x: x * epi.floor(x), "round": lambda x: x * epi.round(x), "cast": lambda x: epi.cast(x, "bf16"),
    "clamp": lambda x: epi.clamp(x, -0.5, 0.5), "min": lambda x: epi.min(0.5, x),
    **epi.functions.ACTIVATIONS,
}  # fmt: skip
TWO = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (2 + y * y),
    "min": epi.min, "max": epi.max, "where": lambda x, y: epi.where(x < y, x * x, epi.exp(y)),
    "shared": lambda x, y: epi.exp(x + y) * (x + y) - (x + y), "constant": lambda x, y: 2 / (3 + x * x) - (1 - y),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_operand(name):
    """At ordinary points, none left out."""
    expected, got = gradients(epi.define(lambda acc: ONE[name](acc)), {}, torch.Generator().manual_seed(1))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("kind", ["Row", "Col", "Matrix", "Scalar"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_functions_of_two_operands_and_every_kind_of_input(name, kind, batch):
    """A row's gradient is summed over rows, a column's over columns, a scalar's over all; batches apart."""

    def function(acc, *, y):
        return TWO[name](acc, y)

    function.__annotations__["y"] = getattr(epi, kind)
    graph = epi.define(function)
    generator = torch.Generator().manual_seed(2)
    inputs = random_inputs(graph, (*batch, M, N), generator)
    expected, got = gradients(graph, inputs, generator, (*batch, M, N))
    if kind == "Scalar":
        got["dy"] = got["dy"].sum()
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_gated_pairs(name, layout):
    """dgate and dup, stored apart, whatever the layout of B was."""
    graph = getattr(epi, name)(layout)
    assert [x.name for x in epi.backward(graph).outputs] == ["dgate", "dup"]
    assert epi.backward(graph).gated is None
    expected, got = gradients(graph, {}, torch.Generator().manual_seed(3))
    torch.testing.assert_close(got, expected)


def test_dropout_repeats():
    """The same elements are dropped from the gradient."""

    @epi.define
    def graph(acc, *, seed: epi.Integer, offset: epi.Integer):
        return epi.dropout(epi.exp(acc), 0.5, seed, offset)

    expected, got = gradients(graph, {"seed": 1, "offset": 2}, torch.Generator().manual_seed(4))
    torch.testing.assert_close(got, expected)
    assert (got["d"] == 0).any() and (got["d"] != 0).any()


@pytest.mark.parametrize(
    ("function", "points", "slopes"),
    [
        (epi.relu, [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
        (abs, [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]),
        (lambda x: epi.max(x, x * x), [0.0, 1.0], [0.5, 1.5]),
        (lambda x: epi.min(x, x * x), [0.0, 1.0], [0.5, 1.5]),
        (lambda x: epi.min(1.0, x), [0.0, 1.0, 2.0], [1.0, 0.0, 0.0]),
        (epi.floor, [0.5, 1.0], [0.0, 0.0]),
        (lambda x: epi.cast(x, "bf16"), [1.0, 1.0001], [1.0, 1.0]),
    ],
)
def test_at_ties_and_steps(function, points, slopes):
    """Equal operands share the gradient, a constant takes it; rounding stops it, a cast does not."""
    back = epi.backward(epi.define(lambda acc: function(acc)))
    pre = torch.tensor(points, dtype=torch.float64)[:, None]
    ones = torch.ones(len(points), 1)
    got = reference.evaluate(back, ones, torch.ones(1, 1), {"saved_acc": pre}, torch.float64)["d"]
    assert got[:, 0].tolist() == slopes


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (epi.linear_combination(True),
         "d = acc * alpha\ndc = acc * beta\ndalpha = Sum(acc * saved_acc)\ndbeta = Sum(acc * c)"),
        (epi.bias(), "d = acc\ndbias = Sum(acc, axis=0)"),
        (epi.reglu(), "dgate = where(saved_gate <= 0.0, 0.0, acc * saved_up)\ndup = acc * max(saved_gate, 0.0)"),
        (epi.define(lambda acc: acc * 1.0 - 0.0 + (0.0 - -acc) / 1.0), "d = acc + acc"),
        (epi.define(lambda acc: (acc - -acc) * -1.0), "d = -acc - acc"),
        (epi.define(lambda acc: epi.exp(0.0 - acc)), "d = -(acc * exp(-saved_acc))"),
        (epi.define(lambda acc: epi.exp(-1 * (0.0 + acc / 1))), "d = -(acc * exp(-saved_acc))"),
        (epi.define(lambda acc: epi.exp(0 * acc) + epi.exp(0 / acc) + acc), "d = acc"),
        (epi.define(lambda acc: epi.floor(acc)), "d = 0.0"),
        (epi.define(lambda acc: epi.where(acc > 0, 1.0, 2.0)), "d = 0.0"),
    ],
)  # fmt: skip
def test_gradients_are_simplified(graph, text):
    """Nothing is multiplied by 0 or 1, nothing added to 0, and inputs that no gradient needs are not read."""
    assert str(epi.backward(graph)) == text


def test_only_the_gradients_wanted():
    """`wrt` names them; the rest is not computed and its inputs are not read."""
    graph = epi.bias_act_residual()
    assert [x.name for x in epi.backward(graph).outputs] == ["d", "dbias", "dresidual"]
    only = epi.backward(graph, wrt=["residual"])
    assert str(only) == "dresidual = acc"
    assert [x.name for x in epi.backward(graph, wrt={"bias", "acc"}).outputs] == ["d", "dbias"]
    assert (
        str(epi.backward(epi.swiglu(), wrt=["up"]))
        == "t0 = 0.5 * saved_gate\ndup = acc * (t0 + t0 * tanh(t0))"
    )


def test_the_gradient_of_another_output():
    """Any stored output, not a reduction."""
    graph = epi.define(lambda acc: epi.Output(d=acc, e=epi.exp(acc), s=epi.Sum(acc)))
    assert str(epi.backward(graph, "e")) == "d = acc * exp(saved_acc)"


@pytest.mark.parametrize(
    ("graph", "arguments", "message"),
    [
        (
            epi.row_max(),
            {"output": "row_max"},
            "output='row_max': must be a stored output or a sum, one of ('d',)",
        ),
        (epi.bias(), {"wrt": ["c"]}, "wrt=['c']: must be names out of acc, bias"),
        (epi.bias(), {"wrt": "bias"}, "wrt='bias': must be names out of acc, bias"),
        (epi.dropout_residual(), {"wrt": ["seed"]}, "wrt=['seed']: must be names out of acc, bias, residual"),
    ],
)
def test_what_has_no_gradient_is_refused(graph, arguments, message):
    """Reductions, integers and names that are none."""
    with pytest.raises(SpecError) as e:
        epi.backward(graph, **arguments)
    assert str(e.value) == message


@given(graphs(gated="any", most_outputs=1, reductions=False), st.integers(0, 99))
def test_a_forward_that_saves_gives_its_gradient_what_it_reads(graph, seed):
    """Its saved outputs are exactly the accumulators that the gradient reads, by the same names."""
    generator = torch.Generator().manual_seed(seed)
    forward, back = epi.with_saved(graph), epi.backward(graph)
    a = torch.randn(M, 3, generator=generator, dtype=torch.float64)
    b = torch.randn(3, 2 * N if graph.gated else N, generator=generator, dtype=torch.float64)
    out = reference.evaluate(forward, a, b, random_inputs(graph, (M, N), generator), torch.float64)
    saved = {name: x for name, x in out.items() if name != "d"}
    assert set(saved) == {*back.tensors} - {*graph.tensors}
    for name, x in saved.items():
        products = reference.products(graph, a, b, {}, torch.float64)
        torch.testing.assert_close(x, products[{"saved_acc": None}.get(name, name.removeprefix("saved_"))])
    assert epi.with_saved(forward) == forward and epi.backward(forward) == back


def test_only_what_the_gradient_reads_is_saved():
    """A sum needs nothing; `wrt` and the type are the caller's."""
    assert epi.with_saved(epi.bias()) == epi.bias()
    assert [x.name for x in epi.with_saved(epi.swiglu(), wrt=["up"]).outputs] == ["d", "saved_gate"]
    assert epi.with_saved(epi.bias_act(), dtype="fp32").outputs[-1].dtype == "fp32"


def test_what_could_be_taken_for_the_accumulator_is_refused():
    """An own output or input of that name; an output called pre is no gradient's input."""

    @epi.define
    def activated(acc):
        h = epi.gelu(acc)
        return epi.Output(d=h, saved_acc=h)

    @epi.define
    def read(acc, *, saved_acc: epi.Matrix):
        return acc * saved_acc

    for graph in (activated, read):
        for function in (epi.backward, epi.with_saved):
            with pytest.raises(SpecError) as e:
                function(graph)
            assert str(e.value) == (
                "epilogue='saved_acc': is the name of the accumulator that the forward saves, which this is not; "
                "nearest legal value: 'own_saved_acc'"
            )
    own = epi.define(lambda acc: epi.Output(d=epi.gelu(acc), pre=epi.gelu(acc)))
    assert set(epi.backward(own).tensors) == {"saved_acc"}
