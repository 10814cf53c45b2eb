# SPDX-License-Identifier: Apache-2.0
"""Which files a module depends on, read from its imports."""

from cutegemm.compiling import sources


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
