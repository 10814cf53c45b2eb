# SPDX-License-Identifier: Apache-2.0
"""wgmma: matrix descriptors, operands in shared memory or registers, accumulators, groups and their waits.

An accumulator list is a matrix in natural order, whose registers are strided views. A committed group's products
are computed at once, or at the wait that names it (late policy), or between; products of one group on the same
accumulators are gathered into one call of the tensor cores' arithmetic (`tensor_core.py`).

Source: PTX ISA 9.0, 9.7.16 (wgmma), 9.7.16.5.1 (shared memory layouts), 9.7.16.5.1.2.2 (matrix descriptor).
"""

from __future__ import annotations

import functools

import numpy as np

from cutegemm.emulator.memory import Fault
from cutegemm.emulator.tensor_core import Unit
from cutegemm.emulator.tensor_core import accumulate as add_products
from cutegemm.emulator.values import ND

_MODES = {
    0: (0, 16),
    1: (3, 128),
    2: (2, 64),
    3: (1, 32),
}  # descriptor field -> (swizzle mode, row pitch in bytes)
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


class Accumulators:
    """The accumulator registers of some warps as a matrix of 16 rows per warp.

    A 32-bit register i of lane t holds row t/4 + 8 * (i/2 % 2), column 8 * (i/4) + 2 * (t % 4) + i % 2 (f16: two
    columns in one register).
    """

    def __init__(self, warps: int, registers: int, half: bool):
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

    def register(self, i: int) -> np.ndarray:
        """View of register `i` as (warps, 8, 4)."""
        return self.registers[i >> 1, i & 1] if self.half else self.registers[i >> 2, i >> 1 & 1, i & 1]

    def take(self, rows: np.ndarray, warps: int) -> Accumulators:
        """The accumulators of some of the warps."""
        new = object.__new__(Accumulators)
        new.half, new.columns = self.half, self.columns
        new.matrix = np.ascontiguousarray(self.matrix[rows])
        new._views(warps)
        return new


def _matrix(group, index: int) -> Accumulators:
    made = group.matrices[index]
    if made is None:
        half = group.program.half_lists[index]
        made = group.matrices[index] = Accumulators(
            len(group.warps), len(group.program.accumulators[index]), half
        )
    return made


def accumulator_get(group, index: int, register: int):
    """Read an accumulator register."""
    if group.tracker is not None:
        group.tracker.accumulator(index, False)
    return _matrix(group, index).register(register).reshape(group.lanes)


def accumulator_peek(group, index: int, register: int):
    """Read an accumulator register to copy it to another: compilers zero a whole list that way."""
    return _matrix(group, index).register(register).reshape(group.lanes)


def accumulator_set(group, index: int, register: int, value, mask) -> None:
    """Write an accumulator register."""
    if group.tracker is not None:
        group.tracker.accumulator(index, True)
    view = _matrix(group, index).register(register)
    if value.__class__ is ND:
        value = value.reshape(view.shape)
    if mask is None:
        view[...] = value
    else:
        view[...] = np.where(mask.reshape(view.shape), value, view)


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
        return _fp8_table(kind)[raw]
    return raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)


def _fetch(cta, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str) -> np.ndarray:
    """An operand in shared memory as an fp32 matrix of `extent` rows and all of K."""
    item = ITEM_BYTES[kind]
    chunks = _joined(descriptors, extent, k * item, mn_major, item)
    raw = cta.shared.view(16)
    if chunks.max() >= len(raw):
        raise Fault(f"wgmma operand (descriptor {descriptors[0]:#x}) leaves shared memory")
    values = decode_elements(np.ascontiguousarray(raw[chunks]).view(np.uint8), kind)
    return values.T if mn_major else values


