# SPDX-License-Identifier: Apache-2.0
"""Tensor copies: boxes moved between global and shared memory.

A copy becomes visible when the device's completion policy lets it: at once, as late as the program allows, or at a
random moment between. Bytes outside the tensor read as zero and are not written.

Source: PTX ISA 9.0, 9.7.9.27 (tensor copies).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cutegemm.emulator.numbers.types import Chunks, Mask, Value
from cutegemm.emulator.state.clusters import CTA, MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Token
from cutegemm.emulator.state.memory import OFFSET_MASK, PARAM_WINDOW, Fault, MemoryRegion
from cutegemm.emulator.state.tensors import (
    GLOBAL_ALIGN,
    SHARED_ALIGN,
    STORE_CHUNK,
    Tensor,
    box_chunks,
    decode,
)
from cutegemm.emulator.units.atomics import reduce_bytes
from cutegemm.emulator.units.bulk import announce, complete, distinct, issue_store, ranks_of


def _tensor(group: WarpSet, address: int) -> Tensor:
    device = group.device
    tensor = device.tensors.get(address)
    if tensor is None:
        if address >= PARAM_WINDOW:
            start = address - PARAM_WINDOW
            raw = device.params.data[start : start + 128].tobytes()
        else:
            region = device.memory.find(address, address + 128)
            if region is None:
                raise Fault(f"tensor map at {address:#x}: {device.memory.describe(address)}")
            raw = region.data[address - region.base :][:128].tobytes()
        if address % 64:
            raise Fault(f"tensor map at {address:#x} is not 64-byte aligned")
        tensor = device.tensors[address] = Tensor(decode(raw), device.memory)
    return tensor


def _box_check(tensor: Tensor, at: tuple[int, ...], offset: int, region: MemoryRegion) -> None:
    t = tensor.map
    if len(at) != len(t.dims):
        raise Fault(f"tensor copy with {len(at)} coordinates of a rank-{len(t.dims)} map")
    first = (at[0] ^ 0x80000000) - 0x80000000
    if first * t.item % GLOBAL_ALIGN:
        raise Fault(
            f"illegal instruction: a box starts at element {first} of {t.kind}, "
            f"whose byte is not {GLOBAL_ALIGN}-byte aligned"
        )
    if offset % SHARED_ALIGN:
        raise Fault(f"tensor copy at shared offset {offset:#x} is not {SHARED_ALIGN}-byte aligned")
    if offset < region.first or offset + t.box_bytes > region.size:
        raise Fault(
            f"tensor copy of {t.box_bytes} bytes at shared offset {offset:#x} leaves shared memory "
            f"({region.size} bytes)"
        )


def tensor_load(
    group: WarpSet,
    m: Mask,
    destination: Value,
    tensor_map: Value,
    coordinates: Sequence[Value],
    barrier: Value,
    multicast: Value | None,
) -> None:
    """cp.async.bulk.tensor from global to shared, of this CTA or of several of the cluster."""
    for d, address, bar, mask, *c in distinct(
        group, m, destination, tensor_map, barrier, multicast, *coordinates
    ):
        tensor, at, offset = _tensor(group, address), tuple(c), d & OFFSET_MASK
        ranks, peers = ranks_of(d, mask), group.cta.peers
        if max(ranks) >= len(peers):
            raise Fault(f"multicast mask {mask:#x} names CTA {max(ranks)} of a cluster of {len(peers)}")
        _box_check(tensor, at, offset, group.cta.shared)
        token = group.tracker.issue("tensor load", m=m)
        chunks = box_chunks(offset, tensor.map.rows, tensor.map.inner_bytes, tensor.map.swizzle)
        bars = [b for r in ranks if (b := peers[r].mbarriers.get(bar & OFFSET_MASK)) is not None]
        if len(bars) < len(ranks):
            raise Fault(
                f"tensor load completes on shared offset {bar & OFFSET_MASK:#x}, where no mbarrier was initialised"
            )
        ctas = [peers[r] for r in ranks]
        if token.follows and (reach := tensor.reach(at)) is not None:
            token.read_global(tensor.region, reach)
        announce(token, ctas, bars, chunks)
        group.device.watch.tensor_load(group, tensor, at, bars)
        group.device.submit(functools.partial(_finish_load, tensor, at, chunks, ctas, bars, token))


def _finish_load(
    tensor: Tensor, at: tuple[int, ...], chunks: Chunks, ctas: list[CTA], bars: list[MBarrier], token: Token
) -> None:
    data = tensor.read(at).view("V16").ravel()
    for cta, bar in zip(ctas, bars, strict=True):
        cta.shared.view(16)[chunks] = data
        complete(bar, tensor.map.box_bytes, token)


def tensor_store(
    group: WarpSet,
    m: Mask,
    source: Value,
    tensor_map: Value,
    coordinates: Sequence[Value],
    reduction: str | None,
) -> None:
    """cp.async.bulk.tensor (or cp.reduce) from shared to global; finished by the bulk group's wait."""
    for s, address, *c in distinct(group, m, source, tensor_map, *coordinates):
        tensor, at, offset = _tensor(group, address), tuple(c), s & OFFSET_MASK
        t, reduce = tensor.map, None
        if reduction is not None:
            reduce = functools.partial(reduce_bytes, kind=t.kind, item=t.item, operation=reduction)
        _box_check(tensor, at, offset, group.cta.shared)
        chunks = box_chunks(offset, t.rows, t.inner_bytes, t.swizzle)
        token = group.tracker.issue("tensor store", m=m)
        if token.follows and (stored := tensor.stored_chunks(at, chunks, reduction)).size:
            token.read_shared(group.cta, stored)
        reach = tensor.reach(at, 1 if reduction else STORE_CHUNK)
        if reach is not None:
            token.write_global(tensor.region, reach, reduction is not None)
        group.device.watch.tensor_store(group, tensor, reach)
        write = functools.partial(tensor.write, at=at, reduce=reduce)
        issue_store(group, chunks, t.inner_bytes, token, write)
