# SPDX-License-Identifier: Apache-2.0
"""What the functions of the epilogue language do not take; rows of the table in `tests/contract/test_arguments.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutegemm import epilogue as epi
from tests.support.wrong import NO_DTYPE, NO_GRAPH

MLP = epi.bias_act()

FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "epi.with_saved": (
        epi.with_saved, {"graph": MLP}, {"graph": (None, *NO_GRAPH), "dtype": NO_DTYPE, "wrt": ("x", 3, [["acc"]])},
    ),
    "epi.cross_entropy_partials": (epi.cross_entropy_partials, {}, {"store_logits": (1, None, "x")}),
    "epi.linear_combination": (epi.linear_combination, {}, {"with_c": (1, None, "x")}),
    **{
        f"epi.{kind.__name__} of one": (
            lambda kind=kind, **given: epi.define(lambda acc: epi.Output(o=kind(acc, **given))),
            {},
            {"axis": (2, -3, True, "m", 1.0), "partial": (1, None, "x")},
        )
        for kind in (epi.Sum, epi.Max, epi.LogSumExp, epi.AbsMax, epi.SumSquares)
    },
    "epi.Store of one": (
        lambda **given: epi.define(lambda acc: epi.Output(o=epi.Store(acc, **given))),
        {},
        {"dtype": NO_DTYPE, "major": ("k", 1, True)},
    ),
    "epi.Graph": (
        epi.Graph,
        {"nodes": MLP.nodes, "outputs": MLP.outputs},
        {"nodes": (None, 3, (None,), "x"), "outputs": (None, 3, ("d",)), "gated": ("x", 3), "swapped": (1, True)},
    ),
    "epi.backward": (epi.backward, {"graph": MLP}, {"graph": (None, *NO_GRAPH), "output": ("x", 3), "wrt": ("x", 3)}),
    "epi.define": (epi.define, {"function": lambda acc: acc}, {"function": (3, "gelu"), "gated": ("x", 3)}),
    "epi.swiglu": (epi.swiglu, {}, {"layout": ("x", 3, None, [])}),
    "epi.act": (epi.act, {}, {"activation": ("gelo", 3, None, [])}),
    "epi.bias_act": (epi.bias_act, {}, {"activation": ("gelo", 3, None, [])}),
    "epi.scaled": (epi.scaled, {}, {"per": ("x", 3, None, [])}),
    "epi.quantize_fp8": (epi.quantize_fp8, {}, {"dtype": ("bf16", *NO_DTYPE)}),
    "epi.dropout_residual": (epi.dropout_residual, {}, {"p": (1.0, -0.1, "x", None)}),
}  # fmt: skip
