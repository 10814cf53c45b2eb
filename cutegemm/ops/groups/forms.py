# SPDX-License-Identifier: Apache-2.0
"""What a call of `grouped_mm` says of its groups: by which tensor, and in which form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cutegemm.errors import InputError, field_error

TAILS = ("zero", "undefined")


def ends_of(*given: Tensor | None) -> tuple[str, Any]:
    """(name, tensor) of what tells the groups; the name is empty where nothing does.

    Raises:
        InputError: more than one is given.
    """
    found = [
        (name, x) for name, x in zip(("offs", "cu_seqlens", "counts"), given, strict=True) if x is not None
    ]
    if len(found) > 1:
        rule = f"must not be given beside {found[0][0]}: one of offs, cu_seqlens and counts tells the groups"
        raise field_error(InputError, found[1][0], found[1][1], rule)
    return found[0] if found else ("", None)


def form_of(a: Any, b: Any, name: str, tail: Any) -> str:
    """How a call's groups lie, of `planning.grouped.FORMS`; "batches" of two batches of matrices without any.

    Raises:
        InputError: no form has such operands.
    """
    if not isinstance(tail, str) or tail not in TAILS:
        raise field_error(InputError, "tail", tail, f"must be one of {', '.join(TAILS)}", "zero")
    dims = (a.dim(), b.dim())
    if dims == (3, 3):
        if name in ("", "counts"):
            return "masked" if name else "batches"
        raise InputError("a batch of matrices for each group takes counts, (G,)", field=name)
    if dims not in ((2, 3), (2, 2)):
        rule = "a and b must be (M, K) and (G, K, N), (M, K) and (K, N), or (G, C, K) and (G, K, N)"
        raise field_error(
            InputError, "a.dim()" if a.dim() not in (2, 3) else "b.dim()", f"{dims[0]} and {dims[1]}", rule
        )
    if name in ("", "counts"):
        rule = "groups of rows or along K need offs, (G,), or cu_seqlens, (G + 1,)"
        raise field_error(InputError, name or "offs", None, rule)
    return "rows" if b.dim() == 3 else "depth"


__all__ = ["ends_of", "form_of"]
