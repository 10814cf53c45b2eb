# SPDX-License-Identifier: Apache-2.0
"""Cache hints of TMA copies: which lines L2 gives up first or last.

Source: PTX ISA 9.0, createpolicy.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm


def hint(how: str | None) -> dict[str, Any]:
    """What `cute.copy` of a TMA atom takes beside its tensors: a policy of evicting "first" or "last", or nothing."""
    if how is None:
        return {}
    created = llvm.inline_asm(
        ir.IntegerType.get_signless(64),
        [],
        f"createpolicy.fractional.L2::evict_{how}.b64 $0, 1.0;",
        "=l",
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return {"cache_policy": cutlass.Int64(created)}
