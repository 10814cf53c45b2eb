# SPDX-License-Identifier: Apache-2.0
"""Mutants: one operator, number, condition or call of a module changed, and a seeded sample of them."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "planning", "plans", "request", "running")
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
# calls whose removal does not change results
SILENT = re.compile(r"warn|append|add$|insert")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        module: path below the package, such as "kernels/epilogue/output_store.py".
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
            # parentheses keep the precedence of a changed operand
            now = now if isinstance(changed, (ast.stmt, ast.Constant)) else f"({now})"
            found.append(Mutant(module, node.lineno, ast.unparse(node), now, start, end))
    return found


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run, without annotations, f-strings and raised errors."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Import)):
                continue
            yield node
            yield from _code(node)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The mutations of a node."""
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


def function_at(source: str, line: int) -> str:
    """The name of the innermost function that contains a line; "<module>" outside of functions."""
    found = "<module>"
    # outer functions come before inner ones
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.body[0].lineno <= line <= (node.end_lineno or line):
                found = node.name
    return found


def sample(seed: int, count: int) -> list[Mutant]:
    """A random sample of mutants, equally many per package."""
    drawn = random.Random(seed)
    kinds = []
    for package in PACKAGES:
        # including subfolders
        paths = sorted((ROOT / "cutegemm" / package).rglob("*.py"))
        names = [x.relative_to(ROOT / "cutegemm").as_posix() for x in paths]
        found = [x for name, path in zip(names, paths) for x in mutants_of(name, path.read_text())]
        kinds.append(drawn.sample(found, -(-count // len(PACKAGES))))
    return [x for group in zip(*kinds, strict=True) for x in group][:count]
