# SPDX-License-Identifier: Apache-2.0
"""The source files that a module depends on, read from its import statements without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# an import statement on lines of its own
_IMPORT = re.compile(
    r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|[^\n(#]+))(?:[ \t]*#.*)?$", re.MULTILINE
)


def behind(package: Path, modules: Iterable[str]) -> list[Path]:
    """The files of `modules` and of everything in the package that they import, sorted.

    Args:
        package: the package's folder; absolute imports start with its name.
        modules: dotted names below the package, such as "kernels.simt".
    """
    files: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(package, name)
        if name in files or path is None:
            continue
        files[name] = path
        waiting += _imports(path, package.name)
    return sorted(set(files.values()))


def _file(package: Path, name: str) -> Path | None:
    """The file of a dotted name below the package; None if it is not a module."""
    base = package.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((x for x in candidates if x.is_file()), None)


def _imports(path: Path, package: str) -> Iterator[str]:
    """Dotted names below the package that a file's import statements may mean, also of imports in functions."""
    prefix = package + "."
    # parsing only the statements is faster, and every process that needs a kernel does it
    statements = "\n".join(x for x in _IMPORT.findall(path.read_text("utf-8")) if package in x)
    for node in ast.parse(statements).body:
        if isinstance(node, ast.Import):
            yield from (x.name.removeprefix(prefix) for x in node.names if x.name.startswith(prefix))
        elif isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(prefix):
            base = node.module.removeprefix(package).lstrip(".")
            if base:
                yield base
            yield from (f"{base}.{x.name}".lstrip(".") for x in node.names)
