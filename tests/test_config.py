# SPDX-License-Identifier: Apache-2.0
"""Configs travel as plain data and come back equal."""

import dataclasses
import json

from hypothesis import assume, given

from cutegemm import DType, GemmSpec, Tile, plan, problem
from cutegemm.config import KernelConfig, RelayoutConfig, SimtConfig, config_from_data
from cutegemm.errors import PlanError
from tests.support.strategies import for_problem, problems, specs


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


def test_each_family_has_its_config():
    """The three kinds of config, by what is asked."""
    kinds = {
        type(step.config)
        for spec, dtype in ((GemmSpec(a_load="relayout"), "bf16"), (GemmSpec(), "fp32"))
        for step in plan(spec, problem(64, 64, 64, dtype=dtype)).steps
    }
    assert kinds == {KernelConfig, SimtConfig, RelayoutConfig}


def test_figures_that_follow_from_a_config():
    """Threads, passes, pieces and registers are worked out from tile, roles and family."""
    config = plan(GemmSpec(tile=Tile(256, 96, 64), cluster=(2, 1), consumers=2), problem(512, 512, 512)).config
    assert (config.cluster_size, config.producers, config.threads) == (2, 1, 384)
    assert (config.rows_per_pass, config.passes, config.pieces_n) == (128, 2, 3)
    assert not config.gathers and config.registers == (40, 232)
    serial = plan(GemmSpec(schedule="multistage", stages=1, tile=Tile(128, 64, 64)), problem(512, 512, 512)).config
    assert (serial.producers, serial.threads, serial.registers) == (0, 256, None)
    fp32 = plan(GemmSpec(), problem(64, 64, 64, dtype="fp32")).config
    fp32 = dataclasses.replace(fp32, tile=(128, 64, 8), thread_tile=(8, 4))
    assert fp32.threads == 256 and fp32.a.dtype is DType.FP32
