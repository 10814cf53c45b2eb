# SPDX-License-Identifier: Apache-2.0
"""Scalar floating-point probes: one PTX instruction per kernel, and operands with all special values.

`EXACT` instructions have one correct result; `APPROXIMATE` ones have a documented error bound.

Source: PTX ISA 9.0, 9.7.3 (floating point), 9.7.4 (half precision), 9.7.6 (comparison), 9.7.9.22 (cvt).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.emulator_probes import HEADER, Draws

_REGISTER = {16: ("b16", "%rs"), 32: ("b32", "%r"), 64: ("b64", "%rd")}
UINT = {16: np.uint16, 32: np.uint32, 64: np.uint64}
BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64, "s32": 32, "u32": 32, "s64": 64,
        "u64": 64, "s16": 16, "u16": 16, "e4m3x2": 16, "e5m2x2": 16, "tf32": 32}  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """One instruction: operand types in order, and result type."""

    op: str
    operands: tuple[str, ...]
    result: str
    text: str = ""  # PTX over {d}, {a}, {b}, {c}; the opcode with its operands unless given

    @property
    def name(self) -> str:
        """The kernel's name."""
        return re.sub(r"\W", "_", self.op)

    @property
    def entry(self) -> str:
        """The kernel: one thread per element of the operand arrays and the result."""
        params = ", ".join(f".param .u64 p{i}" for i in range(len(self.operands) + 1))
        lines = [
            " mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0;"
        ]
        names = {}
        for i, kind in enumerate(self.operands):
            move, prefix = _REGISTER[BITS[kind]]
            names["abc"[i]] = f"{prefix}{10 + i}"
            lines.append(f" ld.param.u64 %rd0, [p{i + 1}]; mad.wide.u32 %rd0, %r0, {BITS[kind] // 8}, %rd0;")
            lines.append(f" ld.global.{move} {names['abc'[i]]}, [%rd0];")
        move, prefix = _REGISTER[BITS[self.result]]
        names["d"] = f"{prefix}20"
        text = self.text or f"{self.op} {', '.join('{' + x + '}' for x in 'dabc'[: len(self.operands) + 1])};"
        lines.append(" " + text.format(**names))
        lines.append(f" ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd0, %r0, {BITS[self.result] // 8}, %rd0;")
        lines.append(f" st.global.{move} [%rd0], {names['d']};")
        registers = ".reg .pred %p<4>; .reg .b16 %rs<30>; .reg .b32 %r<30>; .reg .b64 %rd<30>;"
        return (
            f".visible .entry {self.name}({params})\n{{\n {registers}\n" + "\n".join(lines) + "\n ret;\n}\n"
        )


def _compare(relation: str, kind: str) -> Probe:
    op = f"setp.{relation}.{kind}"
    return Probe(op, (kind, kind), "u32", f"{op} %p0, {{a}}, {{b}}; selp.b32 {{d}}, 1, 0, %p0;")


