# SPDX-License-Identifier: Apache-2.0
"""Barriers, mbarriers, asynchronous copies, wgmma, fences, setmaxnreg and calls.

A function that has to wait returns False or None; then the block returns `BLOCKED` and runs again later.

Source: PTX ISA 9.0, 9.7.9.25 (cp.async), 9.7.9.27 (cp.async.bulk.tensor), 9.7.13 (barriers, mbarrier, fences),
9.7.12.5 (call), 9.7.16 (wgmma), 9.7.20 (setmaxnreg, nanosleep).
"""

from __future__ import annotations

import re

from cutegemm.emulator.ptx.executable import BLOCKED
from cutegemm.emulator.ptx.kernel import PtxInstruction, items
from cutegemm.emulator.translate.emitter import Emitter, Unknown, bits_of, emits

_REDUCTIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec")  # of cp.reduce
# Type of A -> K, types of D, types of B (PTX ISA 9.0, 9.7.16.2).
_BYTES, _FP8 = (32, ("s32",), ("s8", "u8")), (32, ("f16", "f32"), ("e4m3", "e5m2"))
_WGMMA = {
    "f16": (16, ("f16", "f32"), ("f16",)), "bf16": (16, ("f32",), ("bf16",)), "tf32": (8, ("f32",), ("tf32",)),
    "e4m3": _FP8, "e5m2": _FP8, "s8": _BYTES, "u8": _BYTES,
}  # fmt: skip


@emits("bar", "barrier")
def barrier(e: Emitter, ins: PtxInstruction) -> None:
    """Named barriers of the CTA, the cluster barrier and bar.warp.sync."""
    p = [x for x in ins.parts if x not in ("cta", "aligned")]
    if p[1] == "warp":
        e.line(f"warp_sync(G, {e.mask}, {e.src(ins.operands[0], 32)})")
        return
    if p[1] == "cluster":
        if p[2] == "arrive":
            e.line(f"cluster_arrive(G, {'relaxed' in p})")
        else:
            e.line(f"if not cluster_wait(G): return {BLOCKED}")
        return
    operands = [e.src(x, 32) for x in ins.operands]
    aligned = ins.parts[0] == "bar" or "aligned" in ins.parts
    if p[1] == "sync":
        count = operands[1] if len(operands) > 1 else "None"
        e.line(f"if not bar_sync(G, {e.mask}, {operands[0]}, {count}, {aligned}): return {BLOCKED}")
    elif p[1] == "arrive":
        e.line(f"bar_arrive(G, {operands[0]}, {operands[1]})")
    elif p[1] == "red":
        d, _, *threads, source = ins.operands
        count = operands[2] if threads else "None"
        e.line(f"t = bar_red(G, {e.mask}, {operands[1]}, {count}, {e.src(source, 1)}, '{p[2]}', {aligned})")
        e.line(f"if t is None: return {BLOCKED}")
        e.dst(d, "t")
    else:
        raise Unknown(p[1])


@emits("mbarrier")
def mbarrier(e: Emitter, ins: PtxInstruction) -> None:
    """mbarrier.init, inval, arrive, expect_tx, complete_tx, test_wait and try_wait."""
    p, o, m = ins.parts, ins.operands, e.mask
    if p[1] == "init":
        e.line(f"mbarrier_init(G, {m}, {e.address(o[0])}, {e.src(o[1], 32)})")
    elif p[1] == "inval":
        e.line(f"mbarrier_invalidate(G, {m}, {e.address(o[0])})")
    elif p[1] in ("arrive", "arrive_drop"):
        has_state = not o[0].strip().startswith("[")
        state, address, *rest = o if has_state else ("_", *o)
        expect = "expect_tx" in p
        count = "1" if expect or not rest else e.src(rest[0], 32)
        tx = e.src(rest[0], 32) if expect else "0"
        how = f"{p[1] == 'arrive_drop'}, {'relaxed' in p}"
        e.dst(state, f"mbarrier_arrive(G, {m}, {e.address(address)}, {count}, {tx}, {how})")
    elif p[1] in ("expect_tx", "complete_tx"):
        sign = "" if p[1] == "expect_tx" else "-"
        e.line(f"mbarrier_expect(G, {m}, {e.address(o[0])}, {sign}{e.src(o[1], 32)})")
    elif p[1] in ("test_wait", "try_wait"):
        parity = "parity" in p
        may_block = p[1] == "try_wait"
        how = f"{parity}, {may_block}, {'relaxed' in p}"
        e.line(f"q = mbarrier_wait(G, {m}, {e.address(o[1])}, {e.src(o[2], 32 if parity else 64)}, {how})")
        e.line(f"if q is None: return {BLOCKED}")
        e.dst(o[0], "q")
    else:
        raise Unknown(p[1])


