# SPDX-License-Identifier: Apache-2.0
"""Every public function, called with what it does not take: the error names the argument, the value and the rule."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

import cutegemm
from cutegemm import DType, GemmSpec, Operand, Problem, Tile, build, emulator, plan, problem
from cutegemm import epilogue as epi
from cutegemm.errors import ABSENT, GemmError, shown
from cutegemm.gemm import Gemm, representative
from tests.support import emulator_wrong, epilogue_wrong, torch_wrong
from tests.support.epilogue_wrong import MLP
from tests.support.wrong import (
    CSR,
    NO_COUNT,
    NO_DTYPE,
    NO_EXTENT,
    NO_FIELD,
    NO_GRAPH,
    NO_PATH,
    NO_PROBLEM,
    NO_SPEC,
    NO_TENSOR,
    STRANGERS,
    THING,
    A,
    B,
    C,
)

OF = problem(64, 64, 64)
PLAIN = Gemm(GemmSpec(), OF)
FUSED = Gemm(GemmSpec(epilogue=MLP), representative(GemmSpec(epilogue=MLP)))
OPERAND = {"dtype": DType.BF16, "rows": 8, "cols": 8, "strides": (8, 1, 64)}

# Name -> the function, arguments it takes, and by argument what it does not take.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "build": (build, {"spec": GemmSpec()}, {"spec": NO_SPEC, "problem": NO_PROBLEM}),
    "plan": (
        plan,
        {"spec": GemmSpec(), "problem": OF},
        {
            "spec": NO_SPEC,
            "problem": (None, *NO_PROBLEM),
            "device": (3, "H200"),
            "database": (None, 1),
            "order": (None, "model", [], int, str, lambda found: [1]),
        },
    ),
    "Gemm": (Gemm, {"spec": GemmSpec()}, {"spec": NO_SPEC, "of": NO_PROBLEM}),
    "problem": (
        problem,
        {"m": 8, "n": 8, "k": 8},
        {
            "m": NO_EXTENT,
            "n": NO_EXTENT,
            "k": NO_EXTENT,
            "batch": NO_EXTENT,
            "dtype": (None, *NO_DTYPE),
            "b_dtype": (*NO_DTYPE, "fp16", "fp8", "int8", "int32"),
            "d_dtype": (*NO_DTYPE, "int32"),
            "c_dtype": (*NO_DTYPE, "int8", "int32"),
            "input_dtype": NO_DTYPE,
            "majors": ("nn", "kx", "k", "knn", "", 7, None),
            "d_major": ("k", "", 3, None),
            "epilogue": NO_GRAPH,
            "device_scalars": ("alpha", 3, (3,)),
        },
    ),
    "problem of an epilogue": (
        problem,
        {"m": 8, "n": 8, "k": 8, "epilogue": epi.residual()},
        {"d_dtype": (*NO_DTYPE, "int32"), "input_dtype": (*NO_DTYPE, "int8", "int32")},
    ),
    "Tile": (Tile, {"m": 64, "n": 64, "k": 64}, dict.fromkeys("mnk", (*NO_COUNT, None))),
    "GemmSpec": (
        GemmSpec,
        {},
        {
            name: (*values, *NO_FIELD)
            for name, values in {
                **dict.fromkeys(("a_dtype", "b_dtype", "d_dtype", "acc_dtype"), (None, *NO_DTYPE)),
                **dict.fromkeys(("a_major", "b_major", "c_major", "d_major"), ("x", 3, None, [])),
                **dict.fromkeys(
                    ("stages", "consumers", "epilogue_stages", "input_stages", "sms", "split_k", "ctas_per_sm"),
                    (*NO_COUNT, None),
                ),
                **dict.fromkeys(
                    ("swizzle", "schedule", "a_load", "b_load", "store", "scheduler", "split_reduction", "trigger"),
                    ("x", 3, None, [], THING),
                ),
                "c_dtype": (None, *NO_DTYPE, "int8", "int32"),
                "swap": ("x", 1, None),
                "math": ("x", 3, None, [], THING),
                "constant": ("a", "x", (), ("c",), (["a"],), None),
                "evict_first": ("a", "x", [], ("c",), (["a"],), None),
                "batch_invariant": (1, "x", None),
                **dict.fromkeys(("scale_a", "scale_b"), ("x", 3, None, ("block", 1), ["block", 1, "k"], THING)),
                **dict.fromkeys(("zero_point_a", "zero_point_b"), ("x", 3, None, ["row"], ("block", 1, 128), THING)),
                "promote": (0, -128, 100, 1.5, True, "x", (128,)),
                "tile": ("x", 3, (64,), None, [64, 64, "k"]),
                "cluster": ("x", 3, (3, 1), (1,), None, (1.0, 2)),
                "raster": ("x", 3, ("k", 8), ("m", "8"), None, ("m",)),
                "epilogue": (None, *NO_GRAPH),
            }.items()
        },
    ),
    "Operand": (
        Operand,
        OPERAND,
        {
            "dtype": (None, *NO_DTYPE),
            "rows": NO_EXTENT,
            "cols": NO_EXTENT,
            "batch": NO_EXTENT,
            "strides": (None, 3, (1, 2), "abc", (8, 1.5, 64)),
            "align": ("x", 1.5, 0, 3, None),
        },
    ),
    "Problem": (
        Problem,
        {"m": 8, "n": 8, "k": 8, "batch": 1, "a": OF.a, "b": OF.b, "outputs": OF.outputs},
        {
            **dict.fromkeys(("m", "n", "k", "batch"), NO_EXTENT),
            "a": (None, (8, 8), 3),
            "b": (None, (8, 8), 3),
            "inputs": (3, (3,), (("c", 3),)),
            "outputs": (3, None, (("d", 3),)),
            "device_scalars": (3, "alpha", (3,)),
        },
    ),
    "Gemm.run": (
        PLAIN.run,
        {"a": A, "b": B, "c": C},
        {
            "a": NO_TENSOR,
            "b": NO_TENSOR,
            "c": NO_TENSOR[1:],
            "out": NO_TENSOR[1:],
            "alpha": ("2", None, torch.ones(2), [1.0], 1j),
            "beta": ("2", torch.ones(2), [1.0], 1j),
            "backend": ([], "cuda", 3, THING),
            "workspace": ("x", 3, A.to_sparse()),
            "groups": ("x", 3, A),
            "unheard": (1.0, A),
        },
    ),
    "Gemm.run of zero points": (
        Gemm(GemmSpec(zero_point_a="row", zero_point_b="tensor")).run,
        {"a": A.to(torch.int8), "b": A.to(torch.int8), "zero_point_a": torch.zeros(16).int(), "zero_point_b": 1},
        {
            "a": (*NO_TENSOR, A),
            "b": (*NO_TENSOR, A),
            "zero_point_a": (*NO_TENSOR[1:], A, CSR),
            "zero_point_b": ("x", 1.5, torch.ones(3), torch.ones(())),
        },
    ),
    "Gemm.run of groups": (
        PLAIN.run,
        {"a": A, "b": B[None], "groups": cutegemm.Groups(offs=torch.tensor([16]))},
        {
            "a": NO_TENSOR,
            "b": NO_TENSOR,
            "c": (*NO_TENSOR[1:], CSR),
            "alpha": ("2", None, torch.ones(2)),
            "beta": ("2", torch.ones(2)),
        },
    ),
    "Gemm.run of an epilogue": (
        FUSED.run,
        {"a": A, "b": B, "bias": torch.zeros(16)},
        {
            "a": NO_TENSOR,
            "b": NO_TENSOR,
            "bias": NO_TENSOR[1:],
            "out": (*NO_TENSOR[1:], {"e": C}),
            "backend": ([], "cuda", 3),
            "unheard": (1.0, A),
        },
    ),
    "matmul": (
        cutegemm.matmul,
        {"a": A, "b": B, "c": C, "fallback": "reference"},
        {
            "a": NO_TENSOR[:4],
            "b": NO_TENSOR[:4],
            "c": NO_TENSOR[1:4],
            "alpha": ("2", None, [1.0], 1j),
            "beta": ("2", [1.0], 1j),
            "spec": ({}, 3),
            "epilogue": (3, "gelu"),
            "fallback": ("eager", 3, None),
            "unheard": (1.0,),
        },
    ),
    "matmul without C": (
        cutegemm.matmul,
        {"a": A, "b": B},
        dict.fromkeys(("alpha", "beta"), ("2", [1.0], 1j, torch.ones(2), torch.ones((), dtype=torch.int64), CSR)),
    ),
    "linear": (
        cutegemm.linear,
        {"x": A, "weight": A, "fallback": "reference"},
        {
            "x": NO_TENSOR[:4],
            "weight": NO_TENSOR[:4],
            "bias": NO_TENSOR[1:4],
            "spec": ({}, 3),
            "epilogue": (3, "gelu"),
            "fallback": ("eager", 3),
            "fp8": ("column", 3, True, ["row"]),
            "unheard": (1.0,),
        },
    ),
    "bmm": (
        cutegemm.bmm,
        {"a": A[None], "b": B[None], "fallback": "reference"},
        {"a": (*NO_TENSOR[:4], A, CSR), "b": (*NO_TENSOR[:4], B, CSR)},
    ),
    "emulator.run": (
        emulator.run,
        {"gemm": PLAIN, "a": A, "b": B},
        {"gemm": (None, 3, GemmSpec()), "options": (3, "lazy", {}), "backend": (None, "gpu", "emulator")},
    ),
    **emulator_wrong.FUNCTIONS,
    **torch_wrong.FUNCTIONS,
    **epilogue_wrong.FUNCTIONS,
    **{
        f"Gemm.{name}": (getattr(PLAIN, name), {}, {"of": NO_PROBLEM})
        for name in ("kernel", "explain", "workspace_bytes")
    },
    "Gemm.explain why": (PLAIN.explain, {}, {"why": (1, None, "x", torch.ones(2))}),
    "Gemm.launches": (
        PLAIN.launches,
        {"of": OF},
        {
            "of": (None, *NO_PROBLEM),
            "addresses": ([], "a", {"x": 1}, {"a": 1.5}),
            "workspace": NO_EXTENT[:-1],
            "alpha": ("2", None, 1j),
            "unheard": (1.0, None),
        },
    ),
    "Gemm.save": (
        PLAIN.save,
        {"path": "x.cutegemm", "problems": [OF]},
        {"path": NO_PATH, "problems": (OF, 3, [], [(1, 2, 3)], "x")},
    ),
    "load": (cutegemm.load, {"path": "x.cutegemm"}, {"path": (*NO_PATH, "none.cutegemm")}),
    "build_many": (cutegemm.build_many, {"specs": []}, {"specs": (None, 3, GemmSpec(), "x")}),
    "Gemm.warm": (PLAIN.warm, {}, {"problems": (OF, 3, None, [(1, 2, 3)], "x", numpy.array(3))}),
    "pack": (
        cutegemm.pack,
        {"weight": B, "role": "b"},
        {"weight": (None, [[1.0]], 3), "role": ("c", 3, None), "major": ("x", 3, [])},
    ),
    "tune": (
        cutegemm.tune,
        {"spec": GemmSpec(), "problems": [OF]},
        {
            "spec": (None, 3, GemmSpec),
            "problems": (OF, 3, None, [(1, 2, 3)], "x"),
            "candidates": (0, 1.5, None, True, 10**400),
            "seconds": ("x", 0, -1.0, math.nan, True, 10**400),
            "database": (3, "tuned.sqlite"),
        },
    ),
    "Gemm.tune": (PLAIN.tune, {}, {"problems": (OF, 3, [(1, 2, 3)], "x"), "candidates": (0, "x")}),
}  # fmt: skip


def table() -> Iterator[Any]:
    """Every function, argument and wrong value, as a case of a test."""
    for name, (function, good, wrong) in FUNCTIONS.items():
        for argument, values in wrong.items():
            for i, value in enumerate((*values, *STRANGERS[(name, argument) in emulator_wrong.ANY_ARRAY :])):
                # workers must agree on the names of cases: none says where an object lies
                text = "object" if value is THING else re.sub(r" at 0x\w+", "", shown(value))
                case = f"{name}({argument}={text[:40]}) {i}"
                yield pytest.param(function, good, argument, value, id=case)


@pytest.mark.parametrize(("function", "good", "argument", "value"), list(table()))
def test_a_wrong_argument_is_refused_by_name(function, good, argument, value):
    """Whatever is given for whichever argument: a `GemmError` that names it, what was given, and what it may be."""
    given = good | {argument: value}
    # run's operands have no names
    operands = [given.pop(name) for name in ("gemm", "a", "b") if function == emulator.run and name in given]
    with pytest.raises(GemmError) as e:
        function(*operands, **given)
    error = e.value
    # "dropout.p" and "strides[1]" name p and strides; of a decorator its own name says enough
    names = {argument, "define"} if function is epi.define else {argument}
    assert names & set(re.split(r"[.\[\]()]", error.field or "")), f"{error.field}: {error}"
    # what is given is shown, or the type that it has
    what = shown(error.value) if error.value is not ABSENT else type(value).__name__
    assert what in str(error) and "\n" not in str(error) and len(error.rule) > 5


def test_every_public_function_is_in_the_table():
    """What `cutegemm` exports and can be called is in the table, errors and results apart."""
    results = {"DType", "Gemm", "GemmError", "KernelPlan", "Loaded"}
    called = {name for name in cutegemm.__all__ if callable(getattr(cutegemm, name))}
    assert called - results <= set(FUNCTIONS)
    defined = {name for base in Gemm.__mro__[:-1] for name in vars(base)}
    methods = {x for x in defined if not x.startswith("_") and callable(getattr(Gemm, x))}
    assert {f"Gemm.{x}" for x in methods} <= set(FUNCTIONS)


def test_every_function_of_the_emulator_is_in_the_table():
    """The same of what `cutegemm.emulator` exports; of a class, what a user makes one with."""
    results = {"Coverage", "Finding", "Report", "Result", "Run"}
    # by Module.parse; what a step holds is checked by run_steps
    made_elsewhere = {"Kernel", "Module", "Step"}
    called = {name for name in emulator.__all__ if callable(getattr(emulator, name))}
    assert {f"emulator.{name}" for name in called - results - made_elsewhere} <= set(FUNCTIONS)


@pytest.mark.parametrize(
    "name",
    ["GemmSpec", "Operand", "Problem", "Tile", "emulator.Options", "emulator.Launch", "emulator.Buffer"],
)
def test_every_field_is_in_the_table(name):
    """What a spec, a problem or a part of them is made of is tried, each field of it."""
    made = FUNCTIONS[name][0]
    assert set(FUNCTIONS[name][2]) == {x.name for x in dataclasses.fields(made) if x.name != "_"}


@pytest.mark.parametrize("name", epi.functions.__all__)
def test_an_operand_that_is_no_value_is_refused(name):
    """Whatever takes the place of a value of the epilogue: no operator of its own is asked."""
    function = getattr(epi, name)
    takes = list(inspect.signature(function).parameters)

    def body(acc, *, seed: epi.Integer, offset: epi.Integer):
        legal = {
            "x": acc, "y": acc, "condition": acc > 0, "low": -1.0, "high": 1.0, "slope": 0.1, "approximate": "none",
            "p": 0.5, "seed": seed, "offset": offset, "dtype": "bf16",
        }  # fmt: skip
        for changed in takes:
            for stranger in ("x", None, [1], torch.zeros(2), *STRANGERS):
                if changed in ("low", "high") and stranger is None:
                    continue
                with pytest.raises(GemmError):
                    function(*({**legal, changed: stranger}[x] for x in takes))
        return acc + epi.random(seed, offset)

    epi.define(body)


@pytest.mark.parametrize(
    "reduced", [epi.AbsMax, epi.SumSquares, epi.Sum, epi.Store], ids=lambda x: x.__name__
)
def test_an_output_of_what_is_no_value_is_refused(reduced):
    """The composed reductions check what they compute with, too."""
    for stranger in ("x", 3, None, torch.zeros(2), *STRANGERS):
        with pytest.raises(GemmError):
            epi.define(lambda acc, given=stranger: epi.Output(d=acc, o=reduced(given)))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("a", {"k": 32}),
        ("a", {"m": 0}),
        ("b", {"n": 0}),
        ("d.batch", {"batch": 3}),
        ("d.batch", {"batch": 0}),
        ("a.batch", {"a": dataclasses.replace(OF.a, batch=2)}),
        ("b", {"b": dataclasses.replace(OF.b, rows=8)}),
    ],
)
def test_a_problem_that_contradicts_itself_is_refused(field, change):
    """Extents and operands of one problem are the same product."""
    with pytest.raises(GemmError) as e:
        plan(GemmSpec(), dataclasses.replace(OF, **change))
    assert e.value.field == field
