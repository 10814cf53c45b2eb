#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The release checklist: builds the wheel, installs it in clean environments, and uses it there.
#
#   tools/release.sh [PYTHON ...]      interpreters; default: python3.10 to python3.13 as far as they are found
#
# Every interpreter gets what needs no torch: the command line, planning, the emulator, the ladder's emulation. The whole
# test suite, from the wheel, runs where .ci/run runs it: tools/release.sh --tests PYTHON.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
tests=0
if [ "${1:-}" = --tests ]; then
  tests=1
  shift
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

[ -z "$(git -C "$root" status --porcelain)" ] || { echo "uncommitted changes"; exit 1; }
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml")"
grep -q "^__version__ = \"$version\"" "$root/cutegemm/__init__.py" || { echo "__version__ is not $version"; exit 1; }
grep -q "^## $version" "$root/CHANGELOG.md" || { echo "CHANGELOG.md has no section $version"; exit 1; }

git -C "$root" archive HEAD | tar -x -C "$work" --one-top-level=source
python3 -m venv "$work/build" && "$work/build/bin/pip" install -q build
(cd "$work/source" && "$work/build/bin/python" -m build -q --wheel -o "$work" > /dev/null)
wheel="$(ls "$work"/*.whl)"
"$work/build/bin/python" -m zipfile -l "$wheel" > "$work/list"
for name in cutegemm/py.typed cutegemm/cli/page/style.css cutegemm/database/shipped.json cutegemm/arch/times.json handwritten/01_naive.cu; do
  grep -q "$name" "$work/list" || { echo "the wheel lacks $name"; exit 1; }
done
echo "built $(basename "$wheel")"

[ $# -gt 0 ] || set -- $(for v in 3.10 3.11 3.12 3.13; do command -v "python$v" || true; done)
for python in "$@"; do
  venv="$work/$(basename "$python")"
  "$python" -m venv "$venv"
  if [ "$tests" = 1 ]; then
    "$venv/bin/pip" install -q -c "$root/constraints.txt" "$wheel[test]"
    cp -r "$work/source/tests" "$work/source/benchmarks" "$work/source/examples" "$work/source/docs" \
      "$work/source/pyproject.toml" "$work/source/README.md" "$work/source/mkdocs.yml" "$venv/"
    (cd "$venv" && bin/python -m pytest)
    continue
  fi
  # all but torch, and what only compiles or launches
  "$venv/bin/pip" install -q --no-deps "$wheel"
  "$venv/bin/pip" install -q numpy platformdirs filelock llvmlite rich typer \
    nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl cuda-python cuda-core apache-tvm-ffi
  (
    cd "$work"
    "$venv/bin/cutegemm" explain 4096 4096 4096 > explain.txt
    "$venv/bin/cutegemm" layout "(8,8):(8,1)" --swizzle 3,3,3 > layout.txt
    "$venv/bin/cutegemm" database show > database.txt
    "$venv/bin/python" -m handwritten --emulate --stages 1,2,16 > ladder.txt
    "$venv/bin/python" -c 'import sys, cutegemm; assert "torch" not in sys.modules; print(cutegemm.__version__)'
  )
  echo "$("$venv/bin/python" --version): the command line, planning and the emulator work"
done
