# SPDX-License-Identifier: Apache-2.0
"""How many cases a test draws by itself, by the profile that the run has."""

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def cases(default: T, long: T) -> T:
    """`default`, or `long` under `--profile long`."""
    return long if settings.get_current_profile_name() == "long" else default
