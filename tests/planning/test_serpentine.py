# SPDX-License-Identifier: Apache-2.0
"""Which rasters are serpentine."""

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.planning.planner import plan

LARGE = (8192, 8192, 8192)


@pytest.mark.parametrize(
    ("fields", "shape", "expected"),
    [
        ({}, LARGE, True),
        ({"schedule": "cooperative", "raster": ("n", 8)}, LARGE, True),
        # both operands stay in L2
        ({}, (2048, 2048, 2048), False),
        # rows that stay there while weights stream by, each once
        ({}, (64, 57344, 8192), False),
        # one wave
        ({"tile": (128, 128, 64)}, (1024, 1024, 65536), False),
        ({"batch_invariant": True}, LARGE, False),
        ({"scheduler": "stream_k"}, LARGE, False),
        ({"scheduler": "dynamic"}, LARGE, True),
        ({"split_k": 2}, LARGE, False),
        ({"a_load": "gather"}, LARGE, False),
        ({"schedule": "multistage"}, LARGE, False),
    ],
)
def test_rasters_turn_back_where_l2_does_not_hold_the_operands(fields, shape, expected):
    """It takes several waves, whole sums, loads by a producer's TMA, and bits that may depend on a row's place."""
    made = plan(GemmSpec(**fields), problem(*shape, majors="kk"))
    assert made.config.serpentine is expected
    assert ("there and back" in str(made)) is expected


@pytest.mark.parametrize(
    ("scales", "expected"), [("tensor", True), ("row", True), (("block", 1, 128), False)]
)
def test_scales_of_blocks_are_read_in_one_direction(scales, expected):
    """Elsewhere the producer's addresses would be products."""
    spec = GemmSpec(scale_a=scales, scale_b=scales, d_dtype="bf16")
    asked = problem(*LARGE, dtype="fp8", majors="kk", d_dtype="bf16", epilogue=spec.epilogue)
    assert plan(spec, asked).config.serpentine is expected
