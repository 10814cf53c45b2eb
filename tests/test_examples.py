# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its docstring says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
ALL = """
import runpy, sys
for path in sys.argv[1:]:
    print("example", path, flush=True)
    runpy.run_path(path, run_name="__main__")
"""


def test_they_run():
    """Each example ends well and says how large its error was; one process runs them all, imports take most time."""
    pytest.importorskip("torch")
    root = str(EXAMPLES[0].parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", ALL, *map(str, EXAMPLES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.split("example ")[1:]
    assert len(said) == len(EXAMPLES) and all("relative error" in x for x in said), done.stdout
