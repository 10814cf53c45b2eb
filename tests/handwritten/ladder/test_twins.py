# SPDX-License-Identifier: Apache-2.0
"""Twins are specs that the builder takes, one field apart."""

import pytest

import handwritten
from cutegemm import problem
from cutegemm.planning.planner import plan
from handwritten.ladder.twins import _between, knobs, twin


@pytest.mark.parametrize("stage", handwritten.stages(), ids=lambda stage: stage.key)
def test_twins_are_specs_that_the_builder_takes(stage: handwritten.Stage) -> None:
    """A stage's twin has its tile and fits; only Hopper stages have one."""
    spec = twin(stage)
    assert (spec is not None) <= (stage.number >= 16)
    if spec is not None:
        config = plan(spec, problem(4096, 4096, 4096)).config
        assert config.tile == tuple(stage.constants[name] for name in ("BM", "BN", "BK"))


def test_neighbouring_specs_differ_in_one_field() -> None:
    """From the first twin to the last each spec changes one field, all are legal, and every twin is among them."""
    specs = knobs()
    plain = [spec.__dict__ for spec in specs.values()]
    changes = [[name for name in a if a[name] != b[name]] for a, b in zip(plain, plain[1:])]
    assert [len(names) for names in changes] == [1] * (len(specs) - 1)
    for spec in specs.values():
        plan(spec, problem(4096, 4096, 4096))
    twins = {f"{stage.key} (DSL)" for stage in handwritten.stages() if twin(stage)}
    assert len(twins) == 6 and twins < set(specs)


def test_specs_between_the_stages_asked_for() -> None:
    """Only the stretch that the asked stages span is built."""
    stages = [handwritten.stage(18), handwritten.stage(19), handwritten.stage(3)]
    assert list(_between(stages, "bf16")) == [
        "18_producer_consumer (DSL)",
        "DSL, stages 3",
        "19_staged_epilogue (DSL)",
    ]
    assert _between(stages, "fp32") == {}
