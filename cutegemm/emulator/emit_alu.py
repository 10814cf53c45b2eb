# SPDX-License-Identifier: Apache-2.0
"""Instructions that compute: integer, floating point, comparison, selection, logic, moves and conversions.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.2 (extended), 9.7.3 to 9.7.5 (floating point), 9.7.6 to 9.7.9.
"""

from __future__ import annotations

from cutegemm.emulator.parse import Instruction
from cutegemm.emulator.program import Emitter, Unknown, bits_of, emits

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_HEX = {16: "0xFFFF", 32: "M32", 64: "M64"}


def _integer(e: Emitter, operand: str, text: str, bits: int) -> None:
    """Result of Python or NumPy integer arithmetic, brought back to `bits`."""
    e.dst(operand, f"(t if (t := {text}).__class__ is ND else t & {_HEX[bits]})")


def _signed(e: Emitter, operand: str, bits: int) -> str:
    return f"s{bits}({e.src(operand, bits)})"


@emits("add", "sub", "mul", "mad", "fma", "neg", "abs", "min", "max", "div", "rem")
def arithmetic(e: Emitter, ins: Instruction) -> None:
    """Two- and three-operand arithmetic, by type."""
    kind = ins.parts[-1]
    if kind in FLOATS:
        _float(e, ins, kind)
        return
    head, mods, bits = ins.parts[0], ins.parts[1:-1], bits_of(kind)
    signed = kind[0] == "s"
    d, *o = ins.operands
    a = [e.src(x, bits) for x in o]
    if "sat" in mods or "cc" in mods:
        raise Unknown("saturation or carry")
    if head in ("add", "sub") and not mods:
        _integer(e, d, f"{a[0]} {'+' if head == 'add' else '-'} {a[1]}", bits)
    elif head == "neg":
        _integer(e, d, f"0 - {a[0]}", bits)
    elif head == "abs":
        e.dst(d, f"wrap(abs({_signed(e, o[0], bits)}), {bits})")
    elif head in ("min", "max"):
        x, y = (f"s{bits}({v})" if signed else v for v in a)
        e.dst(d, f"wrap(least({x}, {y}) if {head == 'min'} else most({x}, {y}), {bits})")
    elif head in ("div", "rem"):
        e.dst(d, f"divide({a[0]}, {a[1]}, {bits}, {signed}, {head == 'rem'})")
    elif mods == ["lo"]:
        _integer(e, d, f"{a[0]} * {a[1]}" + (f" + {a[2]}" if head == "mad" else ""), bits)
    elif mods == ["hi"]:
        product = f"mul_hi({a[0]}, {a[1]}, {bits}, {signed})"
        _integer(e, d, product + (f" + {a[2]}" if head == "mad" else ""), bits)
    elif mods == ["wide"]:
        product = f"mul_wide({a[0]}, {a[1]}, {bits}, {signed})"
        _integer(e, d, product + (f" + {e.src(o[2], 2 * bits)}" if head == "mad" else ""), 2 * bits)
    else:
        raise Unknown("modifiers")


_BINARY = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}"}


def _float(e: Emitter, ins: Instruction, kind: str) -> None:
    head, mods = ins.parts[0], set(ins.parts[1:-1])
    if mods - {"rn", "ftz", "sat", "approx", "full", "NaN", "relu", "lo"}:
        raise Unknown("modifiers")
    d, *o = ins.operands
    if kind in ("f32", "f64"):
        view = kind
        values = [f"{view}({e.src(x, bits_of(kind))})" for x in o]
        if "ftz" in mods:
            values = [f"flush({v})" for v in values]
        text = _float_expression(head, values, kind, mods)
        if "ftz" in mods:
            text = f"flush({text})"
        if "sat" in mods:
            text = f"saturate({text})"
        e.dst(d, f"bits({text})")
        return
    base = kind.removesuffix("x2")
    halves = [""] if kind == base else ["low({})", "high({})"]
    results = []
    for half in halves:
        values = [f"{base}({half.format(e.src(x, 32)) if half else e.src(x, 16)})" for x in o]
        results.append(_half_expression(head, values, base, mods))
    e.dst(d, f"wrap({results[0]}, 16)" if len(results) == 1 else f"pair({results[1]}, {results[0]})")


