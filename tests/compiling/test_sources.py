# SPDX-License-Identifier: Apache-2.0
"""Which files a module depends on, read from its imports."""

import ast

from cutegemm.compiling import kernel_cache, sources


def write(root, files):
    """A package of files, by relative path."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_are_followed_to_the_end_and_circles_end(tmp_path):
    """Modules, names of packages, imports inside functions and circles are followed; what is not imported is not."""
    package = tmp_path / "pack"
    write(
        package,
        {
            "__init__.py": "",
            "a.py": "from pack import b\nimport os\n",
            "b.py": "def f():\n    from pack.sub.c import name\n",
            "sub/__init__.py": "from pack import d\n",
            "sub/c.py": "import pack.a\n",
            "d.py": "",
            "other.py": "",
        },
    )
    found = [x.relative_to(package).as_posix() for x in sources.behind(package, ["a"])]
    assert found == ["a.py", "b.py", "sub/c.py"]
    found = [x.relative_to(package).as_posix() for x in sources.behind(package, ["sub"])]
    assert found == ["d.py", "sub/__init__.py"]


def test_no_import_of_the_package_is_overlooked(tmp_path):
    """Statements are found by their first words; the parser finds no others, wherever they stand."""
    alone = tmp_path / "alone.py"
    for path in kernel_cache.PACKAGE.glob("**/*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        alone.write_text(
            "\n".join(ast.unparse(x) for x in nodes if isinstance(x, (ast.Import, ast.ImportFrom)))
        )
        found, wanted = (sorted(sources._imports(x, "cutegemm")) for x in (path, alone))
        assert found == wanted, path


def test_comments_and_lists_in_parentheses_are_read(tmp_path):
    """An import may be followed by a comment, and go over several lines."""
    path = tmp_path / "a.py"
    path.write_text(
        "from pack import (\n    b,\n    c as d,\n)  # (why)\nimport pack.e  # noqa\nimport other\n"
    )
    assert sorted(sources._imports(path, "pack")) == ["b", "c", "e"]
