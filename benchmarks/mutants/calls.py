# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that records which functions of the package a test session calls, by module and name.

Kernels are compiled in the session itself with an empty cache, so functions that generate kernels count as called.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

VARIABLE = "CUTEGEMM_MUTANTS_CALLS"
PACKAGE = f"{os.sep}cutegemm{os.sep}"
_SEEN: set[CodeType] = set()


def _note(frame: FrameType, event: str, argument: Any) -> None:
    _SEEN.add(frame.f_code)


def called() -> list[tuple[str, str]]:
    """(module below the package, function) of everything that ran."""
    found = set()
    for code in _SEEN:
        # in a copied tree the last match is the package
        _, inside, module = code.co_filename.rpartition(PACKAGE)
        if inside:
            found.add((module.replace(os.sep, "/"), code.co_name))
    return sorted(found)


def pytest_configure() -> None:
    """Compile in this process, where calls are recorded."""
    from tests.support.compile_elsewhere import Elsewhere

    here = Elsewhere.__call__.__defaults__[0]
    Elsewhere.__call__ = lambda self, config, compiled=here: compiled(config)  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    """Write the called functions."""
    sys.settrace(None)
    with open(os.environ[VARIABLE], "w") as file:
        json.dump(called(), file)


if VARIABLE in os.environ:
    threading.settrace(_note)
    sys.settrace(_note)
