# SPDX-License-Identifier: Apache-2.0
"""Integer instructions: arithmetic, carries, packed 16-bit pairs, dot products, logic, shifts and fields.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.2 (extended precision), 9.7.8 (logic and shift), 9.7.9.7 (prmt).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.translate.emit_float import FLOATS, arithmetic_float
from cutegemm.emulator.translate.emitter import CARRY, Emitter, Unknown, bits_of, emits, only

ONES = {16: "0xFFFF", 32: "M32", 64: "M64"}


# Instruction -> widths of its operands (0: that of the type) and expression of its result. {0}, {1}, ... are operands
# as patterns; {s0}, {s1}, ... are the same as signed numbers if the type is signed. An expression after "=" is wrapped
# to the width of the type.
_FORMS: dict[str, tuple[tuple[int, ...], str]] = {
    "add": ((0, 0), "={0} + {1}"),
    "sub": ((0, 0), "={0} - {1}"),
    "neg": ((0,), "=0 - {0}"),
    "abs": ((0,), "wrap(abs({s0}), {bits})"),
    "min": ((0, 0), "wrap(least({s0}, {s1}), {bits})"),
    "max": ((0, 0), "wrap(most({s0}, {s1}), {bits})"),
    "min.relu": ((0, 0), "wrap(most(least({s0}, {s1}), 0), {bits})"),
    "max.relu": ((0, 0), "wrap(most(most({s0}, {s1}), 0), {bits})"),
    "add.sat": ((0, 0), "add_saturating({s0}, {s1}, False)"),
    "sub.sat": ((0, 0), "add_saturating({s0}, {s1}, True)"),
    "div": ((0, 0), "divide({0}, {1}, {bits}, {signed}, False)"),
    "rem": ((0, 0), "divide({0}, {1}, {bits}, {signed}, True)"),
    "and": ((0, 0), "{0} & {1}"),
    "or": ((0, 0), "{0} | {1}"),
    "xor": ((0, 0), "{0} ^ {1}"),
    "not": ((0,), "{0} ^ {ones}"),
    "cnot": ((0,), "wrap({0} == 0, {bits})"),
    "sad": ((0, 0, 0), "={2} + wrap(most({s0}, {s1}) - least({s0}, {s1}), {bits})"),
    "mul24.lo": ((0, 0), "=low_24_bits({0}, {signed}) * low_24_bits({1}, {signed})"),
    "mad24.lo": ((0, 0, 0), "=low_24_bits({0}, {signed}) * low_24_bits({1}, {signed}) + {2}"),
    "lop3": ((32, 32, 32, 32), "lop3({0}, {1}, {2}, {3})"),
    "brev": ((0,), "bit_reverse({0}, {bits})"),
    "popc": ((0,), "popcount({0})"),
    "clz": ((0,), "clz({0}, {bits})"),
    "bfind": ((0,), "find_bit({0}, {bits}, {signed}, False)"),
    "bfind.shiftamt": ((0,), "find_bit({0}, {bits}, {signed}, True)"),
    "bfe": ((0, 32, 32), "bfe({0}, {1} & 255, {2} & 255, {bits}, {signed})"),
    "bmsk.clamp": ((32, 32), "bfi(M32, 0, {0}, {1}, 32)"),
    "bmsk.wrap": ((32, 32), "bfi(M32, 0, {0} & 31, {1} & 31, 32)"),
    "szext.clamp": ((32, 32), "bfe({0}, 0, least({1}, 32), 32, {signed})"),
    "szext.wrap": ((32, 32), "bfe({0}, 0, {1} & 31, 32, {signed})"),
    "bfi": ((0, 0, 32, 32), "bfi({0}, {1}, {2} & 255, {3} & 255, {bits})"),
}


def store_integer(e: Emitter, operand: str, text: str, bits: int) -> None:
    """Write a result of Python or NumPy integer arithmetic, wrapped to `bits`."""
    e.dst(operand, f"(t if (t := {text}).__class__ is ND else t & {ONES[bits]})")


@emits("neg", "abs", "and", "or", "xor", "not", "cnot", "lop3", "brev", "popc", "clz", "bfe", "bfi", "bfind", "sad",
       "mul24", "mad24", "bmsk", "szext")  # fmt: skip
def by_table(e: Emitter, ins: PtxInstruction) -> None:
    """An integer instruction in `_FORMS`."""
    head, mods, kind = ins.parts[0], ins.parts[1:-1], ins.parts[-1]
    if kind in FLOATS:
        arithmetic_float(e, ins, kind)
        return
    bits, signed = bits_of(kind), kind[0] == "s"
    if head == "not" and bits == 1:
        e.dst(ins.operands[0], f"pnot({e.src(ins.operands[1], 1)})")
        return
    name = ".".join([head, *mods])
    # the modifiers of min, max, add and sub are of s32 alone
    if name not in _FORMS or (mods and head in ("min", "max", "add", "sub") and kind != "s32"):
        raise Unknown(f"modifiers {', '.join(mods)}" if mods else head)
    widths, text = _FORMS[name]
    values = [e.src(x, width or bits) for x, width in zip(ins.operands[1:], widths, strict=True)]
    readings = {f"s{i}": f"signed({x}, {bits})" if signed else x for i, x in enumerate(values)}
    text = text.format(*values, **readings, bits=bits, signed=signed, ones=ONES.get(bits))
    if text.startswith("="):
        store_integer(e, ins.operands[0], text[1:], bits)
    else:
        e.dst(ins.operands[0], text)


@emits("add", "sub", "mul", "mad", "fma", "min", "max", "div", "rem")
def arithmetic(e: Emitter, ins: PtxInstruction) -> None:
    """Arithmetic with two or three operands."""
    head, mods, kind = ins.parts[0], ins.parts[1:-1], ins.parts[-1]
    if kind in FLOATS:
        arithmetic_float(e, ins, kind)
    elif "cc" in mods:
        _with_carry(e, ins, [m for m in mods if m != "cc"])
    elif kind.endswith("x2"):
        _pairs(e, ins, kind)
    elif head in ("mul", "mad", "fma"):
        d, *o = ins.operands
        _multiply(e, head, mods, d, o, [e.src(x, bits_of(kind)) for x in o], bits_of(kind), kind[0] == "s")
    else:
        by_table(e, ins)


def _multiply(
    e: Emitter, head: str, mods: list[str], d: str, o: list[str], a: list[str], bits: int, signed: bool
) -> None:
    """mul and mad with .lo, .hi and .wide."""
    if mods not in (["lo"], ["hi"], ["wide"]):
        raise Unknown("modifiers")
    wide = 2 * bits if mods == ["wide"] else bits
    product = f"mul_{mods[0]}({a[0]}, {a[1]}, {bits}, {signed})"
    if mods == ["lo"]:  # NumPy cannot add a Python integer that exceeds the vector's type
        product = f"(q if (q := {a[0]} * {a[1]}).__class__ is ND else q & {ONES[bits]})"
    store_integer(e, d, product + (f" + {e.src(o[2], wide)}" if head == "mad" else ""), wide)


def _pairs(e: Emitter, ins: PtxInstruction, kind: str) -> None:
    """add, min and max of u16x2 and s16x2."""
    head, mods = ins.parts[0], ins.parts[1:-1]
    only(mods, *(["relu"] if kind == "s16x2" and head != "add" else []))
    if kind not in ("u16x2", "s16x2") or head not in ("add", "min", "max"):
        raise Unknown("packed integers")
    a, b = (e.src(x, 32) for x in ins.operands[1:])
    e.dst(ins.operands[0], f"act_on_halves({a}, {b}, '{head}', {kind[0] == 's'}, {bool(mods)})")


@emits("addc", "subc", "madc")
def with_carry_in(e: Emitter, ins: PtxInstruction) -> None:
    """Extended arithmetic with a carry in; `.cc` also writes it."""
    _with_carry(e, ins, [m for m in ins.parts[1:-1] if m != "cc"])


def _with_carry(e: Emitter, ins: PtxInstruction, mods: list[str]) -> None:
    """add.cc, addc, sub.cc, subc, mad.cc and madc: sums with carry in and out."""
    head, kind = ins.parts[0], ins.parts[-1]
    bits = bits_of(kind)
    if kind not in ("u32", "s32", "u64", "s64") or mods not in ([], ["lo"], ["hi"]):
        raise Unknown("carry")
    d, *o = ins.operands
    a, b, *c = (e.src(x, bits) for x in o)
    if head.startswith("mad"):
        product = f"{a} * {b}" if mods == ["lo"] else f"mul_hi({a}, {b}, {bits}, {kind[0] == 's'})"
        a, b = f"wrap({product}, {bits})", c[0]
    carry = e.src(CARRY, 1) if head.endswith("c") else "False"
    e.line(f"t, q = {'subtract' if head.startswith('sub') else 'add'}_carry({a}, {b}, {carry}, {bits})")
    e.dst(d, "t")
    if "cc" in ins.parts:
        e.dst(CARRY, "q")


@emits("dp4a", "dp2a")
def dot_product(e: Emitter, ins: PtxInstruction) -> None:
    """dp4a: c plus products of four pairs of bytes. dp2a: c plus products of two pairs of 16 bits and a byte."""
    a, b, c = (e.src(x, 32) for x in ins.operands[1:])
    signs = ", ".join(str(x == "s32") for x in ins.parts[-2:])
    how = "8, 0" if ins.parts[0] == "dp4a" else f"16, {2 * (ins.parts[1] == 'hi')}"
    e.dst(ins.operands[0], f"dot({a}, {b}, {c}, {signs}, {how})")


@emits("shl", "shr", "shf")
def shift(e: Emitter, ins: PtxInstruction) -> None:
    """shl, shr and shf."""
    head, kind = ins.parts[0], ins.parts[-1]
    bits, signed = bits_of(kind), kind[0] == "s"
    d, *o = ins.operands
    if head == "shf":
        only(ins.parts[1:-1], "l", "r", "wrap", "clamp")
        operands = ", ".join(e.src(x, 32) for x in o)
        e.dst(d, f"funnel({operands}, {ins.parts[1] == 'l'}, {ins.parts[2] == 'clamp'})")
        return
    only(ins.parts[1:-1])
    a, amount = e.src(o[0], bits), e.src(o[1], 32)
    if amount.isdigit() and int(amount) < bits and not signed:
        text = f"{a} {'<<' if head == 'shl' else '>>'} {amount}"
        store_integer(e, d, text, bits) if head == "shl" else e.dst(d, text)
    else:
        e.dst(d, f"shl({a}, {amount}, {bits})" if head == "shl" else f"shr({a}, {amount}, {bits}, {signed})")


@emits("prmt")
def permute(e: Emitter, ins: PtxInstruction) -> None:
    """prmt in all its modes."""
    mode = ins.parts[-1] if ins.parts[-1] != "b32" else (ins.parts[2] if len(ins.parts) > 2 else "")
    a, b, c = (e.src(x, 32) for x in ins.operands[1:])
    selector = f"permute_selector({c}, {mode!r})" if mode else c
    e.dst(ins.operands[0], f"byte_permute({a}, {b}, {selector})")
