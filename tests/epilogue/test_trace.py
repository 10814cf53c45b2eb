# SPDX-License-Identifier: Apache-2.0
"""`define`: what functions become, which of them are equal, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph, Node, Result
from cutegemm.errors import SpecError


def test_a_function_becomes_a_graph():
    """Leaves, operations and outputs; annotations that are text are understood."""

    @epi.define
    def graph(acc, *, bias: epi.Row, scale: epi.Scalar):
        h = acc * scale + bias
        return epi.Output(
            d=h, pre=epi.Store(acc, dtype="bfloat16", major="m"), amax=epi.Max(abs(h), axis=0, partial=True)
        )

    nodes = (
        Node("acc"),
        Node("scalar", value="scale"),
        Node("mul", (0, 1)),
        Node("row", value="bias"),
        Node("add", (2, 3)),
        Node("abs", (4,)),
    )
    results = (
        Result("d", 4),
        Result("pre", 0, dtype="bf16", major="m"),
        Result("amax", 5, "max", axis=0, partial=True),
    )
    assert graph == Graph(nodes, results)


def test_the_default_epilogue_is_written_in_the_language():
    """alpha * acc + beta * c, traced, is the graph the planner takes by default."""

    @epi.define
    def with_c(acc, *, alpha: epi.Scalar, beta: epi.Scalar, c: epi.Matrix):
        return alpha * acc + beta * c

    @epi.define
    def without_c(acc, *, alpha: epi.Scalar):
        return alpha * acc

    assert with_c == epi.linear_combination(True) and without_c == epi.linear_combination(False)


def test_functions_that_compute_alike_are_equal():
    """Whatever their names, the order of their lines and parameters, and values they drop or compute twice."""

    @epi.define
    def one(acc, *, r: epi.Row, c: epi.Col):
        x = acc + r
        return epi.exp(x) * (x + c)

    @epi.define
    def other(acc, *, c: epi.Col, r: epi.Row):
        _unused = epi.tanh(acc * c)
        right = (acc + r) + c
        return epi.Output(d=epi.exp(acc + r) * right)

    @epi.define
    def different(acc, *, c: epi.Col, r: epi.Row):
        return epi.exp(acc + c) * (acc + r + c)

    assert one == other and hash(one) == hash(other)
    assert one != different


def test_equal_expressions_are_one_node():
    """Also constants, whether given as int, float or NumPy number."""
    graph = epi.define(lambda acc: (acc + 2) * (acc + 2.0) * (np.float32(2) + acc) * (acc + np.int64(2)))
    assert [n.op for n in graph.nodes] == ["acc", "const", "add", "mul", "add", "mul", "mul"]


def test_constants_keep_the_sign_of_zero():
    """1 / -0.0 is not 1 / 0.0, though Python calls the zeros equal."""
    assert epi.define(lambda acc: acc * 0.0) != epi.define(lambda acc: acc * -0.0)


def test_gated_functions():
    """Gate and up are the accumulators; the layout is part of the graph."""

    @epi.define(gated="interleaved")
    def graph(gate, up):
        return gate * up

    assert graph.gated == "interleaved"
    assert graph.nodes == (Node("acc", value="gate"), Node("acc", value="up"), Node("mul", (0, 1)))


def test_an_output_need_not_be_stored():
    """A graph may have reductions alone."""
    graph = epi.define(lambda acc: epi.Output(lse=epi.LogSumExp(acc, axis=1)))
    assert graph.outputs == (Result("lse", 0, "logsumexp", axis=1),)


def test_composed_reductions():
    """AbsMax is the maximum of magnitudes, SumSquares the sum of squares."""
    graph = epi.define(lambda acc: epi.Output(top=epi.AbsMax(acc, 0), s=epi.SumSquares(acc, partial=True)))
    assert graph.nodes == (Node("acc"), Node("abs", (0,)), Node("mul", (0, 0)))
    assert graph.outputs == (Result("top", 1, "max", axis=0), Result("s", 2, "sum", partial=True))


def test_annotations_are_found_where_they_were_written():
    """In local scopes, under another name, as objects."""
    from cutegemm.epilogue import Col as LocalName

    def alias(acc, *, x: LocalName):
        return acc + x

    def local(acc, *, x: LocalName):
        return acc + x + (0 if LocalName is None else 1)

    def objects(acc, *, x):
        return acc + x

    objects.__annotations__["x"] = epi.Row
    assert epi.define(local).tensors == {"x": "col"} and epi.define(objects).tensors == {"x": "row"}
    with pytest.raises(SpecError, match="an input must be annotated"):
        epi.define(alias)


def _no_star(acc, bias: epi.Row):
    return acc + bias


def _default(acc, *, bias: epi.Row = 1):
    return acc + bias


def _args(acc, *biases):
    return acc


def _kwargs(acc, **biases):
    return acc


def _no_accumulator(*, bias: epi.Row):
    return bias


def _unannotated(acc, *, bias):
    return acc + bias


def _wrong_kind(acc, *, bias: epi.Rows):
    return acc + bias


def _float(acc, *, bias: float):
    return acc + bias


def _reserved(acc, *, out: epi.Row):
    return acc + out


def _unused(acc, *, bias: epi.Row, scale: epi.Scalar):
    _ = acc * scale
    return acc + bias


def _nothing(acc):
    acc + 1


def _empty(acc):
    return epi.Output()


def _number(acc):
    return epi.Output(d=acc, x=1.0)


def _number_reduced(acc):
    return epi.Output(x=epi.Sum(1.0))


def _wrong_dtype(acc):
    return epi.Output(pre=epi.Store(acc, dtype="int4"))


def _wrong_axis(acc):
    return epi.Output(x=epi.Sum(acc, axis=2))


def _truth(acc):
    return acc > 0


KINDS = "Row, Col, Matrix, Scalar, Integer"
REFUSED = [
    (
        _no_star,
        "_no_star=('acc', 'bias'): the parameters before the * must be acc; inputs follow it; nearest legal value: "
        "('acc',)",
    ),
    (_default, "_default.bias=1: an input has no default value"),
    (_args, "_args='*biases': inputs must be named one by one, not collected by * or **"),
    (_kwargs, "_kwargs='**biases': inputs must be named one by one, not collected by * or **"),
    (
        _no_accumulator,
        "_no_accumulator=(): the parameters before the * must be acc; inputs follow it; nearest legal value: ('acc',)",
    ),
    (_unannotated, f"_unannotated.bias=None: an input must be annotated with one of {KINDS}"),
    (
        _wrong_kind,
        f"_wrong_kind.bias='epi.Rows': an input must be annotated with one of {KINDS}; nearest legal value: 'Row'",
    ),
    (_float, f"_float.bias=<class 'float'>: an input must be annotated with one of {KINDS}"),
    (_reserved, "_reserved='out': an input may not have this name; nearest legal value: 'out_'"),
    (_unused, "_unused='scale': no output depends on this input; remove the parameter"),
    (_nothing, "_nothing=None: must return a value or an Output of named values"),
    (_empty, "_empty='Output()': must have an output"),
    (
        _number,
        "_number.x=1.0: an output must be a value of this epilogue, or Store, Sum, Max, LogSumExp or quantize of one",
    ),
    (
        _wrong_dtype,
        "pre.dtype='int4': must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32",
    ),
    (_wrong_axis, "x.axis=2: of a sum must be one of (None, 0, 1)"),
    (_truth, "epilogue='truth': output d must be a number; nearest legal value: 'where(value, 1, 0)'"),
    (lambda acc: acc * 10**309, f"epilogue={10**309}: a constant must be in the range of fp32, not NaN"),
    (3, "define=3: must be a function"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_wrong_definitions_are_refused(function, message):
    """At definition, with the parameter or output at fault."""
    with pytest.raises(SpecError) as e:
        epi.define(function)
    assert str(e.value) == message


def test_a_reduced_number_is_refused():
    """It is no value of the epilogue."""
    with pytest.raises(SpecError, match="_number_reduced.x=.*: an output must be a value of this epilogue"):
        epi.define(_number_reduced)


@pytest.mark.parametrize(
    ("gated", "message"),
    [
        ("thirds", "gated='thirds': must be one of (None, 'halves', 'interleaved')"),
        (
            "halves",
            "<lambda>=('acc',): the parameters before the * must be gate, up; inputs follow it; nearest legal value: "
            "('gate', 'up')",
        ),
    ],
)
def test_wrong_gated_definitions_are_refused(gated, message):
    """An unknown layout, or parameters that are not gate and up."""
    with pytest.raises(SpecError) as e:
        epi.define(gated=gated)(lambda acc: acc)
    assert str(e.value) == message


DECIDE = (
    "epilogue=<truth gt>: Python cannot decide on a value that is known only when the kernel runs; choose per element "
    "with epi.where(condition, x, y), combine conditions with & | ~"
)
NUMBER = (
    "epilogue=<acc>: a value is known only when the kernel runs, so it is no Python number; keep to operations "
    "of epi"
)
SEQUENCE = "epilogue=<acc>: a value is one element, not a sequence; index the tensor"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x > 0 else -x, DECIDE),
        (lambda x: x if (x > 0) and (x < 1) else x, DECIDE),
        (lambda x: not x > 0, DECIDE),
        (float, NUMBER),
        (int, NUMBER),
        (round, NUMBER),
        (lambda x: [1, 2][x], NUMBER),
        (list, SEQUENCE),
        (len, SEQUENCE),
        (lambda x: x[0], SEQUENCE),
        (lambda x: x**2, "epilogue=<acc>: unknown operation **; use epi.square, epi.sqrt or products"),
        (lambda x: 2**x, "epilogue=<acc>: unknown operation **; use epi.square, epi.sqrt or products"),
        (lambda x: x % 2, "epilogue=<acc>: unknown operation %; use x - y * epi.floor(x / y)"),
        (lambda x: x // 2, "epilogue=<acc>: unknown operation //; use epi.floor(x / y)"),
        (lambda x: x @ x, "epilogue=<acc>: unknown operation @; an epilogue works element by element"),
        (lambda x: x + None, "epilogue=None: an operand must be a traced value or a Python number"),
        (lambda x: x + True, "epilogue=True: an operand must be a traced value or a Python number"),
        (lambda x: x + 1j, "epilogue=1j: an operand must be a traced value or a Python number"),
        (lambda x: x + float("nan"), "epilogue=nan: a constant must be in the range of fp32, not NaN"),
        (lambda x: x + 1e39, "epilogue=1e+39: a constant must be in the range of fp32, not NaN"),
    ],
)
def test_what_python_cannot_do_with_a_value_is_explained(function, message):
    """Deciding, counting and iterating need a number that does not exist yet."""
    with pytest.raises(SpecError) as e:
        epi.define(lambda acc: function(acc))
    assert str(e.value) == message


def test_values_of_two_epilogues_do_not_meet():
    """A value kept from another definition is refused, as operand and as output."""
    kept = []
    epi.define(lambda acc: kept.append(acc) or acc)
    with pytest.raises(SpecError, match="takes values of one epilogue, not of several"):
        epi.define(lambda acc: acc + kept[0])
    with pytest.raises(SpecError, match="must be a value of this epilogue"):
        epi.define(lambda acc: epi.Output(d=kept[0]))


def test_torch_functions_are_refused_with_a_hint():
    """torch.exp and its like say which functions to use instead."""
    torch = pytest.importorskip("torch")
    with pytest.raises(
        SpecError, match=r"^epilogue='torch\.exp': torch's functions .* those of cutegemm\.epilogue do"
    ):
        epi.define(lambda acc: torch.exp(acc))


def test_a_library_function_must_be_called():
    """An epilogue that was not called, or not decorated, is no graph."""
    with pytest.raises(SpecError, match=r"must be an epilogue graph \(call it, or decorate"):
        GemmSpec(epilogue=epi.bias)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: np.exp(x),
            "epilogue='np.exp': NumPy's functions do not work while an epilogue is traced; those of "
            "cutegemm.epilogue do; nearest legal value: 'epi.exp(value)'",
        ),
        (
            lambda x: np.where(x > 0, x, 0),
            "epilogue='np.where': NumPy's functions do not work while an epilogue is traced; those of "
            "cutegemm.epilogue do; nearest legal value: 'epi.where(value)'",
        ),
        (
            lambda x: np.maximum(x, 0),
            "epilogue='np.maximum': NumPy's functions do not work while an epilogue is traced; those of "
            "cutegemm.epilogue do; nearest legal value: 'epi.max(value)'",
        ),
        (
            lambda x: x.relu(),
            "epilogue='.relu': a value has no methods; nearest legal value: 'epi.relu(value)'",
        ),
        (
            lambda x: x.clip(0, 1),
            "epilogue='.clip': a value has no methods; nearest legal value: 'epi.clamp(value)'",
        ),
        (lambda x: x.shape, "epilogue='.shape': a value has no methods"),
    ],
)
def test_what_other_libraries_would_do_is_named(function, message):
    """NumPy's functions and methods are refused, with the function of the language that is meant."""
    with pytest.raises(SpecError) as e:
        epi.define(lambda acc: function(acc))
    assert str(e.value) == message


def test_numpys_numbers_are_numbers():
    """On either side of every operator."""
    two = np.float32(2)
    own = epi.define(lambda acc: epi.where(two < acc, two * acc + two, two - acc / two))
    assert own == epi.define(lambda acc: epi.where(acc > 2.0, 2.0 * acc + 2.0, 2.0 - acc / 2.0))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gelu_new", "gelu_tanh"), ("gelu_fast", "gelu"), ("swish", "silu"), ("maximum", "max")],
)
def test_an_unknown_name_finds_what_is_meant(name, meant):
    """What other frameworks call it, and what it begins with, before what is spelt alike."""
    with pytest.raises(SpecError) as e:
        getattr(epi, name)
    assert str(e.value) == f"epilogue='{name}': unknown operation; nearest legal value: '{meant}'"


def test_an_unknown_method_names_the_function():
    """Torch's spelling: the functions of the language are no methods of its values."""
    with pytest.raises(SpecError) as e:
        epi.define(lambda acc: acc.relu())
    assert e.value.value == ".relu" and e.value.nearest == "epi.relu(value)"
