# SPDX-License-Identifier: Apache-2.0
"""The kernel that sums rows by index gives the bits of sums in fp32 in order, and writes nothing else."""

import math
import re

import pytest
import torch

from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Options
from cutegemm.ops.groups import row_sum
from cutegemm.running.backends.helper_launch import on_emulator

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
BITS = {2: torch.int16, 4: torch.int32}
POISON = 0x5A


def drawn(rows, columns, dtype):
    """Elements of many magnitudes, among them infinities, NaN and negative zeros."""
    draw = torch.Generator().manual_seed(rows * columns)
    x = torch.randn(rows, columns, generator=draw) * torch.exp(3 * torch.randn(rows, 1, generator=draw))
    x = x.to(dtype)
    if x.numel():
        x[0, :3], x[-1, :2], x[:, 5] = torch.tensor([math.inf, -math.inf, math.nan]), math.inf, -0.0
    return x


def named(sums, terms, rows, dtype):
    """Indices in any order, some of them outside [0, rows)."""
    draw = torch.Generator().manual_seed(sums + terms)
    index = torch.randint(0, max(rows, 1), (sums, terms), generator=draw)
    hostile = [
        -1,
        rows,
        -(2**31),
        2**31 - 1,
        *([2**40, -(2**40), 2**32, -(2**63)] if dtype == torch.int64 else []),
    ]
    flat = index.view(-1)
    for i, x in enumerate(hostile):
        flat[7 * i + 3 : 7 * i + 4] = x
    return index.to(dtype)


def in_order(x, index):
    """The sum in fp32 from the first term on, rounded once; an index outside adds zeros; one term is a copy."""
    good = ((index >= 0) & (index < x.shape[0]))[..., None]
    terms = torch.where(good, x[index.long().clamp(0, x.shape[0] - 1)], torch.zeros((), dtype=x.dtype))
    if index.shape[1] == 1:
        return terms[:, 0]
    total = torch.zeros(index.shape[0], x.shape[1])
    for j in range(index.shape[1]):
        total = total + terms[:, j].float()
    return total.to(x.dtype)


def bits(x, exact=False):
    """What two tensors must share: any NaN is one, unless it was copied."""
    x = x if exact else x.nan_to_num(12345.0, math.inf, -math.inf)
    return x.contiguous().view(BITS[x.element_size()])


def by_kernel(x, index):
    """The kernel's result, in the middle of a poisoned tensor of which the rest stays as it is; free of races."""
    assert row_sum.fits(x, index)

    def launch(config, groups, tensors):
        target = tensors["target"]
        whole = target.new_empty(len(target) + 2, target.shape[1])
        whole.view(torch.uint8).fill_(POISON)
        told = tensors | {"target": whole[1:-1]}
        for report in on_emulator(config, groups, told, Options(races=True, progress=False)):
            assert not report.findings, report.findings
        assert (whole.view(torch.uint8)[[0, -1]] == POISON).all()
        target.copy_(whole[1:-1])

    return row_sum.sum_by(launch, x, index)


CASES = [
    # sums, terms, rows, columns
    (1, 1, 1, 8),
    (129, 1, 40, 24),
    (131, 2, 70, 8),
    (37, 2, 5, 1032),
    (33, 3, 9, 264),
    (9, 8, 13, 2048),
    (7, 16, 30, 24),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "index"), [(BF16, torch.int32), (FP16, torch.int64)], ids=str)
def test_sums_have_the_bits_of_sums_in_order(case, dtype, index):
    """Rows of one word and of several CTAs, results that no CTA has whole, indices that name no row."""
    sums, terms, rows, columns = case
    x, index = drawn(rows, columns, dtype), named(sums, terms, rows, index)
    found = by_kernel(x, index)
    assert torch.equal(bits(found, terms == 1), bits(in_order(x, index), terms == 1))


def test_fp32_and_strided_rows():
    """Rows that are a part of wider ones, one row for all indices, and elements of four bytes."""
    index = named(21, 2, 18, torch.int32)
    wide = drawn(36, 72, FP32)
    for x in (wide[::2, 4:40], wide[:1, 8:16].expand(18, -1), wide.to(BF16)[:18, 8:32]):
        assert torch.equal(bits(by_kernel(x, index)), bits(in_order(x, index)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, BF16, FP32], ids=str)
def test_one_term_is_copied_bit_by_bit(dtype):
    """Also NaN and negative zeros, of any type, by one kernel."""
    x = torch.arange(-1024, 1024, dtype=torch.int16).mul(37).view(8, 256).view(dtype)
    index = torch.tensor([[7], [0], [-1], [3], [8], [3]])
    told = torch.where((index >= 0) & (index < 8), x.view(torch.int16)[index[:, 0].clamp(0, 7)], 0)
    assert torch.equal(by_kernel(x, index).view(torch.int16), told)


def test_a_sum_of_negative_zeros_is_positive():
    """As torch's sum is."""
    x, index = torch.full((2, 8), -0.0, dtype=BF16), torch.zeros(3, 2, dtype=torch.int32)
    assert not by_kernel(x, index).signbit().any() and not torch.embedding(x, index).sum(1).signbit().any()


@pytest.mark.parametrize(
    ("terms", "dtype"), [(1, torch.int64), (2, torch.int32), (8, torch.int32), (16, torch.int64)]
)
def test_all_words_are_requested_before_one_is_used(terms, dtype):
    """128-bit loads and stores, 96 KiB of loads in flight per SM and more, no spills."""
    config = row_sum._config(BF16, terms, dtype)
    kernel = kernel_cache.artifact(config)
    words = config.rows * terms
    loads = [x.start() for x in re.finditer(r"ld\.global\.v4", kernel.ptx)]
    assert len(loads) == words and len(re.findall(r"st\.global\.v4", kernel.ptx)) == config.rows
    assert loads[-1] < min(kernel.ptx.index(x) for x in ("st.global.v4", "add.f32") if x in kernel.ptx)
    assert not kernel.resources.spills and not kernel.resources.smem_bytes
    ctas = min(65_536 // (-(-kernel.resources.registers // 8) * 8 * 128), 16)
    assert ctas * 128 * words * 16 >= 96 << 10


@pytest.mark.parametrize(
    ("words", "log2"), [(1, 0), (3, 2), (32, 5), (33, 6), (96, 5), (128, 7), (129, 5), (256, 7)]
)
def test_few_threads_are_idle(words, log2):
    """Threads along a row: a power of two, a warp or more of a long row, and fewest of them beyond its end."""
    assert row_sum.spread(words) == log2


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, (4099, 8, 9001, 2048), (30_001, 1, 4096, 1032)], ids=str)
@pytest.mark.parametrize(("dtype", "index"), [(BF16, torch.int32), (FP16, torch.int64)], ids=str)
def test_bits_on_a_gpu(case, dtype, index):
    """A GPU's are those of sums in order."""
    sums, terms, rows, columns = case
    x, index = drawn(rows, columns, dtype), named(sums, terms, rows, index)
    found = row_sum.launched(x.cuda(), index.cuda()).cpu()
    assert torch.equal(bits(found, terms == 1), bits(in_order(x, index), terms == 1))