_EXACT = {  # types -> opcodes without the type, by number of operands
    ("f32",): {1: "neg abs neg.ftz abs.ftz sqrt.rn sqrt.rn.ftz rcp.rn rcp.rn.ftz",
               2: "add.rn add.rn.ftz add.rn.sat sub.rn sub.rn.ftz mul.rn mul.rn.ftz mul.rn.sat div.rn div.rn.ftz min "
                  "max min.NaN max.NaN min.ftz max.ftz min.xorsign.abs max.NaN.xorsign.abs copysign",
               3: "fma.rn fma.rn.ftz fma.rn.sat"},
    ("f64",): {1: "neg abs sqrt.rn rcp.rn", 2: "add.rn sub.rn mul.rn div.rn min max copysign", 3: "fma.rn"},
    ("f16", "f16x2", "bf16", "bf16x2"): {1: "neg abs", 2: "add.rn sub.rn mul.rn min max min.NaN max.NaN",
                                        3: "fma.rn fma.rn.relu"},
    ("f16", "f16x2"): {2: "add.ftz add.sat mul.ftz mul.sat sub.ftz min.ftz max.ftz", 3: "fma.rn.ftz fma.rn.sat"},
}  # fmt: skip
_APPROXIMATE = {
    ("f32",): {
        1: "ex2.approx lg2.approx rcp.approx sqrt.approx rsqrt.approx sin.approx cos.approx tanh.approx "
        "ex2.approx.ftz lg2.approx.ftz rcp.approx.ftz sqrt.approx.ftz rsqrt.approx.ftz sin.approx.ftz "
        "cos.approx.ftz",
        2: "div.approx div.approx.ftz div.full div.full.ftz",
    },
    ("f16", "f16x2"): {1: "ex2.approx tanh.approx"},
    ("bf16", "bf16x2"): {1: "ex2.approx.ftz tanh.approx"},
}
_COMPARISONS = {
    "f32": "eq ne lt le gt ge equ neu ltu leu gtu geu num nan lt.ftz",
    "f64": "eq ltu",
    "f16": "lt neu",
    "bf16": "gt nan",
}
_CONVERSIONS = {  # source -> target types with their modifiers in front
    "f32": "rn.f16 rz.f16 rn.relu.f16 rn.bf16 rz.bf16 rn.relu.bf16 f64 sat.f32 ftz.f32 rna.tf32 "
           "rni.f32 rzi.f32 rmi.f32 rpi.f32 rni.s32 rzi.s32 rmi.s32 rpi.s32 rni.u32 rzi.u32 rmi.u32 rpi.u32 "
           "rni.s64 rzi.s64 rmi.s64 rpi.s64 rni.u64 rzi.u64 rmi.u64 rpi.u64 rzi.s16 rzi.u16 rni.ftz.s32",
    "f64": "rn.f32 rz.f32 rm.f32 rp.f32 rn.f16 rn.bf16 rni.s32 rzi.s32 rmi.s32 rpi.s32 rzi.u32 rni.s64",
    "f16": "f32 f64 rni.s32 rzi.s32 rmi.s32 rpi.s32 rzi.u32", "bf16": "f32",
    "s32": "rn.f32 rz.f32 rm.f32 rp.f32 rn.f16 rn.bf16 rn.f64", "u32": "rn.f32 rz.f32 rn.f16 rn.bf16",
    "s64": "rn.f32 rz.f32 rn.f64", "u64": "rn.f32 rn.f64", "s16": "rn.f16 rn.bf16 rn.f32", "u16": "rn.f16 rn.bf16",
    "f16x2": "rn.satfinite.e4m3x2 rn.satfinite.e5m2x2", "e4m3x2": "rn.f16x2", "e5m2x2": "rn.f16x2",
}  # fmt: skip
_PACKED = (
    "rn.f16x2 rz.f16x2 rn.relu.f16x2 rn.bf16x2 rz.bf16x2 rn.relu.bf16x2 rn.satfinite.e4m3x2 "
    "rn.satfinite.relu.e4m3x2 rn.satfinite.e5m2x2 rn.satfinite.relu.e5m2x2"
)


def _arithmetic(table: Mapping[tuple[str, ...], Mapping[int, str]]) -> list[Probe]:
    return [
        Probe(f"{op}.{kind}", (kind,) * arity, kind)
        for kinds, by_arity in table.items()
        for kind in kinds
        for arity, ops in by_arity.items()
        for op in ops.split()
    ]


def _exact() -> list[Probe]:
    out = _arithmetic(_EXACT)
    out += [
        _compare(relation, kind) for kind, relations in _COMPARISONS.items() for relation in relations.split()
    ]
    for source, targets in _CONVERSIONS.items():
        out += [Probe(f"cvt.{to}.{source}", (source,), to.split(".")[-1]) for to in targets.split()]
    return out + [Probe(f"cvt.{to}.f32", ("f32", "f32"), to.split(".")[-1]) for to in _PACKED.split()]


EXACT = {probe.op: probe for probe in _exact()}
APPROXIMATE = {probe.op: probe for probe in _arithmetic(_APPROXIMATE)}


def module(probes: Iterable[Probe]) -> str:
    """A PTX module with the kernels of probes."""
    return HEADER + "\n".join(probe.entry for probe in probes)


# ---- operands

_EDGES = {  # exponent bits, mantissa bits
    "f32": (8, 23), "f64": (11, 52), "f16": (5, 10), "bf16": (8, 7)}  # fmt: skip


