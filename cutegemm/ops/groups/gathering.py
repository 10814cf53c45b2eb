# SPDX-License-Identifier: Apache-2.0
"""`rows=` of `grouped_mm`: the kernel gathers rows of A while loading, or torch copies them before the launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import direct
from cutegemm.ops.entry_points import server_of
from cutegemm.ops.fallback import HALF
from cutegemm.ops.products import BACKENDS, is_compiling
from cutegemm.planning.grouped import INDEXED_LOAD
from cutegemm.running.arguments.describe import MULTIPLIED
from cutegemm.running.groups import check_index
from cutegemm.running.numerics import group_reference
from cutegemm.spec import AUTO, GemmSpec

WORD = 16  # bytes of one cp.async


def check_of_rows(name: str, a: Any, b: Any) -> None:
    """Refuse an option that only groups of rows have.

    Raises:
        InputError: the operands have another form; the error names the option, `name`.
    """
    for field, x in (("a", a), ("b", b)):
        check_tensor(field, x)
        if x.dtype not in MULTIPLIED:
            as_dtype(x.dtype, f"{field}.dtype")
            raise field_error(InputError, f"{field}.dtype", x.dtype, "no kernel supports it")
    if (a.dim(), b.dim()) != (2, 3):
        raise InputError("needs groups of rows: a (M, K) and b (G, K, N)", field=name)


def gathered(a: Tensor, rows: Any) -> Tensor:
    """The rows of a matrix by index, (R, K); an out-of-range index gives zeros.

    Raises:
        InputError: `rows` is not a tensor of indices on a's device, or under CUTEGEMM_CHECK=1 an index is out of range.
    """
    check_index("rows", rows, a.shape[0], a)
    return group_reference.gathered(a, rows)


def gathers(a: Any, b: Any, rows: Any, spec: Any, fallback: str) -> bool:
    """Whether the kernel gathers the rows of A itself: the call is direct, and spec and alignment allow it.

    Raises:
        InputError: `rows` is not a tensor of indices on a's device, or under CUTEGEMM_CHECK=1 an index is out of range.
    """
    asked = spec.a_load if isinstance(spec, GemmSpec) else AUTO
    if asked not in (AUTO, INDEXED_LOAD) or is_compiling() or not direct(a, b):
        return False
    if asked == AUTO and not (a.stride(1) == 1 and all(x.dtype in HALF and _in_words(x) for x in (a, b))):
        return False
    check_index("rows", rows, a.shape[0], a)
    server = server_of(a.device, fallback, "cutegemm.grouped_mm")
    runs_kernels = server != "torch" and BACKENDS[server] != "reference"
    # torch also copies by indices that are not contiguous
    indexed = asked == INDEXED_LOAD or rows.is_contiguous()
    return runs_kernels and indexed and all(x.numel() for x in (a, b, rows))


def _in_words(x: Tensor) -> bool:
    """Whether each contiguous row or column of a matrix starts at a multiple of 16 bytes."""
    strides = [stride for stride, extent in zip(x.stride(), x.shape) if stride != 1 and extent > 1]
    return not any(offset % WORD for offset in (x.data_ptr(), *(s * x.element_size() for s in strides)))


__all__ = ["check_of_rows", "gathered", "gathers"]
