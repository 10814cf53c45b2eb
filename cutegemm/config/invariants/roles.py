# SPDX-License-Identifier: Apache-2.0
"""Invariants of roles: loads, tile schedulers, clusters, threads, registers and named barriers.

The table of families says what a kernel can do (`families.abilities`). None of these rules reads the tile.
"""

from __future__ import annotations

from typing import Any

from cutegemm.config import registers, scale_places, smem_budget
from cutegemm.config.draft import KernelDraft
from cutegemm.config.invariants.rule import Refusal, Rule
from cutegemm.config.numbers import Number, among, every, implies, power_of_two, some
from cutegemm.config.parts import OperandConfig
from cutegemm.families import THREAD_LOADS, Abilities, reason

NAMED_BARRIERS = 16  # of a CTA, PTX ISA, barrier
TRIGGERS = ("never", "start", "loads", "mainloop")


def able(x: KernelDraft, what: str, value: Number = True) -> Number:
    """Whether a value is among the abilities of a kernel's schedule."""
    schedule, rows = x.schedule, x.described.abilities
    if isinstance(schedule, str):
        return _has(rows[schedule], what, value)
    return some((schedule == name) & _has(row, what, value) for name, row in rows.items())


def _has(row: Abilities, what: str, value: Number) -> Number:
    legal: Any = getattr(row, what)
    return legal if isinstance(legal, bool) else among(value, legal)


def plane(x: KernelDraft) -> Number:
    """CTAs of a cluster along M and N."""
    return x.cluster[0] * x.cluster[1]


def _alone(x: KernelDraft) -> Number:
    """CTAs of a cluster do not share an operand that threads load; the other one may be multicast."""
    return every(x.cluster[sharing(y)] == 1 for y in x.operands if y.load in THREAD_LOADS)


def sharing(operand: OperandConfig) -> int:
    """The extent of a cluster, 0 along M or 1 along N, whose CTAs need the same tiles of an operand."""
    return 1 if operand.axes[0] == "m" else 0


def _alone_refused(x: KernelDraft) -> Refusal:
    shared = {sharing(y) for y in x.operands if y.load in THREAD_LOADS}
    nearest = tuple(1 if i in shared else extent for i, extent in enumerate(x.cluster))
    return "cluster", x.cluster, "an operand that threads load cannot be multicast", nearest


def _loads(x: KernelDraft) -> Number:
    """The kernel has the operands' loads: loads by threads need a producer warpgroup."""
    return not x.multiplies or every(able(x, "loads", y.load) for y in x.operands)


def _loads_refused(x: KernelDraft) -> Refusal:
    role, load = next((y.role, y.load) for y in x.operands if not able(x, "loads", y.load))
    if load not in THREAD_LOADS:
        return f"{role}_load", load, "is a load of another family of kernels", "tma"
    rule, nearest = reason("loads")
    return f"{role}_load", load, rule, nearest


def _multicast(x: KernelDraft) -> Number:
    return implies((plane(x) > 1) & x.multiplies, able(x, "multicast"))


def _multicast_refused(x: KernelDraft) -> Refusal:
    return "cluster", x.cluster, *reason("multicast")


def _shared(x: KernelDraft) -> Number:
    """CTAs that share an SM have enough registers."""
    return implies(x.ctas_per_sm > 1, registers.most_accumulators(x) > 0)


def _shared_refused(x: KernelDraft) -> Refusal:
    rule = f"{x.consumers} consumer warpgroups need all of an SM, and so does a gathering producer"
    return "ctas_per_sm", x.ctas_per_sm, rule, 1


def _reduces(x: KernelDraft) -> Number:
    return able(x, "reductions", x.split_reduction)


def _reduces_refused(x: KernelDraft) -> Refusal:
    if not x.multiplies:
        return "split_reduction", x.split_reduction, "another launch adds these splits", "launch"
    rule, nearest = reason("reductions")
    if x.streamed:
        return "scheduler", "stream_k", *reason("schedulers", "stream_k")
    return "split_k", x.splits, rule, nearest


def _cluster_size(x: KernelDraft) -> Number:
    return x.cluster_size <= x.limits.max_cluster


