# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: floors, circles, and how full the top level is (`docs/architecture.md`)."""

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
MOST_CIRCLES = 2  # groups of modules that import each other
MOST_IN_A_CIRCLE = 4  # modules of one
MOST_LINES = 400
MOST_SHARED_NAMES = 8  # file names that stand in two packages
MOST_OF_SM90 = 6  # files that name sm90, outside of what is written for it
MOST_IN_A_FOLDER = 15

# From the ground up: a room imports from floors below its own, and from itself. Rooms of one floor are strangers.
FLOORS = (
    {"errors"},
    {"checks", "files"},
    {"dtypes", "emulator"},
    {"arch"},
    {"epilogue", "layouts", "families"},
    {"config"},
    {"spec", "problems", "launch_layout"},
    {"planning", "kernels"},
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
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}


def module(path: Path) -> str:
    """A file's dotted name below the package; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """Modules of the package that a file imports, anywhere in its code or only when it is itself imported."""
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


def room(name: str) -> str:
    """The part of the package that a module belongs to."""
    return name.split(".")[0] or "__init__"


@pytest.mark.parametrize("name", FILES)
def test_no_arrow_runs_up(name):
    """A module imports from lower floors and from its own room; an import inside a function counts."""
    for other in imports(FILES[name]):
        here, there = room(name), room(other)
        assert here == there or FLOOR[there] < FLOOR[here], f"{name} imports {other}"


def test_every_room_has_a_floor():
    """What lies at the package's top level is named above, and nothing else is."""
    assert {room(name) for name in FILES} == set(FLOOR)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of two or more modules that reach each other through imports."""
    reached = {name: set(direct) for name, direct in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    found = {frozenset({name} | {x for x in reached[name] if name in reached[x]}) for name in graph}
    return [set(group) for group in found if len(group) > 1]


def test_circles_are_few():
    """At most two circles of imports, of four modules at most; imports in functions and for types count."""
    graph = {name: {x for x in imports(path) if x in FILES and x != name} for name, path in FILES.items()}
    found = circles(graph)
    assert len(found) <= MOST_CIRCLES and max(map(len, found), default=0) <= MOST_IN_A_CIRCLE, found


def test_a_circle_is_found():
    """Modules that reach each other over others are one circle; what they only import is none of it."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert circles(graph) == [{"a", "b", "c"}]


def test_the_planner_has_no_circle():
    """Not even one that only closes inside a function or for a type checker."""
    graph = {
        name: {x for x in imports(path) if room(x) == "planning"}
        for name, path in FILES.items()
        if room(name) == "planning"
    }
    TopologicalSorter(graph).prepare()


def test_the_top_level_is_small():
    """At most ten files lie beside the packages."""
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES


def test_a_file_name_stands_once():
    """Few file names stand in two packages, so that a name alone says which module is meant."""
    names = collections.Counter(x.name for x in FILES.values())
    twice = {name for name, count in names.items() if count > 1 and name != "__init__.py"}
    assert len(twice) <= MOST_SHARED_NAMES, twice


def test_few_files_name_sm90():
    """What names the architecture lies in `arch` and in what is written for it, but for a few files."""
    own = {"arch", "kernels", "layouts", "emulator"}
    found = {
        name
        for name, path in FILES.items()
        if room(name) not in own and re.search("sm_?90", path.read_text(), re.I)
    }
    assert len(found) <= MOST_OF_SM90, found


@pytest.mark.parametrize(
    "package", ["kernels", "emulator", "config", "layouts", "epilogue", "compiling", "gemm", "running", "ops"]
)
def test_a_folder_is_small(package):
    """A folder holds at most fifteen modules."""
    for folder in (PACKAGE / package, *(x for x in (PACKAGE / package).rglob("*") if x.is_dir())):
        assert len([x for x in folder.glob("*.py") if x.name != "__init__.py"]) <= MOST_IN_A_FOLDER, folder


def test_no_name_hides_a_module():
    """`import cutegemm.x.y as m` gives a module: what a package exports has another name than its modules."""
    for name, path in FILES.items():
        if path.name == "__init__.py":
            modules = {x.rpartition(".")[2] for x in FILES if x and x.rpartition(".")[0] == name}
            hidden = {f"{name}.{x}" for x in exported(path) & modules}
            assert not hidden, hidden


def exported(path: Path) -> set[str]:
    """Names that a package takes from modules, modules themselves left out."""
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
    """A file of ours has at most 400 lines."""
    root = PACKAGE.parent
    # to be split
    left = {
        "benchmarks/pytorch.py",
        "tests/contract/test_arguments.py",
    }
    found = {
        path.relative_to(root).as_posix()
        for tree in ("cutegemm", "benchmarks", "handwritten", "tests", "examples")
        for path in (root / tree).rglob("*.py")
        if len(path.read_text().splitlines()) > MOST_LINES
    }
    assert found <= left, found - left


@pytest.mark.parametrize("package", ["compiling", "kernels", "planning", "running"])
def test_a_large_package_names_its_modules(package):
    """The docstring of a package says where to look, so that it names every module."""
    text = ast.get_docstring(ast.parse(FILES[package].read_text())) or ""
    missing = {x for x in FILES if x.startswith(f"{package}.") and f"`{x.split('.')[1]}`" not in text}
    assert not missing


def test_families_are_told_apart_in_their_table_alone():
    """No code but the table compares a family's name; it may only ask whether there is such a family."""
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and room(name) != "families":
                sides = (node.left, *node.comparators)
                family = any(isinstance(x, ast.Attribute) and x.attr == "family" for x in sides)
                known = all(isinstance(x, ast.In | ast.NotIn) for x in node.ops)
                named = any(isinstance(x, ast.Constant | ast.Tuple | ast.Set | ast.List) for x in sides)
                assert not family or (known and not named), f"{name}:{node.lineno}"


def test_what_is_planned_for_any_architecture_knows_none():
    """Limits reach the planner by value: outside of what is written for sm_90, nothing imports its constants."""
    own = {"arch", "kernels", "layouts", "compiling"}
    found = {name for name, path in FILES.items() if "arch.sm90" in imports(path) and room(name) not in own}
    assert not found


def test_the_document_names_every_room():
    """`docs/architecture.md` has a line for each part of the package."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    missing = [name for name in FLOOR if name != "__init__" and f"`{name}" not in text]
    assert not missing


def test_text_is_utf_8_everywhere():
    """Files are read and written as UTF-8, whatever the machine's locale says."""
    found = []
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = [x.value for x in node.args[-1:] if isinstance(x, ast.Constant)]
                given += [x.arg for x in node.keywords]
                if node.func.attr in ("read_text", "write_text") and not {"utf-8", "encoding"} & set(given):
                    found.append(f"{name}:{node.lineno}")
    assert not found
