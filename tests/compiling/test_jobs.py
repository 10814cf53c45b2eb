# SPDX-License-Identifier: Apache-2.0
"""Processes that compile a share each."""

import dataclasses
import sys

import pytest

from cutegemm.compiling import jobs
from cutegemm.errors import CompileError
from tests.support.compiled import CONFIG, isolated


def test_a_failure_elsewhere_is_raised_here(monkeypatch, tmp_path):
    """A config that does not compile in its subprocess raises with the compiler's words; those before it count."""
    isolated(monkeypatch, tmp_path)
    broken = dataclasses.replace(CONFIG, tile=(128, 60, 64))
    done = []
    with pytest.raises(CompileError, match=r"^warp_specialized kernel does not compile: .{20,240}$") as e:
        jobs.compile_elsewhere([CONFIG, broken], lambda: done.append(1))
    assert done == [1] and "\n" not in str(e.value)


def test_a_process_that_breaks_off_is_reported(monkeypatch, tmp_path):
    """A job that ends without a word of its own is reported with its status and the end of what it said."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\ncat > /dev/null; echo out of memory; exit 137\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(CompileError, match="^a compiling process broke off with status 137: out of memory$"):
        jobs.compile_elsewhere([CONFIG], lambda: None)
