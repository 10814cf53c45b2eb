# SPDX-License-Identifier: Apache-2.0
"""Tensor-core probes: PTX kernels with one matrix instruction per CTA, and inputs that distinguish numerical models.

A is (M, K) and B is (N, K), both contiguous along K; C and D are (M, N). A launch of `grid` CTAs reads that many
consecutive matrices of each; the parameters are the addresses of D, A, B and C.

Source: PTX ISA 9.0, 9.7.14.5 (mma fragments), 9.7.15.5 (wgmma layouts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Extents = tuple[int, int]
Shape = int | tuple[int, ...]
Operands = tuple[Array, Array, Array]  # A (M, K), B (N, K), C (M, N)

HEADER = ".version 8.4\n.target sm_90a\n.address_size 64\n"
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "f32": 4}
MANTISSA = {"f16": 10, "bf16": 7, "tf32": 10, "e4m3": 3, "e5m2": 2, "f32": 23}
TF32_BITS = 13  # low bits of fp32 that tf32 lacks
EXPONENT = {"f16": 5, "bf16": 8, "tf32": 8, "e4m3": 4, "e5m2": 5, "f32": 8}


@dataclass(frozen=True)
class Form:
    """One matrix instruction: `unit` is "wgmma", "mma" or "wmma"; D and C have one type."""

    unit: str
    shape: tuple[int, int, int]
    d: str
    a: str
    b: str

    @property
    def name(self) -> str:
        """A short name, also the kernel's."""
        return f"{self.unit}_m{self.shape[0]}n{self.shape[1]}k{self.shape[2]}_{self.d}_{self.a}_{self.b}"

    @property
    def threads(self) -> int:
        """Threads of a CTA: a warpgroup for wgmma, else a warp."""
        return 128 if self.unit == "wgmma" else 32

    @property
    def ptx(self) -> str:
        """A module with this kernel."""
        return HEADER + {"wgmma": _wgmma, "mma": _mma, "wmma": _wmma}[self.unit](self)

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Bytes of one A, one B, and one C or D."""
        m, n, k = self.shape
        item = ITEM_BYTES[self.a]
        return m * k * item, n * k * item, m * n * ITEM_BYTES[self.d]


def _mma_shapes() -> Iterator[Form]:
    for kind in ("bf16", "f16"):
        yield Form("mma", (16, 8, 16), "f32", kind, kind)
        yield Form("mma", (16, 8, 8), "f32", kind, kind)
        yield Form("wmma", (16, 16, 16), "f32", kind, kind)
        yield Form("wgmma", (64, 8, 16), "f32", kind, kind)
    yield Form("mma", (16, 8, 16), "f16", "f16", "f16")
    yield Form("wmma", (16, 16, 16), "f16", "f16", "f16")
    yield Form("wgmma", (64, 8, 16), "f16", "f16", "f16")
    yield Form("mma", (16, 8, 8), "f32", "tf32", "tf32")
    yield Form("mma", (16, 8, 4), "f32", "tf32", "tf32")
    yield Form("wgmma", (64, 8, 8), "f32", "tf32", "tf32")
    yield Form("wgmma", (64, 8, 32), "f32", "e4m3", "e4m3")
    yield Form("wgmma", (64, 8, 32), "f32", "e5m2", "e4m3")
    yield Form("wgmma", (64, 8, 32), "f16", "e4m3", "e4m3")


FORMS = {form.name: form for form in _mma_shapes()}


def _entry(form: Form, body: str, before: str = "") -> str:
    a, b, c = form.bytes
    return f"""{before}
