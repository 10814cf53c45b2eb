# SPDX-License-Identifier: Apache-2.0
"""What a wgmma computes: accumulator matrices, operands in shared memory or registers, products under way.

An accumulator list is a matrix in natural order, whose registers are strided views. Products of one group of warps
that follow each other on the same accumulators are joined along K; those of several warps of a warpgroup that read
the same operands are computed together. Each element of D is the same sum either way.

Source: PTX ISA 9.0, 9.7.16.5.1 (shared memory layouts), 9.7.16.5.1.2.2 (matrix descriptor).
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.operands import ITEM_BYTES as SPLIT_BYTES
from cutegemm.emulator.numbers.operands import Split, split
from cutegemm.emulator.numbers.tensor_core import Unit, accumulate_split
from cutegemm.emulator.numbers.tensor_core import accumulate as add_products
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.memory import Fault

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Chunks, Floats, Value, Vector
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.units.cta import CTA
    from cutegemm.emulator.watch.tracker import AsyncOp

# Descriptor field -> (swizzle mode, row pitch in bytes)
_MODES = {
    0: (0, 16),
    1: (3, 128),
    2: (2, 64),
    3: (1, 32),
}
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
WARPS = 4  # of a warpgroup, PTX ISA 9.7.16.1
JOINED = 8  # wgmmas that one product holds at most

# Shape and types of a wgmma: n, k, types of D, A and B, signs of A and B, whether A and B are MN-major.
Form: TypeAlias = tuple[int, int, str, str, str, tuple[int, int], tuple[bool, bool]]
# Of D: the number of an accumulator list, or slots of loose registers.
Place: TypeAlias = int | tuple[int, ...]


class Accumulators:
    """The accumulator registers of some warps as a matrix of 16 rows per warp.

    A 32-bit register i of lane t holds row t/4 + 8 * (i/2 % 2), column 8 * (i/4) + 2 * (t % 4) + i % 2 (f16: two
    columns in one register).
    """

    def __init__(self, warps: int, registers: int, half: bool) -> None:
        self.half = half
        self.columns = registers * (4 if half else 2)
        self.matrix = np.zeros((16 * warps, self.columns), np.float16 if half else np.float32)
        self._views(warps)

    def _views(self, warps: int) -> None:
        words = self.matrix.view(np.uint32)
        n = self.columns // 8
        if self.half:
            self.registers = words.reshape(warps, 2, 8, n, 4).transpose(3, 1, 0, 2, 4)
        else:
            self.registers = words.reshape(warps, 2, 8, n, 4, 2).transpose(3, 1, 5, 0, 2, 4)

    def register(self, i: int) -> npt.NDArray[np.uint32]:
        """View of register `i` as (warps, 8, 4)."""
        view: npt.NDArray[np.uint32]
        view = self.registers[i >> 1, i & 1] if self.half else self.registers[i >> 2, i >> 1 & 1, i & 1]
        return view

    def take(self, rows: np.ndarray, warps: int) -> Accumulators:
        """The accumulators of some of the warps."""
        new = object.__new__(Accumulators)
        new.half, new.columns = self.half, self.columns
        new.matrix = np.ascontiguousarray(self.matrix[rows])
        new._views(warps)
        return new


def matrix_of(group: Group, index: int) -> Accumulators:
    """The matrix of an accumulator list, made on first use."""
    made = group.matrices[index]
    if made is None:
        half = group.program.half_lists[index]
        made = group.matrices[index] = Accumulators(
            len(group.warps), len(group.program.accumulators[index]), half
        )
    return made


@functools.lru_cache(8192)
def operand_chunks(descriptor: int, extent: int, k_bytes: int, mn_major: bool, item: int) -> np.ndarray:
    """16-byte chunk numbers of an operand of `extent` rows (M or N) and `k_bytes` / `item` columns.

    K-major: [extent, chunks along K]. MN-major: [K, chunks along M or N].
    The canonical layouts in units of T = 16 / item elements, with LBO and SBO from the descriptor:
    K-major ((8, m), (T, 2k)) : ((pitch, SBO), (1, T or LBO without swizzle)); MN-major ((T, pitch / 16, m), (8, k)) :
    ((1, T, LBO), (pitch, SBO)), and without swizzle ((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO)).
    """
    start = (descriptor & 0x3FFF) << 4
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    if descriptor >> 49 & 7:
        raise Fault(f"wgmma descriptor {descriptor:#x}: a matrix base offset is not emulated")
    mode, pitch = _MODES[descriptor >> 62]
    if not mn_major:
        row = np.arange(extent)
        down = row % 8 * pitch + row // 8 * stride
        chunk = np.arange(k_bytes // 16)
        across = chunk * (leading if mode == 0 else 16)
    else:
        per_atom = pitch // 16  # chunks of M or N side by side
        k = np.arange(k_bytes // item)
        chunk = np.arange(extent * item // 16)
        if mode == 0:
            down = k % 8 * 16 + k // 8 * leading
            across = chunk * stride
        else:
            down = k % 8 * pitch + k // 8 * stride
            across = chunk % per_atom * 16 + chunk // per_atom * leading
    address = start + down[:, None] + across[None]
    return (address ^ ((address >> 7 & (0, 1, 3, 7)[mode]) << 4)) >> 4


@functools.lru_cache(4096)
def _joined(descriptors: tuple[int, ...], extent: int, k_bytes: int, mn_major: bool, item: int) -> np.ndarray:
    """Chunks of several consecutive operands side by side along K."""
    parts = [operand_chunks(d, extent, k_bytes, mn_major, item) for d in descriptors]
    return np.concatenate(parts, 0 if mn_major else 1)


@functools.cache
def _fp8_table(kind: str) -> np.ndarray:
    """fp32 values of all 256 patterns of an fp8 type (OCP 8-bit floating point, e4m3fn and e5m2)."""
    out = np.zeros(256, np.float32)
    for p in range(256):
        exponent_bits = 4 if kind == "e4m3" else 5
        mantissa_bits = 7 - exponent_bits
        e, f = p >> mantissa_bits & ((1 << exponent_bits) - 1), p & ((1 << mantissa_bits) - 1)
        bias = (1 << exponent_bits - 1) - 1
        value = (
            f * 2.0 ** (1 - bias - mantissa_bits)
            if e == 0
            else (1 + f / (1 << mantissa_bits)) * 2.0 ** (e - bias)
        )
        if kind == "e4m3" and p & 0x7F == 0x7F:
            value = np.nan
        if kind == "e5m2" and e == 31:
            value = np.nan if f else np.inf
        out[p] = -value if p & 0x80 else value
    return out


def decode_elements(raw: np.ndarray, kind: str) -> np.ndarray:
    """Bytes (contiguous in the last axis) to fp32 values of an operand type."""
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        values: Floats = _fp8_table(kind)[raw]
        return values
    return raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)


def _fetch(
    cta: CTA, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str
) -> np.ndarray:
    """An operand in shared memory as an fp32 matrix of `extent` rows and all of K."""
    item = ITEM_BYTES[kind]
    chunks = _joined(descriptors, extent, k * item, mn_major, item)
    raw = cta.shared.view(16)
    if chunks.max() >= len(raw):
        raise Fault(f"wgmma operand (descriptor {descriptors[0]:#x}) leaves shared memory")
    values = decode_elements(np.ascontiguousarray(raw[chunks]).view(np.uint8), kind)
    return values.T if mn_major else values


def _split(
    cta: CTA, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str, across: bool
) -> Split | None:
    """An operand in shared memory as the tensor cores' compiled loop takes it; None where it does not."""
    chunks, last = _reached(descriptors, extent, k * ITEM_BYTES[kind], mn_major, ITEM_BYTES[kind])
    return split(cta.shared.at, chunks, kind, across) if last < len(cta.shared.data) // 16 else None


