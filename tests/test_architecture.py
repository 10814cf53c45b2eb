# SPDX-License-Identifier: Apache-2.0
"""The architecture (`docs/architecture.md`): layers, import cycles, and limits of files and folders."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import cutegemm

PACKAGE = Path(cutegemm.__file__).parent
MOST_FILES = 10
MOST_CYCLES = 2  # groups of modules that import each other
MOST_IN_A_CYCLE = 4  # modules of such a group
MOST_LINES = 400
MOST_SHARED_NAMES = 8  # file names that exist in two packages
MOST_OF_SM90 = 6  # files outside the code for sm_90 that name it
MOST_IN_A_FOLDER = 15

# From the bottom up: a package imports from lower layers and from itself, not from others of its layer.
LAYERS = (
    {"errors"},
    {"checks", "files"},
    {"dtypes", "emulator"},
    {"arch"},
    {"epilogue", "layouts", "families"},
    {"config"},
    {"spec", "problems", "launch_layout"},
    {"request"},
    {"plans", "kernels"},
    {"planning"},
    {"compiling"},
    {"aot", "database"},
    {"running"},
    {"tuning"},
    {"gemm"},
    {"ops"},
    {"nn", "inductor"},
    {"cli"},
    {"__main__"},
    {"__init__"},
)
LAYER = {package: height for height, packages in enumerate(LAYERS) for package in packages}


def module(path: Path) -> str:
    """A file's dotted name below cutegemm; "" is cutegemm itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """Modules of cutegemm that a file imports: all of them, or only those imported when it is itself imported."""
    tree = ast.parse(path.read_text())
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [x.name for x in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{x.name}" for x in node.names]
            named = [x if x.removeprefix("cutegemm.") in FILES else node.module for x in inside]
        else:
            continue
        yield from (x.removeprefix("cutegemm").lstrip(".") for x in named if x.split(".")[0] == "cutegemm")


def package_of(name: str) -> str:
    """The package or top-level module that a module belongs to."""
    return name.split(".")[0] or "__init__"


@pytest.mark.parametrize("name", FILES)
def test_imports_come_from_lower_layers(name):
    """A module imports from lower layers and from its own package; imports in functions count."""
    for other in imports(FILES[name]):
        here, there = package_of(name), package_of(other)
        assert here == there or LAYER[there] < LAYER[here], f"{name} imports {other}"


def test_every_package_has_a_layer():
    """The layers name exactly the packages and modules at the top level."""
    assert {package_of(name) for name in FILES} == set(LAYER)


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of two or more modules that import each other, directly or not."""
    reached = {name: set(direct) for name, direct in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    found = {frozenset({name} | {x for x in reached[name] if name in reached[x]}) for name in graph}
    return [set(group) for group in found if len(group) > 1]


def test_import_cycles_are_few():
    """There are at most two import cycles of at most four modules; imports in functions and for types count."""
    graph = {name: {x for x in imports(path) if x in FILES and x != name} for name, path in FILES.items()}
    found = cycles(graph)
    assert len(found) <= MOST_CYCLES and max(map(len, found), default=0) <= MOST_IN_A_CYCLE, found


def test_a_cycle_is_found():
    """A cycle holds modules that import each other through others, but not modules that they only import."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert cycles(graph) == [{"a", "b", "c"}]


@pytest.mark.parametrize("package", ["request", "plans", "planning"])
def test_the_planner_has_no_import_cycle(package):
    """Imports in functions and for type checkers count."""
    graph = {
        name: {x for x in imports(path) if package_of(x) == package}
        for name, path in FILES.items()
        if package_of(name) == package
    }
    TopologicalSorter(graph).prepare()


def test_the_top_level_is_small():
    """The top level has at most ten modules besides the packages."""
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES


def test_file_names_are_unique():
    """Few file names exist in two packages, so that a name identifies a module."""
    names = collections.Counter(x.name for x in FILES.values())
    twice = {name for name, count in names.items() if count > 1 and name != "__init__.py"}
    assert len(twice) <= MOST_SHARED_NAMES, twice


def test_few_files_name_sm90():
    """Apart from a few files, only `arch` and the code for sm_90 name the architecture."""
    own = {"arch", "kernels", "layouts", "emulator"}
    found = {
        name
        for name, path in FILES.items()
        if package_of(name) not in own and re.search("sm_?90", path.read_text(), re.I)
    }
    assert len(found) <= MOST_OF_SM90, found


@pytest.mark.parametrize(
    "package",
    [
        "kernels",
        "emulator",
        "config",
        "layouts",
        "epilogue",
        "request",
        "plans",
        "compiling",
        "gemm",
        "running",
        "ops",
    ],
)
def test_a_folder_is_small(package):
    """A folder has at most fifteen modules."""
    for folder in (PACKAGE / package, *(x for x in (PACKAGE / package).rglob("*") if x.is_dir())):
        assert len([x for x in folder.glob("*.py") if x.name != "__init__.py"]) <= MOST_IN_A_FOLDER, folder


def test_no_name_hides_a_module():
    """No export of a package has the name of one of its modules, so `import cutegemm.x.y as m` gives the module."""
    for name, path in FILES.items():
        if path.name == "__init__.py":
            modules = {x.rpartition(".")[2] for x in FILES if x and x.rpartition(".")[0] == name}
            hidden = {f"{name}.{x}" for x in exported(path) & modules}
            assert not hidden, hidden


def exported(path: Path) -> set[str]:
    """Names that a package imports from modules, without modules themselves."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                x.asname or x.name
                for x in node.names
                if f"{node.module}.{x.name}".removeprefix("cutegemm.") not in FILES
            }
    return found


def test_files_are_short():
    """A file has at most 400 lines."""
    root = PACKAGE.parent
    found = {
        path.relative_to(root).as_posix()
        for tree in ("cutegemm", "benchmarks", "handwritten", "tests", "examples")
        for path in (root / tree).rglob("*.py")
        if len(path.read_text().splitlines()) > MOST_LINES
    }
    assert not found


@pytest.mark.parametrize("package", ["compiling", "kernels", "planning", "plans", "request", "running"])
def test_a_large_package_names_its_modules(package):
    """The docstring of a package names every module."""
    text = ast.get_docstring(ast.parse(FILES[package].read_text())) or ""
    missing = {x for x in FILES if x.startswith(f"{package}.") and f"`{x.split('.')[1]}`" not in text}
    assert not missing


def test_only_the_table_of_families_compares_their_names():
    """Other code may only check whether a family exists."""
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and package_of(name) != "families":
                sides = (node.left, *node.comparators)
                family = any(isinstance(x, ast.Attribute) and x.attr == "family" for x in sides)
                known = all(isinstance(x, ast.In | ast.NotIn) for x in node.ops)
                named = any(isinstance(x, ast.Constant | ast.Tuple | ast.Set | ast.List) for x in sides)
                assert not family or (known and not named), f"{name}:{node.lineno}"


def test_code_for_any_architecture_imports_no_constants():
    """The planner gets limits by value: only code for sm_90 imports its constants."""
    own = {"arch", "kernels", "layouts", "compiling"}
    found = {
        name for name, path in FILES.items() if "arch.sm90" in imports(path) and package_of(name) not in own
    }
    assert not found


def test_the_document_names_every_package():
    """`docs/architecture.md` has a line for each package and top-level module."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    missing = [name for name in LAYER if name != "__init__" and f"`{name}" not in text]
    assert not missing


def test_text_is_utf_8_everywhere():
    """Files are read and written as UTF-8, whatever the locale is."""
    found = []
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = [x.value for x in node.args[-1:] if isinstance(x, ast.Constant)]
                given += [x.arg for x in node.keywords]
                if node.func.attr in ("read_text", "write_text") and not {"utf-8", "encoding"} & set(given):
                    found.append(f"{name}:{node.lineno}")
    assert not found
