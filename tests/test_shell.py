# SPDX-License-Identifier: Apache-2.0
"""The shell commands of the documentation: what needs neither a GPU nor a network runs, of the rest the command line is
parsed by the program that it names. docs/cli.md has tests/cli/test_document.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "docs/learn", "benchmarks", "handwritten")
PAGES = [x for folder in FOLDERS for x in sorted((ROOT / folder).glob("*.md")) if x != ROOT / "docs/cli.md"]
# what `benchmarks.NAME` stands for on its page
NAMES = ("chain", "epilogue", "host_time", "occupied", "peers", "invariant", "pytorch", "models")
# modules whose commands in blocks run, in an empty folder
RUN = ("cutegemm.database", "handwritten")
# programs that are not ours, whose words are not looked at
OTHERS = {
    "git",
    "cd",
    ".",
    "export",
    "pre-commit",
    "g++",
    "mypy",
    "ruff",
    "bash",
    "tools/release.sh",
    "mkdocs",
    "ncu",
}
# words that stand for a value
VALUES = {
    "M": "64",
    "N": "64",
    "K": "64",
    "G": "2",
    "HASH": "0" * 40,
    "C": "0" * 40,
    "A,B": f"{'0' * 40},{'1' * 40}",
}


def blocks(text):
    """Lines of the shell blocks of a page, continued ones joined, variables of the block in place."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        known = {}
        for line in block.replace("\\\n", " ").splitlines():
            for name, value in known.items():
                line = line.replace(f"${name} ", f"{value} ")
            known |= re.findall(r'^([A-Z]+)="(.*)"$', line)
            yield line


def spans(text):
    """Commands between backquotes."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"`((?:python -m |pytest\b|cutegemm (?!=))[^`]*)`", text)
    return [x.replace("\n", " ") for x in found]


def commands(lines):
    """Each command of some lines, as words."""
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        words.whitespace_split = True
        command = []
        for word in [*words, ";"]:
            if set(word) <= set(";&|"):
                if command and not re.match(r"[A-Z_]+=", command[0]):
                    yield tuple(command)
                command = []
            else:
                command.append(word)


def cases():
    """Commands of every page, and whether they stand in a block."""
    for path in PAGES:
        text = path.read_text("utf-8")
        for lines, block in ((blocks(text), True), (spans(text), False)):
            for words in dict.fromkeys(commands(lines)):
                if words[0] not in OTHERS:
                    yield pytest.param(words, block, id=f"{path.relative_to(ROOT)}: {' '.join(words)}")


class ParsedError(Exception):
    """A program took its command line."""


@pytest.fixture
def parsing(monkeypatch):
    """Programs end when they have parsed their command lines."""
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, *arguments, **more):
        parse(self, *arguments, **more)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)


def expanded(words):
    """Values for words that stand for one, and files for patterns."""
    for word in words:
        yield from sorted(map(str, ROOT.glob(word))) if "*" in word else [VALUES.get(word, word)]


@pytest.mark.parametrize(("words", "block"), cases())
def test_a_command_of_the_documentation(words, block, parsing, monkeypatch, tmp_path):
    """It runs, or its program parses it; files that it names are there."""
    program, *rest = words[words.index("python") :] if words[0] == "compute-sanitizer" else words
    if program == "pip":
        installed(rest[1:])
    elif program == "pytest":
        missing = [x for x in rest if "/" in x and not (ROOT / x).exists()]
        assert not missing
    elif program == "cutegemm":
        command_line(list(expanded(rest)))
    elif rest[0] != "-m":
        assert program == "python" and (ROOT / rest[0]).is_file()
    elif block and rest[1] in RUN:
        ended(rest, tmp_path)
    elif len(rest) == 2:
        assert importlib.util.find_spec(rest[1].replace("NAME", NAMES[0])) is not None
    elif rest[1] != "venv":
        pytest.importorskip("torch")
        for name in NAMES if "NAME" in rest[1] else ("",):
            module, *more = (x.replace("NAME", name) for x in expanded(rest[1:]))
            monkeypatch.setattr(sys, "argv", [module, *more])
            with pytest.raises(ParsedError):
                runpy.run_module(module, run_name="__main__", alter_sys=True)


def installed(words):
    """What `pip install` is given is there: files, and the extras of this package."""
    extras = re.findall(
        r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("optional-dependencies]")[1], re.M
    )
    pairs = [x for x in words if x != "--no-compile"]
    for option, value in zip(pairs[::2], pairs[1::2], strict=True):
        if option == "-c":
            assert (ROOT / value).is_file()
        else:
            assert option == "-e" and set(re.findall(r"\w+", value)) <= set(extras)


def command_line(words):
    """`cutegemm` takes its command line; its commands run in tests/cli."""
    from cutegemm.cli.app import app

    group = typer.main.get_command(app)
    command = group.get_command(group.make_context("cutegemm", list(words)), words[0])
    assert command is not None, words[0]
    command.make_context(words[0], words[1:])


def ended(words, folder):
    """A module runs in a folder, with files that it reads."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUTEGEMM_CACHE_DIR": str(folder)}
    (folder / "cutegemm" / "database").mkdir(parents=True)
    before = [["-m", words[1], "export", *words[3:]]] if "import" in words else []
    for each in [*before, words]:
        done = subprocess.run(
            [sys.executable, *each], cwd=folder, env=environment, capture_output=True, text=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_a_wrong_option_is_seen(parsing, monkeypatch):
    """The check tells a command line that its program refuses."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["benchmarks.table", "--chek"])
    with pytest.raises(SystemExit):
        runpy.run_module("benchmarks.table", run_name="__main__", alter_sys=True)
    with pytest.raises(Exception, match="No such option"):
        command_line(["explain", "64", "64", "64", "--whyy"])
