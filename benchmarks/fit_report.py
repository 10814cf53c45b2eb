# SPDX-License-Identifier: Apache-2.0
"""The table of regrets that `benchmarks.fit_cost` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rich.table import Table


def shown(problems: Sequence[tuple[str, float]], fitted: Sequence[float], held: Sequence[float]) -> Table:
    """Mean and worst regret per family.

    Args:
        problems: family of each, and the regret of the choice at the time of the sweep.
        fitted: regret of the fit.
        held: regret under a fit without the problem. NaN anywhere is left out.
    """
    table = Table("family", "problems", "then", "worst", "fit", "worst", "held back", "worst")
    families: dict[str, list[int]] = {}
    for i, (family, _) in enumerate(problems):
        families.setdefault(family, []).append(i)
    then = [x for _, x in problems]
    for name, places in (*families.items(), ("all", list(range(len(problems))))):
        numbers: list[str] = []
        for column in (then, fitted, held):
            known = [column[i] for i in places if not math.isnan(column[i])]
            mean = statistics.geometric_mean(known) if known else math.nan
            numbers += [f"{mean:.3f}", f"{max(known, default=math.nan):.3f}"]
        table.add_row(name, str(len(places)), *numbers)
    return table
