# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes each test's start and outcome to a file at once, so they survive a killed session."""

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
    """Let the session die with the process that started it."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write the start of a test."""
    _write(id=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test."""
    if report.when == "call" or report.failed or report.skipped:
        _write(id=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))


def pytest_collectreport(report: Any) -> None:
    """Write a file that cannot be imported."""
    if report.failed:
        _write(id=report.nodeid, outcome="failed", seconds=0.0)
