# SPDX-License-Identifier: Apache-2.0
"""A seeded sample of mutants: does a test fail where one operator, number, condition or call is changed?

    python -m benchmarks.mutants --seed 1 --count 120 --out benchmarks/results/checks/mutants.json

Each mutant changes one place of `kernels/`, `planning/` or `running/` in a copy of the tree. The tests of its package
run there until one fails, those first that name the module. Results are kept after each mutant; the same command goes
on where it was stopped. A mutant that outlives the tests survives; one that outlives the time limit is listed as such.
A kill counts where the test passes without the mutant.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "planning", "running")
LIMIT_SECONDS = 240.0
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# names of calls without which a program means the same
SILENT = re.compile(r"warn|append|add$|insert")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        module: path below the package, such as "kernels/store.py".
        line: of the change.
        was, now: the expression or statement before and after.
        start, end: what is replaced, in bytes of the file.
    """

    module: str
    line: int
    was: str
    now: str
    start: int
    end: int


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in order."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    for node in _code(ast.parse(source)):
        for changed in _changes(node):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[node.end_lineno - 1] + node.end_col_offset
            now = ast.unparse(changed)
            # a changed operand must not bind to what stands around it
            now = now if isinstance(changed, (ast.stmt, ast.Constant)) else f"({now})"
            found.append(Mutant(module, node.lineno, ast.unparse(node), now, start, end))
    return found


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: neither annotations nor texts, nor what an error says."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Import)):
                continue
            yield node
            yield from _code(node)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed into."""
    made = copy.deepcopy(node)
    match made:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            made.ops = [SWAPPED[type(op)]()]
            yield made
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            made.op = SWAPPED[type(op)]()
            yield made
        case ast.BoolOp(op=op):
            made.op = SWAPPED[type(op)]()
            yield made
        case ast.UnaryOp(op=ast.Not()):
            yield made.operand
        case ast.IfExp():
            made.body, made.orelse = made.orelse, made.body
            yield made
        case ast.Constant(value=bool()):
            yield ast.Constant(not made.value)
        case ast.Constant(value=int()):
            yield ast.Constant(made.value + 1)
        case ast.Expr(value=ast.Call(func=called)) if not SILENT.search(ast.unparse(called)):
            yield ast.Pass()


def sample(seed: int, count: int) -> list[Mutant]:
    """So many mutants, equally many of each package, in the seed's order."""
    drawn = random.Random(seed)
    kinds = []
    for package in PACKAGES:
        paths = sorted((ROOT / "cutegemm" / package).glob("*.py"))
        found = [x for path in paths for x in mutants_of(f"{package}/{path.name}", path.read_text())]
        kinds.append(drawn.sample(found, -(-count // len(PACKAGES))))
    return [x for group in zip(*kinds, strict=True) for x in group][:count]


def tests_of(module: str) -> list[str]:
    """The tests of a module's package, those first that name the module."""
    package, stem = module.removesuffix(".py").split("/")
    files = sorted((ROOT / "tests" / package).glob("test_*.py"))
    word = re.compile(rf"\b{stem}\b")

    def order(path: Path) -> tuple[bool, bool, int]:
        text = path.read_text()
        return stem not in path.stem, not word.search(text), len(text)

    return [str(x.relative_to(ROOT)) for x in sorted(files, key=order)]


def copied(folder: Path) -> Path:
    """A copy of the tree with all that tests read, but its history and caches."""
    skipped = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".hypothesis", ".venv")
    shutil.copytree(ROOT, folder, ignore=skipped)
    return folder


def tested(tree: Path, tests: list[str], limit: float, cache: str) -> tuple[bool | None, str]:
    """Whether tests pass in a tree, None where time ran out, and the first that fails."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "CUTEGEMM_TEST_CACHE_DIR": cache}
    # a mutant may hang in native code, or leave children behind
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return process.returncode == 0, failed[1] if failed else ""


def judged(mutant: Mutant, clean: Path, broken: list[str], limit: float, cache: str) -> dict[str, object]:
    """What the tests say of a mutant; a test that fails without it, too, joins `broken` and counts for nothing."""
    began, status, by = time.monotonic(), "", ""
    with tempfile.TemporaryDirectory(prefix="cutegemm-mutant-") as folder:
        tree = copied(Path(folder) / "tree")
        path = tree / "cutegemm" / mutant.module
        data = path.read_bytes()
        path.write_bytes(data[: mutant.start] + mutant.now.encode() + data[mutant.end :])
        while not status:
            left = limit - (time.monotonic() - began)
            skipped = [f"--deselect={x}" for x in broken]
            passed, by = tested(tree, [*skipped, *tests_of(mutant.module)], max(left, 1), cache)
            if passed or passed is None:
                status = "survived" if passed else "time limit"
            elif "::" not in by or tested(clean, [by], limit, cache)[0]:
                status = "killed"
            else:
                broken.append(by)
    seconds = round(time.monotonic() - began, 1)
    return dataclasses.asdict(mutant) | {"status": status, "by": by, "seconds": seconds}


def main() -> None:
    """Judge the sample, and keep what was found after each mutant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=120, help="mutants of the sample")
    parser.add_argument("--most", type=int, default=10**6, help="mutants to judge now")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a mutant's tests")
    parser.add_argument("--commit", default="", help="of the tree")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    head = {"seed": options.seed, "count": options.count, "limit": options.limit, "commit": options.commit}
    kept = json.loads(options.out.read_text())["mutants"] if options.out.exists() else []
    wanted = sample(options.seed, options.count)
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cutegemm-mutants-") as folder:
        clean, cache = copied(Path(folder) / "clean"), str(Path(folder) / "cache")
        Path(cache).mkdir()
        for mutant in wanted[len(kept) :][: options.most]:
            kept.append(judged(mutant, clean, broken, options.limit, cache))
            options.out.write_text(json.dumps(head | {"mutants": kept}, indent=1) + "\n")
            print(
                f"{kept[-1]['status']:10} {mutant.module}:{mutant.line} {mutant.was!r:.60} -> {mutant.now!r:.60}"
            )


if __name__ == "__main__":
    main()
