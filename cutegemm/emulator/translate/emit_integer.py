# SPDX-License-Identifier: Apache-2.0
"""Integer instructions: arithmetic, carries, packed 16-bit pairs, dot products, logic, shifts and fields.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.2 (extended precision), 9.7.8 (logic and shift), 9.7.9.7 (prmt).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import Instruction
from cutegemm.emulator.translate.emit_float import FLOATS, arithmetic_float
from cutegemm.emulator.translate.emitter import CARRY, Emitter, Unknown, bits_of, emits

ONES = {16: "0xFFFF", 32: "M32", 64: "M64"}


def store_integer(e: Emitter, operand: str, text: str, bits: int) -> None:
    """Result of Python or NumPy integer arithmetic, brought back to `bits`."""
    e.dst(operand, f"(t if (t := {text}).__class__ is ND else t & {ONES[bits]})")


def _only(mods: list[str], *known: str) -> None:
    """Refuse modifiers that the caller does not handle."""
    if set(mods) - set(known):
        raise Unknown(f"modifiers {', '.join(sorted(set(mods) - set(known)))}")


@emits("add", "sub", "mul", "mad", "fma", "neg", "abs", "min", "max", "div", "rem")
def arithmetic(e: Emitter, ins: Instruction) -> None:
    """Two- and three-operand arithmetic, by type."""
    kind = ins.parts[-1]
    if kind in FLOATS:
        arithmetic_float(e, ins, kind)
        return
    head, mods, bits = ins.parts[0], ins.parts[1:-1], bits_of(kind)
    if "cc" in mods:
        _with_carry(e, ins, [m for m in mods if m != "cc"])
        return
    if kind.endswith("x2"):
        _pairs(e, ins, kind)
        return
    signed = kind[0] == "s"
    d, *o = ins.operands
    a = [e.src(x, bits) for x in o]
    read = [f"s{bits}({x})" if signed else x for x in a]
    if head in ("add", "sub") and mods == ["sat"] and kind == "s32":
        e.dst(d, f"add_saturating({read[0]}, {read[1]}, {head == 'sub'})")
    elif head in ("add", "sub"):
        _only(mods)
        store_integer(e, d, f"{a[0]} {'+' if head == 'add' else '-'} {a[1]}", bits)
    elif head == "neg":
        _only(mods)
        store_integer(e, d, f"0 - {a[0]}", bits)
    elif head == "abs":
        _only(mods)
        e.dst(d, f"wrap(abs({read[0]}), {bits})")
    elif head in ("min", "max"):
        _only(mods, *(["relu"] if kind == "s32" else []))
        text = f"{'least' if head == 'min' else 'most'}({read[0]}, {read[1]})"
        e.dst(d, f"wrap({f'most({text}, 0)' if mods else text}, {bits})")
    elif head in ("div", "rem"):
        _only(mods)
        e.dst(d, f"divide({a[0]}, {a[1]}, {bits}, {signed}, {head == 'rem'})")
    else:
        _multiply(e, head, mods, d, o, a, bits, signed)


def _multiply(
    e: Emitter, head: str, mods: list[str], d: str, o: list[str], a: list[str], bits: int, signed: bool
) -> None:
    """mul and mad with .lo, .hi and .wide."""
    if mods not in (["lo"], ["hi"], ["wide"]):
        raise Unknown("modifiers")
    wide = 2 * bits if mods == ["wide"] else bits
    product = f"mul_{mods[0]}({a[0]}, {a[1]}, {bits}, {signed})"
    if mods == ["lo"]:  # NumPy adds to a vector no Python integer that its type cannot hold
        product = f"(q if (q := {a[0]} * {a[1]}).__class__ is ND else q & {ONES[bits]})"
    store_integer(e, d, product + (f" + {e.src(o[2], wide)}" if head == "mad" else ""), wide)


def _pairs(e: Emitter, ins: Instruction, kind: str) -> None:
    """add, min and max of u16x2 and s16x2."""
    head, mods = ins.parts[0], ins.parts[1:-1]
    _only(mods, *(["relu"] if kind == "s16x2" and head != "add" else []))
    if kind not in ("u16x2", "s16x2") or head not in ("add", "min", "max"):
        raise Unknown("packed integers")
    a, b = (e.src(x, 32) for x in ins.operands[1:])
    e.dst(ins.operands[0], f"act_on_halves({a}, {b}, '{head}', {kind[0] == 's'}, {bool(mods)})")


@emits("addc", "subc", "madc")
def with_carry_in(e: Emitter, ins: Instruction) -> None:
    """Extended arithmetic that takes the carry; `.cc` also writes it."""
    _with_carry(e, ins, [m for m in ins.parts[1:-1] if m != "cc"])


def _with_carry(e: Emitter, ins: Instruction, mods: list[str]) -> None:
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


@emits("dp4a")
def dot_product(e: Emitter, ins: Instruction) -> None:
    """dp4a: the sum of four byte products and c."""
    a, b, c = (e.src(x, 32) for x in ins.operands[1:])
    e.dst(ins.operands[0], f"dot4({a}, {b}, {c}, {ins.parts[1] == 's32'}, {ins.parts[2] == 's32'})")


@emits("and", "or", "xor", "not", "cnot", "lop3")
def logic(e: Emitter, ins: Instruction) -> None:
    """Bitwise operations."""
    head, bits = ins.parts[0], bits_of(ins.parts[-1])
    _only(ins.parts[1:-1])
    d, *o = ins.operands
    if head in ("and", "or", "xor"):
        sign = {"and": "&", "or": "|", "xor": "^"}[head]
        e.dst(d, f"{e.src(o[0], bits)} {sign} {e.src(o[1], bits)}")
    elif head == "not":
        e.dst(d, f"pnot({e.src(o[0], 1)})" if bits == 1 else f"{e.src(o[0], bits)} ^ {ONES[bits]}")
    elif head == "cnot":
        e.dst(d, f"wrap({e.src(o[0], bits)} == 0, {bits})")
    else:
        e.dst(d, f"lop3({', '.join(e.src(x, 32) for x in o[:3])}, {int(o[3], 0)})")


@emits("shl", "shr", "shf")
def shift(e: Emitter, ins: Instruction) -> None:
    """Shifts, by amounts that clamp, and funnel shifts."""
    head, kind = ins.parts[0], ins.parts[-1]
    bits, signed = bits_of(kind), kind[0] == "s"
    d, *o = ins.operands
    if head == "shf":
        _only(ins.parts[1:-1], "l", "r", "wrap", "clamp")
        operands = ", ".join(e.src(x, 32) for x in o)
        e.dst(d, f"funnel({operands}, {ins.parts[1] == 'l'}, {ins.parts[2] == 'clamp'})")
        return
    _only(ins.parts[1:-1])
    a, amount = e.src(o[0], bits), e.src(o[1], 32)
    if amount.isdigit() and int(amount) < bits and not signed:
        text = f"{a} {'<<' if head == 'shl' else '>>'} {amount}"
        store_integer(e, d, text, bits) if head == "shl" else e.dst(d, text)
    else:
        e.dst(d, f"shl({a}, {amount}, {bits})" if head == "shl" else f"shr({a}, {amount}, {bits}, {signed})")


@emits("prmt", "brev", "popc", "clz", "bfe", "bfi", "bfind")
def field(e: Emitter, ins: Instruction) -> None:
    """Bytes and bit fields."""
    head, kind = ins.parts[0], ins.parts[-1]
    d, *o = ins.operands
    if head == "prmt":
        mode = kind if kind != "b32" else (ins.parts[2] if len(ins.parts) > 2 else "")
        a, b, c = (e.src(x, 32) for x in o)
        e.dst(d, f"byte_permute({a}, {b}, {f'permute_selector({c}, {mode!r})' if mode else c})")
        return
    bits = bits_of(kind)
    _only(ins.parts[1:-1])
    a = e.src(o[0], bits)
    if head == "brev" and bits == 32:
        e.dst(d, f"bit_reverse({a})")
    elif head == "popc":
        e.dst(d, f"popcount({a})")
    elif head == "clz":
        e.dst(d, f"clz({a}, {bits})")
    elif head == "bfind" and kind[0] != "s":
        e.dst(d, f"wrap({bits - 1} - s32(clz({a}, {bits})), 32)")
    elif head == "bfe":
        e.dst(d, f"bfe({a}, {e.src(o[1], 32)}, {e.src(o[2], 32)}, {bits}, {kind[0] == 's'})")
    elif head == "bfi":
        e.dst(d, f"bfi({a}, {e.src(o[1], bits)}, {e.src(o[2], 32)}, {e.src(o[3], 32)}, {bits})")
    else:
        raise Unknown(head)
