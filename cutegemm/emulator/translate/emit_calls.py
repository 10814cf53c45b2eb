# SPDX-License-Identifier: Apache-2.0
"""Calls that could not be replaced by a function's body: of the run-time system's vprintf and __assertfail.

Source: PTX ISA 9.0, 9.7.12.5 (call).
"""

from __future__ import annotations

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.translate.emitter import Emitter, Unknown, emits


def _names(operand: str) -> list[str]:
    return [x.strip() for x in operand.strip("() ").split(",") if x.strip()]


@emits("call")
def call(e: Emitter, ins: PtxInstruction) -> None:
    """vprintf and __assertfail, whose arguments lie in local memory."""
    name = next((o for o in ins.operands if not o.startswith("(")), "")
    lists = [_names(o) for o in ins.operands if o.startswith("(")]
    offsets: dict[str, int] = e.program.local_offset
    if name == "vprintf":
        result = offsets[lists[0][0]] if len(lists) > 1 else None
        text, values = (offsets[x] for x in lists[-1])
        e.line(f"vprintf(G, {e.mask}, {text}, {values}, {result})")
    elif name == "__assertfail":
        message, file, line, function = (offsets[x] for x in lists[-1][:4])
        e.line(f"assertfail(G, {e.mask}, {message}, {file}, {line}, {function})")
    else:
        raise Unknown(f"no function {name!r} in this PTX")
