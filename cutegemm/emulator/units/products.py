# SPDX-License-Identifier: Apache-2.0
"""The products of wgmma instructions under way, and how they are computed.

Products of one group of warps that follow each other on the same accumulators are joined along K; those of several
warps of a warpgroup that read the same operands are computed together. Each element of D is the same sum either way.

Source: PTX ISA 9.0, 9.7.16.5 (wgmma.mma_async).
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.tensor_core import Unit, accumulate, accumulate_integers
from cutegemm.emulator.numbers.tensor_core_jit import add
from cutegemm.emulator.numbers.types import Value, Vector
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.accumulators import Accumulators
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Token
from cutegemm.emulator.state.pending import WARPS
from cutegemm.emulator.units.wgmma_operands import Form, fetch, fetch_split, from_registers

JOINED = 8  # wgmmas that one product holds at most

# Of D: the number of an accumulator list, or slots of loose registers.
Place: TypeAlias = int | tuple[int, ...]


class PendingWgmma:
    """One or more wgmma.mma_async on the same accumulators, waiting to be computed."""

    __slots__ = ("group", "where", "a", "b", "scale", "form", "tokens", "varies", "done", "offered")

    def __init__(
        self,
        group: WarpSet,
        where: Place,
        a: Value | tuple[int, ...],
        b: Value,
        scale: bool | Vector,
        form: Form,
        token: Token,
    ) -> None:
        self.group, self.where, self.form = group, where, form
        self.tokens = [token]
        self.a, self.b, self.scale, self.done, self.offered = [a], [b], scale, False, False
        self.varies = a.__class__ is ND or b.__class__ is ND  # whether a descriptor differs between lanes

    def join(self, other: PendingWgmma) -> bool:
        """Append a product that only accumulates further onto the same registers."""
        if not (self.where == other.where and self.form == other.form and other.scale is True):
            return False
        if len(self.a) >= JOINED or isinstance(self.a[0], tuple) or self.varies or other.varies:
            return False
        self.a += other.a
        self.b += other.b
        self.tokens += other.tokens
        return True

    def teams_with(self, other: PendingWgmma) -> bool:
        """Whether another warp's product can be computed together with this one: the operands are the same."""
        mine, theirs = self.group, other.group
        return (
            self.form == other.form
            and mine.cta is theirs.cta
            and len(mine.warps) == len(theirs.warps) == 1
            and mine.warps[0] // WARPS == theirs.warps[0] // WARPS
            and not self.varies
            and not other.varies
            and self.scale.__class__ is other.scale.__class__ is bool
            and (self.a, self.b, self.scale) == (other.a, other.b, other.scale)
        )

    def finish(self) -> None:
        """Read the operands and update the accumulators, once."""
        compute([self])

    def run(self) -> None:
        """Compute it by itself."""
        group = self.group
        for first, rows, warps in warpgroups(group):
            lane = 32 * first
            a = self._left(first, warps)
            b = tuple(lane_of(x, lane) for x in self.b)
            target = self.target(first, warps)
            some = None if warps == WARPS else rows
            target[...] = _summed(group.cta, a, some, b, target, lane_of(self.scale, lane), self.form)
            self.keep(target, first, warps)

    def _left(self, first: int, warps: int) -> np.ndarray | tuple[int, ...]:
        """Operand A of a warpgroup's warps: values from registers, 16 rows each, or descriptors of 64 rows."""
        if isinstance(self.a[0], tuple):
            return from_registers(self.group, self.a[0], first, warps, self.form[3])
        return tuple(lane_of(cast("Value", x), 32 * first) for x in self.a)

    def target(self, first: int, warps: int) -> np.ndarray:
        """The accumulators of a warpgroup's warps: the matrix itself, or loose registers put together."""
        group = self.group
        if isinstance(self.where, int):
            return group.matrix(self.where).matrix[16 * first : 16 * (first + warps)]
        loose = Accumulators(warps, len(self.where), self.form[2] == "f16")
        lanes = slice(32 * first, 32 * (first + warps))
        for i, slot in enumerate(self.where):
            value = group.registers[slot]
            view = loose.register(i)
            view[...] = value[lanes].reshape(view.shape) if value.__class__ is ND else (value or 0)
        return loose.matrix

    def keep(self, matrix: np.ndarray, first: int, warps: int) -> None:
        """Put a matrix from `target` back into loose registers."""
        if isinstance(self.where, int):
            return
        loose = Accumulators(warps, len(self.where), self.form[2] == "f16")
        loose.matrix[...] = matrix
        lanes = slice(32 * first, 32 * (first + warps))
        for i, slot in enumerate(self.where):
            self._put(slot, loose.register(i).reshape(-1), lanes)

    def _put(self, slot: int, value: Value, lanes: slice) -> None:
        group = self.group
        old = group.registers[slot]
        new = np.zeros(group.lanes, np.uint32)
        if old is not None:
            new[...] = old
        new[lanes] = value
        group.registers[slot] = new