@functools.lru_cache(4096)
def _reached(
    descriptors: tuple[int, ...], extent: int, k_bytes: int, mn_major: bool, item: int
) -> tuple[Chunks, int]:
    """`_joined` as contiguous int64, and the greatest chunk."""
    chunks = np.ascontiguousarray(_joined(descriptors, extent, k_bytes, mn_major, item), np.int64)
    return chunks, int(chunks.max())


class Product:
    """One or more wgmma.mma_async on the same accumulators, waiting to be computed."""

    __slots__ = ("group", "where", "a", "b", "scale", "form", "tokens", "varies", "done", "offered")

    def __init__(
        self,
        group: Group,
        where: Place,
        a: Value | tuple[int, ...],
        b: Value,
        scale: bool | Vector,
        form: Form,
        token: AsyncOp | None,
    ) -> None:
        self.group, self.where, self.form = group, where, form
        self.tokens = [] if token is None else [token]  # the race detector's operations
        self.a, self.b, self.scale, self.done, self.offered = [a], [b], scale, False, False
        self.varies = a.__class__ is ND or b.__class__ is ND  # whether a descriptor differs between lanes

    def join(self, other: Product) -> bool:
        """Append a product that only accumulates further onto the same registers."""
        if not (self.where == other.where and self.form == other.form and other.scale is True):
            return False
        if len(self.a) >= JOINED or isinstance(self.a[0], tuple) or self.varies or other.varies:
            return False
        self.a += other.a
        self.b += other.b
        self.tokens += other.tokens
        return True

    def teams_with(self, other: Product) -> bool:
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

    def compute(self) -> None:
        """Read the operands and update the accumulators, once."""
        compute([self])

    def run(self) -> None:
        """Compute it by itself."""
        group = self.group
        for first, rows, warps in warpgroups(group):
            lane = 32 * first
            a = self._left(first, warps)
            b = tuple(lane_value(x, lane) for x in self.b)
            target = self.target(first, warps)
            some = None if warps == WARPS else rows
            target[...] = _summed(group.cta, a, some, b, target, lane_value(self.scale, lane), self.form)
            self.keep(target, first, warps)

    def _left(self, first: int, warps: int) -> np.ndarray | tuple[int, ...]:
        """Operand A of a warpgroup's warps: values from registers, 16 rows each, or descriptors of 64 rows."""
        if isinstance(self.a[0], tuple):
            return _register_operand(self.group, self.a[0], first, warps, self.form[3])
        return tuple(lane_value(cast("Value", x), 32 * first) for x in self.a)

    def target(self, first: int, warps: int) -> np.ndarray:
        """The accumulators of a warpgroup's warps: the matrix itself, or loose registers put together."""
        group = self.group
        if isinstance(self.where, int):
            return matrix_of(group, self.where).matrix[16 * first : 16 * (first + warps)]
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
    accumulate: Value,
    form: Form,
) -> np.ndarray:
    """A B^T, added to the accumulators `before` unless they are to be overwritten.

    A: values, or descriptors of 64 rows, of which `rows` (None: all) are multiplied.
    """
    n, k, d_type, a_type, b_type, (sign_a, sign_b), (trans_a, trans_b) = form
    if not accumulate:
        before = np.zeros_like(before)
    if isinstance(a, tuple):
        if rows is None and d_type == "f32" and sign_a * sign_b == 1 and a_type in SPLIT_BYTES:
            left = _split(cta, a, 64, k, trans_a, a_type, trans_a)
            right = None if left is None else _split(cta, b, n, k, trans_b, b_type, not trans_b)
            if left is not None and right is not None:
                summed = accumulate_split(left, right, before, Unit(a_type, d_type, k))
                if summed is not None:
                    return summed
        a = _fetch(cta, a, 64, k, trans_a, a_type)
        a = a if rows is None else a[rows]
    values = _fetch(cta, b, n, k, trans_b, b_type)
    if sign_a * sign_b != 1:
        a = a * np.float32(sign_a * sign_b)
    if d_type == "s32":
        product = (a.astype(np.float64) @ values.T.astype(np.float64)).astype(np.int64).astype(np.int32)
        total: npt.NDArray[np.int32] = product + before.view(np.int32)
        return total.view(before.dtype)
    (added,) = add_products(a[None], values[None], before[None], Unit(a_type, d_type, k), b_type)
    return np.asarray(added)


