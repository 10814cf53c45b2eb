# SPDX-License-Identifier: Apache-2.0
"""The epilogue language under a type checker."""

from pathlib import Path

import pytest

# What the language itself does not need is not read: torch alone takes mypy half a minute.
CONFIG = """[mypy]
strict = True
follow_imports = silent
ignore_missing_imports = True
[mypy-torch.*,numpy.*,cutlass.*,llvmlite.*]
follow_imports = skip
"""
EXAMPLE = Path(__file__).parents[1] / "typing" / "epilogue_example.py"


def checked(path: Path, cache: Path) -> str:
    """What mypy --strict says of a file alone."""
    api = pytest.importorskip("mypy.api", reason="needs mypy")
    config = cache / "mypy.ini"
    config.write_text(CONFIG)
    return api.run([f"--config-file={config}", f"--cache-dir={cache}", str(path)])[0]


def test_the_example_type_checks(tmp_path):
    """Inputs, values and numbers mix; outputs and graphs are typed. A mistake in it is found."""
    assert checked(EXAMPLE, tmp_path).startswith("Success")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXAMPLE.read_text().replace("bias + 1.0", 'bias + "1"'))
    assert 'Unsupported operand types for + ("Row" and "str")' in checked(wrong, tmp_path)
