# SPDX-License-Identifier: Apache-2.0
"""Every function of the language against torch's own, NaN and infinities included."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from cutegemm import epilogue as epi
from cutegemm.errors import SpecError
from cutegemm.running.numerics import reference

NAN, INF = math.nan, math.inf
POINTS = (
    -INF, -1e3, -88.0, -20.0, -3.5, -3.0, -2.5, -1.0, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1.0, 1.5, 2.5, 3.0,
    5.9, 20.0, 21.0, 100.0, 1e3, INF, NAN,
)  # fmt: skip
X = torch.tensor(POINTS, dtype=torch.float64)

ONE_OPERAND = {
    "abs": (epi.abs, torch.abs),
    "abs()": (abs, torch.abs),
    "neg": (lambda x: -x, torch.neg),
    "pos": (lambda x: +x, torch.positive),
    "exp": (epi.exp, torch.exp),
    "log": (epi.log, torch.log),
    "sqrt": (epi.sqrt, torch.sqrt),
    "rsqrt": (epi.rsqrt, torch.rsqrt),
    "tanh": (epi.tanh, torch.tanh),
    "sigmoid": (epi.sigmoid, torch.sigmoid),
    "erf": (epi.erf, torch.erf),
    "floor": (epi.floor, torch.floor),
    "round": (epi.round, torch.round),
    "square": (epi.square, torch.square),
    "relu": (epi.relu, F.relu),
    "leaky_relu": (epi.leaky_relu, F.leaky_relu),
    "leaky_relu(0.2)": (lambda x: epi.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "gelu": (epi.gelu, F.gelu),
    "gelu(tanh)": (lambda x: epi.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "gelu_tanh": (epi.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (epi.silu, F.silu),
    "softplus": (epi.softplus, F.softplus),
    "mish": (epi.mish, F.mish),
    "hardswish": (epi.hardswish, F.hardswish),
    "clamp": (lambda x: epi.clamp(x, -1.0, 2.5), lambda x: x.clamp(-1.0, 2.5)),
    "clamp low": (lambda x: epi.clamp(x, low=1.5), lambda x: x.clamp(min=1.5)),
    "clamp high": (lambda x: epi.clamp(x, high=1.5), lambda x: x.clamp(max=1.5)),
    "cast fp16": (lambda x: epi.cast(x, "fp16"), lambda x: x.half().double()),
    "cast bf16": (lambda x: epi.cast(x, torch.bfloat16), lambda x: x.bfloat16().double()),
    "cast fp8": (
        lambda x: epi.cast(x, "fp8"),
        lambda x: x.clamp(-448, 448).to(torch.float8_e4m3fn).double(),
    ),
    "constants": (lambda x: 3 - (2.0 * x + 1) / 4, lambda x: 3 - (2.0 * x + 1) / 4),
    "constant over": (lambda x: 1 / x, lambda x: 1 / x),
    "minus zero": (lambda x: x / -0.0, lambda x: x / -0.0),
}
TWO_OPERANDS = {
    "add": (lambda x, y: x + y,) * 2,
    "sub": (lambda x, y: x - y,) * 2,
    "mul": (lambda x, y: x * y,) * 2,
    "div": (lambda x, y: x / y,) * 2,
    "min": (epi.min, torch.minimum),
    "max": (epi.max, torch.maximum),
    "clamp": (lambda x, y: epi.clamp(x, y), lambda x, y: x.clamp(y)),
    "lt": (lambda x, y: epi.where(x < y, x, 7.0), lambda x, y: torch.where(x < y, x, 7.0)),
    "le": (lambda x, y: epi.where(x <= y, x, 7.0), lambda x, y: torch.where(x <= y, x, 7.0)),
    "gt": (lambda x, y: epi.where(x > y, 7.0, y), lambda x, y: torch.where(x > y, 7.0, y)),
    "ge": (lambda x, y: epi.where(x >= y, 7.0, y), lambda x, y: torch.where(x >= y, 7.0, y)),
    "eq": (lambda x, y: epi.where(x == y, 7.0, y), lambda x, y: torch.where(x == y, 7.0, y)),
    "ne": (lambda x, y: epi.where(x != y, 7.0, y), lambda x, y: torch.where(x != y, 7.0, y)),
    "less than a number": (lambda x, y: epi.where(1 < x, x, y), lambda x, y: torch.where(1 < x, x, y)),
    "and": (lambda x, y: epi.where((x > 0) & (y > 0), x, y), lambda x, y: torch.where((x > 0) & (y > 0), x, y)),
    "or": (lambda x, y: epi.where((x > 0) | (y > 0), x, y), lambda x, y: torch.where((x > 0) | (y > 0), x, y)),
    "not": (lambda x, y: epi.where(~(x > y), x, y), lambda x, y: torch.where(~(x > y), x, y)),
}  # fmt: skip


def run(function, *columns):
    """A function of columns in fp64; a product would lose the sign of zero."""

    def one(acc, *, x: epi.Col):
        return function(x)

    def two(acc, *, x: epi.Col, y: epi.Col):
        return function(x, y)

    graph = epi.define(one if len(columns) == 1 else two)
    a = torch.zeros(len(columns[0]), 1)
    return reference.evaluate(graph, a, torch.ones(1, 1), dict(zip("xy", columns)), torch.float64)["d"][:, 0]


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_functions_of_one_operand_are_those_of_torch(name):
    """Equal to fp64 rounding everywhere; softplus' threshold of 20 in torch is worth 2e-9."""
    own, of_torch = ONE_OPERAND[name]
    atol = 3e-9 if name == "softplus" else 1e-14
    torch.testing.assert_close(run(own, X), of_torch(X), equal_nan=True, rtol=1e-12, atol=atol)


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_functions_of_two_operands_are_those_of_torch(name):
    """On all pairs of the points."""
    own, of_torch = TWO_OPERANDS[name]
    x, y = (t.reshape(-1) for t in torch.meshgrid(X, X, indexing="ij"))
    torch.testing.assert_close(run(own, x, y), of_torch(x, y), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "mish", "softplus"])
