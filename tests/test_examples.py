# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its docstring says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_it_runs(path):
    """The example ends well and says how large its error was."""
    pytest.importorskip("torch")
    root = str(path.parent.parent)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    assert "relative error" in done.stdout
