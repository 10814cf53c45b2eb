# SPDX-License-Identifier: Apache-2.0
"""What a CUDA-core kernel requires of its config; a `SimtConfig` that breaks an invariant cannot be made.

As in `config.invariants`, each is a function of fields that may be integers or arrays.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

from cutegemm.config.invariants.rule import Refusal, Rule, check_all, positive
from cutegemm.config.numbers import Number, among, every, implies, least, most, power_of_two, where
from cutegemm.config.parts import OperandConfig
from cutegemm.config.simt import FOUR, STAGED_STAGES, SimtConfig
from cutegemm.config.smem_budget import Held
from cutegemm.families import FAMILIES

FP32_BYTES = 4
LEAST_AHEAD = 2
# registers of a thread besides its accumulators: fragments and addresses
BESIDE = 24
COUNTED = ("tile", "thread_tile", "vector", "lanes_m", "stages", "slices", "split", "unroll", "residents")


def _moved(x: SimtConfig) -> bool:
    """Threads load and store every matrix; the table of families says so."""
    row = FAMILIES[x.family].abilities["simt"]
    loads = all(y.load in row.loads for y in (*x.operands, *x.inputs))
    return loads and all(y.store in row.stores for y in x.outputs)


def _moved_refused(x: SimtConfig) -> Refusal:
    ways = tuple(y.load for y in (*x.operands, *x.inputs)) + tuple(y.store for y in x.outputs)
    return "schedule", ways, "CUDA-core kernels load and store every matrix directly", "direct"


def _axes(x: SimtConfig) -> list[tuple[str, Number, Number, Number, Number]]:
    """(axis, extent of the tile, elements that a thread owns, lanes of a warp, neighbours that it owns together)."""
    group = where(x.staged, x.group, FOUR)
    return list(zip("mn", x.tile, x.thread_tile, x.lanes, (group, FOUR), strict=False))


def _shared_out(x: SimtConfig) -> Number:
    """Warps cover the tile, in whole groups of elements that a thread owns together."""
    return every((own % group == 0) & (size % (own * lanes) == 0) for _, size, own, lanes, group in _axes(x))


def _shared_out_refused(x: SimtConfig) -> Refusal:
    axis, _, own, lanes, group = next(y for y in _axes(x) if y[2] % y[4] or y[1] % (y[2] * y[3]))
    rule = f"along {axis} must be a multiple of {lanes} lanes x {own} elements in groups of {group}"
    return "tile", x.tile, rule, None


def _pairs_refused(x: SimtConfig) -> Refusal:
    rule = f"a thread that owns {x.thread_tile[1]} columns has none of a pair's second half"
    return "thread_tile", x.thread_tile, rule, None


def _sliced(x: SimtConfig) -> Number:
    """Every slice has whole steps of the mainloop, and the threads evenly divide the sums of slices."""
    step = where(x.staged, 1, FOUR)
    vectors = x.tile[0] * x.tile[1] // FOUR
    return (x.tile[2] % (step * x.slices) == 0) & implies(x.slices > 1, vectors % x.threads == 0)


def _sliced_refused(x: SimtConfig) -> Refusal:
    rule = f"along k must be a multiple of {where(x.staged, 1, FOUR)} for each of {x.slices} slices"
    return "tile", x.tile, rule, None


def _patched(x: SimtConfig) -> Number:
    """Sums that several threads share are whole patches of a warp."""
    rows, columns = FOUR // 2, FOUR * x.gates
    rows = where(x.slices * x.split > 1, x.group, rows)
    return implies(x.slices * x.split > 1, x.tile[0] * x.tile[1] % (rows * columns * x.limits.warp) == 0)


def _brought(x: SimtConfig) -> Number:
    """The threads evenly divide the loads of each operand's tile."""
    return every(_brings(x, *factor) for factor in x.factors)


def _brings(x: SimtConfig, operand: OperandConfig, rows: Number, vector: Number) -> Number:
    """Whether they evenly divide the loads of one operand's tile."""
    whole = among(vector, (1, 2, 4)) & (rows % vector == 0) & (x.tile[2] % vector == 0)
    return whole & x.brings(rows, vector, operand.k_major)


def _brought_refused(x: SimtConfig) -> Refusal:
    _, rows, vector = next(y for y in x.factors if not _brings(x, *y))
    rule = f"{x.threads} threads cannot share a {rows} x {x.tile[2]} tile in vectors of {vector}"
    # the widest that serve, none wider than the given ones
    legal = [
        next((y for y in (4, 2, 1) if y <= given and _brings(x, operand, extent, y)), None)
        for operand, extent, given in x.factors
    ]
    return "vector", x.vector, rule, None if None in legal else (*legal, x.vector[2])


def _staging(x: SimtConfig) -> Number:
    """A cp.async pipeline copies fp32 elements unconverted, and fills one stage while another is read."""
    return x.staged | (_fp32(x) & (x.stages >= STAGED_STAGES))


def _fp32(x: SimtConfig) -> bool:
    return all(y.dtype.bytes == FP32_BYTES for y in x.operands)


