# SPDX-License-Identifier: Apache-2.0
"""The problems that a stage is checked on."""

import pytest

import handwritten
from handwritten.ladder import verify


@pytest.mark.parametrize("stage", handwritten.stages(), ids=lambda stage: stage.key)
def test_shapes_of_the_check_are_within_the_limits(stage: handwritten.Stage) -> None:
    """Every problem that a stage is checked on with row-major operands is one that it takes, some of them ragged."""
    for dtype in stage.dtypes:
        drawn = list(verify.shapes(stage))
        assert all(stage.takes(dtype, *shape) for shape in drawn)
    if stage.limits.m == 1:
        assert any(m % stage.constants["BM"] for m, _, _ in drawn)