def _cluster_size_refused(x: KernelDraft) -> Refusal:
    most, wide = x.limits.max_cluster, plane(x)
    if wide > most:
        return "cluster", x.cluster, f"a cluster has at most {most} CTAs", (1, 1)
    rule = f"a cluster has at most {most} CTAs, {wide} of them along M and N"
    return "split_k", x.splits, rule, most // wide


def _moved(x: KernelDraft) -> dict[str, bool]:
    """Whether TMA moves what a cache hint can name."""
    ways = {operand.role: operand.load == "tma" for operand in x.operands}
    return ways | {"d": all(y.store == "tma" for y in x.outputs)}


def _hints(x: KernelDraft) -> bool:
    """Only TMA gives cache hints."""
    moved = _moved(x)
    return all(moved.get(name, False) for name in x.evict_first)


def _hints_refused(x: KernelDraft) -> Refusal:
    moved = _moved(x)
    without = [name for name in x.evict_first if not moved.get(name, False)]
    left = tuple(name for name in x.evict_first if moved.get(name, False)) or "auto"
    return "evict_first", x.evict_first, f"TMA does not move {' and '.join(without)}", left


def _scheduled(x: KernelDraft) -> Number:
    """The kernel has the tile scheduler and no other; CTAs of a scheduler that distributes tiles are persistent."""
    alone = (x.streamed & x.dynamic) ^ True
    return alone & able(x, "schedulers", x.scheduler) & implies(x.streamed | x.dynamic, x.persistent)


def _scheduled_refused(x: KernelDraft) -> Refusal:
    if able(x, "schedulers", x.scheduler):
        rule = "a stream-K or a dynamic scheduler, not both, has persistent CTAs"
        return "scheduler", x.scheduler, rule, "persistent"
    if x.scheduler == "persistent":
        return "scheduler", "persistent", "every tile has CTAs of its own", "per_tile"
    return "scheduler", x.scheduler, *reason("schedulers", x.scheduler)


def _dealt(x: KernelDraft) -> Number:
    return implies(x.dynamic, not x.gathers)


def _dealt_refused(x: KernelDraft) -> Refusal:
    rule = "tiles are taken by a producer warp that loads by TMA, not by threads that load A or B"
    return "scheduler", "dynamic", rule, "persistent"


def _in_turn(x: KernelDraft) -> Number:
    """Three warpgroups that issue in turn hold the stages between two promotions: each issues them all in its turn, and
    none is free before the last has read it.
    """
    return implies(x.in_turn, x.stages * x.tile[2] >= x.promote)


