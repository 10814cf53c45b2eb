# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by index: by `kernels.sum_rows` on a Hopper GPU, by torch's functions elsewhere.

Compiled code calls the op `cutegemm::sum_rows`, so that it runs the same kernel with the same bits.
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
from cutegemm.ops.dispatch import below, direct, recorded, recording, redispatched
from cutegemm.ops.fallback import untouched
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
library.define("sum_rows(Tensor x, Tensor index) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


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
    """(count, N) in fp32: row i of y is added to row scatter[i], in the order of i."""
    index, good = inside(scatter, count)
    # an out-of-range index adds to an extra row, which is dropped
    target = torch.where(good, index, count)
    sums = torch.zeros(count + 1, y.shape[1], dtype=torch.float32, device=y.device)
    return sums.index_put((target,), y.float(), accumulate=True)[:count]


class _Recorded(_SingleLevelFunction):
    """A call of the op that autograd records."""

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
        each = above.repeat_interleave(index.shape[1], 0)
        return added(each, index.reshape(-1), ctx.rows).to(ctx.dtype), None


_record: Any = _Recorded.apply  # type: ignore[attr-defined]


@uncompiled
def _differentiated(keyset: Any, x: Tensor, index: Tensor) -> Any:
    """The op where autograd sees it.

    Raises:
        InputError: x has a tangent, which would be lost.
    """
    tangents.refuse((("x", x),))
    if recording(x):
        return recorded(_record, x, index)
    return redispatched(torch.ops.cutegemm.sum_rows.default, keyset, x, index)


@uncompiled
def _op(x: Tensor, index: Tensor) -> Tensor:
    return _computed(x, index)


def _described(x: Tensor, index: Tensor) -> Tensor:
    """The op on fake tensors."""
    return x.new_empty(index.shape[0], x.shape[1])


for _key in ("CPU", "CUDA"):
    library.impl("sum_rows", _op, _key)
torch.library.register_fake("cutegemm::sum_rows", _described, lib=library)
library.impl("sum_rows", _differentiated, "Autograd", with_keyset=True)

__all__ = ["added", "fits", "launched", "row_sum", "sum_by"]
