# SPDX-License-Identifier: Apache-2.0
"""Instructions that compare, choose and move: setp, set, selp, slct, mov, cvta.

Source: PTX ISA 9.0, 9.7.6 (comparison and selection), 9.7.7 (half-precision comparison), 9.7.9 (mov, cvta).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.translate.emit_float import FLOATS
from cutegemm.emulator.translate.emitter import Emitter, Unknown, bits_of, emits

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_JOINS = {"and": "&", "or": "|", "xor": "^"}


def _comparison(e: Emitter, kind: str, relation: str, mods: list[str], values: list[str]) -> str:
    """Expression of one comparison of operand expressions."""
    if kind in FLOATS:
        a, b = (f"{kind}({x})" for x in values)
        if "ftz" in mods:
            flush = "flush" if kind == "f32" else "flush_half"
            a, b = f"{flush}({a})", f"{flush}({b})"
        return f"compare({a}, {b}, '{relation}')"
    wrapper = f"signed({{}}, {bits_of(kind)})" if kind[0] == "s" else "{}"
    a, b = (wrapper.format(x) for x in values)
    return f"{a} {_SIGNS[relation]} {b}"


def _parts_of(ins: PtxInstruction, named: int) -> tuple[str, str | None]:
    """(relation, boolean operation) of a comparison; `named` types end its opcode.

    Raises:
        Unknown: any other modifier.
    """
    relation, *rest = ins.parts[1:-named]
    join = next((p for p in rest if p in _JOINS), None)
    if set(rest) - {"ftz", join}:
        raise Unknown("modifiers")
    return relation, join


@emits("setp")
def set_predicate(e: Emitter, ins: PtxInstruction) -> None:
    """setp, with an optional second predicate and boolean combination; pairs give a predicate per half."""
    kind = ins.parts[-1]
    relation, join = _parts_of(ins, 1)
    d, *o = ins.operands
    values = [e.src(x, bits_of(kind)) for x in o[:2]]
    third = f" {_JOINS[join]} {e.src(o[2], 1)}" if join else ""
    first, _, second = d.partition("|")
    if kind.endswith("x2"):
        base = kind.removesuffix("x2")
        tests = [
            _comparison(e, base, relation, ins.parts, [f"{half}({x})" for x in values])
            for half in ("low", "high")
        ]
        e.line(f"q, t = {', '.join(tests)}")
        e.dst(first, f"q{third}")
        if second:
            e.dst(second, f"t{third}")
        return
    e.line(f"q = {_comparison(e, kind, relation, ins.parts, values)}")
    e.dst(first, f"q{third}")
    if second:
        e.dst(second, f"pnot(q){third}")


@emits("set")
def set_value(e: Emitter, ins: PtxInstruction) -> None:
    """set: a comparison as all ones or as 1.0; of pairs, per half."""
    to, kind = ins.parts[-2:]
    relation, join = _parts_of(ins, 2)
    d, *o = ins.operands
    values = [e.src(x, bits_of(kind)) for x in o[:2]]
    third = f" {_JOINS[join]} {e.src(o[2], 1)}" if join else ""
    one = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
    if not kind.endswith("x2"):
        yes = one.get(to, (1 << bits_of(to)) - 1)
        test = f"({_comparison(e, kind, relation, ins.parts, values)}){third}"
        e.dst(d, f"sel({test}, {yes}, 0, U{bits_of(to)})")
        return
    yes = one.get(to.removesuffix("x2"), 0xFFFF)
    base = kind.removesuffix("x2")
    halves = []
    for half in ("high", "low"):
        test = _comparison(e, base, relation, ins.parts, [f"{half}({x})" for x in values])
        halves.append(f"sel(({test}){third}, {yes}, 0, U32)")
    e.dst(d, f"pair({', '.join(halves)})")


@emits("selp", "slct")
def select(e: Emitter, ins: PtxInstruction) -> None:
    """selp d, a, b, p; slct d, a, b, c: a where c >= 0."""
    d, a, b, p = ins.operands
    if ins.parts[0] == "selp":
        bits, test = bits_of(ins.parts[-1]), e.src(p, 1)
    else:
        bits, source = bits_of(ins.parts[-2]), ins.parts[-1]
        value = f"f32({e.src(p, 32)})" if source == "f32" else f"signed({e.src(p, 32)}, 32)"
        test = f"{f'flush({value})' if 'ftz' in ins.parts else value} >= 0"
    e.dst(d, f"sel({test}, {e.src(a, bits)}, {e.src(b, bits)}, U{bits})")


@emits("mov")
def move(e: Emitter, ins: PtxInstruction) -> None:
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
def convert_address(e: Emitter, ins: PtxInstruction) -> None:
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
