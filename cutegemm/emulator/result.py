# SPDX-License-Identifier: Apache-2.0
"""What several launches found and counted together."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutegemm.emulator.launch import Report
from cutegemm.emulator.watch.coverage import Coverage, joined
from cutegemm.emulator.watch.findings import Finding


@dataclass
class Result:
    """What launches found and counted; `reports` holds one report a launch."""

    reports: list[Report] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """Everything found, launch by launch, leftovers included."""
        return [finding for report in self.reports for finding in report.findings]

    @property
    def coverage(self) -> Coverage | None:
        """What of the kernels' synchronisation was exercised; None without the race detector."""
        parts = [report.coverage for report in self.reports if report.coverage is not None]
        return joined(parts) if parts else None

    @property
    def races(self) -> list[Finding]:
        """Findings but leftovers."""
        return [finding for report in self.reports for finding in report.races]

    @property
    def printed(self) -> str:
        """What the kernels printed (vprintf)."""
        return "".join(report.printed for report in self.reports)
