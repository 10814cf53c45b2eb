# SPDX-License-Identifier: Apache-2.0
"""A kernel's PTX and SASS as text, counted by opcode, and compared so that only real changes show."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass

from cutegemm.cli.facts.chosen import chosen
from cutegemm.cli.inputs import Case
from cutegemm.compiling import kernel_cache, resources
from cutegemm.errors import InputError, field_error
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.plan_text import shape_text


@dataclass(frozen=True)
class Code:
    """One kernel's code."""

    problem: str
    family: str
    language: str  # "ptx" or "sass"
    text: str  # the code
    registers: int  # from here on: of the compiled kernel
    spilled_bytes: int
    smem_bytes: int
    code_bytes: int
    instructions: dict[str, int]  # count of each opcode in the text


def planned(case: Case) -> KernelPlan:
    """The plan that `build` or `grouped_mm` uses, which must launch something.

    Raises:
        InputError: D is empty.
    """
    plan = chosen(case).plan
    if plan.config is None:
        of = case.problem
        raise field_error(InputError, "M N", (of.m, of.n), "D is empty: there is no kernel", (1, 1))
    return plan


def code_of(case: Case, language: str) -> Code:
    """The code of the GEMM kernel, compiled or from the cache."""
    plan = planned(case)
    assert plan.config is not None
    made = kernel_cache.artifact(plan.config)
    text = made.ptx if language == "ptx" else resources.sass(made.cubin)
    used, of = made.resources, case.problem
    return Code(
        shape_text(of, case.form), plan.config.family, language, text, used.registers, used.frame_bytes,
        used.smem_bytes, used.code_bytes, dict(opcodes(text, language).most_common()),
    )  # fmt: skip


def opcodes(text: str, language: str) -> Counter[str]:
    """The count of each opcode in a kernel's text."""
    return Counter(line.split(" ")[0] for line in normal(text, language) if not line.endswith(":"))


_PTX_LINE = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*?);?$")
_SASS_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_IR_LINE = re.compile(r'^(?:%[^=]*=\s*)?"?([a-z][\w.]+)"?\s*(.*)$')
_IR_NOISE = ((re.compile(r"object_at_\w+"), "object"), (re.compile(r"%\w+(?:#\d+|:\d+)?"), "%"))
_NOISE = (
    (re.compile(r"%(p|rd|rs|rh|rb|r|fd|f|h|b)\d+"), r"%\1"),
    (re.compile(r"\$\w+"), "LABEL"),
    (re.compile(r"`\(\.\w+\)"), "LABEL"),
    (re.compile(r"\b(U?[RP])\d+\b"), r"\1"),
    (re.compile(r"\bB\d+\b"), "B"),
)


# language -> pattern of an instruction, and patterns that are replaced; "ir" is the MLIR that the DSL traces
_LANGUAGES = {"ir": (_IR_LINE, _IR_NOISE), "ptx": (_PTX_LINE, _NOISE), "sass": (_SASS_LINE, _NOISE)}


def normal(text: str, language: str) -> list[str]:
    """Instructions, one per line, without names of registers, labels and predicates, comments and addresses."""
    instructions = []
    pattern, noises = _LANGUAGES[language]
    for line in map(str.strip, text.splitlines()):
        line = line.split("//")[0].strip() if language == "ptx" else line
        if language == "ptx" and (not line or line[0] in ".{}()$" or line.endswith(":")):
            continue
        match = pattern.match(line)
        if match is None:
            continue
        operands = match[2]
        for noise, plain in noises:
            operands = noise.sub(plain, operands)
        instructions.append(f"{match[1]} {operands}".rstrip())
    return instructions


@dataclass(frozen=True)
class CodeChange:
    """Two texts of one language: their instructions, opcodes whose counts differ, and a unified diff of the lines."""

    language: str
    before: int
    after: int
    opcodes: dict[str, list[int]]
    lines: list[str]


def compared(before: str, after: str, language: str, context: int = 2) -> CodeChange:
    """The change from one text to another."""
    one, two = normal(before, language), normal(after, language)
    counts = opcodes(before, language), opcodes(after, language)
    names = sorted(counts[0] | counts[1], key=lambda x: -abs(counts[1][x] - counts[0][x]))
    differ = {x: [counts[0][x], counts[1][x]] for x in names if counts[0][x] != counts[1][x]}
    lines = difflib.unified_diff(one, two, "before", "after", lineterm="", n=context) if one != two else ()
    return CodeChange(language, len(one), len(two), differ, list(lines))
