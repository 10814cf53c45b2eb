# SPDX-License-Identifier: Apache-2.0
"""The configs of kernels that multiply a few rows by a matrix, and what these require; others cannot be made."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.invariants.rule import Refusal, Rule, check_all
from cutegemm.config.parts import EpilogueConfig
from cutegemm.families import FAMILIES

ELEMENT_BYTES = 2
# elements of a load, and warps of a CTA; columns whose index differs by this are aligned in the same way
WORD = WARPS = 8
COLUMNS, SLICES = (1, 2, 4), (1, 2, 4)
# when the next launch may begin
TRIGGERS = ("start", "mainloop")
MOST_ROWS = 4
# CTAs of an SM whose threads have enough registers, by the columns of a warp and by rows from one on
RESIDENTS = {1: (8, 5, 4, 2), 2: (6, 5, 3, 2), 4: (3, 3, 2, 2)}


@dataclass(frozen=True, kw_only=True)
class GemvTile:
    """Which warps compute what.

    Attributes:
        rows: of D.
        own: columns of B, and so of D, that a warp computes together; `WARPS` apart.
        slices: warps of a CTA that share K of the same columns.
    """

    rows: int = 1
    own: int = 1
    slices: int = 1

    @property
    def columns(self) -> int:
        """Columns of D of a CTA."""
        return WARPS // self.slices * self.own

    @property
    def tile(self) -> tuple[int, int, int]:
        """The CTA tile; along K what its warps load of a column before they multiply."""
        return self.rows, self.columns, WORD * self.words * LIMITS.warp * self.slices

    def ctas(self, n: Any) -> Any:
        """CTAs of a batch with n columns of D: as many as slices for the columns of all warps."""
        return (n + WARPS * self.own - 1) // (WARPS * self.own) * self.slices

    @property
    def residents(self) -> int:
        """CTAs of an SM; the compiler gives their threads as many registers as these leave."""
        return RESIDENTS[self.own][self.rows - 1]

    @property
    def words(self) -> int:
        """Words of a column that a lane loads before it multiplies."""
        return 2 if self.rows == 1 else 1


# One row: warps that each read several whole columns are slower than warps that share K of as many.
TILES = tuple(
    GemvTile(rows=x, own=y, slices=z)
    for x in range(1, MOST_ROWS + 1)
    for z in SLICES
    for y in COLUMNS
    if x > 1 or y == 1 or z > 1
)


@dataclass(frozen=True, kw_only=True)
class GemvConfig(GemvTile, EpilogueConfig):
    """A kernel for a few rows of 16-bit elements times a matrix that is contiguous along K, on the CUDA cores.

    A begins at a whole word. If `aligned`, rows of A and columns of B begin and end at whole words; else anywhere. The
    next launch may begin when all CTAs have started, or after their last products (`trigger`). If B is constant
    (`early`), its first words are loaded before earlier launches have ended. Loads of B may have L2's evict-first hint
    (`evict_first`).
    """

    aligned: bool = False
    trigger: str = TRIGGERS[0]
    early: tuple[str, ...] = ()
    evict_first: tuple[str, ...] = ()
    family: str = "gemv"

    def __post_init__(self) -> None:
        check(self)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return WARPS * self.limits.warp

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster."""
        return 1

    @property
    def partials_per_tile(self) -> int:
        """Partial results of a tile in a reduction over all of D; there are none."""
        return 1

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of D that a partial result of a reduction would cover; there are none."""
        return self.rows, self.columns


def _operands(x: GemvConfig) -> bool:
    """16-bit operands contiguous along K, and every matrix loaded and stored as the table of families says."""
    row = FAMILIES[x.family].abilities["gemv"]
    along_k = all(y.dtype.bytes == ELEMENT_BYTES and y.major == "k" for y in x.operands)
    loads = all(y.load in row.loads for y in (*x.operands, *x.inputs))
    return along_k and loads and all(y.store in row.stores for y in x.outputs)


def _operands_refused(x: GemvConfig) -> Refusal:
    given = tuple((y.dtype.value, y.major, y.load) for y in x.operands)
    return (
        "operands",
        given,
        "rows of 16-bit elements times columns that are contiguous along K, all loaded and stored directly",
        None,
    )


RULES = (
    Rule(
        lambda x: x.family in FAMILIES and "gemv" in FAMILIES[x.family].abilities,
        lambda x: ("family", x.family, "is that of kernels for a few rows", "gemv"),
    ),
    Rule(
        lambda x: 1 <= x.rows <= MOST_ROWS,
        lambda x: ("rows", x.rows, f"a CTA computes 1 to {MOST_ROWS} rows", MOST_ROWS),
    ),
    Rule(
        lambda x: x.own in COLUMNS,
        lambda x: ("own", x.own, f"a warp computes {', '.join(map(str, COLUMNS))} columns", COLUMNS[-1]),
    ),
    Rule(
        lambda x: x.slices in SLICES,
        lambda x: ("slices", x.slices, f"K is shared by {', '.join(map(str, SLICES))} warps", SLICES[-1]),
    ),
    Rule(
        lambda x: x.trigger in TRIGGERS,
        lambda x: ("trigger", x.trigger, f"must be one of {', '.join(TRIGGERS)}", TRIGGERS[0]),
    ),
    Rule(
        lambda x: not x.early or (x.aligned and x.early == ("b",)),
        lambda x: ("early", x.early, "only a B whose columns are aligned to 16 bytes is loaded early", ()),
    ),
    Rule(
        lambda x: x.evict_first in ((), ("b",)),
        lambda x: ("evict_first", x.evict_first, "only B is read once", ("b",)),
    ),
    Rule(_operands, _operands_refused),
    Rule(
        lambda x: not x.epilogue.gated and not x.epilogue.reductions and not x.epilogue.scales,
        lambda x: (
            "epilogue",
            str(x.epilogue),
            "a warp stores single columns and reduces nothing else",
            None,
        ),
    ),
)


# plans of many problems share few configs
@functools.lru_cache(256)
def check(config: GemvConfig) -> None:
    """Refuse a config that breaks an invariant.

    Raises:
        PlanError: it does; names the field, value, rule and nearest legal value.
    """
    check_all(RULES, config)
