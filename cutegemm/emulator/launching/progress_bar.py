# SPDX-License-Identifier: Apache-2.0
"""A bar of finished CTAs for launches that take longer than a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress

PATIENCE = 1.0  # seconds before the bar appears


class Progress:
    """Counts CTAs; shows a bar on standard error once `PATIENCE` has passed."""

    def __init__(self, total: int, wanted: bool | None) -> None:
        self.total = total
        # a service may have no standard error
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self.wanted = terminal if wanted is None else wanted and sys.stderr is not None
        self.started = time.monotonic()
        self.bar: rich.progress.Progress | None = None

    def show(self, done: int) -> None:
        """Update the bar; cheap while there is none."""
        if not self.wanted or (self.bar is None and time.monotonic() - self.started < PATIENCE):
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(file=sys.stderr, force_terminal=True), transient=True)
            self.task = self.bar.add_task("emulating CTAs", total=self.total)
            self.bar.start()
        self.bar.update(self.task, completed=done)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
