# SPDX-License-Identifier: Apache-2.0
"""`rows=` of `grouped_mm`: the kernel gathers rows of A while loading, or they are copied before the launch."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.scaling import PLAIN
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import direct, recording
from cutegemm.ops.entry_points import server_of
from cutegemm.ops.fallback import HALF
from cutegemm.ops.groups.row_sum import launched, rows_of
from cutegemm.ops.products import BACKENDS, is_compiling
from cutegemm.planning.group_kernels import INDEXED_LOAD
from cutegemm.planning.grouped import copy_pays
from cutegemm.running import tangents
from cutegemm.running.arguments.call import Memo, identity
from cutegemm.running.arguments.describe import MULTIPLIED
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.groups import Groups, check_index, inside
from cutegemm.running.numerics import group_reference
from cutegemm.spec import AUTO, GemmSpec

WORD = 16  # bytes of one cp.async
# bytes of rows that are copied at a time: L2 still holds them when those of indices out of range are zeroed
BLOCK = 16 << 20
# whether a copy before the launch pays, by all that its prediction reads
_pays: Memo[bool] = Memo()


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

    The gradient of a is added in fp32, in the order of `rows`, and rounded once.

    Raises:
        InputError: `rows` is not a tensor of indices on a's device, under CUTEGEMM_CHECK=1 an index is out of range, or
            `a` has a tangent and requires a gradient.
    """
    check_index("rows", rows, a.shape[0], a)
    if recording(a):
        tangents.refuse((("a", a),))
        return rows_of(a, rows)
    if is_compiling() or not direct(a, rows) or not _in_rows_of_words(a):
        return group_reference.gathered(a, rows)
    found = launched(a, rows[:, None])
    return _copied(a, rows) if found is None else found


def gathers(a: Any, b: Any, rows: Any, spec: Any, fallback: str) -> bool:
    """Whether the kernel gathers the rows of A itself: the call is direct, and spec and alignment allow it.

    It does not where a copy before the launch is predicted to be faster, unless the spec requests the gather.

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
    if not (runs_kernels and indexed and all(x.numel() for x in (a, b, rows))):
        return False
    # with gradients the rows are copied after the call is parsed
    return asked == INDEXED_LOAD or recording(a, b) or not _copy_pays(a, b, rows, spec)


def _copy_pays(a: Tensor, b: Tensor, rows: Tensor, spec: GemmSpec | None) -> bool:
    """`planning.grouped.copy_pays` for a call, cached."""
    key = identity(a), identity(b), identity(rows), spec
    found = _pays.get(key)
    if found is None:
        found = _in_rows_of_words(a) and _predicted_to_pay(a, b, rows, spec)
        _pays.put(key, found)
    return found


def _predicted_to_pay(a: Tensor, b: Tensor, rows: Tensor, spec: GemmSpec | None) -> bool:
    """`_copy_pays` for a call whose answer is not cached."""
    # without the epilogue, which takes about as long in either kernel
    plain = GemmSpec() if spec is None else dataclasses.replace(spec, epilogue=AUTO)
    ends = torch.empty(b.shape[0], dtype=torch.int32, device=a.device)
    try:
        plan = GroupedGemm(plain, PLAIN).plan(a, b, Groups(offs=ends, rows=rows), {})
        return copy_pays(plan, _moved(a, rows, plan.device.l2_bytes))
    except GemmError:
        # the launch says what is wrong
        return False


def _moved(a: Tensor, rows: Tensor, l2_bytes: int) -> int:
    """Bytes that `_copied` reads and writes in device memory."""
    count, kept, size = rows.shape[0], a.shape[0], a.shape[1] * a.element_size()
    if count <= kept:
        return 2 * count * size
    # the other half of L2 is for rows that are being written
    read = 0 if kept * size <= l2_bytes // 2 else count
    return (2 * kept + read + count) * size


def _copied(a: Tensor, rows: Tensor) -> Tensor:
    """As `group_reference.gathered` for rows of whole words, in fewer passes over memory."""
    words, count, kept = a.view(torch.int64), rows.shape[0], a.shape[0]
    index, good = inside(rows, kept)
    if count > kept:
        # indices out of range name an added row of zeros: A has fewer rows to copy than the result has to zero
        padded = torch.cat([words, words.new_zeros(1, words.shape[1])])
        return padded.index_select(0, index.masked_fill_(~good, kept)).view(a.dtype)
    found = words.new_empty(count, words.shape[1])
    bad, step = ~good[:, None], max(BLOCK // (words.shape[1] * words.element_size()), 1)
    for block, of, outside in zip(found.split(step), index.split(step), bad.split(step), strict=True):
        torch.index_select(words, 0, of, out=block)
        block.masked_fill_(outside, 0)
    return found.view(a.dtype)


def _in_rows_of_words(a: Tensor) -> bool:
    """Whether a matrix has rows that are whole words, and a copy of them too."""
    extents = a.shape[1], a.stride(0), a.storage_offset()
    return a.numel() > 0 and a.stride(1) == 1 and not any(x * a.element_size() % WORD for x in extents)


def _in_words(x: Tensor) -> bool:
    """Whether each contiguous row or column of a matrix starts at a multiple of 16 bytes."""
    strides = [stride for stride, extent in zip(x.stride(), x.shape) if stride != 1 and extent > 1]
    return not any(offset % WORD for offset in (x.data_ptr(), *(s * x.element_size() for s in strides)))


__all__ = ["check_of_rows", "gathered", "gathers"]
