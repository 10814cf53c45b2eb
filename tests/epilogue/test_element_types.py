# SPDX-License-Identifier: Apache-2.0
"""Which types C, D, vectors and sums may have: specs, problems, plans and runs say the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cutegemm import Gemm, GemmSpec, build, plan, problem
from cutegemm import epilogue as epi
from cutegemm.dtypes import DType
from cutegemm.epilogue.element_types import legal
from cutegemm.errors import GemmError
from cutegemm.running.numerics.reference import TORCH_DTYPE

OPERANDS = ("bf16", "fp32", "fp8_e4m3", "uint8")
FLOATS = {x for x in DType if not x.whole}


def refused(ask: Callable[[], Any]) -> GemmError | None:
    """The error of what is refused; None if it is accepted."""
    try:
        ask()
    except GemmError as error:
        return error
    return None


def zeros(dtype: object, *shape: int) -> torch.Tensor:
    """A tensor of a type that torch has no random numbers of."""
    return torch.zeros(shape).to(TORCH_DTYPE[DType(dtype)])


def holds(operand: str, types: set[DType], field: str, asks: dict[str, Callable[[DType], Any]]) -> None:
    """Each way to ask is accepted for these types alone; else it names a field and what is nearest."""
    for name, ask in asks.items():
        for dtype in DType:
            error = refused(lambda dtype=dtype, ask=ask: ask(dtype))
            assert (error is None) == (dtype in types), (operand, name, dtype, error)
            if error is not None:
                assert error.field.replace(".", "_") in (field, "d_dtype"), (name, error)
                assert name == "run" or error.nearest in types, (name, error)


@pytest.mark.parametrize("operand", OPERANDS)
def test_everyone_says_the_same_of_c(operand):
    """C of the plain epilogue holds floating-point numbers: int32 was planned and refused by the run."""
    made = problem(16, 16, 32, dtype=operand, c_dtype="fp32")
    gemm, a, b = Gemm(GemmSpec()), zeros(operand, 16, 32), zeros(operand, 32, 16)
    holds(operand, FLOATS, "c_dtype", {
        "problem": lambda x: problem(16, 16, 32, dtype=operand, c_dtype=x),
        "spec": lambda x: GemmSpec(c_dtype=x),
        "plan": lambda x: plan(
            GemmSpec(), dataclasses.replace(made, inputs=(("c", dataclasses.replace(made.c, dtype=x)),))
        ),
        "run": lambda x: gemm.run(a, b, zeros(x, 16, 16)),
    })  # fmt: skip


@pytest.mark.parametrize("graph", [None, epi.bias()], ids=["plain", "fused"])
@pytest.mark.parametrize("operand", OPERANDS)
def test_everyone_says_the_same_of_d(operand, graph):
    """D is int32 with operands of integers alone: with others it was accepted and did not compile."""
    made = problem(16, 16, 32, dtype=operand, epilogue=graph)
    fields = {} if graph is None else {"epilogue": graph}
    a, b = zeros(operand, 16, 32), zeros(operand, 32, 16)
    named = {} if graph is None else {"bias": torch.zeros(16)}
    holds(operand, set(DType) if operand == "uint8" else set(DType) - {DType.INT32}, "d_dtype", {
        "problem": lambda x: problem(16, 16, 32, dtype=operand, d_dtype=x, epilogue=graph),
        "spec": lambda x: GemmSpec(a_dtype=operand, d_dtype=x, **fields),
        "plan": lambda x: plan(
            GemmSpec(**fields),
            dataclasses.replace(made, outputs=(("d", dataclasses.replace(made.d, dtype=x)),)),
        ),
        "run of a spec": lambda x: Gemm(GemmSpec(d_dtype=x, **fields)).run(a, b, **named),
    })  # fmt: skip
    gemm = Gemm(GemmSpec(**fields))
    for dtype in DType:
        given = refused(lambda: gemm.run(a, b, out=zeros(dtype, 16, 16), **named))  # noqa: B023
        assert (given is None) == (dtype in legal("stored", operand == "uint8"))


@pytest.mark.parametrize("operand", OPERANDS)
def test_everyone_says_the_same_of_vectors_and_stores(operand):
    """A row of integers, and a store that the epilogue names int32, lie beside operands of integers alone."""
    graph, whole = epi.bias(), operand == "uint8"
    made = problem(16, 16, 32, dtype=operand, epilogue=graph)
    gemm, a, b = Gemm(GemmSpec(epilogue=graph)), zeros(operand, 16, 32), zeros(operand, 32, 16)
    row = dict(made.inputs)["bias"]
    for dtype in DType:
        seen = dataclasses.replace(made, inputs=(("bias", dataclasses.replace(row, dtype=dtype)),))
        asks = {
            "problem": lambda: problem(16, 16, 32, dtype=operand, epilogue=graph, input_dtype=dtype),  # noqa: B023
            "plan": lambda: plan(GemmSpec(epilogue=graph), seen),  # noqa: B023
            "run": lambda: gemm.run(a, b, bias=zeros(dtype, 16)),  # noqa: B023
        }
        for name, ask in asks.items():
            assert (refused(ask) is None) == (whole or not dtype.whole), (name, dtype)
    stored = epi.define(lambda acc: epi.Output(d=acc, e=epi.Store(acc, "int32")))
    for ask in (
        lambda: problem(16, 16, 32, dtype=operand, epilogue=stored),
        lambda: GemmSpec(a_dtype=operand, epilogue=stored),
        lambda: Gemm(GemmSpec(epilogue=stored, a_dtype="uint8")).run(a, b),
    ):
        error = refused(ask)
        assert (error is None) == whole and (whole or error.field in ("epilogue.e", "a_dtype")), error


def test_a_spec_of_integers_means_int8():
    """What only integers have is built for int8 where no type is named: such builds did not compile."""
    specs = (
        {"d_dtype": "int32"},
        {"acc_dtype": "int32"},
        {"zero_point_a": "row"},
        {"zero_point_b": "tensor"},
    )
    for fields in specs:
        made = Gemm(GemmSpec(**fields)).plan.problem
        assert made.a.dtype is DType.INT8 and made.d.dtype is DType.INT32, fields
    assert build(GemmSpec(d_dtype="int32")).ptx


@pytest.mark.parametrize(
    ("fields", "operand", "field"),
    [
        ({"acc_dtype": "int32"}, "bf16", "acc_dtype"),
        ({"acc_dtype": "fp32"}, "int8", "acc_dtype"),
        ({"zero_point_a": "row"}, "fp8_e4m3", "zero_point_a"),
    ],
)
def test_sums_and_zero_points_are_of_the_problem(fields, operand, field):
    """A type of sums that the operands do not have, and zero points of other types, are refused by the plan."""
    spec = GemmSpec(**fields)
    made = Gemm(spec)
    of = problem(16, 16, 32, dtype="int8", epilogue=spec.epilogue if "zero" in field else None)
    other = {x: dataclasses.replace(getattr(of, x), dtype=DType(operand)) for x in "ab"}
    error = refused(lambda: plan(spec, dataclasses.replace(of, **other)))
    assert error is not None and error.field == field and error.nearest is not None
    assert made.plan.steps
