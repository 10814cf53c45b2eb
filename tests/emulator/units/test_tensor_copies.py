# SPDX-License-Identifier: Apache-2.0
"""Tensor copies of every rank, with boxes that overhang on either side (PTX ISA 9.0, 9.7.9.27)."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator import Buffer, Launch, Module, Options, launch
from cutegemm.emulator.state.tensors import TensorMap, encode
from tests.support.emulator_launch import HEADER, aligned

EXTENTS = (24, 5, 4, 3, 3)  # of the tensor, innermost first
BOX = (8, 3, 2, 2, 2)
TYPES = {"f32": np.float32, "u32": np.uint32, "f16": np.float16}


def kernel_text(rank: int, store: str) -> str:
    """A box loaded from one tensor and stored to another."""
    coordinates = ", ".join(f"%r{10 + i}" for i in range(rank))
    to = ", ".join(f"%r{20 + i}" for i in range(rank))
    loads = " ".join(
        f"ld.param.u32 %r{10 + i}, [at+{4 * i}]; ld.param.u32 %r{20 + i}, [to+{4 * i}];" for i in range(rank)
    )
    return f"""{HEADER}
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128], .param .align 4 .b8 at[20],
 .param .align 4 .b8 to[20], .param .u32 bytes)
{{
 .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
 mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; ld.param.u32 %r4, [bytes]; {loads}
 mov.b64 %rd1, source; cvta.param.u64 %rd2, %rd1; mov.b64 %rd3, target; cvta.param.u64 %rd4, %rd3;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
 prefetch.tensormap [%rd2];
 mbarrier.init.shared.b64 [%r1], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r1], %r4;
 cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes
  [%r1+1024], [%rd2, {{{coordinates}}}], [%r1];
LOOP:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra LOOP;
 {store.format(rank=rank)} [%rd4, {{{to}}}], [%r1+1024];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
 ret;
}}
"""


def tensor(values: np.ndarray, kind: str, rank: int) -> bytes:
    """Tensor map of a packed array whose innermost extent comes last."""
    item = values.itemsize
    strides = tuple(item * int(np.prod(EXTENTS[: i + 1])) for i in range(rank - 1))
    return encode(TensorMap(values.ctypes.data, kind, EXTENTS[:rank], strides, BOX[:rank]))


STORES = {  # how the box is put back -> definition on what was there and what comes
    "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group": lambda old, new: new,
    "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group": lambda old, new: old + new,
    "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.max.tile.bulk_group": np.maximum,
}


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("store", list(STORES), ids=["store", "add", "max"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_boxes_of_every_rank(rank, store, kind, policy):
    """What lies outside the source reads as zero, what lies outside the target is not written."""
    rng = np.random.default_rng(rank)
    shape, count = EXTENTS[:rank][::-1], int(np.prod(EXTENTS[:rank]))
    source, target = (aligned(count, TYPES[kind]).reshape(shape) for _ in range(2))
    source[...], target[...] = rng.integers(1, 50, shape), rng.integers(1, 50, shape)
    step = 16 // source.itemsize  # a box starts at a multiple of 16 bytes
    at = (2 * step if rank == 1 else -step, *(-1, 3, 2, 1)[: rank - 1])
    to = (20 // step * step, *(3, -1, 1, 2)[: rank - 1])
    want = target.copy()
    for index in np.ndindex(BOX[:rank][::-1]):
        i = index[::-1]
        a, b = ([c + d for c, d in zip(corner, i, strict=True)] for corner in (at, to))
        inside = lambda x: all(0 <= v < n for v, n in zip(x, EXTENTS))
        value = source[tuple(a[::-1])] if inside(a) else source.dtype.type(0)
        if inside(b):
            want[tuple(b[::-1])] = STORES[store](target[tuple(b[::-1])], value)
    number = lambda x: int(x % 2**32).to_bytes(4, "little")
    pad = (0,) * (5 - rank)
    size = int(np.prod(BOX[:rank])) * source.itemsize
    params = [
        tensor(source, kind, rank),
        tensor(target, kind, rank),
        b"".join(map(number, (*at, *pad))),
        b"".join(map(number, (*to, *pad))),
        number(size),
    ]
    what = Launch(
        grid=(1, 1, 1),
        block=(32, 1, 1),
        smem_bytes=4096,
        params=params,
        buffers=[Buffer(x.ctypes.data, x.nbytes) for x in (source, target)],
    )
    report = launch(Module.parse(kernel_text(rank, store)), what, Options(policy=policy, races=True))
    assert np.array_equal(target, want)
    assert not report.findings, [str(f) for f in report.findings]


PADDED = f"""{HEADER}
.extern .shared .align 128 .b8 dyn[];
.visible .entry k(.param .align 64 .b8 target[128], .param .u32 row)
{{{{
 .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
 mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1;
 mov.b64 %rd1, target; cvta.param.u64 %rd2, %rd1; ld.param.u32 %r3, [row];
 st.shared.u32 [%r2], %r0; fence.proxy.async.shared::cta; bar.sync 0;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {{{{0, %r3}}}}], [%r1];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
 ret;
}}}}
"""


@pytest.mark.parametrize("row, found", [(4, []), (8, []), (2, ["uninitialised read"])])
def test_rows_that_a_store_clips_need_not_be_written(row, found):
    """A box of 8 rows of which 4 were written: silent where the rest overhangs the tensor of 8 rows, else a finding."""
    target = aligned(64, np.uint32).reshape(8, 8)
    made = TensorMap(target.ctypes.data, "u32", (8, 8), (32,), (8, 8))
    what = Launch(
        grid=(1, 1, 1),
        block=(32, 1, 1),
        smem_bytes=256,
        params=[encode(made), row.to_bytes(4, "little")],
        buffers=[Buffer(target.ctypes.data, target.nbytes)],
    )
    report = launch(Module.parse(PADDED.format()), what, Options(races=True))
    assert [f.kind for f in report.findings] == found
