#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The release checklist: builds the wheel, installs it in clean environments, and tests it there.
#
#   tools/release.sh [PYTHON ...]           commands, and the tests that need no torch, on every interpreter
#   tools/release.sh --tests [PYTHON ...]   the whole test suite from the wheel, torch included
#
# Without a PYTHON the first form takes 3.10 to 3.13 and the second the newest of them that is found, on the PATH or
# among pyenv's. Environment: TESTS, what pytest is given instead of everything, such as "tests/cli -n 0";
# RELEASE_DIR, a folder to work in that is kept.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
whole=0
if [ "${1:-}" = --tests ]; then
  whole=1
  shift
fi
if [ -n "${RELEASE_DIR:-}" ]; then
  mkdir -p "$RELEASE_DIR"
  work="$(cd "$RELEASE_DIR" && pwd)"
else
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
fi

[ -z "$(git -C "$root" status --porcelain)" ] || { echo "uncommitted changes"; exit 1; }
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml")"
grep -q "^__version__ = \"$version\"" "$root/cutegemm/__init__.py" || { echo "__version__ is not $version"; exit 1; }
grep -q "^## $version" "$root/CHANGELOG.md" || { echo "CHANGELOG.md has no section $version"; exit 1; }

# the newest interpreter last
find_python() {
  command -v "python$1" || ls -d "$HOME"/.pyenv/versions/"$1".*/bin/python 2> /dev/null | sort -V | tail -n 1
}
if [ $# -eq 0 ]; then
  for minor in 3.10 3.11 3.12 3.13; do
    found="$(find_python "$minor")"
    [ -z "$found" ] && echo "no Python $minor here" || set -- "$@" "$found"
  done
  [ "$whole" = 0 ] || { [ $# -gt 0 ] && set -- "${!#}"; }
fi
[ $# -gt 0 ] || { echo "no interpreter"; exit 1; }

rm -rf "$work/source" "$work"/*.whl
git -C "$root" archive --prefix=source/ HEAD | tar -x -C "$work"
"${!#}" -m venv "$work/build" && "$work/build/bin/pip" install -q build
(cd "$work/source" && "$work/build/bin/python" -m build -q --wheel -o "$work" > /dev/null)
wheel="$(ls "$work"/*.whl)"
"$work/build/bin/python" -m zipfile -l "$wheel" > "$work/list"
# every file of the packages that git knows, and the licence
for name in $(cd "$work/source" && find cutegemm handwritten -type f) LICENSE; do
  grep -q "$name" "$work/list" || { echo "the wheel lacks $name"; exit 1; }
done
echo "built $(basename "$wheel")"

# The tests' tree, with what was installed in place of the packages' sources.
lay_out() {
  rm -rf "$1/suite"
  cp -r "$work/source" "$1/suite"
  rm -rf "$1/suite/cutegemm" "$1/suite/handwritten" "$1/suite/build"
  installed="$(cd / && "$1/bin/python" -c 'import cutegemm, os; print(os.path.dirname(os.path.dirname(cutegemm.__file__)))')"
  case "$installed" in "$1"/*) ;; *) echo "cutegemm is not imported from the wheel: $installed"; exit 1 ;; esac
  cp -r "$installed/cutegemm" "$installed/handwritten" "$1/suite/"
}

for python in "$@"; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$python is older than 3.10"; exit 1; }
  name="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  venv="$work/venv-$name-$whole"
  "$python" -m venv "$venv"
  if [ "$whole" = 1 ]; then
    "$venv/bin/pip" install -q -c "$root/constraints.txt" "$wheel[test]"
    "$venv/bin/pip" install -q --no-deps --force-reinstall "$wheel"
    lay_out "$venv"
    (cd "$venv/suite" && ../bin/python -m pytest ${TESTS:-})
    echo "$("$venv/bin/python" --version): the tests pass from the wheel: ${TESTS:-all}"
    continue
  fi
  "$venv/bin/pip" install -q --no-deps --force-reinstall "$wheel"
  "$venv/bin/python" - > "$work/requirements.txt" << 'EOF'
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for wanted in map(Requirement, importlib.metadata.requires("cutegemm")):
    here = wanted.marker is None or any(wanted.marker.evaluate({"extra": x}) for x in ("", "test"))
    if here and wanted.name not in ("torch", "transformers"):
        print(str(wanted).partition(";")[0])
EOF
  "$venv/bin/pip" install -q -c "$root/constraints.txt" -r "$work/requirements.txt"
  ! "$venv/bin/python" -c "import torch" 2> /dev/null || { echo "torch came with the requirements"; exit 1; }
  lay_out "$venv"
  (
    cd "$work"
    "$venv/bin/cutegemm" explain 4096 4096 4096 > explain.txt
    "$venv/bin/cutegemm" layout "(8,8):(8,1)" --swizzle 3,3,3 > layout.txt
    "$venv/bin/cutegemm" database show > database.txt
    "$venv/bin/python" -m handwritten --emulate --stages 1,2,16 > ladder.txt
    "$venv/bin/python" -c 'import sys, cutegemm; assert "torch" not in sys.modules; print(cutegemm.__version__)'
  )
  (cd "$venv/suite" && ../bin/python -m pytest ${TESTS:-})
  # what users get, who install without constraints
  "$venv/bin/pip" install -q --upgrade typer rich
  (
    cd "$venv/suite"
    "$venv/bin/cutegemm" explain 256 256 256 --spec "tile=(128, 128)" --dtype fp16 --json > "$work/newest.json"
    ../bin/python -m pytest tests/cli/test_app.py tests/cli/test_explain.py tests/cli/test_layout.py
  )
  echo "$("$venv/bin/python" --version): the command line works, with the newest typer too, and the tests that need no torch pass: ${TESTS:-all}"
done