def _staging_refused(x: SimtConfig) -> Refusal:
    if not _fp32(x):
        return "staged", x.staged, "a cp.async pipeline holds fp32 elements", True
    rule = f"a cp.async pipeline holds fp32 elements in {STAGED_STAGES} stages or more"
    return "stages", x.stages, rule, STAGED_STAGES


def _threads(x: SimtConfig) -> Number:
    return (x.owners % x.limits.warp == 0) & (x.threads <= x.limits.max_threads)


def _threads_refused(x: SimtConfig) -> Refusal:
    rule = f"{x.threads} threads are no whole warps for each slice, or more than {x.limits.max_threads}"
    return "slices", x.slices, rule, 1 if _threads(_with(x, slices=1)) and x.slices != 1 else None


def _with(x: SimtConfig, **fields: Any) -> SimtConfig:
    """An unchecked config with other fields."""
    made = copy.copy(x)
    made.__dict__.update(fields)
    return made


def _split_refused(x: SimtConfig) -> Refusal:
    most_ctas = x.limits.max_cluster
    rule = f"splits on the CUDA cores are added by a cluster of a power of two, at most {most_ctas} CTAs"
    return "split_k", x.split, rule, min(most_ctas, 1 << round(math.log2(x.split)))


def _registers(x: SimtConfig) -> Number:
    """The accumulators of the CTAs that share an SM leave room for fragments and addresses."""
    room = least(x.limits.registers_per_sm // (x.threads * x.residents), x.limits.registers_per_thread)
    return x.thread_tile[0] * x.thread_tile[1] + BESIDE <= room


def _registers_refused(x: SimtConfig) -> Refusal:
    own = x.thread_tile[0] * x.thread_tile[1]
    rule = f"{x.threads} threads of {own} accumulators leave no registers for {x.residents} CTAs an SM"
    return "residents", x.residents, rule, 1 if _registers(_with(x, residents=1)) else None


def stage_contents(x: SimtConfig) -> list[Held]:
    """What one stage holds: a tile of every operand."""
    return [
        Held(y.role.upper(), FP32_BYTES * x.stage_elements(rows, vector, y.k_major), 16)
        for y, rows, vector in x.factors
    ]


def smem_bytes(x: SimtConfig) -> Number:
    """Shared memory of a CTA: the stages, whose space the sums of a shared tile reuse."""
    stages = where(x.staged, STAGED_STAGES, x.stages)
    pipeline = stages * sum(y.bytes for y in stage_contents(x))
    return most(pipeline, (x.slices * x.split > 1) * FP32_BYTES * x.tile[0] * x.tile[1] * x.slices)


def _fits(x: SimtConfig) -> Number:
    return smem_bytes(x) <= x.limits.smem_bytes


def _memory_refused(x: SimtConfig) -> Refusal:
    rule = (
        f"{x.stages} stages take {smem_bytes(x):,} bytes of shared memory, a CTA has {x.limits.smem_bytes:,}"
    )
    nearest = next((y for y in range(x.stages - 1, STAGED_STAGES - 1, -1) if _fits(_with(x, stages=y))), None)
    return "stages", x.stages, rule, None if x.staged else nearest


RULES = (
    Rule(
        lambda x: x.family in FAMILIES and "simt" in FAMILIES[x.family].abilities,
        lambda x: ("family", x.family, "is that of CUDA-core kernels", "simt"),
    ),
    positive(*COUNTED),
    Rule(_moved, _moved_refused),
    Rule(lambda x: among(x.lanes_m, (2, 4, 8, 16)), lambda x: ("lanes_m", x.lanes_m, "2, 4, 8 or 16", 8)),
    Rule(_shared_out, _shared_out_refused),
    Rule(lambda x: implies(x.gates == 2, x.takes_pairs), _pairs_refused),
    Rule(_threads, _threads_refused),
    Rule(_sliced, _sliced_refused),
    Rule(_patched, lambda x: ("tile", x.tile, "warps take whole patches of the sums", None)),
    Rule(_staging, _staging_refused),
    Rule(_brought, _brought_refused),
    Rule(
        lambda x: among(x.vector[2], (1, FOUR)),
        lambda x: ("vector", x.vector, "D is stored in single elements or in fours", (*x.vector[:2], 1)),
    ),
    Rule(
        lambda x: (x.ahead == 0) | (x.ahead >= LEAST_AHEAD),
        lambda x: ("ahead", x.ahead, f"prefetches run {LEAST_AHEAD} tiles ahead or more", LEAST_AHEAD),
    ),
    Rule(lambda x: power_of_two(x.split) & (x.split <= x.limits.max_cluster), _split_refused),
    Rule(_registers, _registers_refused),
    Rule(_fits, _memory_refused),
)


# plans of many problems share few configs
@functools.lru_cache(256)
def check(config: SimtConfig) -> None:
    """Refuse a config that breaks an invariant.

    Raises:
        PlanError: it does; names the field, value, rule and nearest legal value.
    """
    check_all(RULES, config)
