# SPDX-License-Identifier: Apache-2.0
"""Loads, stores, atomics, operations across the lanes of a warp, ldmatrix, mma and wmma.

Source: PTX ISA 9.0, 9.7.9 (ld, st, prefetch, isspacep, mapa), 9.7.13 (atom, red, vote, match, redux, elect,
shfl is 9.7.9.6), 9.7.15 (ldmatrix, stmatrix, mma, wmma).
"""

from __future__ import annotations

from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.ptx.kernel import TYPE_BYTES, PtxInstruction, items
from cutegemm.emulator.translate.emitter import Emitter, Unknown, bits_of, emits, only

_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def space_of(ins: PtxInstruction) -> str:
    """State space of an opcode; "generic" if it has none."""
    for part in ins.parts[1:]:
        if part.split("::")[0] in ("param", "global", "shared", "local", "const") and part != "param::func":
            return part.split("::")[0]
    return "generic"


def order_of(ins: PtxInstruction) -> str:
    """Memory order of an access, with suffix ".cta" in that scope; "" for a plain access.

    Volatile counts as relaxed (PTX ISA 8.2.1).
    """
    order = next((p for p in ins.parts if p in ("acquire", "release", "acq_rel", "relaxed", "mmio")), "")
    order = "relaxed" if order == "mmio" or "volatile" in ins.parts else order
    return f"{order}.cta" if order and "cta" in ins.parts else order


def _vector(ins: PtxInstruction, operand: str) -> list[str]:
    """The elements of a vector operand; their number must match the opcode."""
    names = items(operand)
    count = next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
    if len(names) != count or ins.parts[-1] == "b128":
        raise Unknown("vector")
    return names


@emits("ld", "ldu")
def load(e: Emitter, ins: PtxInstruction) -> None:
    """ld of every space, vector width and type; narrow values are sign- or zero-extended to the register."""
    kind, names = ins.parts[-1], _vector(ins, ins.operands[0])
    size = TYPE_BYTES[kind]
    how = f"{size}, {len(names)}, '{space_of(ins)}', {order_of(ins)!r}"
    e.line(f"v = load(G, {e.mask}, {e.address(ins.operands[1])}, {how})")
    for i, name in enumerate(names):
        if name == "_":
            continue
        width = e.width(name) or 0
        text = f"v[{i}]"
        if kind[0] == "s" and width > 8 * size:
            text = f"extend({text}, {8 * size}, {width})"
        elif width != 8 * size:
            text = f"wrap({text}, {width})"
        e.dst(name, text)


@emits("st")
def store(e: Emitter, ins: PtxInstruction) -> None:
    """st of every space, vector width and type."""
    if ins.parts[1] == "async":
        _store_async(e, ins)
        return
    if ins.parts[1] == "bulk":
        raise Unknown("st.bulk")
    _vector(ins, ins.operands[1])
    size = TYPE_BYTES[ins.parts[-1]]
    place, values = e.address(ins.operands[0]), e.sources(ins.operands[1], 8 * size)
    e.line(f"store(G, {e.mask}, {place}, {values}, {size}, '{space_of(ins)}', {order_of(ins)!r})")


def _store_async(e: Emitter, ins: PtxInstruction) -> None:
    """st.async and red.async."""
    kind = ins.parts[-1]
    operation = next((p for p in ins.parts if p in _ATOMIC), None) if ins.parts[0] == "red" else None
    if "mbarrier::complete_tx::bytes" not in ins.parts:
        raise Unknown("completion")
    _vector(ins, ins.operands[1])
    bits = bits_of(kind)
    where = f"{e.address(ins.operands[0])}, {e.sources(ins.operands[1], bits)}, {bits // 8}"
    e.line(f"store_async(G, {e.mask}, {where}, {e.address(ins.operands[2])}, {operation!r}, '{kind}')")


@emits("atom", "red")
def atomic(e: Emitter, ins: PtxInstruction) -> None:
    """atom and red."""
    if ins.parts[1] == "async":
        _store_async(e, ins)
        return
    kind = ins.parts[-1]
    operation = next(p for p in ins.parts[1:] if p in _ATOMIC)
    returns = ins.parts[0] == "atom"
    d, address, *values = ins.operands if returns else ("_", *ins.operands)
    width, elements = bits_of(kind), _vector(ins, values[0])
    how = f"'{operation}', '{kind}', '{space_of(ins)}', {returns}, {(order_of(ins) or 'relaxed')!r}"
    results = items(d) if len(elements) > 1 and returns else [d] * len(elements)
    e.line(f"a = {e.address(address)}")
    for i, (result, x) in enumerate(
        zip(results, elements, strict=True)
    ):  # each is a separate atomic operation
        place = f"shift_address(a, {i * width // 8}, 64)" if i else "a"
        args = e.sources(", ".join([x, *values[1:]]), width)
        used = returns and e.program.mentions(result.strip()) > 1
        e.dst(result, f"atomic(G, {e.mask}, {place}, {args}, {how}, {used})")


