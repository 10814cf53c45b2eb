# SPDX-License-Identifier: Apache-2.0
"""The configs of kernels that multiply one row by a matrix, and what these kernels require; others cannot be made."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.invariants.rule import Refusal, Rule, check_all
from cutegemm.config.parts import EpilogueConfig
from cutegemm.families import FAMILIES

# warps of a CTA
WARPS = 8
ELEMENT_BYTES = 2
# elements of a load, and words of a column that a lane loads before it multiplies
WORD = 8
WORDS = 2
# elements of K that a warp loads of a column at once
DEPTH = WORD * WORDS * LIMITS.warp
COLUMNS, SLICES = (1, 2, 4), (1, 2, 4)
# CTAs that the registers of an SM hold, by the columns of a warp: for aligned columns, for aligned columns in slices of
# K, and for unaligned columns
RESIDENTS = {1: (8, 8, 6), 2: (6, 6, 5), 4: (4, 3, 3)}


@dataclass(frozen=True, kw_only=True)
class GemvTile:
    """Which warps compute what.

    Attributes:
        own: columns of D that a warp computes together, and so lines of B that it reads.
        slices: warps of a CTA that share K of the same columns.
    """

    own: int = 1
    slices: int = 1

    @property
    def columns(self) -> int:
        """Columns of D of a CTA."""
        return WARPS // self.slices * self.own

    @property
    def tile(self) -> tuple[int, int, int]:
        """The CTA tile; along K what its warps load of a column before they multiply."""
        return 1, self.columns, DEPTH * self.slices


def residents(x: GemvTile, aligned: bool) -> int:
    """CTAs that the registers of an SM hold."""
    return RESIDENTS[x.own][(0 if x.slices == 1 else 1) if aligned else 2]


TILES = tuple(GemvTile(own=own, slices=slices) for slices in SLICES for own in COLUMNS)


@dataclass(frozen=True, kw_only=True)
class GemvConfig(GemvTile, EpilogueConfig):
    """A kernel for one row of 16-bit elements times a matrix that is contiguous along K, on the CUDA cores.

    A begins at a whole word in every batch. If B is `aligned`, so do all its lines, and they end at whole words; else
    they begin and end anywhere.
    """

    aligned: bool = False
    family: str = "gemv"

    def __post_init__(self) -> None:
        check(self)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return WARPS * self.limits.warp

    @property
    def residents(self) -> int:
        """CTAs that the registers of an SM hold."""
        return residents(self, self.aligned)

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
        return 1, self.columns


def _operands(x: GemvConfig) -> bool:
    """16-bit lines along K, and every matrix loaded and stored as the table of families says."""
    row = FAMILIES[x.family].abilities["gemv"]
    lines = all(y.dtype.bytes == ELEMENT_BYTES and y.major == "k" for y in x.operands)
    loads = all(y.load in row.loads for y in (*x.operands, *x.inputs))
    return lines and loads and all(y.store in row.stores for y in x.outputs)


def _operands_refused(x: GemvConfig) -> Refusal:
    given = tuple((y.dtype.value, y.major, y.load) for y in x.operands)
    return (
        "operands",
        given,
        "a row of 16-bit elements times lines along K, all loaded and stored directly",
        None,
    )


RULES = (
    Rule(
        lambda x: x.family in FAMILIES and "gemv" in FAMILIES[x.family].abilities,
        lambda x: ("family", x.family, "is that of kernels for one row", "gemv"),
    ),
    Rule(
        lambda x: x.own in COLUMNS,
        lambda x: ("own", x.own, f"a warp computes {', '.join(map(str, COLUMNS))} columns", COLUMNS[-1]),
    ),
    Rule(
        lambda x: x.slices in SLICES,
        lambda x: ("slices", x.slices, f"K is shared by {', '.join(map(str, SLICES))} warps", SLICES[-1]),
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