def compute(products: list[Product]) -> None:
    """Compute what is still to be computed, each warp's products in their order; those that can be, together."""
    queues: dict[int, deque[Product]] = {}  # of each group of warps
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


def _compute_team(team: list[Product]) -> None:
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


def lane_value(x: Value, lane: int) -> int:
    """One lane's value."""
    return x[lane].item() if x.__class__ is ND else x  # type: ignore[return-value]  # as in lane_of


def warpgroups(group: Group) -> list[tuple[int, slice, int]]:
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


def _register_operand(group: Group, slots: tuple[int, ...], first: int, warps: int, kind: str) -> np.ndarray:
    """The A fragment in registers as a matrix of 16 rows per warp and K columns (32 bytes)."""
    lanes = slice(32 * first, 32 * (first + warps))
    out = np.zeros((warps, 2, 8, 2, 4, 4), np.uint8)  # warp, row half, row, column half, lane % 4, bytes
    words = out.view(np.uint32)[..., 0]
    for i, slot in enumerate(slots):
        value = group.registers[slot]
        value = value[lanes] if value.__class__ is ND else np.full(32 * warps, value, np.uint32)
        words[:, i & 1, :, i >> 1] = value.reshape(warps, 8, 4)
    return decode_elements(out.reshape(16 * warps, 8 * 4), kind)
