# SPDX-License-Identifier: Apache-2.0
"""Configs travel as plain data and come back equal."""

import dataclasses
import json

import pytest
from hypothesis import assume, given

from cutegemm import DType, GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.config import FinishConfig, KernelConfig, RelayoutConfig, SimtConfig, config_from_data
from cutegemm.epilogue import Graph, Node, Result
from cutegemm.errors import PlanError
from cutegemm.planning.planner import plan
from tests.support.strategies import for_problem, fused_problems, problems, specs


@given(specs(), problems(low=1))
def test_configs_survive_json(spec, of):
    """Every config of every plan comes back from JSON equal and with an equal hash."""
    try:
        p = plan(for_problem(spec, of), of)
    except PlanError:
        assume(False)
    for step in p.steps:
        again = config_from_data(json.loads(json.dumps(step.config.to_data())))
        assert again == step.config and hash(again) == hash(step.config) and type(again) is type(step.config)


@given(specs(), fused_problems())
def test_configs_of_fused_epilogues_survive_json(spec, fused):
    """Graphs, inputs, outputs, device scalars and finishes come back too, with what follows from them."""
    graph, of = fused
    try:
        p = plan(dataclasses.replace(for_problem(spec, of), epilogue=graph), of)
    except PlanError:
        assume(False)
    for step in p.steps:
        again = config_from_data(json.loads(json.dumps(step.config.to_data())))
        assert again == step.config and hash(again) == hash(step.config) and type(again) is type(step.config)
    config = config_from_data(json.loads(json.dumps(p.config.to_data())))
    assert list(config.input_of) == list(graph.tensors) and config.input_of == p.config.input_of
    there = {x for x, kind in graph.numbers.items() if x in of.device_scalars}
    assert config.host_numbers == {x: kind for x, kind in graph.numbers.items() if x not in there}


@epi.define
def summed(acc):
    """The sum of every row, and nothing stored."""
    return epi.Output(rows=epi.Sum(acc, axis=1))


def test_each_family_has_its_config():
    """The four kinds of config, by what is asked."""
    cases = ((GemmSpec(a_load="relayout"), "bf16"), (GemmSpec(), "fp32"), (GemmSpec(epilogue=summed), "bf16"))
    kinds = {
        type(step.config)
        for spec, dtype in cases
        for step in plan(spec, problem(64, 64, 64, dtype=dtype, epilogue=spec.given().get("epilogue"))).steps
    }
    assert kinds == {KernelConfig, SimtConfig, RelayoutConfig, FinishConfig}


@pytest.mark.parametrize(
    ("kinds", "approximate"),
    [
        (("bf16",), True),
        (("fp16", "fp8_e4m3"), True),
        (("bf16", "fp32"), False),
        (("fp32",), False),
        ((), False),
    ],
)
def test_tanh_is_approximate_where_nothing_finer_is_stored(kinds, approximate):
    """The hardware's tanh errs by 2**-11, a rounding of fp16: fp32 outputs and reductions need more."""
    results = [Result(f"x{i}", 0, dtype=kind) for i, kind in enumerate(kinds)]
    graph = Graph((Node("acc"),), (*results, *([] if kinds else [Result("sum", 0, "sum")])))
    config = plan(GemmSpec(epilogue=graph), problem(64, 64, 64, epilogue=graph)).config
    assert config.approximate == approximate
    assert (config.d is None) == (not kinds)


@pytest.mark.parametrize(
    ("schedule", "tile", "expected"),
    [
        ("cooperative", (256, 96, 64), (2, 2, 96, 3, 6, (16, 96), 8)),
        ("multistage", (128, 128, 64), (2, 1, 128, 2, 2, (16, 128), 8)),
        ("pingpong", (128, 64, 64), (1, 2, 64, 1, 2, (16, 64), 4)),
    ],
)
def test_subtiles_and_partial_results(schedule, tile, expected):
    """Warpgroups of a tile, passes, columns, subtiles along N and in all, and what one partial result covers."""
    c = plan(GemmSpec(schedule=schedule, tile=Tile(*tile)), problem(512, 512, 512)).config
    assert (
        c.team,
        c.passes,
        c.columns,
        c.subtiles_n,
        c.subtiles,
        c.partial_width,
        c.partials_per_tile,
    ) == expected
    assert c.pingpong == (schedule == "pingpong") and c.consumers == 2


def test_a_gated_tile_has_half_its_columns():
    """Accumulators come in pairs: half as many columns are stored, and as many subtiles."""
    pair = epi.define(lambda gate, up: gate * up, gated="halves")
    c = plan(GemmSpec(epilogue=pair, tile=Tile(128, 256, 64)), problem(512, 512, 512, epilogue=pair)).config
    assert (c.gates, c.columns, c.subtiles_n, c.partial_width) == (2, 128, 2, (16, 128))
    simt = plan(GemmSpec(epilogue=pair, schedule="simt"), problem(512, 512, 512, epilogue=pair)).config
    simt = dataclasses.replace(simt, tile=(128, 128, 8), thread_tile=(8, 8), lanes_m=8, slices=1, split=1)
    assert (simt.columns, simt.partial_width, simt.partials_per_tile) == (64, (64, 16), 8)


def test_figures_that_follow_from_a_config():
    """Threads, passes, subtiles and registers are worked out from tile, roles and family."""
    config = plan(
        GemmSpec(tile=Tile(256, 96, 64), cluster=(2, 1), consumers=2), problem(512, 512, 512)
    ).config
    assert (config.cluster_size, config.producers, config.threads) == (2, 1, 384)
    assert (config.rows_per_pass, config.passes, config.subtiles_n) == (128, 2, 3)
    assert not config.gathers and config.registers == (40, 232)
    serial = plan(
        GemmSpec(schedule="multistage", stages=1, tile=Tile(128, 64, 64)), problem(512, 512, 512)
    ).config
    assert (serial.producers, serial.threads, serial.registers) == (0, 256, None)
    fp32 = plan(GemmSpec(), problem(64, 64, 64, dtype="fp32")).config
    fp32 = dataclasses.replace(fp32, tile=(128, 64, 8), thread_tile=(8, 4), slices=1)
    assert fp32.threads == 256 and fp32.a.dtype is DType.FP32
