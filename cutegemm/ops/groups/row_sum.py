# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by index: of the rows that an index names (`sum_rows`), and into the rows that it names (`add_rows`).

`kernels.sum_rows` computes the former on a Hopper GPU, torch's functions all others. Compiled code calls the ops
`cutegemm::sum_rows` and `cutegemm::add_rows`, so that it has the same bits as eager mode.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from cutegemm.config import RowSumConfig
from cutegemm.config.helpers import MOST_TERMS, SUM_THREADS
from cutegemm.dtypes import DType, as_dtype
from cutegemm.launch_layout import layout_of
from cutegemm.ops.compiled import TAGS, described
from cutegemm.ops.dispatch import DEVICES, below, direct, recorded, recording, redispatched
from cutegemm.ops.fallback import untouched
from cutegemm.ops.gradients.autograd import Product
from cutegemm.ops.serve import hopper
from cutegemm.running import tangents
from cutegemm.running.arguments.describe import MULTIPLIED, OPERANDS
from cutegemm.running.backends.helper_launch import Launch, on_gpu
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.groups import inside

WORD = 16  # bytes of a load
WARP_SPREAD = 5  # log2 of the threads of a warp
MOST = 2**31 - 2**11  # rows of the result, and words of a row; a CTA adds a few to them in 32 bits
_compiling = torch.compiler.is_compiling
library = torch.library.Library("cutegemm", "FRAGMENT")
for _form in (
    "sum_rows(Tensor x, Tensor index) -> Tensor",
    "add_rows(Tensor x, Tensor index, SymInt n) -> Tensor",
):
    library.define(_form, tags=TAGS)


def row_sum(x: Tensor, index: Tensor) -> Tensor:
    """The sum of the rows of x that each row of `index` names, (T, N), in a tensor of its own.

    The terms are added in fp32, in the order of `index`, and the sum is rounded once. One term is copied bit by bit.

    Args:
        x: (R, N).
        index: (T, k), int32 or int64, all in [0, R). The kernel reads zeros for another index; torch refuses it.
    """
    if _compiling() and not untouched():
        found: Tensor = torch.ops.cutegemm.sum_rows(x, index)
        return found
    return _computed(x, index)


def _computed(x: Tensor, index: Tensor) -> Tensor:
    """`row_sum` outside of graphs."""
    found = launched(x, index)
    if found is not None:
        return found
    if index.shape[1] == 1:
        return x.index_select(0, index.view(-1))
    return torch.embedding(x, index).sum(1)


def launched(x: Tensor, index: Tensor) -> Tensor | None:
    """The kernel's result; None except on a Hopper GPU, in eager mode, without autograd, and where it `fits`."""
    if direct(x, index) and hopper(x.device) and not recording(x) and fits(x, index):
        return sum_by(on_gpu, x, index)
    return None


def fits(x: Tensor, index: Tensor) -> bool:
    """Whether the kernel supports the tensors of a call: their types, and rows of whole 16-byte words."""
    if not (x.numel() and index.numel() and index.is_contiguous() and index.device == x.device):
        return False
    (rows, columns), (sums, terms), size = x.shape, index.shape, x.element_size()
    if index.dtype not in (torch.int32, torch.int64) or terms > MOST_TERMS:
        return False
    if x.dtype not in (MULTIPLIED if terms == 1 else OPERANDS) or x.is_neg():
        return False
    if x.stride(1) != 1 or any(n % WORD for n in (columns * size, x.stride(0) * size, x.data_ptr())):
        return False
    words = columns * size // WORD
    return rows < 2**31 and max(words, sums) <= MOST and _ctas(words, sums, terms) < 2**31


def sum_by(launch: Launch, x: Tensor, index: Tensor) -> Tensor:
    """`row_sum` by the kernel.

    Args:
        launch: the function that launches it.
        x, index: on a GPU, or on a CPU for the emulator; `fits` is true.
    """
    found = x.new_empty(index.shape[0], x.shape[1])
    config = _config(x.dtype, index.shape[1], index.dtype)
    groups = _groups(x.shape, x.stride(0), x.element_size(), index.shape[0])
    launch(config, groups, {"source": x, "index": index, "target": found})
    return found


@lru_cache(256)
def _config(dtype: torch.dtype, terms: int, index: torch.dtype) -> RowSumConfig:
    """The config of a call's kernel. One kernel copies rows of every type."""
    held = DType.BF16 if terms == 1 else as_dtype(dtype)
    return RowSumConfig(dtype=held, terms=terms, wide=index == torch.int64)