def _in_turn_refused(x: KernelDraft) -> Refusal:
    rule = (
        f"three warpgroups that issue in turn need the {x.promote} elements of K between promotions at once"
    )
    needed, fit = -(-x.promote // x.tile[2]), smem_budget.room(x)
    if needed > fit:
        return "promote", x.promote, rule, fit * x.tile[2]
    return "stages", x.stages, rule, needed


def _team_refused(x: KernelDraft) -> Refusal:
    legal = [n for row in (x.described.abilities[x.schedule],) for n in row.consumers]
    nearest = min(legal, key=lambda n: abs(n - x.consumers))
    return "consumers", x.consumers, f"{x.schedule} kernels have {' or '.join(map(str, legal))}", nearest


def _registers(x: KernelDraft) -> Number:
    """The registers of all warpgroups on an SM are at most the SM's; the launch allocates all of them."""
    used = sum(y.warpgroups * y.registers for y in registers.register_file(x))
    return used * x.limits.warpgroup * x.ctas_per_sm <= x.limits.registers_per_sm


def _registers_refused(x: KernelDraft) -> Refusal:
    shares = ", ".join(f"{y.warpgroups} {y.role} x {y.registers}" for y in registers.register_file(x))
    rule = f"{shares} registers a thread exceed the {x.limits.registers_per_sm:,} of an SM"
    return "consumers", x.consumers, rule, 1


def _threads_refused(x: KernelDraft) -> Refusal:
    return "consumers", x.consumers, f"a CTA has at most {x.limits.max_threads} threads", 1


def named_barriers(x: KernelDraft) -> Number:
    """Named barriers: the CTA's, one per warpgroup, as many for pingpong or sums, and one for out-of-bounds rows."""
    return 2 * x.consumers + 2


def _barriers_refused(x: KernelDraft) -> Refusal:
    rule = f"{named_barriers(x)} named barriers are more than the {NAMED_BARRIERS} of a CTA"
    return "consumers", x.consumers, rule, NAMED_BARRIERS // 2 - 1


def _early(x: KernelDraft) -> Number:
    """A producer warp that knows its first tile loads operands before earlier launches end."""
    if not x.early:
        return True
    moved = _moved(x)
    ready = all(name in "ab" and moved[name] for name in x.early) and not x.gathers and x.producers > 0
    return ready & (x.dynamic ^ True)


def _serpentine(x: KernelDraft) -> Number:
    """A producer warp that loads by TMA traverses K backwards; its tiles are whole."""
    steady = (x.streamed ^ True) & (x.splits == 1)
    return implies(x.serpentine, steady & (x.producers > 0 and not x.gathers))


def _by_gpc(x: KernelDraft) -> Number:
    """The launch has a place for every cluster of several CTAs that the SMs hold at once; only splits gain."""
    listed = ((x.streamed | x.dynamic) ^ True) & x.persistent & (x.grouped == "")
    return implies(x.by_gpc, listed & (x.splits > x.cluster_splits) & (x.ctas_per_sm == 1))


def _grouped(x: KernelDraft) -> Number:
    """Groups begin at any row: TMA can load them from K-major tokens, threads from any; stores end with the group.

    Masked groups begin with a batch. Results of reductions lie along the groups' axis. The place of tiles is known only
    after earlier launches have ended.
    """
    if not x.grouped:
        return True
    anywhere = all(_anywhere(x, y) for y in x.operands if x.grouped in y.axes and not x.masked)
    reordered = x.streamed | x.serpentine
    steady = x.persistent & (reordered ^ True) & (x.splits == 1)
    along = {"m": (1,), "n": (0,), "k": (0, 1)}[x.grouped]
    reduces = all(y.axis in along for y in x.epilogue.reductions)
    plain = anywhere and not x.early and reduces and x.multiplies
    # TMA stores at multiples of 16 bytes
    plain &= x.masked or all(y.store != "tma" or y.major != x.grouped for y in x.outputs)
    if x.grouped == "k":
        return steady & plain & (x.producers > 0 and not x.epilogue.gated)
    moved = any(y.load == "tma" for y in x.inputs)
    return steady & (plain and not moved)


def _axis(x: KernelDraft) -> bool:
    """Groups lie along an axis; masked ones are the first rows or columns of a batch each."""
    return x.grouped in ("m", "n") or (x.grouped in ("", "k") and not x.masked)


def _axis_refused(x: KernelDraft) -> Refusal:
    if x.masked and x.grouped in ("", "k"):
        return "masked", True, "masked groups are the first rows or columns of a batch each", False
    return "grouped", x.grouped, "groups lie along m, n or k", ""


def _unaligned(x: KernelDraft) -> bool:
    """Groups begin at any element of their axis, so no scale, pair or part spans several of it; no result is partial.

    Masked groups begin with a batch. Blocks of scales along K are those of the whole K.
    """
    if not x.grouped:
        return True
    whole = not any(y.partial for y in x.epilogue.reductions)
    if x.grouped == "k":
        return whole and x.instruction.parts == 1
    spans = x.epilogue.gated_axis == x.grouped or any(
        y.axis == x.grouped and y.extent > 1 for y in x.epilogue.scales
    )
    return whole and (x.masked or not spans)


def _unaligned_refused(x: KernelDraft) -> Refusal:
    rule = (
        f"groups begin at any element along {x.grouped}, also within a block of scales, a gated pair and a run of "
        "parts, and their reductions are finished"
    )
    return "grouped", x.grouped, rule, ""


def _indexed(x: KernelDraft) -> bool:
    """Rows that indices name are those of groups, of a K-major operand whose rows cp.async copies one by one."""
    return all(
        y.load == "cp_async" and y.k_major and y.halves == 1 and x.grouped == y.axes[0] and not x.masked
        for y in x.operands
        if y.indexed
    )


def _indexed_refused(x: KernelDraft) -> Refusal:
    role, load = next((y.role, y.load) for y in x.operands if y.indexed)
    rule = "rows that indices name are rows of groups, K-major, and copied by threads"
    return f"{role}_load", load, rule, "cp_async"


def _anywhere(x: KernelDraft, operand: OperandConfig) -> bool:
    """Whether an operand's tiles may begin wherever those of groups do along their axis."""
    along = operand.major == x.grouped and not scale_places.aligned(x)
    return operand.load == "gather" or (
        operand.load in ("tma", "cp_async") and not (along or operand.box_rows)
    )


def _grouped_refused(x: KernelDraft) -> Refusal:
    begin = f"groups begin at any element along {x.grouped}"
    for y in x.operands:
        if x.grouped in y.axes and not (x.masked or _anywhere(x, y)):
            return (
                f"{y.role}_load",
                y.load,
                f'{begin}, where "{y.load}" cannot load {y.role.upper()}',
                "gather",
            )
    if not x.masked and any(y.store == "tma" and y.major == x.grouped for y in x.outputs):
        return "store", "tma", f"{begin}, and TMA stores at multiples of 16 bytes", "staged"
    if x.grouped == "k" and not x.producers:
        return "schedule", x.schedule, "a producer loads groups along K", "cooperative"
    rule = (
        "groups take persistent kernels without splits, reductions of each row, and loads and stores that begin at any "
        "row; TMA loads no input of the epilogue"
    )
    return "grouped", x.grouped, rule, ""


RULES = (
    Rule(_alone, _alone_refused, needs_tile=False),
    Rule(_loads, _loads_refused, needs_tile=False),
    Rule(lambda x: able(x, "consumers", x.consumers), _team_refused, needs_tile=False),
    Rule(_multicast, _multicast_refused, needs_tile=False),
    Rule(_shared, _shared_refused, needs_tile=False),
)
LATER = (
    Rule(_hints, _hints_refused, needs_tile=False),
    Rule(_scheduled, _scheduled_refused, needs_tile=False),
    Rule(_dealt, _dealt_refused, needs_tile=False),
    Rule(
        lambda x: every(map(power_of_two, x.cluster)),
        lambda x: ("cluster", x.cluster, "m and n must be powers of two", (1, 1)),
        needs_tile=False,
    ),
    Rule(lambda x: x.threads <= x.limits.max_threads, _threads_refused, needs_tile=False),
    Rule(lambda x: named_barriers(x) <= NAMED_BARRIERS, _barriers_refused, needs_tile=False),
    Rule(_registers, _registers_refused),
    Rule(
        lambda x: among(x.trigger, TRIGGERS),
        lambda x: ("trigger", x.trigger, f"must be one of {', '.join(TRIGGERS)}", "never"),
        needs_tile=False,
    ),
    Rule(
        lambda x: among(x.raster, ("m", "n")),
        lambda x: ("raster", x.raster, 'must be "m" or "n"', "m"),
        needs_tile=False,
    ),
    Rule(
        _early,
        lambda x: ("constant", x.early, "only a producer warp loads operands early, by TMA", "auto"),
        needs_tile=False,
    ),
    Rule(_axis, _axis_refused, needs_tile=False),
    Rule(_grouped, _grouped_refused, needs_tile=False),
    Rule(_unaligned, _unaligned_refused, needs_tile=False),
    Rule(_indexed, _indexed_refused, needs_tile=False),
    Rule(
        _serpentine,
        lambda x: ("serpentine", True, "K is taken backwards only of whole, unsplit tiles by TMA", False),
        needs_tile=False,
    ),
    Rule(
        _by_gpc,
        lambda x: (
            "by_gpc",
            True,
            "must be False without splits of K, with several CTAs per SM or a counter",
            False,
        ),
        needs_tile=False,
    ),
)

# when the stages are known
STAGES = Rule(_in_turn, _in_turn_refused)
