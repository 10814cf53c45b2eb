# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md: every block runs, every command and option that it names is there, and none is missing."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutegemm.cli.app import app
from tests.support import command

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
LINES = [x for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for x in block.splitlines() if x]


@pytest.mark.parametrize("line", LINES)
def test_every_line_runs(line, tmp_path, monkeypatch):
    """Each line ends as it says: with a GPU's absence refused by name, or torch's, and differences with 1."""
    monkeypatch.chdir(tmp_path)
    code, _, comment = line.partition("#")
    name, *words = shlex.split(code)
    assert name == "cutegemm"
    if words[:2] == ["cache", "import"]:
        command.run("cache", "export", words[2])
    if words[:2] == ["cache", "clear"]:
        monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    if "GPU" in comment:
        says = "there is none" if importlib.util.find_spec("torch") else "torch: is not installed"
        assert says in command.refused(*words)
    else:
        command.run(*words, status=int(words[0] == "diff"))


def test_the_python_runs():
    """Every Python block runs."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_every_command_is_documented():
    """Each command stands in the table, and each option that the page names is one of some command."""
    names = [x.name or x.callback.__name__ for x in app.registered_commands]
    assert not [
        x for x in names if f"`{x} " not in TEXT and f"`{x}`" not in TEXT and f"cutegemm {x} " not in TEXT
    ]
    runner = CliRunner()
    helps = [runner.invoke(app, [x, "--help"]).output for x in names if x != "ladder"]
    helps += [
        runner.invoke(app, [*x, "--help"]).output for x in (["cache", "clear"], ["database", "show"], [])
    ]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert not [x for x in named if not any(x in text for text in helps)]