def test_activations_are_stable_in_fp32(name):
    """In fp32 over its whole range no overflow, and close to torch in fp64."""
    own, of_torch = ONE_OPERAND[name]
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([-3e38, 3e38])])
    graph = epi.define(lambda acc: own(acc))
    got = reference.evaluate(graph, x[:, None], torch.ones(1, 1), {}, torch.float32)["d"][:, 0]
    torch.testing.assert_close(got.double(), of_torch(x.double()), rtol=1e-5, atol=1e-5)


def test_dropped_elements_are_zero_times_themselves():
    """NaN stays NaN under dropout, as in torch; p = 0 changes nothing."""

    @epi.define
    def graph(acc, *, seed: epi.Integer, offset: epi.Integer):
        return epi.Output(d=epi.dropout(acc, 0.5, seed, offset), all=epi.dropout(acc, 0, seed, offset))

    a, b = torch.full((64, 1), NAN), torch.ones(1, 64)
    got = reference.evaluate(graph, a, b, {"seed": 1, "offset": 2}, torch.float32)
    assert got["d"].isnan().all()
    got = reference.evaluate(graph, b.T, b, {"seed": 1, "offset": 2}, torch.float32)
    assert set(got["d"].unique().tolist()) == {0.0, 2.0} and (got["all"] == 1).all()


def test_random_repeats_exactly_when_recorded_twice():
    """The same seed and offset are one node, so the mask of two dropouts is one."""

    @epi.define
    def graph(acc, *, seed: epi.Integer, offset: epi.Integer):
        return epi.dropout(acc, 0.5, seed, offset) + epi.dropout(2 * acc, 0.5, seed, offset)

    assert [n.op for n in graph.nodes].count("random") == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: epi.gelu(x, "erf"), "gelu.approximate='erf': must be 'none' or 'tanh'"),
        (lambda x: epi.clamp(x), "clamp=(None, None): must have a lower or an upper bound"),
        (lambda x: epi.dropout(x, 1.0, x, x), "dropout.p=1.0: must be a Python number in [0, 1)"),
        (lambda x: epi.dropout(x, x, x, x), "dropout.p=<acc>: must be a Python number in [0, 1)"),
        (lambda x: epi.random(x, x), "epilogue='random': takes (integer, integer), not (number, number)"),
        (
            lambda x: epi.cast(x, "int4"),
            "cast='int4': must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32",
        ),
        (lambda x: epi.exp(2.0), "epilogue='exp': takes a value of the epilogue being defined"),
        (lambda x: epi.where(x, x, 0), "epilogue='where': takes (truth, number, number), not (number, number, number)"),
        (lambda x: epi.where(True, x, 0), "epilogue=True: an operand must be a traced value or a Python number"),
        (lambda x: x & x, "epilogue='and': takes (truth, truth), not (number, number)"),
        (lambda x: (x > 0) + 1, "epilogue='add': takes (number, number), not (truth, number)"),
        (lambda x: epi.exp(x == 0), "epilogue='exp': takes (number), not (truth)"),
    ],
)  # fmt: skip
def test_wrong_operands_are_refused(function, message):
    """While the function is traced, so that the traceback shows the line."""
    with pytest.raises(SpecError) as e:
        epi.define(lambda acc: function(acc))
    assert str(e.value) == message


def test_an_unknown_function_names_the_nearest():
    """As an error of the language and as a missing attribute."""
    with pytest.raises(SpecError) as e:
        epi.gelo  # noqa: B018
    assert str(e.value) == "epilogue='gelo': unknown operation; nearest legal value: 'gelu'"
    assert not hasattr(epi, "sin")
