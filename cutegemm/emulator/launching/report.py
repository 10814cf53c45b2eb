# SPDX-License-Identifier: Apache-2.0
"""Reports: findings and counters of one launch, and of several."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from cutegemm.emulator.watch.coverage import Coverage, joined
from cutegemm.emulator.watch.findings import LEFTOVER, Finding
from cutegemm.emulator.watch.meter import LineCost
from cutegemm.emulator.watch.warp_roles import WarpRole

WIDTH, SHOWN = 80, 10  # columns of a printed result, and findings in it


@dataclass
class Report:
    """Findings and counters of a launch; `instructions` counts executed warp instructions by opcode.

    sums: counts that can be added over launches; counters: the same and derived ones (`meter.combined`).
    """

    instructions: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    lines: list[LineCost] = field(default_factory=list)  # memory accesses by PTX line, the costliest first
    roles: list[WarpRole] = field(default_factory=list)
    printed: str = ""  # by vprintf
    coverage: Coverage | None = None  # of synchronisation; None without the race detector

    @property
    def races(self) -> list[Finding]:
        """Findings of the race detector."""
        return [f for f in self.findings if f.kind != LEFTOVER]


@dataclass(repr=False)
class Result:
    """Findings and counters of launches; `reports` has one report per launch. `print` shows a page."""

    reports: list[Report] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._counts()}>"

    def __str__(self) -> str:
        texts = [self._counts(), *map(str, self.findings[:SHOWN])]
        if len(self.findings) > SHOWN:
            texts.append(f"and {len(self.findings) - SHOWN} more: `.findings`")
        texts += [] if self.coverage is None else ["", "not exercised", *str(self.coverage).splitlines()]
        lines = [
            part for text in texts for part in textwrap.wrap(text, WIDTH, subsequent_indent="    ") or [""]
        ]
        counted = [
            f"  {name.replace('_', ' '):<28}{value:>20,}" for name, value in self.counters.items() if value
        ]
        return "\n".join([*lines, *(["", "counters", *counted] if counted else [])])

    def _counts(self) -> str:
        launches, findings = len(self.reports), len(self.findings)
        return f"{launches} launch{'es' * (launches != 1)}, {findings} finding{'s' * (findings != 1)}"

    @property
    def findings(self) -> list[Finding]:
        """All findings, launch by launch, leftovers included."""
        return [finding for report in self.reports for finding in report.findings]

    @property
    def coverage(self) -> Coverage | None:
        """Synchronisation that the launches exercised; None without the race detector."""
        parts = [report.coverage for report in self.reports if report.coverage is not None]
        return joined(parts) if parts else None

    @property
    def races(self) -> list[Finding]:
        """All findings except leftovers."""
        return [finding for report in self.reports for finding in report.races]

    @property
    def printed(self) -> str:
        """Text that the kernels printed (vprintf)."""
        return "".join(report.printed for report in self.reports)
