# SPDX-License-Identifier: Apache-2.0
"""Named barriers, the cluster barrier, mbarriers, and setmaxnreg, which waits for registers of the CTA.

A function that has to wait returns False or None, and the executor calls it again later. Named barriers count whole
warps, as the hardware does.

Source: PTX ISA 9.0, 9.7.13.1 (bar, barrier.cta), 9.7.13.4 (barrier.cluster), 9.7.13.15 (mbarrier),
9.7.20.5 (setmaxnreg).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.clusters import MBarrier
from cutegemm.emulator.state.geometry import WARP
from cutegemm.emulator.state.group import Diverged, WarpSet
from cutegemm.emulator.state.memory import OFFSET_MASK, RANK_SHIFT, SHARED_WINDOW, Fault, resolve
from cutegemm.emulator.units.access import POLL_COST

MAX_COUNT = (1 << 20) - 1  # arrival counts and tx-counts, PTX ISA 9.7.13.15.3


def bar_sync(group: WarpSet, m: Mask, number: Value, count: Value | None, aligned: bool) -> bool:
    """barrier.cta.sync: wait for `count` threads, or for all that have not exited.

    All lanes of a warp must execute the aligned form (bar.sync too) together (PTX ISA 9.7.13.1).
    """
    bar = group.cta.barrier(_uniform(number))
    if group.bar_ticket is None:
        count = None if count is None else _uniform(count)
        group.bar_ticket = bar.phase
        if aligned and group.tracker.follows and not group.whole_warps(m):
            group.tracker.defect("barrier in divergent code", "some lanes of the warp are elsewhere")
        group.tracker.release_to(bar)
        bar.arrive(group.active_warps, count)
    if bar.phase == group.bar_ticket:
        group.wait_for(bar.__str__)
        return False
    group.bar_ticket = None
    group.tracker.acquire_from(bar)
    return True


def bar_arrive(group: WarpSet, number: Value, count: Value) -> None:
    """barrier.cta.arrive."""
    bar = group.cta.barrier(_uniform(number))
    group.tracker.release_to(bar)
    bar.arrive(group.active_warps, _uniform(count))


def bar_red(
    group: WarpSet, m: Mask, number: Value, count: Value | None, p: Value, operation: str, aligned: bool
) -> int | None:
    """barrier.cta.red: a barrier that also reduces a predicate (popc, and, or); None while waiting."""
    bar = group.cta.barrier(_uniform(number))
    if group.bar_ticket is None:
        live = np.ones(group.lanes, bool) if m is None else m
        votes = (p if p.__class__ is ND else np.full(group.lanes, p))[live]
        act: Any = {"popc": np.sum, "and": np.all, "or": np.any}[operation]
        mine = act(votes)
        bar.value = int(mine) if bar.value is None else int(act([bar.value, mine]))
    return bar.result if bar_sync(group, m, number, count, aligned) else None


def _uniform(x: Value) -> int:
    if isinstance(x, ND):
        if not (x == x[0]).all():
            raise Diverged(x.reshape(-1, WARP)[:, 0])
        return int(x[0])
    return x


def cluster_arrive(group: WarpSet, relaxed: bool) -> None:
    """barrier.cluster.arrive."""
    if group.cluster_ticket is not None:
        raise Fault("barrier.cluster.arrive twice without a wait between")
    cluster = group.cta.cluster
    group.cluster_ticket = cluster.phase
    (group.tracker.release_inits if relaxed else group.tracker.release_to)(cluster)
    cluster.arrived += group.active_warps
    cluster.release()


def cluster_wait(group: WarpSet) -> bool:
    """barrier.cluster.wait."""
    cluster = group.cta.cluster
    if group.cluster_ticket is None:
        raise Fault("barrier.cluster.wait without an arrive before it")
    if cluster.phase == group.cluster_ticket:
        group.wait_for(cluster.__str__)
        return False
    group.cluster_ticket = None
    group.tracker.acquire_from(cluster)
    return True


def find(group: WarpSet, address: int, arrives: bool = False) -> MBarrier:
    """The mbarrier at a shared address.

    Raises:
        Fault: none was initialised there, or its CTA has ended (not for `arrives`).
    """
    if address >= SHARED_WINDOW:
        address = resolve(address)[1]
    rank, offset = address >> RANK_SHIFT, address & OFFSET_MASK
    peers = group.cta.peers
    bar = peers[rank].mbarriers.get(offset) if rank < len(peers) else None
    if bar is None:
        where = (
            f"CTA {peers[rank].index}" if rank < len(peers) else f"rank {rank} of a cluster of {len(peers)}"
        )
        name = f"{offset:#x}{group.cta.shared.part(offset)}"
        raise Fault(f"no mbarrier was initialised at shared offset {name} of {where}")
    if not arrives:
        bar.cta.must_live("an mbarrier operation reaches")
    return bar


def _targets(group: WarpSet, m: Mask, address: Any, *operands: Any) -> dict[tuple[int, ...], int]:
    """The different (address, operands...) of the active lanes, and how many lanes have them."""
    requests = (address, *operands)
    if not any(o.__class__ is ND for o in requests):
        return {requests: group.lanes if m is None else int(np.count_nonzero(m))}
    out: dict[tuple[int, ...], int] = {}
    for lane in group.active(m).tolist():
        key = tuple([lane_of(o, lane) for o in requests])
        out[key] = out.get(key, 0) + 1
    return out


def mbarrier_init(group: WarpSet, m: Mask, address: Value, count: Value) -> None:
    """mbarrier.init."""
    group.device.events += 1
    for where, n in _targets(group, m, address, count):
        offset = where & OFFSET_MASK
        if offset % 8:
            raise Fault(f"mbarrier at shared offset {offset:#x} is not 8-byte aligned")
        if not 1 <= n <= MAX_COUNT:
            raise Fault(f"mbarrier count {n} is outside 1..{MAX_COUNT}")
        group.cta.mbarriers[offset] = MBarrier(group.cta, offset, n)
        group.tracker.barrier_init(group.cta.mbarriers[offset])


def mbarrier_invalidate(group: WarpSet, m: Mask, address: Value) -> None:
    """mbarrier.inval."""
    for (where,) in _targets(group, m, address):
        find(group, where)
        group.cta.mbarriers.pop(where & OFFSET_MASK, None)


def mbarrier_arrive(
    group: WarpSet, m: Mask, address: Value, count: Value, tx: Value, drop: bool, relaxed: bool
) -> int:
    """mbarrier.arrive[.expect_tx] by every active lane; returns the state (the phase).

    A relaxed arrival only orders accesses before the last fence; this matters to the race detector.
    """
    group.device.events += 1
    state = 0
    targets = _targets(group, m, address, count, tx)
    bars = [find(group, where, arrives=True) for where, _, _ in targets]
    group.tracker.arrive([bar for bar in bars if bar.cta.live_warps], m, relaxed)
    for bar, ((_, n, bytes_), lanes) in zip(bars, targets.items(), strict=True):
        state = bar.phase
        if not bar.cta.live_warps:  # no warp can wait for it any more; the hardware continues
            group.tracker.defect("arrival at a CTA that has ended", bar.name)
            continue
        bar.expect(bytes_ * lanes)
        bar.pending -= n * lanes
        if drop:
            bar.next_count -= n * lanes
        bar.advance()
    return state


def mbarrier_expect(group: WarpSet, m: Mask, address: Value, tx: Value) -> None:
    """mbarrier.expect_tx (and complete_tx, with a negative amount)."""
    group.device.events += 1
    for (where, bytes_), lanes in _targets(group, m, address, tx).items():
        bar = find(group, where)
        bar.expect(bytes_ * lanes)
        bar.advance()


def mbarrier_wait(
    group: WarpSet, m: Mask, address: Value, state: Value, parity: bool, may_block: bool, relaxed: bool
) -> bool | None:
    """try_wait and test_wait: True if the phase is complete, False if not, None to wait.

    A relaxed wait orders nothing until a fence. try_wait may return False: it does if no warp makes progress, and at
    random under the random policy.
    """
    device = group.device
    targets = [(find(group, where), s) for where, s in _targets(group, m, address, state)]
    incomplete = [(bar, s) for bar, s in targets if not (bar.phase & 1 != s if parity else bar.phase > s)]
    if not incomplete:
        if may_block and device.completion.gives_up():
            return False
        for bar, _ in targets:
            group.tracker.waited(bar, relaxed)
        return True
    bar, awaited = incomplete[0]
    group.wait_for(functools.partial(bar.awaited, awaited))
    device.watch.polled(group.pc)
    if len(incomplete) < len(targets) and len(group.warps) > 1 and not group.stack:
        _split_by_completion(group, m, address, state, incomplete)
    if may_block and not device.timed_out and not device.completion.gives_up():
        return None
    group.budget -= POLL_COST
    return False


def _split_by_completion(
    group: WarpSet, m: Mask, address: Value, state: Value, incomplete: list[tuple[MBarrier, int]]
) -> None:
    """Split warps whose phase is complete from warps that must wait, since the latter may depend on the former."""
    late = {(id(bar), s) for bar, s in incomplete}
    keys = np.zeros(len(group.warps), bool)
    for lane in group.active(m).tolist():
        keys[lane // WARP] |= (id(find(group, lane_of(address, lane))), lane_of(state, lane)) in late
    if keys.any() and not keys.all():
        raise Diverged(keys)


def set_registers(group: WarpSet, count: int, more: bool) -> bool:
    """setmaxnreg; .inc returns False until the CTA's pool has enough registers."""
    pool = group.cta.pool
    if pool is None:
        return True
    held = [pool.held[w] for w in group.warps]
    if min(held) > count if more else max(held) < count:
        verb, side = ("inc", "more") if more else ("dec", "fewer")
        group.tracker.defect(
            f"setmaxnreg.{verb} to {side} registers than held", f"{count} where {held[0]} are held"
        )
    need = sum(max(count - h, 0) for h in held) if more else 0
    if need and need > pool.free:
        group.wait_for(pool.__str__)
        return False
    for w in group.warps:
        pool.held[w] = count
    group.device.events += 1
    return True