def _float_expression(head: str, v: list[str], kind: str, mods: set[str]) -> str:
    if head in _BINARY:
        return _BINARY[head].format(*v)
    if head in ("fma", "mad"):
        return f"fma{kind[1:]}({', '.join(v)})"
    if head == "neg":
        return f"-{v[0]}"
    if head == "abs":
        return f"abs({v[0]})"
    if head in ("min", "max"):
        return f"extreme({v[0]}, {v[1]}, {head == 'max'}, {'NaN' in mods})"
    raise Unknown(head)


def _half_expression(head: str, v: list[str], base: str, mods: set[str]) -> str:
    """16-bit arithmetic, as 16-bit patterns. fp32 holds sums and products of fp16 and bf16 well enough that
    rounding them again is rounding once (24 >= 2 * 11 + 2), fma goes through fp64."""
    if head == "fma":
        text = f"fma64_wide({', '.join(v)})"
    elif head in ("min", "max"):
        text = f"extreme({v[0]}, {v[1]}, {head == 'max'}, {'NaN' in mods})"
    else:
        text = _float_expression(head, [f"np.float32({x})" if base == "f16" else x for x in v], "f32", mods)
    if "relu" in mods:
        text = f"relu({text})"
    return f"narrow_{base}({text})"


@emits("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "sin", "cos")
def special_function(e: Emitter, ins: Instruction) -> None:
    """Approximate (and .rn) functions."""
    kind = ins.parts[-1]
    d, a = ins.operands
    if kind in ("f32", "f64"):
        value = f"{kind}({e.src(a, bits_of(kind))})"
        if "ftz" in ins.parts:
            value = f"flush({value})"
        text = f"unary('{ins.parts[0]}', {value})"
        e.dst(d, f"bits(flush({text}))" if "ftz" in ins.parts else f"bits({text})")
        return
    base = kind.removesuffix("x2")
    one = "narrow_{0}(np.float32(unary('{1}', {0}({2}))))".format
    if base == kind:
        e.dst(d, f"wrap({one(base, ins.parts[0], e.src(a, 16))}, 16)")
    else:
        x = e.src(a, 32)
        e.dst(d, f"pair({one(base, ins.parts[0], f'high({x})')}, {one(base, ins.parts[0], f'low({x})')})")


@emits(
    "and",
    "or",
    "xor",
    "not",
    "cnot",
    "lop3",
    "shl",
    "shr",
    "shf",
    "prmt",
    "brev",
    "popc",
    "clz",
    "bfe",
    "bfi",
    "bfind",
)
def logic(e: Emitter, ins: Instruction) -> None:
    """Bitwise operations, shifts and fields."""
    head, kind = ins.parts[0], ins.parts[-1]
    bits = bits_of(kind)
    d, *o = ins.operands
    if head in ("and", "or", "xor"):
        e.dst(
            d,
            f"{e.src(o[0], bits)} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[head]} {e.src(o[1], bits)}",
        )
    elif head == "not":
        e.dst(d, f"pnot({e.src(o[0], 1)})" if bits == 1 else f"{e.src(o[0], bits)} ^ {_HEX[bits]}")
    elif head == "lop3":
        e.dst(d, f"lop3({', '.join(e.src(x, 32) for x in o[:3])}, {int(o[3], 0)})")
    elif head in ("shl", "shr"):
        a, amount = e.src(o[0], bits), e.src(o[1], 32)
        signed = kind[0] == "s"
        if amount.isdigit() and int(amount) < bits and not signed:
            text = f"{a} {'<<' if head == 'shl' else '>>'} {amount}"
            _integer(e, d, text, bits) if head == "shl" else e.dst(d, text)
        else:
            e.dst(
                d, f"shl({a}, {amount}, {bits})" if head == "shl" else f"shr({a}, {amount}, {bits}, {signed})"
            )
    elif head == "shf":
        e.dst(
            d,
            f"funnel({', '.join(e.src(x, 32) for x in o)}, {ins.parts[1] == 'l'}, {ins.parts[2] == 'clamp'})",
        )
    elif head == "prmt" and ins.op == "prmt.b32":
        e.dst(d, f"byte_permute({', '.join(e.src(x, 32) for x in o)})")
    elif head == "brev" and bits == 32:
        e.dst(d, f"bit_reverse({e.src(o[0], 32)})")
    elif head == "popc":
        e.dst(d, f"popcount({e.src(o[0], bits)})")
    elif head == "clz":
        e.dst(d, f"clz({e.src(o[0], bits)}, {bits})")
    elif head == "bfind" and kind[0] != "s" and "shiftamt" not in ins.parts:
        e.dst(d, f"wrap({bits - 1} - s32(clz({e.src(o[0], bits)}, {bits})), 32)")
    elif head == "bfe":
        e.dst(d, f"bfe({e.src(o[0], bits)}, {e.src(o[1], 32)}, {e.src(o[2], 32)}, {bits}, {kind[0] == 's'})")
    elif head == "bfi":
        e.dst(
            d, f"bfi({e.src(o[0], bits)}, {e.src(o[1], bits)}, {e.src(o[2], 32)}, {e.src(o[3], 32)}, {bits})"
        )
    else:
        raise Unknown(head)


@emits("setp")
def set_predicate(e: Emitter, ins: Instruction) -> None:
    """setp, with an optional second predicate and boolean combination."""
    relation, kind = ins.parts[1], ins.parts[-1]
    combine = next((p for p in ins.parts[2:-1] if p in ("and", "or", "xor")), None)
    d, *o = ins.operands
    bits = bits_of(kind)
    if kind in FLOATS:
        if kind.endswith("x2"):
            raise Unknown("packed comparison")
        a, b = (f"{kind}({e.src(x, bits)})" for x in o[:2])
        if "ftz" in ins.parts:
            a, b = f"flush({a})", f"flush({b})"
        text = f"compare({a}, {b}, '{relation}')"
    else:
        sign = {
            "eq": "==",
            "ne": "!=",
            "lt": "<",
            "le": "<=",
            "gt": ">",
            "ge": ">=",
            "lo": "<",
            "ls": "<=",
            "hi": ">",
            "hs": ">=",
        }
        wrapper = f"s{bits}({{}})" if kind[0] == "s" else "{}"
        a, b = (wrapper.format(e.src(x, bits)) for x in o[:2])
        text = f"{a} {sign[relation]} {b}"
    first, _, second = d.partition("|")
    if combine is None and not second:
        e.dst(first, text)
        return
    joined = {None: "{}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}"}[combine]
    e.line(f"q = {text}")
    third = [e.src(o[2], 1)] if combine else []
    e.dst(first, joined.format("q", *third))
    if second:
        e.dst(second, joined.format("pnot(q)", *third))


@emits("set")
def set_value(e: Emitter, ins: Instruction) -> None:
    """Not used by the kernels this emulator was built for."""
    raise Unknown("set")


@emits("selp", "slct")
def select(e: Emitter, ins: Instruction) -> None:
    """selp d, a, b, p."""
    if ins.parts[0] != "selp":
        raise Unknown("slct")
    bits = bits_of(ins.parts[-1])
    d, a, b, p = ins.operands
    e.dst(d, f"sel({e.src(p, 1)}, {e.src(a, bits)}, {e.src(b, bits)}, U{bits})")


@emits("mov")
def move(e: Emitter, ins: Instruction) -> None:
    """mov, with packing and unpacking of vectors."""
    bits = bits_of(ins.parts[-1])
    d, a = ins.operands
    if d.startswith("{"):
        parts = e.items(d)
        e.line(f"t = {e.src(a, bits)}")
        for i, part in enumerate(parts):
            e.dst(part, f"unpack(t, {bits // len(parts)}, {i})") if part != "_" else None
    elif a.startswith("{"):
        parts = e.items(a)
        each = bits // len(parts)
        e.dst(d, f"pack([{', '.join(e.src(x, each) for x in parts)}], {each})")
    elif a in e.views and d in e.views:  # zeroing by copies: no use of the values
        e.dst(d, "accumulator_peek(G, {}, {})".format(*e.views[a]))
    else:
        text = e.src(a, bits)
        e.dst(d, f"wrap({text}, {bits})" if a.startswith("%") and e.width(a) is None and bits < 64 else text)


@emits("cvta")
def convert_address(e: Emitter, ins: Instruction) -> None:
    """cvta between a state space and generic addresses: windows for shared, local and param, identity for global."""
    windows = {"shared": "SHARED_WINDOW", "shared::cta": "SHARED_WINDOW", "shared::cluster": "SHARED_WINDOW",
               "local": "LOCAL_WINDOW", "global": None, "const": None, "param": None, "param::entry": None}  # fmt: skip
    space = ins.parts[2] if ins.parts[1] == "to" else ins.parts[1]
    window = windows[space]
    a = e.src(ins.operands[1], 64)
    if window is None:
        e.dst(ins.operands[0], a)
    else:
        e.dst(ins.operands[0], f"(widen({a}) {'-' if ins.parts[1] == 'to' else '+'} {window})")


@emits("cvt")
def convert(e: Emitter, ins: Instruction) -> None:
    """cvt between integers and floats of any width."""
    mods = ins.parts[1:]
    pack_two = [m for m in mods if m in ("f16x2", "bf16x2")]
    if pack_two and mods[-1] == "f32":
        _convert_pair(e, ins, pack_two[0].removesuffix("x2"), mods)
        return
    to, source = mods[-2], mods[-1]
    d, a = ins.operands
    target_bits = e.width(d) or bits_of(to)
    if source not in FLOATS and to not in FLOATS:
        width = min(bits_of(source), bits_of(to)) if "sat" not in mods else None
        if width is None:
            e.dst(d, f"saturate_integer({e.src(a, bits_of(source))}, '{source}', '{to}', {target_bits})")
            return
        x = e.src(a, bits_of(source))
        signed = (source if bits_of(source) <= bits_of(to) else to)[0] == "s"
        if signed and width < target_bits:
            e.dst(d, f"extend({x}, {width}, {target_bits})")
        else:
            text = f"wrap({x}, {width})" if width in (8, 16, 32, 64) else x
            e.dst(d, f"wrap({text}, {target_bits})" if width != target_bits else text)
        return
    if source in FLOATS and to not in FLOATS:
        mode = next(m for m in mods if m in ("rni", "rzi", "rmi", "rpi"))
        x = _float_source(e, a, source, mods)
        e.dst(d, f"to_integer({x}, {bits_of(to)}, {to[0] == 's'}, '{mode}', {target_bits})")
        return
    if source not in FLOATS:
        value = f"from_integer({e.src(a, bits_of(source))}, {bits_of(source)}, {source[0] == 's'}, {{}})"
        if to in ("f32", "f64"):
            e.dst(d, f"bits({value.format('np.float' + to[1:])})")
        else:
            e.dst(d, f"wrap(narrow_{to}({value.format('np.float64')}), 16)")
        return
    _float_to_float(e, d, a, to, source, mods)


def _float_source(e: Emitter, a: str, source: str, mods: list[str]) -> str:
    x = f"{source}({e.src(a, bits_of(source))})"
    return f"flush({x})" if "ftz" in mods and source == "f32" else x


def _float_to_float(e: Emitter, d: str, a: str, to: str, source: str, mods: list[str]) -> None:
    x = _float_source(e, a, source, mods)
    integral = next((m for m in mods if m in ("rni", "rzi", "rmi", "rpi")), None)
    if integral:
        x = f"integral({x}, '{integral}')"
    elif set(mods) & {"rz", "rm", "rp"}:
        if not (to == "f32" and source == "f64") or "rz" not in mods:
            raise Unknown("rounding mode")
    if "sat" in mods:
        x = f"saturate({x})"
    if "relu" in mods:
        x = f"relu({x})"
    if to in ("f32", "f64"):
        e.dst(d, f"bits(np.float{to[1:]}({x}))" if "rz" not in mods else f"bits(toward_zero({x}))")
    else:
        e.dst(d, f"wrap(narrow_{to}({x}), 16)")


def _convert_pair(e: Emitter, ins: Instruction, base: str, mods: list[str]) -> None:
    if "rn" not in mods or "satfinite" in mods:
        raise Unknown("rounding mode")
    d, a, b = ins.operands
    if "relu" in mods:
        high, low = (f"narrow_{base}(relu(f32({e.src(x, 32)})))" for x in (a, b))
        e.dst(d, f"pair({high}, {low})")
    elif base == "bf16":
        e.dst(d, f"bf16x2({e.src(a, 32)}, {e.src(b, 32)})")
    else:
        e.dst(d, f"pair(narrow_f16(f32({e.src(a, 32)})), narrow_f16(f32({e.src(b, 32)})))")