class Product:
    """One or more wgmma.mma_async on the same accumulators, waiting to be computed."""

    __slots__ = ("group", "where", "a", "b", "scale", "form", "token", "done")

    def __init__(self, group, where, a, b, scale, form, token):
        self.group, self.where, self.form, self.token = group, where, form, token
        self.a, self.b, self.scale, self.done = [a], [b], scale, False

    def join(self, other: Product) -> bool:
        """Append a product that only accumulates further onto the same registers."""
        same = (
            self.where == other.where
            and self.form == other.form
            and other.scale is True
            and self.token is None
        )
        if (
            not same
            or len(self.a) >= 8
            or isinstance(self.a[0], tuple)
            or any(x.__class__ is ND for x in (*other.a, *other.b, *self.a, *self.b))
        ):
            return False
        self.a += other.a
        self.b += other.b
        return True

    def compute(self) -> None:
        """Read the operands and update the accumulators, once."""
        if self.done:
            return
        self.done = True
        group = self.group
        n, k, d_type, a_type, b_type, signs, (trans_a, trans_b) = self.form
        for first, rows, warps in warpgroups(group):
            lane = 32 * first
            b = _fetch(group.cta, tuple(_lane(x, lane) for x in self.b), n, k, trans_b, b_type)
            if isinstance(self.a[0], tuple):
                a = _register_operand(group, self.a[0], first, warps, a_type)
            else:
                a = _fetch(group.cta, tuple(_lane(x, lane) for x in self.a), 64, k, trans_a, a_type)[rows]
            if signs != (1, 1):
                a = a * np.float32(signs[0] * signs[1])
            self._update(first, warps, a, b, _lane(self.scale, lane), d_type)

    def _update(self, first: int, warps: int, a, b, accumulate, d_type: str) -> None:
        group = self.group
        if isinstance(self.where, int):
            target = _matrix(group, self.where).matrix[16 * first : 16 * (first + warps)]
        else:
            loose = Accumulators(warps, len(self.where), d_type == "f16")
            target = loose.matrix
            lanes = slice(32 * first, 32 * (first + warps))
            for i, slot in enumerate(self.where):
                value = group.registers[slot]
                view = loose.register(i)
                view[...] = value[lanes].reshape(view.shape) if value.__class__ is ND else (value or 0)
        if d_type == "s32":
            words = target.view(np.int32)
            product = a.astype(np.float64) @ b.T.astype(np.float64)
            words[...] = product.astype(np.int64).astype(np.int32) + (words if accumulate else 0)
        else:
            _, k, _, a_type, b_type, *_ = self.form
            before = target if accumulate else np.zeros_like(target)
            target[...] = add_products(a[None], b[None], before[None], Unit(a_type, d_type, k), b_type)[0]
        if not isinstance(self.where, int):
            for i, slot in enumerate(self.where):
                self._put(slot, loose.register(i).reshape(-1), lanes)

    def _put(self, slot: int, value, lanes: slice) -> None:
        group = self.group
        old = group.registers[slot]
        new = np.zeros(group.lanes, np.uint32)
        if old is not None:
            new[...] = old
        new[lanes] = value
        group.registers[slot] = new


def _lane(x, lane: int):
    return x[lane].item() if x.__class__ is ND else x


def warpgroups(group):
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


def _register_operand(group, slots: tuple[int, ...], first: int, warps: int, kind: str) -> np.ndarray:
    """The A fragment in registers as a matrix of 16 rows per warp and K columns (32 bytes)."""
    lanes = slice(32 * first, 32 * (first + warps))
    out = np.zeros((warps, 2, 8, 2, 4, 4), np.uint8)  # warp, row half, row, column half, lane % 4, bytes
    words = out.view(np.uint32)[..., 0]
    for i, slot in enumerate(slots):
        value = group.registers[slot]
        value = value[lanes] if value.__class__ is ND else np.full(32 * warps, value, np.uint32)
        words[:, i & 1, :, i >> 1] = value.reshape(warps, 8, 4)
    return decode_elements(out.reshape(16 * warps, 8 * 4), kind)


def wgmma_issue(group, where, a, b, scale, form) -> None:
    """wgmma.mma_async: remembered until its group is committed."""
    token = None if group.tracker is None else group.tracker.issue_wgmma(where, a, b, form)
    group.device.count_wgmma(group, form, isinstance(a, tuple))
    scale = scale if scale.__class__ is ND else bool(scale)
    if scale.__class__ is ND and scale.all():
        scale = True
    group.wgmma_open.append(Product(group, where, a, b, scale, form, token))


def wgmma_commit(group) -> None:
    """wgmma.commit_group."""
    products: list[Product] = []
    latest: dict = {}  # per accumulator list; the order between lists does not matter
    for p in group.wgmma_open:
        if not (p.where in latest and latest[p.where].join(p)):
            products.append(p)
            latest[p.where] = p
    group.wgmma_open = []
    group.wgmma_groups.append(products)
    group.device.offer_wgmma(group, products)


def wgmma_wait(group, pending: int) -> None:
    """wgmma.wait_group: all but the last `pending` groups are complete."""
    while len(group.wgmma_groups) > pending:
        products = group.wgmma_groups.pop(0)
        finish(products)
        if group.tracker is not None:
            for p in products:
                group.tracker.done(p.token)
    if group.tracker is not None:
        group.tracker.wgmma_waited()


def finish(products: list[Product]) -> None:
    """Compute what is still to be computed of a group."""
    for p in products:
        p.compute()


def wgmma_fence(group) -> None:
    """wgmma.fence: orders register and shared accesses before wgmma; only the race detector follows it."""
    if group.tracker is not None:
        group.tracker.wgmma_fence()


def refuse_mask(group, mask) -> None:
    """wgmma is for whole warpgroups."""
    if not mask.reshape(-1, 32).all(1).any() or group.stack:
        raise Fault("wgmma in divergent code")