@emits("brkpt")
def breakpoint_(e: Emitter, ins: PtxInstruction) -> None:
    """brkpt stops the kernel, as trap does; libraries use it on impossible paths."""
    e.line(f"trap({ins.line})")


@emits("nanosleep")
def nanosleep(e: Emitter, ins: PtxInstruction) -> None:
    """nanosleep ends the time slice."""
    e.line("G.budget = 0")


@emits("setmaxnreg")
def set_registers(e: Emitter, ins: PtxInstruction) -> None:
    """setmaxnreg.inc and .dec."""
    count = int(ins.operands[0], 0)
    if count % 8 or not 24 <= count <= 256:
        raise Unknown("register counts are multiples of 8 from 24 to 256")
    e.line(f"if not set_registers(G, {count}, {ins.parts[1] == 'inc'}): return {BLOCKED}")


@emits("fence", "membar", "griddepcontrol", "pmevent")
def fence(e: Emitter, ins: PtxInstruction) -> None:
    """Fences and griddepcontrol, which only the race detector needs; pmevent has no effect."""
    if "tensormap::generic" in ins.op:
        raise Unknown("tensor map modification")
    if ins.op == "griddepcontrol.wait":
        e.line(f"G.tracker.grid_wait({e.mask})")
    elif ins.op == "griddepcontrol.launch_dependents":
        e.line(f"G.tracker.grid_trigger({e.mask})")
    elif ins.parts[0] != "pmevent":
        e.line(f"G.tracker.fence('{ins.op}')")


