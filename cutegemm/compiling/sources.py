# SPDX-License-Identifier: Apache-2.0
"""Which source files a module's code depends on, read from its imports; nothing is imported."""

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
    """The files of `modules` of a package, and of everything in the package that they import, sorted.

    Args:
        package: the package's folder; its name is the first part of absolute imports.
        modules: dotted names below the package, such as "kernels.simt".
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(package, name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += _imports(path, package.name)
    return sorted(set(found.values()))


def _file(package: Path, name: str) -> Path | None:
    """The file of a dotted name below the package, or None if it names no module."""
    base = package.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((x for x in candidates if x.is_file()), None)


def _imports(path: Path, package: str) -> Iterator[str]:
    """Dotted names below the package that a file's import statements may mean, at any depth of its code."""
    prefix = package + "."
    # every process that asks for a kernel reads them: the statements alone are parsed, not the whole files
    statements = "\n".join(x for x in _IMPORT.findall(path.read_text("utf-8")) if package in x)
    for node in ast.parse(statements).body:
        if isinstance(node, ast.Import):
            yield from (x.name.removeprefix(prefix) for x in node.names if x.name.startswith(prefix))
        elif isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(prefix):
            base = node.module.removeprefix(package).lstrip(".")
            if base:
                yield base
            yield from (f"{base}.{x.name}".lstrip(".") for x in node.names)
