# SPDX-License-Identifier: Apache-2.0
"""Pending wgmma instructions, and their computation.

Consecutive wgmmas of a group on the same accumulators are joined along K. wgmmas of several warps of a warpgroup with
the same operands are computed together. Neither changes the sums.

Source: PTX ISA 9.0, 9.7.16.5 (wgmma.mma_async).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.tensor_core import Unit, accumulate, accumulate_integers
from cutegemm.emulator.numbers.tensor_core_jit import add
from cutegemm.emulator.numbers.types import Value
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.accumulators import Accumulators
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.pending import WARPS
from cutegemm.emulator.units.wgmma_operands import Form, fetch, fetch_split, fragment

JOINED = 8  # most wgmmas that are joined

# Accumulators: the number of a list, or slots of single registers.
Place: TypeAlias = int | tuple[int, ...]


@dataclass(slots=True, eq=False)
class PendingWgmma:
    """One or more wgmma.mma_async on the same accumulators."""

    group: WarpSet
    where: Place
    a: list[Value | tuple[int, ...]]  # descriptors, or slots of the registers
    b: list[Value]
    scale: Value
    form: Form
    tokens: list[Any]
    done: bool = False
    offered: bool = False  # whether the completion policy may compute it

    @property
    def varies(self) -> bool:
        """Whether a descriptor differs between lanes."""
        return self.a[0].__class__ is ND or self.b[0].__class__ is ND

    def join(self, other: PendingWgmma) -> bool:
        """Append a wgmma that continues to accumulate in the same registers; False if it does not."""
        if not (self.where == other.where and self.form == other.form and other.scale is True):
            return False
        if len(self.a) >= JOINED or isinstance(self.a[0], tuple) or self.varies or other.varies:
            return False
        self.a += other.a
        self.b += other.b
        self.tokens += other.tokens
        return True

    def teams_with(self, other: PendingWgmma) -> bool:
        """Whether another warp's wgmma has the same operands, so that both can be computed together."""
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
        """Compute it, once."""
        compute([self])

    def _lanes(self, slots: tuple[int, ...], first: int, warps: int) -> list[Any]:
        """Registers of some of the group's warps; None for an unwritten one."""
        lanes = slice(32 * first, 32 * (first + warps))
        values = (self.group.registers[slot] for slot in slots)
        return [v[lanes] if v.__class__ is ND else v for v in values]

    def left(self, first: int, warps: int) -> np.ndarray | tuple[int, ...]:
        """Operand A of some warps of a warpgroup: values from registers, or descriptors of 64 rows."""
        if isinstance(self.a[0], tuple):
            return fragment(self._lanes(self.a[0], first, warps), warps, self.form[3])
        return tuple(lane_of(cast("Value", x), 32 * first) for x in self.a)

    def target(self, first: int, warps: int) -> np.ndarray:
        """The accumulators of some warps: the matrix itself, or a copy of single registers."""
        if isinstance(self.where, int):
            return self.group.matrix(self.where).matrix[16 * first : 16 * (first + warps)]
        registers = [0 if v is None else v for v in self._lanes(self.where, first, warps)]
        return Accumulators.of(registers, warps, self.form[2] == "f16").matrix

    def keep(self, matrix: np.ndarray, first: int) -> None:
        """Write a matrix from `target` back to single registers."""
        if isinstance(self.where, int):
            return
        registers = self.group.registers
        for slot, value in zip(self.where, Accumulators(matrix).registers(), strict=True):
            new = np.zeros(self.group.lanes, np.uint32)
            new[...] = 0 if registers[slot] is None else registers[slot]
            new[32 * first : 32 * first + len(value)] = value
            registers[slot] = new


# A wgmma of some warps of one warpgroup: the index of the first warp in the group, and their number.
Slice: TypeAlias = tuple[PendingWgmma, int, int]


def compute(wgmmas: list[PendingWgmma]) -> None:
    """Compute the wgmmas that are not done, those of a group in order; those with the same operands together."""
    queues: dict[int, deque[PendingWgmma]] = {}  # by group
    for p in wgmmas:
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
            if len(team) > 1:
                _compute([(p, 0, 1) for p in sorted(team, key=lambda p: p.group.warps[0])])
            else:
                for place, warps in _warpgroups(first.group.warps):
                    _compute([(first, place, warps)])


def _compute(slices: list[Slice]) -> None:
    """Compute a wgmma of some warps of a warpgroup with the same operands."""
    one, place, _ = slices[0]
    warps = [p.group.warps[i + k] % WARPS for p, i, n in slices for k in range(n)]
    lefts = [p.left(i, n) for p, i, n in slices]
    rows: npt.NDArray[np.int64] | None = None
    a = lefts[0]
    if not isinstance(a, tuple):
        a = np.concatenate(lefts)
    elif len(warps) < WARPS:
        rows = (16 * np.array(warps)[:, None] + np.arange(16)).ravel()
    targets = [p.target(i, n) for p, i, n in slices]
    b = tuple(lane_of(x, 32 * place) for x in one.b)
    before = targets[0] if len(targets) == 1 else np.concatenate(targets)
    summed = _summed(one.group.cta, a, rows, b, before, lane_of(one.scale, 32 * place), one.form)
    for (p, i, _), target in zip(slices, targets, strict=True):
        target[...], summed = summed[: len(target)], summed[len(target) :]
        p.keep(target, i)


def _summed(
    cta: CTA,
    a: np.ndarray | tuple[int, ...],
    rows: npt.NDArray[np.int64] | None,
    b: tuple[int, ...],
    before: np.ndarray,
    keeps: Value,
    form: Form,
) -> np.ndarray:
    """A B^T, added to the accumulators `before` if `keeps`.

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
                d = add(left, right, before, k, unit.fraction)
                if d is not None:
                    return d
        a = fetch(cta, a, 64, k, trans_a, a_type)
        a = a if rows is None else a[rows]
    values = fetch(cta, b, n, k, trans_b, b_type)
    if sign_a * sign_b != 1:
        a = a * np.float32(sign_a * sign_b)
    if d_type.startswith("s32"):
        added = accumulate_integers(a, values, before.view(np.int32), k, d_type != "s32")
        return added.view(before.dtype)
    return np.asarray(accumulate(a[None], values[None], before[None], unit, b_type)[0])


def _warpgroups(warps: list[int]) -> list[tuple[int, int]]:
    """(index, number) of consecutive warps of the same warpgroup."""
    runs: list[tuple[int, int]] = []
    for i, warp in enumerate(warps):
        if i and warp == warps[i - 1] + 1 and warp % WARPS:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((i, 1))
    return runs