def _summed(
    cta: CTA,
    a: np.ndarray | tuple[int, ...],
    rows: slice | npt.NDArray[np.int64] | None,
    b: tuple[int, ...],
    before: np.ndarray,
    keeps: Value,
    form: Form,
) -> np.ndarray:
    """A B^T, added to the accumulators `before` unless they are to be overwritten.

    A: values, or descriptors of 64 rows, of which `rows` (None: all) are multiplied.
    """
    n, k, d_type, a_type, b_type, (sign_a, sign_b), (trans_a, trans_b) = form
    unit = Unit(a_type, d_type, k)
    if not keeps:
        before = np.zeros_like(before)
    if isinstance(a, tuple):
        if rows is None and d_type == "f32" and sign_a * sign_b == 1:
            left = fetch_split(cta, a, 64, k, trans_a, a_type, trans_a)
            right = None if left is None else fetch_split(cta, b, n, k, trans_b, b_type, not trans_b)
            if left is not None and right is not None:
                summed = add(left, right, before, k, unit.fraction)
                if summed is not None:
                    return summed
        a = fetch(cta, a, 64, k, trans_a, a_type)
        a = a if rows is None else a[rows]
    values = fetch(cta, b, n, k, trans_b, b_type)
    if sign_a * sign_b != 1:
        a = a * np.float32(sign_a * sign_b)
    if d_type.startswith("s32"):
        added = accumulate_integers(a, values, before.view(np.int32), k, d_type != "s32")
        return added.view(before.dtype)
    (summed,) = accumulate(a[None], values[None], before[None], unit, b_type)
    return np.asarray(summed)


def compute(products: list[PendingWgmma]) -> None:
    """Compute what is still to be computed, each warp's products in their order; those that can be, together."""
    queues: dict[int, deque[PendingWgmma]] = {}  # of each group of warps
    for p in products:
        if not p.done:
            queues.setdefault(id(p.group), deque()).append(p)
    for queue in queues.values():
        while queue:
            first = queue.popleft()
            team = [first]
            for other in queues.values():
                if other and other[0].group is not first.group and first.teams_with(other[0]):
                    team.append(other.popleft())
            for p in team:
                p.done = True
            if len(team) == 1:
                first.run()
            else:
                _compute_team(team)


def _compute_team(team: list[PendingWgmma]) -> None:
    """Compute one product of each of several warps, which read the same operands."""
    team = sorted(team, key=lambda p: p.group.warps[0])
    first = team[0]
    a = first._left(0, 1)
    rows: npt.NDArray[np.int64] | None = None
    if not isinstance(a, tuple):
        a = np.concatenate([p._left(0, 1) for p in team])
    elif len(team) < WARPS:
        rows = np.concatenate([np.arange(64)[warpgroups(p.group)[0][1]] for p in team])
    targets = [p.target(0, 1) for p in team]
    summed = _summed(
        first.group.cta,
        a,
        rows,
        tuple(cast("list[int]", first.b)),
        np.concatenate(targets),
        first.scale,
        first.form,
    )
    for i, (p, target) in enumerate(zip(team, targets, strict=True)):
        target[...] = summed[16 * i : 16 * i + 16]
        p.keep(target, 0, 1)


def warpgroups(group: WarpSet) -> list[tuple[int, slice, int]]:
    """(first warp within the group, its rows of the 64, number of warps) of each warpgroup present."""
    out, i = [], 0
    while i < len(group.warps):
        n = 1
        while (
            i + n < len(group.warps) and group.warps[i + n] == group.warps[i] + n and (group.warps[i] + n) % 4
        ):
            n += 1
        start = 16 * (group.warps[i] % 4)
        out.append((i, slice(start, start + 16 * n), n))
        i += n
    return out
