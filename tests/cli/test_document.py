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
from tests.support.printed import missing

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```(?:\n\n```text\n(.*?)```)?", TEXT, re.DOTALL)
# each line of a block, and what the page shows below the block that the last one prints
LINES = [
    (line, shown if line == block.splitlines()[-1] else "")
    for block, shown in BLOCKS
    for line in block.splitlines()
    if line
]


@pytest.mark.sliced
@pytest.mark.parametrize("line, shown", LINES)
def test_every_line_runs(line, shown, tmp_path, monkeypatch):
    """Each line prints what is shown and ends as it says: with a GPU's absence refused by name, or torch's, and
    differences with 1.
    """
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
        assert not missing(shown, command.run(*words, status=int(words[0] == "diff")))


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
