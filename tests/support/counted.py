# SPDX-License-Identifier: Apache-2.0
"""Work counted instead of timed: a machine that others use counts as well as a quiet one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, a call enters."""
    count = 0

    def entered(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
