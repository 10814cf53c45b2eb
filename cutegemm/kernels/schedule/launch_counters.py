# SPDX-License-Identifier: Apache-2.0
"""Counters in device memory that a run finds zero and leaves zero, so that no launch has to clear them.

Whoever counts last wraps the counter by counting: nobody resets it, and nobody has to come after the last. A
launch has its counters for itself (`running.backends.counters`): those before it on its stream have ended when it
first counts.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass._mlir.dialects import llvm


def count_up(counter: Any, last: Any, order: str) -> Any:
    """How many counted before this one; counting as number `last`, from zero, makes the counter zero again.

    Args:
        counter: pointer to an Int32 in global memory.
        order: of memory, "relaxed" or "acq_rel".

    Source: PTX ISA 9.0, atom (inc).
    """
    count = llvm.inline_asm(
        cutlass.Int32.mlir_type,
        [counter.llvm_ptr, cutlass.Int32(last).ir_value()],
        f"atom.{order}.gpu.global.inc.u32 $0, [$1], $2;",
        "=r,l,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return cutlass.Int32(count)