@lru_cache(1024)
def _groups(shape: tuple[int, int], pitch: int, size: int, sums: int) -> tuple[Any, Any]:
    """The launch's groups of extents and strides."""
    words = shape[1] * size // WORD
    layout = layout_of(RowSumConfig(dtype=DType.BF16, terms=1))
    extents = {"rows": shape[0], "words": words, "sums": sums, "spread": spread(words)}
    return layout["shape"].pack(extents), layout["strides"].pack({"source": pitch * size // WORD})


def spread(words: int) -> int:
    """log2 of the threads side by side along a row of `words` words: with fewest idle ones, a warp's at least."""
    most = min((words - 1).bit_length(), SUM_THREADS.bit_length() - 1)
    return min(range(min(most, WARP_SPREAD), most + 1), key=lambda x: (-(-words >> x) << x, -x))


@lru_cache(1024)
def _ctas(words: int, sums: int, terms: int) -> int:
    """CTAs of a launch."""
    log2 = spread(words)
    high = (SUM_THREADS >> log2) * RowSumConfig(dtype=DType.BF16, terms=terms).rows
    return -(-words >> log2) * -(-sums // high)


def added(y: Tensor, scatter: Tensor, count: int) -> Tensor:
    """(count, N) in fp32: row i of y (R, N) is added to row scatter[i], in the order of i.

    On a GPU a single column is added in torch's order, which is the same on every run.

    Args:
        scatter: (R,), int32 or int64. A row with an index outside [0, count) is dropped.
    """
    found: Tensor = torch.ops.cutegemm.add_rows(y, scatter, count)
    return found


@uncompiled
def _added(y: Tensor, scatter: Tensor, count: int) -> Tensor:
    """`added` on real tensors, by the function of torch that adds in the order of i on their device."""
    index, good = inside(scatter, count)
    # an out-of-range index adds to an extra row, which is dropped
    target, y = torch.where(good, index, count), y.float()
    sums = y.new_zeros(count + 1, y.shape[1])
    # index_put_ sorts on a GPU, and uses atomics on a CPU; index_add_ uses atomics on a GPU
    found = sums.index_put_((target,), y, accumulate=True) if y.is_cuda else sums.index_add_(0, target, y)
    return found[:count]


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """The rows of x (M, N) by index, (R, N); an out-of-range index gives zeros.

    The gradient of x is added in fp32, in the order of `index`, and rounded once.

    Args:
        index: (R,), int32 or int64.
    """
    if not x.shape[0]:
        return x.new_zeros(index.shape[0], x.shape[1])
    kept, good = inside(index, x.shape[0])
    return torch.where(good[:, None], torch.ops.cutegemm.sum_rows(x, kept[:, None]), x.new_zeros(()))


class _Sum(_SingleLevelFunction):
    """A call of `sum_rows` that autograd records."""

    _compiled_autograd_key = Product._compiled_autograd_key

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows, ctx.dtype = x.shape[0], x.dtype
        found: Tensor = below(torch.ops.cutegemm.sum_rows.default, x, index)
        return found

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        """The gradient of x: each row of `above` is added to the rows that were its terms."""
        (index,) = ctx.saved_tensors
        each = above if index.shape[1] == 1 else above.repeat_interleave(index.shape[1], 0)
        return added(each, index.reshape(-1), ctx.rows).to(ctx.dtype), None


class _Add(_SingleLevelFunction):
    """A call of `add_rows` that autograd records."""

    _compiled_autograd_key = Product._compiled_autograd_key

    @staticmethod
    def forward(ctx: Any, y: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.dtype = y.dtype
        found: Tensor = below(torch.ops.cutegemm.add_rows.default, y, index, count)
        return found

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        """The gradient of y: of each row, the row of `above` that it was added to."""
        return rows_of(above, *ctx.saved_tensors).to(ctx.dtype), None, None


def _differentiated(op: Any, record: Any) -> Any:
    """An op where autograd sees it, recorded by `record`."""

    @uncompiled
    def of_op(keyset: Any, x: Tensor, *others: Any) -> Any:
        """The op's result.

        Raises:
            InputError: x has a tangent, which would be lost.
        """
        tangents.refuse((("x", x),))
        return recorded(record, x, *others) if recording(x) else redispatched(op, keyset, x, *others)

    return of_op


def _mapped(op: Any) -> Any:
    """The vmap rule of an op: one call per element of the batch."""

    def rule(info: Any, in_dims: Any, x: Tensor, index: Tensor, *others: Any) -> Any:
        pairs = zip(*(_elements(t, dim, info.batch_size) for t, dim in zip((x, index), in_dims)))
        return torch.stack([op(*pair, *others) for pair in pairs]), 0

    return rule


def _elements(x: Tensor, dim: int | None, count: int) -> tuple[Tensor, ...]:
    """The elements of a mapped tensor, or an unmapped tensor for each."""
    return (x,) * count if dim is None else x.unbind(dim)


@uncompiled
def _op(x: Tensor, index: Tensor) -> Tensor:
    return _computed(x, index)


def _register() -> None:
    ops: Any = torch.ops.cutegemm
    record: Any
    for op, record, real, fake in (
        (ops.sum_rows, _Sum, _op, lambda x, index: x.new_empty(index.shape[0], x.shape[1])),
        (ops.add_rows, _Add, _added, lambda x, _, n: x.new_empty(n, x.shape[1], dtype=torch.float32)),
    ):
        name = op.default.name()
        for device in DEVICES:
            library.impl(name, real, device.upper())
        library.impl(name, _differentiated(op.default, record.apply), "Autograd", with_keyset=True)
        torch.library.register_fake(name, described(op.default, real, fake), lib=library)
        torch.library.register_vmap(name, _mapped(op.default), lib=library)


_register()

__all__ = ["added", "fits", "launched", "row_sum", "rows_of", "sum_by"]