def _edges(kind: str) -> np.ndarray:
    """Zeros, least and greatest subnormals and normals, ones, halves and their neighbours, infinities, NaNs."""
    exponent, mantissa = _EDGES[kind]
    one = ((1 << exponent - 1) - 1) << mantissa
    infinity = ((1 << exponent) - 1) << mantissa
    half, two = one - (1 << mantissa), one + (1 << mantissa)
    payload = infinity | 0x5A5A5A5A5A5A5A5A >> 63 - mantissa & (1 << mantissa) - 1
    positive = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one - 1, one + 1, half, two, two + 1,
                one + (1 << mantissa - 1), infinity - 1, infinity, infinity + (1 << mantissa - 1), infinity + 1,
                payload]  # fmt: skip
    sign = 1 << exponent + mantissa
    return np.array([*positive, *(x | sign for x in positive)], UINT[exponent + mantissa + 1])


def _random(kind: str, count: int, rng: Draws) -> np.ndarray:
    """One third random bit patterns, one third nearly normal deviates, one third values near multiples of 1/2."""
    exponent, mantissa = _EDGES[kind]
    bits = exponent + mantissa + 1
    pattern = (rng.words(count) >> np.uint64(64 - bits)).astype(UINT[bits])
    halves = rng.integers(-600, 600, count) / 2 + rng.choice([0, 2.0**-30, -(2.0**-8)], count)
    value = np.where(rng.uniform(0, 1, count) < 0.5, rng.normal(count), halves)
    if kind == "bf16":
        near = (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        near = value.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).view(UINT[bits])
    return np.where(rng.uniform(0, 1, count) < 1 / 3, pattern, near)


def operands(probe: Probe, count: int, seed: int) -> list[np.ndarray]:
    """Operand patterns of a probe: pairs of special values in at most half of `count`, then random ones."""
    rng = Draws(seed, *probe.op.encode())
    out = [_operand(kind, i, count, rng) for i, kind in enumerate(probe.operands)]
    if probe.op.startswith("fma") and probe.operands[0] in ("f32", "f64"):
        _cancel(out, probe.operands[0])
    return out


def _operand(kind: str, position: int, count: int, rng: Draws) -> np.ndarray:
    if kind in ("e4m3x2", "e5m2x2"):
        every = np.arange(count).astype(np.uint16)
        return (every & 255) << 8 | (every * 3 & 255)
    if kind.endswith("x2"):
        low, high = (_column(kind[:-2], position, count, rng).astype(np.uint32) for _ in range(2))
        return high << np.uint32(16) | low
    if kind[0] in "su":
        bits = BITS[kind]
        edges = [0, 1, 2, 3, -1, -2, 1 << bits - 1, (1 << bits - 1) - 1, 1 << 24, (1 << 24) + 1]
        values = rng.words(count) >> (64 - bits + rng.integers(0, bits - 1, count)).astype(np.uint64)
        values[: len(edges)] = [x % (1 << bits) for x in edges]
        return values.astype(UINT[bits])
    return _column(kind, position, count, rng)


def _column(kind: str, position: int, count: int, rng: Draws) -> np.ndarray:
    edges, out = _edges(kind), _random(kind, count, rng)
    n = min(count // 2, len(edges) ** 2)
    at = np.arange(n) if position < 2 else rng.integers(0, len(edges) ** 2 - 1, n)
    out[:n] = edges[at // len(edges) % len(edges)] if position else edges[at % len(edges)]
    return out


def _cancel(columns: list[np.ndarray], kind: str) -> None:
    """Set a quarter of the addends to the negated, rounded product, so the sum is the rounding error.

    A few sums are just below the least normal number.
    """
    float_type: Any = np.float32 if kind == "f32" else np.float64
    a, b, c = (x.view(float_type) for x in columns)
    least, few, quarter = (
        np.finfo(a.dtype).tiny,
        slice(-len(c) // 4 - 64, -len(c) // 4),
        slice(-len(c) // 4, None),
    )
    with np.errstate(all="ignore"):
        c[quarter] = -(a * b)[quarter]
        a[few], c[few] = np.sqrt(least) * np.ldexp(1.0, -np.arange(64) // 2), np.copysign(least, b[few])
        b[few] = np.sqrt(least) * np.copysign(1.0 - 1 / 64, c[few][::-1])
