# SPDX-License-Identifier: Apache-2.0
"""cvt between integers, floating-point types, tf32 and pairs of fp8.

Source: PTX ISA 9.0, 9.7.9.21 (cvt).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.translate.emit_float import FLOATS
from cutegemm.emulator.translate.emitter import Emitter, Unknown, bits_of, emits, only

FP8 = ("e4m3x2", "e5m2x2")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_DIRECTED = ("rz", "rm", "rp", "rna")
_MODIFIERS = {"rn", *_DIRECTED, *_INTEGRAL, "ftz", "sat", "satfinite", "relu"}


@emits("cvt")
def convert(e: Emitter, ins: PtxInstruction) -> None:
    """cvt, by source and target type."""
    *mods, to, source = ins.parts[1:]
    only(mods, *_MODIFIERS)
    if to in FP8 or source in FP8:
        _fp8(e, ins, to, source, mods)
    elif to in ("f16x2", "bf16x2"):
        _pair(e, ins, to.removesuffix("x2"), source, mods)
    elif source in FLOATS and (to in FLOATS or to == "tf32"):
        _float_to_float(e, ins, to, source, mods)
    elif source in FLOATS:
        _float_to_integer(e, ins, to, source, mods)
    elif to in FLOATS:
        mode = next((m for m in mods if m in ("rn", *_DIRECTED)), "rn")
        only(mods, mode)
        _integer_to_float(e, ins, to, source, mode)
    else:
        _integer_to_integer(e, ins, to, source, mods)


def _integer_to_integer(e: Emitter, ins: PtxInstruction, to: str, source: str, mods: list[str]) -> None:
    d, a = ins.operands
    target_bits = e.width(d) or bits_of(to)
    x = e.src(a, bits_of(source))
    if mods:
        only(mods, "sat")
        e.dst(d, f"saturate_integer({x}, '{source}', '{to}', {target_bits})")
        return
    # extended to the target type as the source's sign says, then to the register as the target's does
    width = bits_of(to)
    if source[0] == "s" and bits_of(source) < width:
        x = f"extend({x}, {bits_of(source)}, {width})"
    else:
        x = f"wrap({x}, {min(bits_of(source), width)})"
    if to[0] == "s" and width < target_bits:
        x = f"extend({x}, {width}, {target_bits})"
    elif width != target_bits or bits_of(source) < width:
        x = f"wrap({x}, {target_bits})"
    e.dst(d, x)


def _float_to_integer(e: Emitter, ins: PtxInstruction, to: str, source: str, mods: list[str]) -> None:
    d, a = ins.operands
    mode = next((m for m in mods if m in _INTEGRAL), None)
    if mode is None:
        raise Unknown("rounding mode")
    only(mods, mode, "ftz", "sat")
    target_bits = e.width(d) or bits_of(to)
    x = _source(e, a, source, mods)
    e.dst(d, f"to_integer({x}, {bits_of(source)}, {bits_of(to)}, {to[0] == 's'}, '{mode}', {target_bits})")


def _integer_to_float(e: Emitter, ins: PtxInstruction, to: str, source: str, mode: str) -> None:
    d, a = ins.operands
    bits, signed = bits_of(source), source[0] == "s"
    x = e.src(a, bits)
    if to in ("f32", "f64") and mode == "rn":
        e.dst(d, f"bits(to_float({x}, {bits}, {signed}, np.float{to[1:]}))")
    else:
        e.dst(d, f"wrap(from_integer({x}, {bits}, {signed}, '{to}', '{mode}'), {bits_of(to)})")


def _source(e: Emitter, a: str, source: str, mods: list[str]) -> str:
    x = f"{source}({e.src(a, bits_of(source))})"
    return f"flush({x})" if "ftz" in mods and source == "f32" else x


def _float_to_float(e: Emitter, ins: PtxInstruction, to: str, source: str, mods: list[str]) -> None:
    d, a = ins.operands
    x = _source(e, a, source, mods)
    mode = next((m for m in mods if m in _INTEGRAL), None)
    if mode:
        x = f"integral({x}, '{mode}')"
    if "sat" in mods:
        x = f"saturate({x})"
    if "relu" in mods:
        x = f"relu({x})"
    direction = next((m for m in mods if m in _DIRECTED), None)
    if to == "tf32" or direction or "satfinite" in mods:
        if to == "f64" or source.endswith("x2"):
            raise Unknown("rounding mode")
        bits = 32 if to in ("f32", "tf32") else 16
        e.dst(d, f"wrap(directed({x}, '{to}', '{direction or 'rn'}', {'satfinite' in mods}), {bits})")
    elif to in ("f32", "f64"):
        text = f"np.float{to[1:]}(np.float32({x}))" if source == "f16" else f"np.float{to[1:]}({x})"
        text = f"flush({text})" if "ftz" in mods and to == "f32" else text
        keeps_nan = to == "f64" or source in ("f64", "bf16")
        e.dst(d, f"{'pattern' if keeps_nan else 'bits'}({text})")
    elif source == "f64":
        e.dst(d, f"wrap(narrow_double({x}, '{to}'), 16)")
    else:
        e.dst(d, f"wrap(narrow_{to}({f'np.float32({x})' if source == 'f16' else x}), 16)")


def _pair(e: Emitter, ins: PtxInstruction, base: str, source: str, mods: list[str]) -> None:
    """Two fp32 numbers to a pair of 16-bit numbers, the first in the high half."""
    direction = next((m for m in mods if m in ("rn", "rz")), None)
    if source != "f32" or direction is None:
        raise Unknown("rounding mode")
    only(mods, direction, "relu", "satfinite")
    d, a, b = ins.operands
    if mods == ["rn"] and base == "bf16":
        e.dst(d, f"bf16x2({e.src(a, 32)}, {e.src(b, 32)})")
        return
    values = [f"f32({e.src(x, 32)})" for x in (a, b)]
    if "relu" in mods:
        values = [f"relu({x})" for x in values]
    if direction == "rz" or "satfinite" in mods:
        high, low = (f"directed({x}, '{base}', '{direction}', {'satfinite' in mods})" for x in values)
    else:
        high, low = (f"narrow_{base}({x})" for x in values)
    e.dst(d, f"pair({high}, {low})")


def _fp8(e: Emitter, ins: PtxInstruction, to: str, source: str, mods: list[str]) -> None:
    """Two fp32 or a pair of fp16 numbers to a pair of fp8 (rounded, saturated); a pair of fp8 to a pair of fp16."""
    d, *o = ins.operands
    if source in FP8:
        if to != "f16x2":
            raise Unknown("target type")
        only(mods, "rn", "relu")
        halves = [f"widen_fp8({e.src(o[0], 16)} >> {shift}, '{source[:4]}')" for shift in (8, 0)]
        if "relu" in mods:
            halves = [f"narrow_f16(relu(f16({x})))" for x in halves]
        e.dst(d, f"pair({halves[0]}, {halves[1]})")
        return
    if not {"rn", "satfinite"} <= set(mods):
        raise Unknown("modifiers")
    only(mods, "rn", "satfinite", "relu")
    if source == "f32":
        values = [f"f32({e.src(x, 32)})" for x in o]
    elif source == "f16x2":
        values = [f"f16({half}({e.src(o[0], 32)}))" for half in ("high", "low")]
    else:
        raise Unknown("source type")
    if "relu" in mods:
        values = [f"relu({x})" for x in values]
    high, low = (f"narrow_fp8({x}, '{to[:4]}')" for x in values)
    e.dst(d, f"wrap(({high} << 8) | {low}, 16)")
