# SPDX-License-Identifier: Apache-2.0
"""How a plan's candidates fared, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weighed:
    """One candidate.

    Attributes:
        what: in words, in D's coordinates.
        us: predicted microseconds of the whole problem.
        lost: why it was not taken; empty for the one that was.
        fields: of a `GemmSpec`, that ask for it.
        serves: whether a kernel of it serves the problem.
    """

    what: str
    us: float
    lost: str
    fields: tuple[tuple[str, object], ...] = ()
    serves: bool = True


@dataclass(frozen=True)
class Why:
    """Every candidate of a plan, in the order in which they were tried; the one taken is among them.

    Example:
        >>> from cutegemm import GemmSpec, plan, problem
        >>> print(plan(GemmSpec(), problem(4096, 4096, 4096)).why)      # doctest: +SKIP
        predicted  candidate                                    fate
         203.8 us  tile (128, 256, 64), cluster (2, 1)          taken
         205.1 us  tile (128, 256, 64), cluster (1, 1)          slower by 1.3 us (0.6 %)
    """

    weighed: tuple[Weighed, ...]

    @property
    def taken(self) -> Weighed | None:
        """The candidate that was taken; None where nothing was chosen, or what was given left no candidate."""
        return next((x for x in self.weighed if not x.lost), None)

    def __str__(self) -> str:
        if not self.weighed:
            return "nothing was chosen"
        width = max(len(x.what) for x in self.weighed)
        lines = [f"{'predicted':>12}  {'candidate':{width}}  fate"]
        lines += [f"{x.us:9,.1f} us  {x.what:{width}}  {x.lost or 'taken'}" for x in self.weighed]
        return "\n".join(lines)
