# SPDX-License-Identifier: Apache-2.0
"""The kernel of `quantize` gives the bits of torch's operations, whatever the layout and the elements."""

import math

import numpy as np
import pytest
import torch

from cutegemm.compiling.compiler import compile_config
from cutegemm.config import QuantizeConfig
from cutegemm.config.helpers import CHUNK
from cutegemm.dtypes import DType
from cutegemm.emulator import Options
from cutegemm.errors import PlanError
from cutegemm.ops.quantized import kernel
from cutegemm.ops.quantized.made import quantized, twins

pytestmark = pytest.mark.sliced

ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def drawn(shape, dtype):
    """Elements of many magnitudes; among them rows of zeros and of subnormals, infinities, NaN and negative zeros."""
    draw = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=draw) * torch.exp(4 * torch.randn((*shape[:-1], 1), generator=draw))
    x = x.to(dtype)
    x[..., 0, :], x[..., 1, 1], x[..., 2, 0] = 0, -0.0, 1e-40 if dtype == FP32 else 1e-7
    if shape[-2] > 5:
        x[..., 3, 7], x[..., 4, 0], x[..., 5, :] = math.inf, math.nan, 1e-40
    return x


def bits(x):
    """What two tensors of one type must share: NaN of fp32 is any NaN."""
    x = x.contiguous()
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x.nan_to_num(-1.0).view(torch.int32)


def same(one, other):
    """Values and scales, and how the latter lie."""
    steps = [[step for step, n in zip(x[1].stride(), x[1].shape) if n > 1] for x in (one, other)]
    return steps[0] == steps[1] and all(
        torch.equal(bits(x), bits(y)) for x, y in zip(one, other, strict=True)
    )


def by_kernel(x, kind, dtype, scale, exponents, twin=False, launched=None):
    """Values and scales by the kernel, of the transpose too for a twin, free of races; kinds that are launched."""

    def launch(config, *args):
        for report in kernel.on_emulator(config, *args, options=Options(races=True, progress=False)):
            assert not report.findings, report.findings
        if launched is not None:
            launched.append(config.kind)

    found, other = kernel.quantized_by(launch, x, kind, dtype, scale, exponents, twin)
    return (found, other) if twin else found


CASES = [
    ((130, 272), ROWS, E4M3, BF16, {}),
    ((130, 272), ROWS, E4M3, FP32, {"exponents": True}),
    ((130, 272), SQUARES, E5M2, FP16, {}),
    ((130, 272), SQUARES, INT8, BF16, {"exponents": True}),
    ((2, 70, 136), ROWS, INT8, FP16, {}),
    ((2, 70, 1400), "row", E4M3, BF16, {}),
    ((7, 272), "row", INT8, FP32, {}),
    ((7, 272), "row", E5M2, BF16, {}),
    ((3, 70_000), "row", E4M3, BF16, {}),
    ((3, 40_000), "row", E4M3, FP32, {}),
    ((70, 136), "tensor", E4M3, BF16, {}),
    ((2, 70, 136), "tensor", INT8, FP32, {}),
    ((70, 136), "tensor", E4M3, BF16, {"scale": 0.5}),
    *(((70, 136), "tensor", E5M2, FP32, {"scale": x}) for x in (1e-30, -1e30, 1e-41, math.inf, math.nan)),
    ((70, 136), "tensor", INT8, BF16, {"scale": -0.25}),
]


@pytest.mark.parametrize(("shape", "kind", "dtype", "source", "given"), CASES)
def test_bits_are_those_of_torch(shape, kind, dtype, source, given):
    """Every kind of scales, type and rank, and special values in each; scales that no computation gives."""
    x = drawn(shape, source)
    scale = None if "scale" not in given else torch.tensor(given["scale"])
    how = kind, dtype, scale, given.get("exponents", False)
    assert same(by_kernel(x, *how), quantized(x, *how))


TWINS = [
    (ROWS, E4M3, BF16, {}),
    (ROWS, INT8, FP32, {"exponents": True}),
    (SQUARES, E5M2, BF16, {"exponents": True}),
    (SQUARES, INT8, FP16, {}),
    ("row", E4M3, BF16, {}),
    ("row", INT8, FP32, {}),
    ("tensor", E5M2, BF16, {}),
    ("tensor", E4M3, FP16, {"scale": 0.5}),
]


@pytest.mark.parametrize(("kind", "dtype", "source", "given"), TWINS)
@pytest.mark.parametrize("shape", [(270, 136), (2, 70, 144)], ids=str)
def test_a_transpose_is_read_as_it_lies(shape, kind, dtype, source, given):
    """Rows of a matrix that is contiguous along M: the same bits, of groups whose ends are no multiples of tiles."""
    x = drawn(shape, source).mT
    scale = None if "scale" not in given else torch.tensor(given["scale"])
    how = kind, dtype, scale, given.get("exponents", False)
    assert same(by_kernel(x, *how), quantized(x, *how))


@pytest.mark.parametrize(("kind", "dtype", "source", "given"), TWINS)
@pytest.mark.parametrize("lies", ["rows", "columns", "batches"])
def test_twins_are_what_both_are_alone(lies, kind, dtype, source, given):
    """A matrix and its transpose of one read, whichever of them lies in rows; two where maxima are found first."""
    x = {
        "rows": lambda: drawn((270, 136), source),
        "columns": lambda: drawn((136, 270), source)[:, :264].mT,
        "batches": lambda: drawn((2, 70, 144), source),
    }[lies]()
    scale = None if "scale" not in given else torch.tensor(given["scale"])
    how = kind, dtype, scale, given.get("exponents", False)
    launched = []
    found = by_kernel(x, *how, twin=True, launched=launched)
    assert len(launched) == (1 if isinstance(kind, tuple) or given else 2)
    for one, other, alone in zip(found, twins(x, *how), (x, x.mT), strict=True):
        assert same(one, other) and torch.equal(bits(other[0]), bits(quantized(alone, *how)[0]))


