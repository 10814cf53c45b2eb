# SPDX-License-Identifier: Apache-2.0
"""Every public function, called with what it does not take: the error names the argument, the value and the rule."""

from __future__ import annotations

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

A, B, C = (torch.zeros(16, 16, dtype=torch.bfloat16) for _ in range(3))
OF = problem(64, 64, 64)
PLAIN = Gemm(GemmSpec(), OF)
MLP = epi.bias_act()
FUSED = Gemm(GemmSpec(epilogue=MLP), representative(GemmSpec(epilogue=MLP)))
OPERAND = {"dtype": DType.BF16, "rows": 8, "cols": 8, "strides": (8, 1, 64)}
THING = object()

NO_SPEC = (None, {}, GemmSpec, "auto", 3)
NO_PROBLEM = ((1, 2, 3), {}, "64", 3)
NO_EXTENT = ("a", 1.5, None, -1, 1 << 40)
NO_DTYPE = ("float3", 7, THING)
NO_TENSOR = (None, [[1.0]], 3, "a", numpy.zeros((16, 16), numpy.float32))
NO_GRAPH = (3, "gelu", epi.bias, THING)
NO_COUNT = ("x", 1.5, 0, -1, THING)

# Name -> the function, arguments it takes, and by argument what it does not take.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "build": (build, {"spec": GemmSpec()}, {"spec": NO_SPEC, "problem": NO_PROBLEM}),
    "plan": (plan, {"spec": GemmSpec(), "problem": OF}, {"spec": NO_SPEC, "problem": (None, *NO_PROBLEM)}),
    "problem": (
        problem,
        {"m": 8, "n": 8, "k": 8},
        {
            "m": NO_EXTENT,
            "n": NO_EXTENT,
            "k": NO_EXTENT,
            "batch": NO_EXTENT,
            "dtype": (None, *NO_DTYPE),
            "d_dtype": NO_DTYPE,
            "c_dtype": NO_DTYPE,
            "input_dtype": NO_DTYPE,
            "majors": ("nn", "kx", "k", "knn", "", 7, None),
            "d_major": ("k", "", 3, None),
            "epilogue": NO_GRAPH,
            "device_scalars": ("alpha", 3, (3,)),
        },
    ),
    "Tile": (Tile, {"m": 64, "n": 64, "k": 64}, dict.fromkeys("mnk", (*NO_COUNT, None))),
    "GemmSpec": (
        GemmSpec,
        {},
        {
            **dict.fromkeys(("a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype"), (None, *NO_DTYPE)),
            **dict.fromkeys(("a_major", "b_major", "c_major", "d_major"), ("x", 3, None, [])),
            **dict.fromkeys(("stages", "consumers", "epilogue_stages", "input_stages", "sms"), (*NO_COUNT, None)),
            **dict.fromkeys(
                ("swizzle", "schedule", "a_load", "b_load", "store", "scheduler"), ("x", 3, None, [], THING)
            ),
            "tile": ("x", 3, (64,), None, [64, 64, "k"]),
            "cluster": ("x", 3, (3, 1), (1,), None, (1.0, 2)),
            "raster": ("x", 3, ("k", 8), ("m", "8"), None, ("m",)),
            "epilogue": (None, *NO_GRAPH),
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
            "unheard": (1.0, A),
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
    "emulator.run": (
        emulator.run,
        {"gemm": PLAIN, "a": A, "b": B},
        {"gemm": (None, 3, GemmSpec()), "options": (3, "lazy", {})},
    ),
    **{
        f"Gemm.{name}": (getattr(PLAIN, name), {}, {"of": NO_PROBLEM})
        for name in ("kernel", "explain", "launches", "workspace_bytes")
    },
    "tune": (
        cutegemm.tune,
        {"spec": GemmSpec(), "problems": [OF]},
        {
            "spec": (None, 3, GemmSpec),
            "problems": (OF, 3, None, [(1, 2, 3)], "x"),
            "candidates": (0, 1.5, None, True),
            "database": (3, "tuned.sqlite"),
        },
    ),
    "Gemm.tune": (PLAIN.tune, {}, {"problems": (OF, 3, [(1, 2, 3)], "x"), "candidates": (0, "x")}),
    "Gemm.warm": (PLAIN.warm, {}, {"problems": (OF, 3, None, [(1, 2, 3)], "x")}),
    "epi.backward": (epi.backward, {"graph": MLP}, {"graph": (None, *NO_GRAPH), "output": ("x", 3), "wrt": ("x", 3)}),
    "epi.define": (epi.define, {"function": lambda acc: acc}, {"function": (3, "gelu"), "gated": ("x", 3)}),
    "epi.swiglu": (epi.swiglu, {}, {"layout": ("x", 3, None, [])}),
    "epi.bias_act": (epi.bias_act, {}, {"activation": ("gelo", 3, None, [])}),
    "epi.scaled": (epi.scaled, {}, {"per": ("x", 3, None, [])}),
    "epi.quantize_fp8": (epi.quantize_fp8, {}, {"dtype": ("bf16", *NO_DTYPE)}),
    "epi.dropout_residual": (epi.dropout_residual, {}, {"p": (1.0, -0.1, "x", None)}),
}  # fmt: skip


def table() -> Iterator[Any]:
    """Every function, argument and wrong value, as a case of a test."""
    for name, (function, good, wrong) in FUNCTIONS.items():
        for argument, values in wrong.items():
            for i, value in enumerate(values):
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
    results = {"DType", "Gemm", "GemmError", "KernelPlan"}
    called = {name for name in cutegemm.__all__ if callable(getattr(cutegemm, name))}
    assert called - results <= set(FUNCTIONS)
    methods = {x for x in vars(Gemm) if not x.startswith("_") and callable(getattr(Gemm, x))}
    assert {f"Gemm.{x}" for x in methods} <= set(FUNCTIONS)
