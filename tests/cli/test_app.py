# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: help, versions, statuses, schemas, what it imports, how long it takes."""

import json
import os
import subprocess
import sys
import typing

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

import cutegemm
from cutegemm.cli import app as application
from cutegemm.cli import schema
from cutegemm.cli.app import app
from tests.support import command
from tests.support.patience import PATIENCE

# the ladder's help is its own
NAMES = [x.name or x.callback.__name__ for x in app.registered_commands]
NAMES = [x for x in NAMES if x != "ladder"] + ["cache", "database"]


def process(*words):
    """A command as a process of its own."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_command_says_what_it_does(name):
    """The help of each command fits 80 columns and begins with a sentence."""
    text = command.run(name, "--help")
    assert "Usage: cutegemm " + name in text and "." in text


def test_help_lists_the_commands():
    """`cutegemm` alone lists all commands, and asks for one with status 2."""
    found = CliRunner().invoke(app, [], prog_name="cutegemm")
    assert found.exit_code == 2
    assert all(f"\n  {name} " in found.output for name in NAMES)


@pytest.mark.parametrize("words", [(), ("cache",), ("database",)], ids=str)
def test_lists_of_commands_say_whole_sentences(words):
    """What a command does fits beside its name."""
    assert "..." not in command.run(*words, "--help").partition("Commands:")[2]


def test_the_version_is_the_package_s():
    """`--version` prints the package's version."""
    assert command.run("--version").strip() == f"cutegemm {cutegemm.__version__}"


def test_python_m_is_the_same_command():
    """`python -m cutegemm` is `cutegemm`, down to its name in errors and its status."""
    done = process("-m", "cutegemm", "layout", "(8,8")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("cutegemm layout: ") and "Traceback" not in done.stderr


def test_an_unknown_option_is_a_matter_of_usage():
    """What typer refuses ends with 2 as well."""
    assert "No such option: --nope" in command.refused("layout", "--nope")


def test_an_interrupted_command_says_so(monkeypatch):
    """Ctrl-C ends a command with a word and 130, the shell's status of a signal."""

    def interrupted(**ignored):
        raise KeyboardInterrupt

    monkeypatch.setattr("cutegemm.cli.facts.health.examine", interrupted)
    found = CliRunner().invoke(app, ["doctor"])
    assert (found.exit_code, found.stderr) == (application.INTERRUPTED, "stopped\n")


def _called_like_their_metavar():
    """What typer is told of each option whose metavar is its name in capitals."""
    groups = [
        (app, ""),
        *((x.typer_instance, f"{x.typer_instance.info.name} ") for x in app.registered_groups),
    ]
    for group, prefix in groups:
        for command_info in group.registered_commands:
            hints = typing.get_type_hints(command_info.callback, include_extras=True)
            for name, hint in hints.items():
                for info in getattr(hint, "__metadata__", ()):
                    if isinstance(info, OptionInfo) and (info.metavar or "").lower() == name:
                        called = command_info.name or command_info.callback.__name__
                        yield pytest.param(info, id=f"{prefix}{called}.{name}")


@pytest.mark.parametrize("info", list(_called_like_their_metavar()))
def test_options_are_lower_case(info):
    """An option declares its name where its metavar is the same word: typer 0.27 would make --SPEC of SPEC."""
    # within Annotated the first name stands where a default would
    assert any(str(x).startswith("--") for x in (info.default, *(info.param_decls or ())))


@pytest.mark.parametrize("name", schema.DOCUMENTS)
def test_schemas_are_printed(name):
    """`schema` prints one for each command that has --json."""
    found = json.loads(command.run("schema", name))
    assert found["properties"]["command"] == {"const": name}
    assert set(found["required"]) == set(found["properties"])


def test_a_schema_of_nothing_is_refused():
    """`schema` names the commands it knows."""
    assert "must be one of explain, layout" in command.refused("schema", "nothing")
    assert "nearest legal value: 'explain'" in command.refused("schema", "explian")


def test_a_schema_knows_every_kind_of_field():
    """A field whose type has no schema is a mistake of ours."""
    with pytest.raises(TypeError, match="no schema for"):
        schema._of(bytes)


def test_the_validator_finds_what_is_wrong():
    """The tests' validator refuses a missing, an unknown and a wrong field."""
    of = schema.document("doctor")
    good = {"command": "doctor", "checks": []}
    assert not list(command.complaints(good, of))
    assert list(command.complaints(good | {"checks": [{"name": 3}]}, of))
    assert list(command.complaints(good | {"more": 1}, of))
    assert list(command.complaints({"checks": []}, of))


def test_shells_complete():
    """Shell completion offers commands and the values of options."""
    env = {"_CUTEGEMM_COMPLETE": "complete_bash", "COMP_WORDS": "cutegemm explain --gpu h", "COMP_CWORD": "3"}
    found = CliRunner().invoke(app, [], prog_name="cutegemm", env=env)
    assert set(found.output.split()) >= {"h200", "h100"}


@pytest.mark.parametrize(
    "words, most",
    [(("layout", "(8,8):(8,1)"), 400), (("explain", "4096", "4096", "4096"), 600), (("doctor",), 700)],
    ids=lambda x: x[0] if isinstance(x, tuple) else "",
)
def test_commands_start_soon(words, most):
    """A command loads at most so many modules, and neither torch nor, to draw a layout, NumPy is among them."""
    code = (
        "import sys; from cutegemm.cli.app import app; app(sys.argv[1:], standalone_mode=False);"
        "print(len(sys.modules), *(x for x in ('torch', 'numpy', 'cutlass') if x in sys.modules), file=sys.stderr)"
    )
    done = process("-c", code, *words)
    assert done.returncode == 0, done.stderr
    count, *heavy = done.stderr.splitlines()[-1].split()
    assert int(count) <= most
    assert not heavy if words[0] == "layout" else "torch" not in heavy and "cutlass" not in heavy


def test_a_reader_that_goes_away_is_no_error():
    """`cutegemm explain … | head -1` prints no traceback."""
    line = f"{sys.executable} -m cutegemm explain 4096 4096 4096 --why | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.startswith("problem") and "Traceback" not in done.stderr


def test_standard_output_may_be_closed():
    """`cutegemm explain … >&-` has nowhere to print, which is not an error."""
    line = f"{sys.executable} -m cutegemm explain 64 64 64 >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["--help", "--version", "schema explain", "layout 8:1"])
def test_a_full_disk_is_one_line(words, unbuffered, monkeypatch):
    """Output that cannot be written ends any command with a line and status 2."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    line = f"{sys.executable} -m cutegemm {words} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and done.stderr.endswith(": No space left on device\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_warning_is_one_line():
    """A warning stands without the line of code that raised it."""
    code = (
        "import warnings; from cutegemm.cli import app; app.app = lambda **k: warnings.warn('mind the gap')"
    )
    code += "; app.main()"
    done = process("-c", code)
    assert (done.returncode, done.stderr) == (0, "cutegemm: mind the gap\n")


def test_a_terminal_s_width_is_used(monkeypatch):
    """Text is as wide as the terminal, and 80 columns where there is none."""
    from cutegemm.cli import output

    assert output.width() == output.PIPED
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size((120, 24)))
    assert output.width() == 120
