# SPDX-License-Identifier: Apache-2.0
"""Findings of a run, one per cause, with a count, an example and a label; suppressions from a file.

One missing barrier causes races at many PTX lines (unrolled loops) and many times. They are one finding if they have
the same kind, operations and memory, and the same basic block of one instruction or the same two source lines.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cutegemm.errors import EmulatorError, field_error

OBSERVED = "observed"  # a wrong value, a fault or a hang can result on hardware
BY_THE_LETTER = "by the letter"  # only the text of the PTX ISA forbids it; reported by strict runs
LEFTOVER = "leftover"


@dataclass
class Finding:
    """A defect: its kind, an example, the PTX lines of the two accesses (the earlier first, 0 if unknown), a count.

    `pairs` has all different pairs of lines, in order.
    """

    kind: str
    text: str
    lines: tuple[int, int]
    label: str = OBSERVED
    count: int = 1
    pairs: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        places = max(len(self.pairs), 1)
        often = f" [{self.count} times at {places} place{'s' * (places > 1)}]" if self.count > 1 else ""
        letter = "" if self.label == OBSERVED else f" ({self.label})"
        return f"{self.kind}{letter}: {self.text}{often}"


@dataclass(frozen=True)
class Cause:
    """The key of a finding: operations, memory, and basic block and source line of each access."""

    kind: str
    label: str
    memory: str
    earlier: str
    later: str
    blocks: tuple[object, object]  # of the earlier and the later instruction
    sources: tuple[object, object] = (None, None)  # file and line of each, None if unknown

    def same(self, other: Cause) -> bool:
        """Whether two causes are the same: unrolled code has many blocks for one source line."""
        mine, theirs = ((x.kind, x.label, x.memory, x.earlier, x.later) for x in (self, other))
        if mine != theirs:
            return False
        if None not in self.sources and self.sources == other.sources:
            return True
        return any(a == b for a, b in zip(self.blocks, other.blocks, strict=True))


class Findings:
    """The findings of a run, by cause."""

    def __init__(self) -> None:
        self.by_cause: dict[Cause, Finding] = {}

    def add(self, cause: Cause, lines: tuple[int, int], text: Callable[[], str]) -> None:
        """Count a defect; `text` describes the first one of its cause."""
        finding = self.by_cause.get(cause)
        if finding is None:
            self.by_cause[cause] = Finding(cause.kind, text(), lines, cause.label, 1, [lines])
            return
        finding.count += 1
        if lines not in finding.pairs:
            finding.pairs.append(lines)

    def listed(self) -> list[Finding]:
        """The findings; those with the same cause are merged."""
        merged: list[tuple[list[Cause], Finding]] = []
        for cause, finding in self.by_cause.items():
            causes = [cause]
            merging = replace(finding, pairs=list(finding.pairs))
            near = [entry for entry in merged if any(cause.same(other) for other in entry[0])]
            for others, first in near:
                causes = others + causes
                first.count += merging.count
                first.pairs += [pair for pair in merging.pairs if pair not in first.pairs]
                merging = first
            merged = [entry for entry in merged if all(entry is not n for n in near)] + [(causes, merging)]
        return [merging for _, merging in merged]


@dataclass(frozen=True)
class Suppression:
    """A line of a suppressions file: patterns (fnmatch) for the kind and the text of findings."""

    kind: str
    text: str

    def matches(self, finding: Finding) -> bool:
        """Whether it suppresses a finding."""
        kind = fnmatch.fnmatchcase(finding.kind, self.kind)
        return kind and fnmatch.fnmatchcase(finding.text, f"*{self.text}*")


def read_suppressions(path: str | Path | None) -> list[Suppression]:
    """The suppressions of a file: lines of `KIND-PATTERN : TEXT-PATTERN`; a comment begins with `#`.

    Raises:
        EmulatorError: a line without a colon; a file that cannot be read.
    """
    if path is None:
        return []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as e:
        # ValueError: an impossible path, or not a text file
        raise field_error(EmulatorError, "suppressions", str(path), f"cannot be read as text ({e})") from e
    out = []
    for number, line in enumerate(lines, 1):
        line = line.split("#")[0].strip()
        kind, colon, text = (part.strip() for part in line.partition(":"))
        if line and not colon:
            rule = f"line {number} is {line!r}; write `KIND-PATTERN : TEXT-PATTERN`"
            raise field_error(EmulatorError, "suppressions", str(path), rule)
        if line:
            out.append(Suppression(kind, text))
    return out


def without_suppressed(
    findings: list[Finding], rules: list[Suppression]
) -> tuple[list[Finding], list[Finding]]:
    """The findings that no rule suppresses, and the suppressed ones."""
    kept = [f for f in findings if not any(rule.matches(f) for rule in rules)]
    return kept, [f for f in findings if not any(f is k for k in kept)]