@emits("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def hint(e: Emitter, ins: PtxInstruction) -> None:
    """Cache hints have no effect; a cache policy is the number 0."""
    if ins.parts[0] == "createpolicy":
        e.dst(ins.operands[0], "0")


@emits("isspacep")
def is_space(e: Emitter, ins: PtxInstruction) -> None:
    """isspacep."""
    e.dst(ins.operands[0], f"in_space({e.src(ins.operands[1], 64)}, '{ins.parts[1].split('::')[0]}')")


@emits("mapa")
def map_address(e: Emitter, ins: PtxInstruction) -> None:
    """mapa."""
    d, a, rank = ins.operands
    generic = "shared::cluster" not in ins.parts
    e.dst(d, f"map_shared({e.src(a, 64)}, {e.src(rank, 32)}, {bits_of(ins.parts[-1])}, {generic})")


@emits("getctarank")
def get_rank(e: Emitter, ins: PtxInstruction) -> None:
    """getctarank."""
    e.dst(ins.operands[0], f"wrap(({e.src(ins.operands[1], 64)} >> 24) & 0xFF, 32)")


@emits("shfl", "vote", "match", "redux", "activemask", "elect")
def warp_wide(e: Emitter, ins: PtxInstruction) -> None:
    """Operations across the lanes of a warp."""
    head, (d, *o), mode = ins.parts[0], ins.operands, ins.parts[-2]
    if head == "shfl":
        a, b, c, members = (e.src(x, 32) for x in o)
        e.pair(d, f"shuffle(G, {e.mask}, {a}, {b}, {c}, {members}, '{mode}')")
    elif head == "elect":
        e.pair(d, f"elect(G, {e.mask}, {e.src(o[0], 32)})")
    elif head == "match":
        value = e.src(o[0], bits_of(ins.parts[-1]))
        e.pair(d, f"match(G, {e.mask}, {value}, {e.src(o[1], 32)}, '{ins.parts[1]}')")
    elif head == "vote":
        e.dst(d, f"vote(G, {e.mask}, {e.src(o[0], 1)}, {e.src(o[1], 32)}, '{mode}')")
    elif head == "activemask":
        e.dst(d, f"active_lanes(G, {e.mask})")
    else:
        kind = ins.parts[-1]
        if kind not in ("s32", "u32", "b32"):
            raise Unknown("type")
        e.dst(d, f"redux(G, {e.mask}, {e.src(o[0], 32)}, {e.src(o[1], 32)}, '{mode}', {kind == 's32'})")


@emits("ldmatrix", "stmatrix", "movmatrix")
def matrix_move(e: Emitter, ins: PtxInstruction) -> None:
    """ldmatrix, stmatrix and movmatrix of 8x8 matrices of 16-bit elements."""
    if "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise Unknown("shape or type")
    one, other = ins.operands
    how = f"{'trans' in ins.parts}, {space_of(ins) == 'generic'}"
    if ins.parts[0] == "ldmatrix":
        e.results(one, f"ldmatrix(G, {e.mask}, {e.address(other)}, {len(items(one))}, {how})")
    elif ins.parts[0] == "stmatrix":
        e.line(f"stmatrix(G, {e.mask}, {e.address(one)}, {e.sources(other, 32)}, {how})")
    else:
        e.dst(one, f"movmatrix(G, {e.src(other, 32)})")


# Type of A -> types of B and of D and C.
_MMA = {
    "f16": (("f16",), ("f32", "f16")), "bf16": (("bf16",), ("f32",)), "tf32": (("tf32",), ("f32",)),
    **dict.fromkeys(("e4m3", "e5m2"), (("e4m3", "e5m2"), ("f32", "f16"))),
    **dict.fromkeys(("s8", "u8"), (("s8", "u8"), ("s32",))),
}  # fmt: skip


@emits("mma")
def matrix_multiply(e: Emitter, ins: PtxInstruction) -> None:
    """mma.sync.aligned.m16n8kK.row.col of fp16, bf16, tf32, fp8 and 8-bit integer fragments."""
    *head, shape, row, column = ins.parts[1:6]
    *mods, d_type, a_type, b_type, c_type = ins.parts[6:]
    only(mods, "satfinite" if d_type == "s32" else None)
    others, results = _MMA.get(a_type, ((), ()))
    if [*head, row, column] != ["sync", "aligned", "row", "col"] or not shape.startswith("m16n8k"):
        raise Unknown("shape or layout")
    row_bytes = int(shape.removeprefix("m16n8k")) * ITEM_BYTES.get(a_type, 0)
    counts = (2 if d_type == "f16" else 4, row_bytes // 8, row_bytes // 16, 2 if c_type == "f16" else 4)
    known = b_type in others and d_type in results and c_type in results and row_bytes in (16, 32)
    if not known or counts != tuple(len(items(o)) for o in ins.operands):
        raise Unknown("types, shape or number of registers")
    operands = ", ".join(e.sources(o, 32) for o in ins.operands[1:])
    types = (d_type, a_type, b_type, c_type)
    e.results(ins.operands[0], f"mma_sync(G, {types!r}, {bool(mods)}, {operands})")


@emits("wmma")
def wmma(e: Emitter, ins: PtxInstruction) -> None:
    """wmma.load, wmma.mma and wmma.store of 16-bit types."""
    p = ins.parts
    if p[1] == "mma":
        operands = ", ".join(e.sources(o, 32) for o in ins.operands[1:4])
        e.results(ins.operands[0], f"wmma_mma(G, '{p[6]}', {p[7:]!r}, {operands})")
        return
    address, stride = ins.operands[p[1] == "load"], ins.operands[2:3]
    step = e.src(stride[0], 32) if stride else "None"
    what = (p[2], p[5], p[6], p[-1], space_of(ins))
    common = f"G, {e.mask}, {e.address(address)}, {step}, {what!r}"
    if p[1] == "load":
        e.results(ins.operands[0], f"wmma_load({common})")
    else:
        e.line(f"wmma_store({common}, {e.sources(ins.operands[1], 32)})")