.visible .entry {form.name}(.param .u64 pd, .param .u64 pa, .param .u64 pb, .param .u64 pc)
{{
 .reg .pred %p<4>; .reg .b32 %r<60>; .reg .f32 %f<20>; .reg .b64 %rd<30>;
 mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
 ld.param.u64 %rd0, [pa]; ld.param.u64 %rd1, [pb]; ld.param.u64 %rd2, [pc]; ld.param.u64 %rd3, [pd];
 mad.wide.u32 %rd0, %r1, {a}, %rd0; mad.wide.u32 %rd1, %r1, {b}, %rd1;
 mad.wide.u32 %rd2, %r1, {c}, %rd2; mad.wide.u32 %rd3, %r1, {c}, %rd3;
{body}
 ret;
}}
"""


def _accumulators(form: Form) -> tuple[str, str, str]:
    """(PTX that loads C, PTX that stores D, the register list), for fragments of 16 x 8 per warp."""
    pitch = form.shape[1] * ITEM_BYTES[form.d]
    place = f"""
 shr.u32 %r2, %r0, 5; and.b32 %r3, %r0, 31; shr.u32 %r4, %r3, 2; and.b32 %r5, %r3, 3;
 shl.b32 %r6, %r2, 4; add.u32 %r6, %r6, %r4; mul.lo.u32 %r7, %r6, {pitch};
 mul.lo.u32 %r8, %r5, {pitch // 4}; add.u32 %r7, %r7, %r8;
 cvt.u64.u32 %rd4, %r7; add.u64 %rd5, %rd2, %rd4; add.u64 %rd6, %rd3, %rd4;"""
    if form.d == "f32":
        load = f" ld.global.v2.f32 {{%f0, %f1}}, [%rd5]; ld.global.v2.f32 {{%f2, %f3}}, [%rd5+{8 * pitch}];"
        store = f" st.global.v2.f32 [%rd6], {{%f0, %f1}}; st.global.v2.f32 [%rd6+{8 * pitch}], {{%f2, %f3}};"
        return place + "\n" + load, store, "{%f0, %f1, %f2, %f3}"
    load = f" ld.global.b32 %r50, [%rd5]; ld.global.b32 %r51, [%rd5+{8 * pitch}];"
    store = f" st.global.b32 [%rd6], %r50; st.global.b32 [%rd6+{8 * pitch}], %r51;"
    return place + "\n" + load, store, "{%r50, %r51}"


def _mma(form: Form) -> str:
    m, n, k = form.shape
    row = k * ITEM_BYTES[form.a]  # bytes
    load, store, list_ = _accumulators(form)
    columns = row // 16
    body = load + f"\n mad.lo.u32 %r9, %r4, {row}, 0; shl.b32 %r10, %r5, 2; add.u32 %r9, %r9, %r10;\n"
    body += " cvt.u64.u32 %rd7, %r9; add.u64 %rd8, %rd0, %rd7; add.u64 %rd9, %rd1, %rd7;\n"
    for i in range(2 * columns):
        body += f" ld.global.b32 %r{20 + i}, [%rd8+{8 * row * (i & 1) + 16 * (i >> 1)}];"
    for i in range(columns):
        body += f" ld.global.b32 %r{30 + i}, [%rd9+{16 * i}];"
    a = ", ".join(f"%r{20 + i}" for i in range(2 * columns))
    b = ", ".join(f"%r{30 + i}" for i in range(columns))
    op = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{form.d}.{form.a}.{form.b}.{form.d}"
    return _entry(form, f"{body}\n {op} {list_}, {{{a}}}, {{{b}}}, {list_};\n{store}")


def _wgmma(form: Form) -> str:
    m, n, k = form.shape
    load, store, list_ = _accumulators(form)
    before = ".shared .align 128 .b8 sa[2048];\n.shared .align 128 .b8 sb[256];"
    # rows of 32 bytes; 8 rows x 16 bytes form a core matrix of 128 bytes, and two core matrices are adjacent along K
    body = f"""{load}
 shr.u32 %r9, %r0, 1; and.b32 %r10, %r0, 1; shr.u32 %r11, %r9, 3; and.b32 %r12, %r9, 7;
 shl.b32 %r13, %r11, 8; shl.b32 %r14, %r10, 7; add.u32 %r13, %r13, %r14; shl.b32 %r14, %r12, 4;
 add.u32 %r13, %r13, %r14; shl.b32 %r15, %r0, 4; cvt.u64.u32 %rd7, %r15;
 mov.u32 %r16, sa; mov.u32 %r17, sb; add.u32 %r18, %r16, %r13; add.u32 %r19, %r17, %r13;
 add.u64 %rd8, %rd0, %rd7; ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd8];
 st.shared.v4.b32 [%r18], {{%r20, %r21, %r22, %r23}};
 setp.lt.u32 %p1, %r0, 16; add.u64 %rd9, %rd1, %rd7;
 @%p1 ld.global.v4.b32 {{%r24, %r25, %r26, %r27}}, [%rd9];
 @%p1 st.shared.v4.b32 [%r19], {{%r24, %r25, %r26, %r27}};
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 %r28, %r16, 4; shr.u32 %r29, %r17, 4; cvt.u64.u32 %rd10, %r28; cvt.u64.u32 %rd11, %r29;
 or.b64 %rd10, %rd10, {8 << 16 | 16 << 32}; or.b64 %rd11, %rd11, {8 << 16 | 16 << 32};
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n{n}k{k}.{form.d}.{form.a}.{form.b} {list_}, %rd10, %rd11, 1, 1, 1"""
    body += ", 0, 0;" if form.a in ("f16", "bf16") else ";"
    body += "\n wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n" + store
    return _entry(form, body, before)


def _wmma(form: Form) -> str:
    regs = {"a": 8 if form.a == "f16" else 4, "c": 8 if form.d == "f32" else 4}
    a, b = ("{" + ", ".join(f"%r{s + i}" for i in range(regs["a"])) + "}" for s in (20, 30))
    c = "{" + ", ".join(f"%{'f' if form.d == 'f32' else 'r4'}{i}" for i in range(regs["c"])) + "}"
    shape = "m16n16k16"
    types = f"{form.d}.{form.d}" if form.a == "f16" else f"{form.d}.{form.a}.{form.b}.{form.d}"
    body = f""" wmma.load.a.sync.aligned.row.{shape}.global.{form.a} {a}, [%rd0], 16;
 wmma.load.b.sync.aligned.col.{shape}.global.{form.b} {b}, [%rd1], 16;
 wmma.load.c.sync.aligned.row.{shape}.global.{form.d} {c}, [%rd2], 16;
 wmma.mma.sync.aligned.row.col.{shape}.{types} {c}, {a}, {b}, {c};
 wmma.store.d.sync.aligned.row.{shape}.global.{form.d} [%rd3], {c}, 16;"""
    return _entry(form, body)


# ---- inputs


class Draws:
    """Reproducible random numbers from the raw words of PCG64, whose stream is the same in all versions of NumPy."""

    def __init__(self, *seed: int) -> None:
        self._words = np.random.PCG64(np.random.SeedSequence(seed))

    def words(self, shape: Shape) -> Array:
        """64 random bits each."""
        return np.asarray(self._words.random_raw(int(np.prod(shape)))).reshape(shape)

    def uniform(self, low: float, high: float, shape: Shape) -> Array:
        """Uniform in [low, high), in steps of 2**-32 of the range."""
        unit: Array = np.ldexp((self.words(shape) >> np.uint64(32)).astype(np.float64), -32)
        return low + (high - low) * unit

    def integers(self, low: int, high: int, shape: Shape) -> Array:
        """Integers in [low, high]; the range is far below 2**32, so the bias of the remainder is negligible."""
        drawn: Array = (self.words(shape) >> np.uint64(32)).astype(np.int64)
        return drawn % (high - low + 1) + low

    def normal(self, shape: Shape) -> Array:
        """Nearly normal deviates, as sums of twelve uniform ones."""
        extents = (int(extent) for extent in np.atleast_1d(shape))
        return np.asarray(self.uniform(-0.5, 0.5, (*extents, 12)).sum(-1))

    def choice(self, values: Sequence[Any], shape: Shape) -> Array:
        """One of some values."""
        return np.asarray(np.asarray(values)[self.integers(0, len(values) - 1, shape)])


def encode(x: np.ndarray, kind: str) -> np.ndarray:
    """Bit patterns of fp64 values in another type, truncated toward zero and saturated."""
    x = np.asarray(x, np.float64)
    mantissa, bits = MANTISSA[kind], EXPONENT[kind]
    bias = (1 << bits - 1) - 1
    fraction, e = np.frexp(np.abs(x))
    e = np.maximum(e - 1, 1 - bias)  # subnormals have the least exponent
    # 1.0 is 2**mantissa
    steps = np.floor(np.ldexp(np.where(np.isfinite(x), np.abs(x), 0), mantissa - e)).astype(np.int64)
    pattern = np.where(steps >> mantissa > 0, (e + bias << mantissa) + (steps - (1 << mantissa)), steps)
    top = ((1 << bits) - 1 << mantissa) - 1 if kind != "e4m3" else 0x7E
    pattern = np.where(np.isnan(x), top + 2 if kind != "e4m3" else 0x7F, np.minimum(pattern, top))
    if kind != "e4m3":
        pattern = np.where(np.isinf(x), top + 1, pattern)
    pattern |= np.signbit(x).astype(np.int64) << mantissa + bits
    if kind == "tf32":
        pattern <<= TF32_BITS
    return pattern.astype({1: np.uint8, 2: np.uint16, 4: np.uint32}[ITEM_BYTES[kind]])


def _spread(rng: Draws, shape: Shape, low: int, high: int) -> Array:
    signs = rng.choice([-1.0, 1.0], shape)
    return signs * np.ldexp(rng.uniform(1, 2, shape), rng.integers(low, high, shape))


def families(form: Form, rng: Draws) -> dict[str, Operands]:
    """Named probes as values: A (M, K), B (N, K), C (M, N)."""
    m, n, k = form.shape
    return _plain(form, rng, (m, k), (n, k), (m, n)) | _edges(form, rng, (m, k), (n, k), (m, n))


def _plain(form: Form, rng: Draws, sa: Extents, sb: Extents, sc: Extents) -> dict[str, Operands]:
    """Ordinary values, and sums that reveal alignment and truncation."""
    m, k = sa
    out = {
        "normal": (rng.normal(sa), rng.normal(sb), rng.normal(sc)),
        "uniform": (rng.uniform(0, 1, sa), rng.uniform(0, 1, sb), rng.uniform(0, 1, sc)),
        "near": (_spread(rng, sa, -3, 3), _spread(rng, sb, -3, 3), _spread(rng, sc, -3, 3)),
        "far": (_spread(rng, sa, -8, 8), _spread(rng, sb, -8, 8), _spread(rng, sc, -14, 15)),
    }
    a, b = np.ones(sa), np.ones(sb)  # one product of 1, others ever smaller
    a[:, 1:] = np.ldexp(1.0, -rng.integers(0, 15, (m, k - 1)))
    b[:, 1:] = np.ldexp(rng.choice([-1, 1, 1.5], (len(b), k - 1)), -rng.integers(0, 15, (len(b), k - 1)))
    out["align"] = (a, b, np.ldexp(rng.choice([-1.0, 1.0], sc), rng.integers(-14, 3, sc)))
    a, b = _spread(rng, sa, -4, 4), _spread(rng, sb, -4, 4)  # large products that cancel
    a[:, k // 2 :], b[:, k // 2 :] = a[:, : k // 2], -b[:, : k // 2]
    a[:, 0] *= 2.0**-3
    out["cancel"] = (a, b, _spread(rng, sc, -14, 0))
    out["full"] = (
        np.full(sa, 2 - 2.0 ** -MANTISSA[form.a]),
        np.full(sb, 2 - 2.0 ** -MANTISSA[form.b]),
        rng.uniform(1.9, 2, sc) * rng.choice([2.0, 1.0, 4.0, -4.0], sc),
    )
    a, b, c = rng.normal(sa), rng.normal(sb), rng.normal(sc) * rng.choice([0.0, 1.0], sc)
    a[rng.uniform(0, 1, sa) < 0.6], b[rng.uniform(0, 1, sb) < 0.4] = 0.0, -0.0
    out["zeros"] = (
        np.ldexp(a, rng.integers(-9, 5, (m, 1))),
        np.ldexp(b, rng.integers(-5, 8, (len(b), 1))),
        c,
    )
    return out


def _edges(form: Form, rng: Draws, sa: Extents, sb: Extents, sc: Extents) -> dict[str, Operands]:
    """Limits of the types: subnormals, overflow, cancelling large values, signed zeros, infinities and NaNs."""
    top, end = ((1 << EXPONENT[x] - 1) - 1 for x in (form.a, form.d))  # greatest exponents of operands and D
    bottom, least = 2 - top - MANTISSA[form.a], 1 - end - MANTISSA[form.d]  # of their subnormals
    half = (least + 12) // 2  # products around D's least number
    ends = (max(half - 8, bottom), min(max(half + 8, bottom + 4), top))
    out = {
        "tiny": (_spread(rng, sa, *ends), _spread(rng, sb, *ends), _spread(rng, sc, least - 1, least + 30)),
        "subnormal": (_spread(rng, sa, bottom, 2 - top), _spread(rng, sb, -2, 5), _spread(rng, sc, least, least + 24)
                      * rng.choice([0.0, 1.0], sc)),
        "extreme": (_spread(rng, sa, bottom, top), _spread(rng, sb, bottom, top), _spread(rng, sc, least, end)),
        "overflow": (_spread(rng, sa, end // 2 - 1, end // 2), _spread(rng, sb, end // 2 - 1, end // 2),
                     rng.choice([-2.0**end * 1.9, 2.0**end * 1.9, 0.0], sc)),
        "signed_zeros": (rng.choice([0.0, -0.0], sa), rng.choice([0.0, -0.0], sb), rng.choice([0.0, -0.0], sc)),
    }  # fmt: skip
    # large values that cancel exactly
    a, b, k = _spread(rng, sa, top - 3, top), _spread(rng, sb, top - 3, top), sa[1]
    a[:, k // 2 :], b[:, k // 2 :] = a[:, : k // 2], -b[:, : k // 2]
    out["giants"] = (a, b, _spread(rng, sc, -14, end))
    a, b, c = rng.normal(sa), rng.normal(sb), rng.normal(sc)
    for x, chance in ((a, 0.01), (b, 0.02), (c, 0.1)):
        hit = rng.uniform(0, 1, x.shape) < chance
        x[hit] = rng.choice([np.inf, -np.inf, np.nan, 0.0], x.shape)[hit]
    b[0, ::5] = 0.0
    out["special"] = (a, b, c)
    half = max((least - 4) // 2, bottom)  # sums below D's least number
    a, b = _spread(rng, sa, half - 4, half), _spread(rng, sb, half - 4, half)
    out["vanishing"] = (a, b, rng.choice([0.0, -0.0], sc))
    return out


def problems(form: Form, seed: int, repeats: int = 1) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """The bit patterns of a batch of problems: (family of each, A, B, C)."""
    names, parts = [], []
    for i in range(repeats):
        for name, values in families(form, Draws(seed, i)).items():
            names.append(name)
            kinds = (form.a, form.b, form.d)
            parts.append([encode(x, kind) for x, kind in zip(values, kinds, strict=True)])
        if form.a == "tf32":  # nonzero bits that tf32 ignores
            names.append("stray bits")
            *operands, c = parts[names.index("normal")]
            stray = Draws(seed, i, TF32_BITS)
            parts.append(
                [
                    *(
                        x | stray.integers(0, (1 << TF32_BITS) - 1, x.shape).astype(np.uint32)
                        for x in operands
                    ),
                    c,
                ]
            )
    a, b, c = (np.ascontiguousarray(np.stack(x)) for x in zip(*parts, strict=True))
    return names, a, b, c
