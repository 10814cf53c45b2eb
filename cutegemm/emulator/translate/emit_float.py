# SPDX-License-Identifier: Apache-2.0
"""Floating-point instructions for fp32, fp64, fp16, bf16 and pairs: arithmetic, special functions, copysign, testp.

Source: PTX ISA 9.0, 9.7.3 (floating point), 9.7.4 (half precision), 9.7.5 (mixed precision).
"""

from __future__ import annotations

from collections.abc import Callable

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.translate.emitter import Emitter, Unknown, bits_of, emits, only

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_BINARY = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}"}
_ARITHMETIC = {"rn", "ftz", "sat", "approx", "full", "NaN", "relu", "xorsign", "abs"}
_DIRECTED = ("rz", "rm", "rp")
SPECIAL = {  # function -> modifiers; without .approx the result is rounded once, to nearest
    "ex2": {"approx", "ftz"}, "lg2": {"approx", "ftz"}, "tanh": {"approx"}, "sin": {"approx", "ftz"},
    "cos": {"approx", "ftz"}, "rsqrt": {"approx", "ftz"}, "rcp": {"approx", "ftz", "rn"},
    "sqrt": {"approx", "ftz", "rn"},
}  # fmt: skip


def arithmetic_float(e: Emitter, ins: PtxInstruction, kind: str) -> None:
    """add, sub, mul, fma, mad, div, neg, abs, min and max of a floating-point type."""
    head, mods = ins.parts[0], set(ins.parts[1:-1])
    direction = _direction(mods, kind)
    only(mods, *(_ARITHMETIC if head in ("min", "max") else _ARITHMETIC - {"xorsign", "abs"}))
    d, *o = ins.operands
    if len(o) != {"fma": 3, "mad": 3, "neg": 1, "abs": 1}.get(head, 2):
        raise Unknown("operands")
    if kind in ("f32", "f64"):
        if "relu" in mods:
            raise Unknown("relu")
        if head in ("fma", "mad") and kind == "f32" and "ftz" not in mods and direction is None:
            text = f"fused({', '.join(e.src(x, 32) for x in o)})"
            e.dst(d, f"bits(saturate(f32({text})))" if "sat" in mods else text)
            return
        values = [f"{kind}({e.src(x, bits_of(kind))})" for x in o]
        if "ftz" in mods:
            values = [f"flush({v})" for v in values]
        text = _expression(head, values, mods)
        if direction is not None:
            text = f"rounded('{head}', '{direction}', {', '.join(values)})"
        if kind == "f64" and head != "div":
            text = f"nan64({', '.join([text, *values[1:], values[0]])})"
        if "ftz" in mods:
            text = f"flush({text})"
        e.dst(d, f"bits({f'saturate({text})' if 'sat' in mods else text})")
        return
    _each_half(e, d, o, kind, lambda values, base: _half_expression(head, values, base, mods))


def _direction(mods: set[str], kind: str) -> str | None:
    """Remove the rounding mode from the modifiers of an fp32 instruction; None if it rounds to nearest."""
    mode = next((m for m in mods if m in _DIRECTED), None) if kind == "f32" else None
    mods.discard(mode or "")
    return mode


def _each_half(
    e: Emitter, d: str, operands: list[str], kind: str, act: Callable[[list[str], str], str]
) -> None:
    """Write the 16-bit pattern `act(values, base)` for a half-precision register or for both halves of a pair."""
    base = kind.removesuffix("x2")
    if kind == base:
        e.dst(d, f"wrap({act([f'{base}({e.src(x, 16)})' for x in operands], base)}, 16)")
        return
    low, high = (act([f"{base}({half}({e.src(x, 32)}))" for x in operands], base) for half in ("low", "high"))
    e.dst(d, f"pair({high}, {low})")


def _expression(head: str, v: list[str], mods: set[str]) -> str:
    if head in ("mul", "fma", "mad") and "ftz" in mods:
        return f"fma_ftz({', '.join(v)})"
    if head == "div" and "approx" in mods:
        return f"div_approx({', '.join(v)})"
    if head in _BINARY:
        return _BINARY[head].format(*v)
    if head in ("fma", "mad"):
        return f"fma64({', '.join(v)})"
    if head == "neg":
        return f"-{v[0]}"
    if head == "abs":
        return f"abs({v[0]})"
    if head in ("min", "max"):
        how = f"{head == 'max'}, {'NaN' in mods}"
        if "xorsign" in mods:
            return f"extreme_xorsign({v[0]}, {v[1]}, {how})"
        return f"extreme({v[0]}, {v[1]}, {how})"
    raise Unknown(head)


def _half_expression(head: str, v: list[str], base: str, mods: set[str]) -> str:
    """16-bit arithmetic; the result is a 16-bit pattern.

    Sums and products are computed in fp32. Rounding them again is the same as rounding once (24 >= 2 * 11 + 2). fma is
    computed in fp64.
    """
    if "ftz" in mods:
        if base != "f16":
            raise Unknown("ftz")
        v = [f"flush_half({x})" for x in v]
    if head == "fma":
        text = f"fma64_wide({', '.join(v)})"
    elif head in ("min", "max"):
        text = _expression(head, v, mods)
    else:
        text = _expression(head, [f"np.float32({x})" if base == "f16" else x for x in v], mods)
    for word, wrapper in (("ftz", "flush_half"), ("sat", "saturate"), ("relu", "relu")):
        if word in mods:
            text = f"{wrapper}({text})"
    return f"narrow_{base}({text})"


@emits(*SPECIAL)
def special_function(e: Emitter, ins: PtxInstruction) -> None:
    """Approximate functions, and rcp and sqrt rounded in any mode."""
    head, kind = ins.parts[0], ins.parts[-1]
    mods = set(ins.parts[1:-1])
    direction = _direction(mods, kind) if head in ("rcp", "sqrt") else None
    if kind not in FLOATS:
        raise Unknown("type")
    only(mods, *SPECIAL[head])
    d, a = ins.operands
    if kind in ("f32", "f64"):
        ftz = "flush({})" if "ftz" in mods and kind == "f32" else "{}"
        value = ftz.format(f"{kind}({e.src(a, bits_of(kind))})")
        text = (
            f"unary('{head}', {value})" if direction is None else f"rounded('{head}', '{direction}', {value})"
        )
        e.dst(d, f"bits({ftz.format(text)})")
        return

    def one(values: list[str], base: str) -> str:
        flushed = ("flush_half({})" if base == "f16" else "flush({})") if "ftz" in mods else "{}"
        text = f"np.float32(unary('{head}', np.float32({flushed.format(values[0])})))"
        return f"narrow_{base}({flushed.format(text)})"

    _each_half(e, d, [a], kind, one)


@emits("copysign")
def copy_sign(e: Emitter, ins: PtxInstruction) -> None:
    """copysign d, a, b: the magnitude of b with the sign of a."""
    bits = bits_of(ins.parts[-1])
    a, b = (e.src(x, bits) for x in ins.operands[1:])
    top = 1 << bits - 1
    e.dst(ins.operands[0], f"({a} & {top}) | ({b} & {top - 1})")


@emits("testp")
def test_property(e: Emitter, ins: PtxInstruction) -> None:
    """testp .finite, .infinite, .number, .notanumber, .normal and .subnormal."""
    kind = ins.parts[-1]
    e.dst(ins.operands[0], f"float_is({kind}({e.src(ins.operands[1], bits_of(kind))}), '{ins.parts[1]}')")
