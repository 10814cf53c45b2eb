# SPDX-License-Identifier: Apache-2.0
"""Comparison, selection and moves: setp, set, selp, slct, mov, cvta.

Source: PTX ISA 9.0, 9.7.6 (comparison and selection), 9.7.7 (half-precision comparison), 9.7.9 (mov, cvta).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import PtxInstruction, items
from cutegemm.emulator.translate.emit_float import FLOATS
from cutegemm.emulator.translate.emitter import Emitter, bits_of, emits, only

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_JOINS = {"and": "&", "or": "|", "xor": "^"}
_WINDOWS = {"shared": "SHARED_WINDOW", "shared::cta": "SHARED_WINDOW", "shared::cluster": "SHARED_WINDOW",
            "local": "LOCAL_WINDOW", "global": None, "const": None, "param": None, "param::entry": None}  # fmt: skip


def _comparison(kind: str, relation: str, ftz: bool, values: list[str]) -> str:
    """Expression of one comparison."""
    if kind in FLOATS:
        a, b = (f"{kind}({x})" for x in values)
        if ftz:
            flush = "flush" if kind == "f32" else "flush_half"
            a, b = f"{flush}({a})", f"{flush}({b})"
        return f"compare({a}, {b}, '{relation}')"
    a, b = (f"signed({x}, {bits_of(kind)})" if kind[0] == "s" else x for x in values)
    return f"{a} {_SIGNS[relation]} {b}"


def _tests(e: Emitter, ins: PtxInstruction, named: int) -> tuple[list[str], str]:
    """The comparisons of an instruction (two for a pair: low, high), and the text that combines them with a predicate.

    The opcode ends with `named` types.
    """
    kind = ins.parts[-1]
    relation, *mods = ins.parts[1:-named]
    join = next((p for p in mods if p in _JOINS), None)
    only(mods, "ftz", join)
    _, a, b, *predicate = ins.operands
    values = [e.src(x, bits_of(kind)) for x in (a, b)]
    third = f" {_JOINS[join]} {e.src(predicate[0], 1)}" if join else ""
    base = kind.removesuffix("x2")
    sides = [values] if base == kind else [[f"{half}({x})" for x in values] for half in ("low", "high")]
    return [_comparison(base, relation, "ftz" in mods, side) for side in sides], third


@emits("setp")
def set_predicate(e: Emitter, ins: PtxInstruction) -> None:
    """setp, with an optional second predicate and boolean operation; a pair gives a predicate per half."""
    tests, third = _tests(e, ins, 1)
    e.line(f"q, t = {', '.join(tests)}" if len(tests) > 1 else f"q = {tests[0]}")
    first, _, second = ins.operands[0].partition("|")
    e.dst(first, f"q{third}")
    if second:
        e.dst(second, f"{'t' if len(tests) > 1 else 'pnot(q)'}{third}")


@emits("set")
def set_value(e: Emitter, ins: PtxInstruction) -> None:
    """set: all ones or 1.0 if a comparison holds; for pairs, in each half."""
    tests, third = _tests(e, ins, 2)
    to, halves = ins.parts[-2], len(tests) > 1
    ones = 0xFFFF if halves else (1 << bits_of(to)) - 1
    yes = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(to.removesuffix("x2"), ones)
    values = [f"sel(({test}){third}, {yes}, 0, U{32 if halves else bits_of(to)})" for test in tests]
    e.dst(ins.operands[0], f"pair({values[1]}, {values[0]})" if halves else values[0])


@emits("selp", "slct")
def select(e: Emitter, ins: PtxInstruction) -> None:
    """selp d, a, b, p; slct d, a, b, c: a if c >= 0, else b."""
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
    """mov; it also packs and unpacks vectors."""
    bits = bits_of(ins.parts[-1])
    d, a = ins.operands
    views = e.program.views
    if d.startswith("{"):
        names = items(d)
        e.line(f"t = {e.src(a, bits)}")
        for i, name in enumerate(names):
            if name != "_":
                e.dst(name, f"unpack(t, {bits // len(names)}, {i})")
    elif a.startswith("{"):
        each = bits // len(items(a))
        e.dst(d, f"pack({e.sources(a, each)}, {each})")
    elif a in views and d in views:  # compilers zero accumulators by copies, which do not use their values
        e.dst(d, "accumulator_peek(G, {}, {})".format(*views[a]))
    else:
        text = e.src(a, bits)
        e.dst(d, f"wrap({text}, {bits})" if a.startswith("%") and e.width(a) is None and bits < 64 else text)


@emits("cvta")
def convert_address(e: Emitter, ins: PtxInstruction) -> None:
    """cvta between a state space and generic addresses; shared, local and param have windows."""
    back = ins.parts[1] == "to"
    window = _WINDOWS[ins.parts[1 + back]]
    a = e.src(ins.operands[1], 64)
    e.dst(ins.operands[0], a if window is None else f"(widen({a}) {'-' if back else '+'} {window})")
