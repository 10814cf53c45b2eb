# SPDX-License-Identifier: Apache-2.0
"""Limits say what a stage asks of a problem, and refuse the others in words."""

import re

import pytest

from cutegemm.errors import GemmError
from handwritten.ladder.problem import Limits, contiguous


@pytest.mark.parametrize(
    "limits, problem, message",
    [
        (
            Limits(k=16),
            (64, 64, 40, "rr"),
            "K=40: stage s needs a positive multiple of 16; nearest legal value: 48",
        ),
        (Limits(), (0, 64, 64, "rr"), "M=0: stage s needs a positive multiple of 1; nearest legal value: 1"),
        (
            Limits(align=16),
            (64, 63, 64, "rr"),
            "B pitch=63: stage s needs multiples of 8 elements (16 bytes); nearest legal value: 64",
        ),
        (
            Limits(col_major=False),
            (64, 64, 64, "rc"),
            "B=column-major: stage s copies vectors along rows; pass a row-major B",
        ),
    ],
)
def test_limits_say_field_value_rule_and_nearest(
    limits: Limits, problem: tuple[int, int, int, str], message: str
) -> None:
    """A problem outside a limit is refused with the field, its value, the rule and the nearest legal value."""
    *mnk, majors = problem
    with pytest.raises(GemmError, match=f"^{re.escape(message)}$"):
        limits.verify("s", contiguous("bf16", *mnk, majors=majors))


@pytest.mark.parametrize(
    "limits, text",
    [
        (Limits(), "none"),
        (
            Limits(n=4, k=4, align=16, col_major=False),
            "N % 4 == 0, K % 4 == 0, addresses and row pitches in multiples of 16 bytes, A and B row-major",
        ),
    ],
)
def test_limits_print(limits: Limits, text: str) -> None:
    """Limits print as the rules that a caller must keep."""
    assert str(limits) == text
