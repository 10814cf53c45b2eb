# SPDX-License-Identifier: Apache-2.0
"""Invariants of the kernels before and after a GEMM: no way around them, and every legal config can be made."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cutegemm.config import FinishConfig, RelayoutConfig, RowSumConfig, config_from_data
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.errors import PlanError

COPY = RelayoutConfig(dtype=DType.BF16, units=("col",))
FINISH = FinishConfig(kind="sum", across=True)
ROW_SUM = RowSumConfig(dtype=DType.BF16, terms=2)
BROKEN = {
    "no copy": (COPY, "units", (), "units=(): a launch makes at least one copy"),
    "unit": (COPY, "units", ("col", "diagonal"), "units=('col', 'diagonal'): a launch makes at least one"),
    "kind": (FINISH, "kind", "mean", "kind='mean': must be one of 'sum', 'max', 'logsumexp'"),
    "wide elements": (
        COPY,
        "units",
        ("col", "transposed"),
        "units=('col', 'transposed'): elements of one byte are transposed; nearest legal value: ('col', 'none')",
    ),
    "run": (COPY, "run", 8, "run=8: fp32 elements without a unit stride in common are split"),
    "terms": (
        ROW_SUM,
        "terms",
        17,
        "terms=17: must be from 1 to 16, which registers hold; nearest legal value: 16",
    ),
    "across": (FINISH, "across", 2, "across=2: must be True or False"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_config_cannot_be_made(name):
    """Neither by its fields nor from plain data; the refusal names the field and the value."""
    whole, field, value, said = BROKEN[name]
    data = whole.to_data() | {field: value.value if isinstance(value, DType) else value}
    for make in (lambda: dataclasses.replace(whole, **{field: value}), lambda: config_from_data(data)):
        with pytest.raises(PlanError) as e:
            make()
        assert str(e.value).startswith(said)


@pytest.mark.parametrize(
    ("whole", "field", "value"),
    [
        (COPY, "dtype", "bf16"),
        (COPY, "units", ["col"]),
        (COPY, "units", ("col", "diagonal")),
        (COPY, "units", "col"),
        (COPY, "units", ("transposed", "row")),
        (COPY, "run", 4),
        (COPY, "run", False),
        (COPY, "family", "finish"),
        (dataclasses.replace(COPY, dtype=DType.FP32, units=("none",)), "run", 4.0),
        (ROW_SUM, "dtype", DType.INT8),
        (ROW_SUM, "dtype", "bf16"),
        *((ROW_SUM, "terms", x) for x in (0, 2.0, True)),
        (ROW_SUM, "wide", 1),
        (ROW_SUM, "family", "finish"),
        (FINISH, "kind", ["sum"]),
        (FINISH, "family", "relayout"),
    ],
)
def test_a_refused_value_has_a_legal_one_beside_it(whole, field, value):
    """Values of another type too, which would fail when the kernel is compiled."""
    with pytest.raises(PlanError) as e:
        dataclasses.replace(whole, **{field: value})
    assert e.value.field == field
    dataclasses.replace(whole, **{field: e.value.nearest})


@pytest.mark.parametrize("config", [COPY, FINISH, ROW_SUM], ids=lambda x: x.family)
def test_plain_data_gives_a_config_back(config):
    """As compiler processes and cache keys have it."""
    assert config_from_data(json.loads(json.dumps(config.to_data()))) == config


def test_what_the_planner_makes_is_legal():
    """Every reduction, both ways round, and copies of every axis and width."""
    for kind in NEUTRAL:
        for across in (True, False):
            assert FinishConfig(kind=kind, across=across).kind == kind
    for dtype in (DType.BF16, DType.FP16, DType.FP32):
        assert RelayoutConfig(dtype=dtype, units=("none", "row", "col")).dtype is dtype
