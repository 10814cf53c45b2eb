# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: each test's start and outcome go to a file at once, so that a killed session leaves them behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Any

VARIABLE = "CUTEGEMM_MUTANTS_LOG"
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG (linux/prctl.h)


def _write(**line: Any) -> None:
    with open(os.environ[VARIABLE], "a") as log:
        log.write(json.dumps(line) + "\n")


def pytest_sessionstart() -> None:
    """A session ends with the process that started it."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test begins."""
    _write(id=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Say how a test ended."""
    if report.when == "call" or report.failed or report.skipped:
        _write(id=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))


def pytest_collectreport(report: Any) -> None:
    """Say which file cannot be read."""
    if report.failed:
        _write(id=report.nodeid, outcome="failed", seconds=0.0)
