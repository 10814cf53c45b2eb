# SPDX-License-Identifier: Apache-2.0
"""The legal values of single fields of a spec. Accepted values are returned in the form that the spec stores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from cutegemm import checks
from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.instructions import ARITHMETICS, INSTRUCTIONS
from cutegemm.config.draft import MAX_STAGES
from cutegemm.config.invariants import tiles
from cutegemm.epilogue import scales
from cutegemm.errors import SpecError, field_error

Auto = Literal["auto"]
AUTO: Final[Auto] = "auto"

SCHEDULES = ("cooperative", "pingpong", "multistage", "simt")
SWIZZLES = ("128B", "64B", "32B", "none")
LOADS = ("tma", "gather", "shift", "cp_async", "relayout")
STORES = ("tma", "staged", "direct")
SCHEDULERS = ("persistent", "per_tile", "stream_k", "dynamic")
TENSOR_CORE_FIELDS = (
    "cluster", "swizzle", "consumers", "a_load", "b_load", "store", "epilogue_stages", "input_stages",
    "scheduler", "raster", "sms", "swap", "split_reduction", "ctas_per_sm", "trigger", "evict_first", "promote",
)  # fmt: skip
TILE_N_STEP = min(map(tiles.columns_step, INSTRUCTIONS.values()))  # columns, for any operand types
MAX_TILE = 1 << 16
MAX_CONSUMERS = 3
PINGPONG_CONSUMERS = 2
MAX_GROUP = 4096
MAX_SMS = 1024
SPLIT_REDUCTIONS = ("cluster", "workspace", "launch", "atomic")
MAX_SPLITS = 256
TRIGGERS = ("never", "start", "loads", "mainloop")
MAX_CTAS_PER_SM = 2
MAX_PROMOTE = 1 << 20


@dataclass(frozen=True)
class Tile(checks.Named):
    """The CTA tile: `m` x `n` elements of D; each mainloop stage holds `k` elements of K."""

    m: int
    n: int
    k: int = 64

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = checks.integer(SpecError, f"tile.{name}", getattr(self, name), 1, MAX_TILE)
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[int]:
        return iter((self.m, self.n, self.k))


def is_auto(value: object) -> bool:
    """Whether a field is "auto", so that the planner chooses."""
    return isinstance(value, str) and value == AUTO


def evicted(value: Any) -> tuple[str, ...]:
    """The matrices with a cache hint, sorted."""
    names = tuple(value) if isinstance(value, (tuple, list)) and value != [] else (None,)
    if not all(isinstance(x, str) and x in ("a", "b", "d") for x in names):
        raise field_error(SpecError, "evict_first", value, 'must be a tuple of "a", "b" and "d"', ("d",))
    return tuple(sorted(set(filter(None, names))))


def choices(spec: Any) -> Iterator[tuple[str, str]]:
    """The specified fields that take one of a few names."""
    legal = {
        "a_major": ("k", "m"), "b_major": ("n", "k"), "c_major": ("n", "m"), "d_major": ("n", "m"),
        "swizzle": SWIZZLES, "schedule": SCHEDULES, "a_load": LOADS, "b_load": LOADS, "store": STORES,
        "scheduler": SCHEDULERS, "split_reduction": SPLIT_REDUCTIONS, "trigger": TRIGGERS, "math": ARITHMETICS,
        "zero_point_a": (scales.TENSOR, scales.ROW), "zero_point_b": (scales.TENSOR, scales.ROW),
    }  # fmt: skip
    for name, values in legal.items():
        if not is_auto(getattr(spec, name)):
            yield name, checks.choice(SpecError, name, getattr(spec, name), values)


def numbers(spec: Any) -> Iterator[tuple[str, int]]:
    """The specified fields that take one number."""
    highest = {
        "stages": MAX_STAGES, "consumers": MAX_CONSUMERS, "epilogue_stages": MAX_STAGES, "input_stages": MAX_STAGES,
        "sms": MAX_SMS, "split_k": MAX_SPLITS, "ctas_per_sm": MAX_CTAS_PER_SM,
    }  # fmt: skip
    for name, high in highest.items():
        if not is_auto(getattr(spec, name)):
            yield name, checks.integer(SpecError, name, getattr(spec, name), 1, high)


def promotion(spec: Any) -> int | None:
    """The specified elements of K between promotions, a multiple of the instruction's K; None never promotes."""
    value = spec.promote
    if value is None:
        return None
    step = tiles.least_steps(LIMITS, spec.a_dtype, spec.b_dtype, spec.arithmetic)[2]
    found = checks.integer(SpecError, "promote", value, step, MAX_PROMOTE)
    if found % step:
        rule = f"must be a multiple of the {step} elements of K that an instruction multiplies, or None"
        raise field_error(SpecError, "promote", found, rule, max(step, round(found / step) * step))
    return found


def tuples(spec: Any) -> Iterator[tuple[str, object]]:
    """The specified fields that take a tuple."""
    if not is_auto(spec.tile) and not isinstance(spec.tile, Tile):
        if not isinstance(spec.tile, (tuple, list)) or len(spec.tile) not in (2, 3):
            raise field_error(SpecError, "tile", spec.tile, "must be Tile(m, n, k)")
        yield "tile", Tile(*spec.tile)
    if not is_auto(spec.cluster):
        most = LIMITS.max_cluster
        rule = f"must be (m, n) or (m, n, k), m and n powers of two, of at most {most} CTAs"
        ctas = checks.integers(spec.cluster) or ()
        legal = len(ctas) in (2, 3) and all(x in (1, 2, 4, 8) for x in ctas[:2])
        if not legal or not 1 <= math.prod(ctas) <= most:
            raise field_error(SpecError, "cluster", spec.cluster, rule, (2, 1))
        yield "cluster", ctas
    if not is_auto(spec.raster):
        rule = f'must be ("m" or "n", group) with a group from 1 to {MAX_GROUP}'
        pair = tuple(spec.raster) if isinstance(spec.raster, (tuple, list)) else ()
        if len(pair) != 2 or not isinstance(pair[0], str) or pair[0] not in ("m", "n"):
            raise field_error(SpecError, "raster", spec.raster, rule, ("m", 8))
        yield "raster", (pair[0], checks.integer(SpecError, "raster[1]", pair[1], 1, MAX_GROUP))
