# SPDX-License-Identifier: Apache-2.0
"""wgmma: accumulator registers, issue, commit and wait.

A wgmma is one operation of the four warps of its warpgroup (`pending.Warpgroup`). The completion policy decides when a
committed group is computed (`wgmma_compute.py`), at the latest by its wait.

Source: PTX ISA 9.0, 9.7.16 (wgmma); benchmarks/NOTES-emulator.md, synchronisation.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.state.pending import WARPS, Batch, Warpgroup
from cutegemm.emulator.units.wgmma_compute import PendingWgmma, Place, compute
from cutegemm.emulator.units.wgmma_operands import Form, check_inside


def accumulator_get(group: WarpSet, index: int, register: int) -> Vector:
    """Read an accumulator register."""
    group.tracker.accumulator(index, False)
    return accumulator_peek(group, index, register)


def accumulator_peek(group: WarpSet, index: int, register: int) -> Vector:
    """Copy an accumulator register to another one; compilers zero a list that way."""
    return group.matrix(index).register(register).reshape(group.lanes)


def accumulator_set(group: WarpSet, index: int, register: int, value: Value, mask: Mask) -> None:
    """Write an accumulator register."""
    group.tracker.accumulator(index, True)
    view = group.matrix(index).register(register)
    if value.__class__ is ND:
        value = value.reshape(view.shape)
    if mask is None:
        view[...] = value
    else:
        view[...] = np.where(mask.reshape(view.shape), value, view)


def wgmma_issue(
    group: WarpSet, where: Place, a: Value | tuple[int, ...], b: Value, scale: Value, form: Form
) -> None:
    """wgmma.mma_async. With the race detector an operand outside shared memory is a fault here."""
    if group.tracker.follows:
        n, k, _, a_kind, b_kind, _, (a_across, b_across) = form
        if not isinstance(a, tuple):
            check_inside(group.cta, (lane_of(a, 0),), 64, k, a_across, a_kind)
        check_inside(group.cta, (lane_of(b, 0),), n, k, b_across, b_kind)
    token = group.tracker.issue_wgmma(where, a, b, form)
    group.device.watch.wgmma(group, form, isinstance(a, tuple))
    if scale.__class__ is not ND:
        scale = bool(scale)
    elif scale.all():
        scale = True
    group.wgmmas.open.append(PendingWgmma(group, where, [a], [b], scale, form, [token]))
    group.wgmma_issued += 1


def refuse_mask(group: WarpSet, mask: npt.NDArray[np.bool_]) -> None:
    """Refuse wgmma in divergent code."""
    if not mask.reshape(-1, 32).all(1).any() or group.stack:
        raise Fault("wgmma in divergent code")


def _warpgroups_of(group: WarpSet) -> list[Warpgroup]:
    """The warpgroups that a group's warps belong to."""
    if group.warpgroups is None:
        warpgroups = group.cta.warpgroups
        numbers = list(dict.fromkeys(w // WARPS for w in group.warps))
        for number in numbers:
            if number not in warpgroups:
                warpgroups[number] = Warpgroup(number * WARPS, group.device.geometry.warps)
        group.warpgroups = [warpgroups[number] for number in numbers]
    return group.warpgroups


def wgmma_commit(group: WarpSet) -> bool:
    """wgmma.commit_group: False until all warps of the warpgroup have issued their wgmmas."""
    if not group.wgmma_committing:
        _commit(group)
    for one in _warpgroups_of(group):
        if one.together < group.wgmma_issued:
            group.wait_for(one.__str__)
            return False
    group.wgmma_committing = False
    return True


def _commit(group: WarpSet) -> None:
    group.wgmma_committing = True
    group.device.events += 1
    batch = Batch(group.wgmma_issued, _joined(group.wgmmas.open))
    group.wgmmas.groups.append(batch)
    group.wgmmas.open = []
    for one in _warpgroups_of(group):
        one.batches.append(batch)
        one.note(one.issued, group.warps, group.wgmma_issued)
        begun = [p for p in one.upto(one.together) if not p.offered]
        for p in begun:
            p.offered = True
        if begun:
            group.device.completion.wgmmas(functools.partial(compute, begun))


def _joined(issued: list[PendingWgmma]) -> list[PendingWgmma]:
    """wgmmas in order; consecutive ones on the same accumulators are joined."""
    wgmmas: list[PendingWgmma] = []
    latest: dict[Place, PendingWgmma] = {}  # by accumulators; those with different accumulators need no order
    for p in issued:
        if not (p.where in latest and latest[p.where].join(p)):
            wgmmas.append(p)
            latest[p.where] = p
    return wgmmas


def wgmma_wait(group: WarpSet, pending: int) -> None:
    """wgmma.wait_group: wait for all but the last `pending` groups, of all warps of the warpgroup."""
    upto = 0
    while len(group.wgmmas.groups) > pending:
        upto = group.wgmmas.groups.pop(0).upto
    if not upto:
        return
    group.device.watch.waited_for([upto])
    for one in _warpgroups_of(group):
        wgmmas = one.upto(upto)
        compute(wgmmas)
        group.tracker.wgmma_done([token for p in wgmmas for token in p.tokens])
        one.note(one.waited, group.warps, upto)
        one.forget()
