# SPDX-License-Identifier: Apache-2.0
"""L2 eviction hints.

Source: PTX ISA 9.0, createpolicy.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm


def hint(first: bool) -> dict[str, Any]:
    """Further arguments of `cute.copy` for a TMA atom: none, or the policy by which L2 evicts these bytes first."""
    return {"cache_policy": evicted_first()} if first else {}


def evicted_first() -> Any:
    """The policy by which L2 evicts bytes first."""
    created = llvm.inline_asm(
        ir.IntegerType.get_signless(64),
        [],
        "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;",
        "=l",
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return cutlass.Int64(created)