@emits("cp")
def copy(e: Emitter, ins: PtxInstruction) -> None:
    """cp.async, cp.async.bulk, cp.async.bulk.tensor and their groups; cp.reduce.async.bulk[.tensor]."""
    op, o = ins.op, list(ins.operands)
    if "cache_hint" in op:
        o.pop()
    if ".prefetch" in op:
        return
    if op.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
        _tensor_copy(e, op, o, next((p for p in ins.parts if p in _REDUCTIONS), None))
    elif op == "cp.async.bulk.commit_group":
        e.line("G.bulk.commit()")
    elif op.startswith("cp.async.bulk.wait_group"):
        e.line(f"wait_group(G, G.bulk, {int(o[0], 0)}, {op.endswith('.read')})")
    elif op.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
        kind = ins.parts[-1]
        operation = next((p for p in ins.parts if p in _REDUCTIONS), None)
        _bulk_copy(e, op, o, operation and (operation, kind, bits_of(kind) // 8))
    elif op == "cp.async.commit_group":
        e.line("async_commit(G)")
    elif op == "cp.async.wait_group":
        e.line(f"wait_group(G, G.copies, {int(o[0], 0)})")
    elif op == "cp.async.wait_all":
        e.line("async_commit(G)")
        e.line("wait_group(G, G.copies, 0)")
    elif op.startswith("cp.async.mbarrier.arrive"):
        e.line(f"async_arrive(G, {e.mask}, {e.address(o[0])}, {'noinc' in op})")
    elif op.startswith(("cp.async.ca", "cp.async.cg")):
        size = int(o[2], 0)
        if len(o) > 3 and e.width(o[3]) == 1:
            raise Unknown("ignore-src predicate")
        used = e.src(o[3], 32) if len(o) > 3 else str(size)
        where = f"{e.address(o[0])}, {e.address(o[1])}"
        e.line(f"async_copy(G, {e.mask}, {where}, {size}, {used}, {op.startswith('cp.async.cg')})")
    else:
        raise Unknown(op)


def _coordinates(e: Emitter, operand: str) -> str:
    """Expressions of tensor map and coordinates of `[map, {x, y}]`."""
    m = re.fullmatch(r"\[\s*([^,]+),\s*(\{.*\})\s*\]", operand.strip(), re.S)
    if m is None:
        raise Unknown(f"tensor address {operand}")
    return f"{e.src(m[1], 64)}, {e.sources(m[2], 32)}"


def _tensor_copy(e: Emitter, op: str, o: list[str], reduction: str | None) -> None:
    if "im2col" in op or "tile::" in op:
        raise Unknown("load mode")
    if ".global.shared::cta" in op:
        place = _coordinates(e, o[0])
        e.line(f"tensor_store(G, {e.mask}, {e.address(o[1])}, {place}, {reduction!r})")
        return
    multicast = e.src(o[3], 16) if "multicast" in op else "None"
    where = f"{e.address(o[0])}, {_coordinates(e, o[1])}, {e.address(o[2])}"
    e.line(f"tensor_load(G, {e.mask}, {where}, {multicast})")


def _bulk_copy(e: Emitter, op: str, o: list[str], reduction: object) -> None:
    if ".cp_mask" in op or "ignore_oob" in op:
        raise Unknown("byte mask")
    what = f"G, {e.mask}, {e.address(o[0])}, {e.address(o[1])}, {e.src(o[2], 32)}"
    if ".global.shared::cta" in op:
        e.line(f"bulk_store({what}, {reduction!r})")
    elif ".shared::cluster.shared::cta" in op:
        e.line(f"bulk_exchange({what}, {e.address(o[3])}, {reduction!r})")
    elif reduction is None and (".shared::cta.global" in op or ".shared::cluster.global" in op):
        multicast = e.src(o[4], 16) if "multicast" in op else "None"
        e.line(f"bulk_load({what}, {e.address(o[3])}, {multicast})")
    else:
        raise Unknown(op)


@emits("call")
def call(e: Emitter, ins: PtxInstruction) -> None:
    """vprintf and __assertfail of the CUDA runtime; their arguments are in local memory."""
    name = next((o for o in ins.operands if not o.startswith("(")), "")
    lists = [items(o) for o in ins.operands if o.startswith("(")]
    offsets: dict[str, int] = e.program.local_offset
    if name == "vprintf":
        result = offsets[lists[0][0]] if len(lists) > 1 else None
        text, values = (offsets[x] for x in lists[-1])
        e.line(f"vprintf(G, {e.mask}, {text}, {values}, {result})")
    elif name == "__assertfail":
        message, file, line, function = (offsets[x] for x in lists[-1][:4])
        e.line(f"assertfail(G, {e.mask}, {message}, {file}, {line}, {function})")
    else:
        raise Unknown(f"an external, recursive or indirect call: {name!r}")


@emits("wgmma")
def wgmma(e: Emitter, ins: PtxInstruction) -> None:
    """wgmma.mma_async and its fence, commit and wait."""
    if e.mask is not None:
        e.line("refuse_mask(G, m)")
    kind = ins.parts[1]
    if kind == "fence":
        e.line("G.tracker.wgmma_fence()")
    elif kind == "commit_group":
        e.line(f"if not wgmma_commit(G): return {BLOCKED}")
    elif kind == "wait_group":
        e.line(f"wgmma_wait(G, {int(ins.operands[0], 0)})")
    elif kind == "mma_async" and "sp" not in ins.parts:
        _wgmma_issue(e, ins)
    else:
        raise Unknown(kind)


def _wgmma_shape(shape: str, d_type: str, a_type: str, b_type: str) -> tuple[int, int]:
    """N and K of a wgmma's shape; refuses shapes that do not exist for the types."""
    m = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if m is None:
        raise Unknown(shape)
    n, k = int(m[1]), int(m[2])
    depth, results, others = _WGMMA.get(a_type, (0, (), ()))
    step = 16 if d_type == "s32" and n > 32 else 8
    if k != depth or d_type not in results or b_type not in others or n % step or not 8 <= n <= 256:
        raise Unknown("no wgmma of this shape and these types")
    return n, k


def _wgmma_issue(e: Emitter, ins: PtxInstruction) -> None:
    program = e.program
    shape, *types = [p for p in ins.parts[2:] if p not in ("sync", "aligned")]
    saturates = types[0] == "satfinite"
    d_type, a_type, b_type = types[saturates:]
    n, k = _wgmma_shape(shape, d_type, a_type, b_type)
    if saturates and d_type != "s32":
        raise Unknown("satfinite")
    registers = tuple(items(ins.operands[0]))
    a, b, scale_d, *immediate = ins.operands[1:]
    in_registers = a.startswith("{")
    flags = [int(f, 0) for f in immediate]
    signs = (1, 1) if d_type == "s32" else tuple(flags[:2])
    majors = flags[2:] if a_type in ("f16", "bf16") else []
    majors = ([0] if in_registers else []) + majors
    trans = (bool(majors[0]), bool(majors[1])) if len(majors) > 1 else (False, False)
    where: object = tuple(program.slots[r] for r in registers if r in program.slots)
    if registers in program.accumulators:
        where = program.accumulators.index(registers)
    form = (n, k, d_type + saturates * ".satfinite", a_type, b_type, signs, trans)
    left = repr(tuple(program.slots[r] for r in items(a))) if in_registers else e.src(a, 64)
    e.line(f"wgmma_issue(G, {where!r}, {left}, {e.src(b, 64)}, {e.src(scale_d, 1)}, {form!r})")
