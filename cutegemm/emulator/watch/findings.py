# SPDX-License-Identifier: Apache-2.0
"""What a run found: one finding per cause, with a count, an example and a label; suppressions from a file.

Accesses that race for one reason do so at many lines (unrolled loops) and many times. They are grouped: same kind,
same operations, same memory, and either an instruction of the same basic block or the same pair of source lines.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from pathlib import Path

from cutegemm.errors import EmulatorError, field_error

OBSERVED = "observed"  # a wrong value, a fault or a hang can result on hardware
BY_THE_LETTER = "by the letter"  # only the letter of PTX forbids it; reported by strict runs
LEFTOVER = "leftover"


@dataclass
class Finding:
    """One defect: its kind, an example, the PTX lines of the accesses (earlier one first, 0 if unknown), and how often.

    `pairs` holds every pair of lines that was seen, in order.
    """

    kind: str
    text: str
    lines: tuple[int, int]
    label: str = OBSERVED
    count: int = 1
    pairs: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        often = f" [{self.count} times at {max(len(self.pairs), 1)} places]" if self.count > 1 else ""
        letter = "" if self.label == OBSERVED else f" ({self.label})"
        return f"{self.kind}{letter}: {self.text}{often}"


@dataclass(frozen=True)
class Cause:
    """What findings of one cause share: the operations, the memory, the basic block and source line of each access."""

    kind: str
    label: str
    memory: str
    earlier: str
    later: str
    blocks: tuple[object, object]  # of the earlier and of the later instruction
    sources: tuple[object, object] = (None, None)  # file and line of each, where known

    def same(self, other: Cause) -> bool:
        """Whether two share a block, or both source lines: unrolled code has many blocks for one line."""
        alike = (self.kind, self.label, self.memory, self.earlier, self.later) == (
            other.kind,
            other.label,
            other.memory,
            other.earlier,
            other.later,
        )
        if not alike:
            return False
        if None not in self.sources and self.sources == other.sources:
            return True
        return any(a == b for a, b in zip(self.blocks, other.blocks, strict=True))


class Findings:
    """The findings of a run, by cause."""

    def __init__(self) -> None:
        self.by_cause: dict[Cause, Finding] = {}

    def seen(self, cause: Cause, lines: tuple[int, int], times: int = 1) -> bool:
        """Count a finding of a known cause; False when it is the first of its cause and wants an example."""
        found = self.by_cause.get(cause)
        if found is None:
            return False
        found.count += times
        if lines not in found.pairs:
            found.pairs.append(lines)
        return True

    def add(self, cause: Cause, text: str, lines: tuple[int, int]) -> None:
        """The first finding of its cause."""
        self.by_cause[cause] = Finding(cause.kind, text, lines, cause.label, 1, [lines])

    def listed(self) -> list[Finding]:
        """One finding per cause: those whose causes share an instruction's block are one."""
        out: list[tuple[list[Cause], Finding]] = []
        for cause, found in self.by_cause.items():
            near = [entry for entry in out if any(cause.same(other) for other in entry[0])]
            made = Finding(found.kind, found.text, found.lines, found.label, found.count, list(found.pairs))
            causes = [cause]
            for entry in near:
                causes = entry[0] + causes
                first = entry[1]
                first.count += made.count
                first.pairs += [pair for pair in made.pairs if pair not in first.pairs]
                made = first
            out = [entry for entry in out if all(entry is not n for n in near)] + [(causes, made)]
        return [found for _, found in out]


@dataclass(frozen=True)
class Suppression:
    """A line of a suppressions file: patterns (as of fnmatch) of a finding's kind and of its text."""

    kind: str
    text: str

    def matches(self, found: Finding) -> bool:
        """Whether it speaks of this finding."""
        return fnmatch.fnmatchcase(found.kind, self.kind) and fnmatch.fnmatchcase(
            found.text, f"*{self.text}*"
        )


def read_suppressions(path: str | Path) -> list[Suppression]:
    """The suppressions of a file: lines of `KIND-PATTERN : TEXT-PATTERN`, what follows `#` is a comment.

    Raises:
        EmulatorError: a line without a colon; a file that cannot be read.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as e:
        # a ValueError: a path that can be none, or a file that is no text
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


def without_suppressed(found: list[Finding], rules: list[Suppression]) -> tuple[list[Finding], list[Finding]]:
    """Findings that no rule speaks of, and those that one does."""
    kept = [f for f in found if not any(rule.matches(f) for rule in rules)]
    return kept, [f for f in found if not any(f is k for k in kept)]