def test_other_layouts_are_copied():
    """Unaligned rows and bases along either axis, strided columns, and K that is no multiple of eight."""
    x = drawn((70, 275), BF16)
    for view in (x, x[:, 1:273], x[:, :203].T, x[::2, :264], x[:, ::2]):
        assert same(by_kernel(view, ROWS, E4M3, None, False), quantized(view, ROWS, E4M3))
    for kind in (ROWS, SQUARES, "row", "tensor"):
        for one, other in zip(by_kernel(x, kind, E4M3, None, False, True), twins(x, kind, E4M3)):
            assert same(one, other)


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"kind": "1x128", "threads": 128, "chunks": 4}, 10),
        ({"kind": "row", "threads": 128, "chunks": 4}, 10),
        ({"kind": "tensor", "threads": 128, "chunks": 4}, 10),
        ({"kind": "128x128"}, 3),
        ({"kind": "1x128", "turned": True}, 3),
        ({"kind": "lines", "turned": True}, 3),
    ],
)
def test_ctas_share_an_sm(fields, least):
    """So many have 80 KiB of loads of 16-bit elements on their way, and their threads do not spill."""
    config = QuantizeConfig(source=DType.BF16, dtype=DType.FP8_E4M3, **fields)
    resources = compile_config(config).resources
    assert (
        config.residents >= least
        and config.residents * config.threads * config.chunks * CHUNK * 2 >= 80 << 10
    )
    assert resources.registers * config.threads * config.residents <= 65_536 and not resources.spills


def test_one_step_of_newton_rounds_quotients_of_16_bits():
    """The product with the inverse, corrected once: all mantissas of bf16, drawn ones of scales."""
    draw = np.random.default_rng(0)
    scale = draw.integers(1 << 23, 1 << 24, (20_000, 1)).astype(np.float32)
    x = np.arange(128, 256, dtype=np.float32)[None] * np.float32(2.0**16)
    inverse = np.float32(1) / scale
    first = x * inverse
    # products and remainders of 24 bits are exact in fp64
    rest = (first.astype(np.float64) * scale - x).astype(np.float32)
    found = (first - rest.astype(np.float64) * inverse).astype(np.float32)
    assert (found == x / scale).all() and (first != x / scale).any()


REFUSED = [
    ({"source": DType.INT8}, "source"),
    ({"source": "bf16"}, "source"),
    ({"dtype": DType.BF16}, "dtype"),
    ({"kind": "column"}, "kind"),
    ({"threads": 96}, "threads"),
    ({"threads": 256.0}, "threads"),
    ({"chunks": 2.0}, "chunks"),
    ({"chunks": 0}, "chunks"),
    ({"kind": "row", "chunks": 9}, "chunks"),
    ({"kind": "128x128", "chunks": 4}, "chunks"),
    ({"kind": "128x128", "threads": 512}, "chunks"),
    ({"kind": "128x128", "threads": 128, "chunks": 4}, "threads"),
    ({"kind": "row", "exponents": True}, "exponents"),
    ({"kind": "row", "turned": True}, "turned"),
    ({"kind": "row", "plain": False}, "plain"),
    ({"plain": False}, "plain"),
    ({"turned": "yes"}, "turned"),
    ({"turned": True, "threads": 512, "chunks": 8}, "threads"),
    ({"turned": True, "chunks": 4}, "chunks"),
    ({"family": "finish"}, "family"),
    # two rows of a thread share a word of maxima; a third would be left out, and one alone has no word
    *(({"chunks": x}, "chunks") for x in (1, 3, 5, 7)),
    ({"kind": "amax_lines", "source": DType.FP16, "chunks": 3}, "chunks"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED)
def test_a_config_that_no_kernel_has_is_refused(fields, field):
    """Types, kinds, and a tile that the threads do not hold; with the nearest legal value it can be made."""
    given = {"source": DType.BF16, "dtype": DType.FP8_E4M3, "kind": "1x128"} | fields
    with pytest.raises(PlanError) as e:
        QuantizeConfig(**given)
    assert e.value.field == field and e.value.value == given.get(field, e.value.value)
    QuantizeConfig(**given | {field: e.value.nearest})


def test_an_odd_number_of_rows_is_legal_where_no_maxima_share_a_word():
    """Maxima of fp32 rows have a word each, and kinds of one scale per CTA combine all rows of a thread."""
    for kind in ("1x128", "amax_lines", "row", "lines", "tensor"):
        config = QuantizeConfig(source=DType.FP32, dtype=DType.INT8, kind=kind, threads=128, chunks=1)
        assert compile_config(config).resources.spills == 0
    for kind in ("row", "lines", "tensor", "amax", "given"):
        assert QuantizeConfig(source=DType.BF16, dtype=DType.INT8, kind=kind, chunks=3).rows == 48


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "kind", "dtype", "source", "given"), CASES[::3])
def test_bits_on_a_gpu(shape, kind, dtype, source, given):
    """A GPU's are the CPU's."""
    x = drawn(shape, source)
    scale = None if "scale" not in given else torch.tensor(given["scale"])
    how = kind, dtype, scale, given.get("exponents", False)
    moved = None if scale is None else scale.cuda()
    found = quantized(x.cuda(), kind, dtype, moved, how[-1])
    assert same(tuple(y.cpu() for y in found), quantized(x, *how))
    for one, other in zip(twins(x.cuda(), kind, dtype, moved, how[-1]), twins(x, *how), strict=True):
        assert same(tuple(y.cpu() for y in one), other)
