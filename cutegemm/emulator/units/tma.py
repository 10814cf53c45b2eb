# SPDX-License-Identifier: Apache-2.0
"""Tensor copies of boxes between global and shared memory.

The completion policy decides when a copy becomes visible. Bytes outside the tensor read as zero and are not written.

Source: PTX ISA 9.0, 9.7.9.27 (tensor copies).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

from cutegemm.emulator.numbers.types import Chunks, Mask, Value
from cutegemm.emulator.numbers.values import signed
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import OFFSET_MASK, PARAM_WINDOW, Fault
from cutegemm.emulator.state.tensors import (
    GLOBAL_ALIGN,
    SHARED_ALIGN,
    STORE_CHUNK,
    Tensor,
    box_chunks,
    decode,
)
from cutegemm.emulator.units.atomics import reducer
from cutegemm.emulator.units.bulk import distinct, issue_load, issue_store, targets


def _tensor(group: WarpSet, address: int) -> Tensor:
    """The tensor of a map at a generic address; maps do not change during a launch."""
    device = group.device
    tensor = device.tensors.get(address)
    if tensor is None:
        region = device.params
        if address < PARAM_WINDOW:
            region = device.memory.find_all(address, 128, "tensor map")
        if address % 64:
            raise Fault(f"tensor map at {address:#x} is not 64-byte aligned")
        raw = region.data[address - region.base :][:128].tobytes()
        tensor = device.tensors[address] = Tensor(decode(raw), device.memory)
    return tensor


def _box(group: WarpSet, tensor: Tensor, at: tuple[int, ...], offset: int) -> Chunks:
    """The chunks of a box in shared memory; checks coordinates and address."""
    t, region = tensor.map, group.cta.shared
    if len(at) != len(t.dims):
        raise Fault(f"tensor copy with {len(at)} coordinates of a rank-{len(t.dims)} map")
    first = signed(at[0], 32)
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
    return box_chunks(offset, t.rows, t.inner_bytes, t.swizzle)


def tensor_load(
    group: WarpSet,
    m: Mask,
    destination: Value,
    tensor_map: Value,
    coordinates: Sequence[Value],
    barrier: Value,
    multicast: Value | None,
) -> None:
    """cp.async.bulk.tensor from global to shared memory of one or more CTAs of the cluster."""
    requests = distinct(group, m, destination, tensor_map, barrier, multicast, *coordinates)
    for d, address, bar, mask, *c in requests:
        tensor, at = _tensor(group, address), tuple(c)
        ctas, bars = targets(group, d, bar, mask)
        chunks = _box(group, tensor, at, d & OFFSET_MASK)
        token = group.tracker.issue("tensor load", m=m)
        if token.follows:
            reach = tensor.reach(at)
            token.loads_box(tensor.map.swizzle, reach is not None and prod(reach[1]) == tensor.map.box_bytes)
            if reach is not None:
                token.read_global(tensor.region, reach)
        group.device.watch.tensor_load(group, tensor, at, bars)
        issue_load(group, functools.partial(tensor.read, at), chunks, ctas, bars, token)


def tensor_store(
    group: WarpSet,
    m: Mask,
    source: Value,
    tensor_map: Value,
    coordinates: Sequence[Value],
    reduction: str | None,
) -> None:
    """cp.async.bulk.tensor (or cp.reduce) from shared to global memory."""
    for s, address, *c in distinct(group, m, source, tensor_map, *coordinates):
        tensor, at = _tensor(group, address), tuple(c)
        chunks = _box(group, tensor, at, s & OFFSET_MASK)
        token = group.tracker.issue("tensor store", m=m)
        if token.follows and (stored := tensor.stored_chunks(at, chunks, reduction)).size:
            token.read_shared(group.cta, stored)
        reach = tensor.reach(at, 1 if reduction else STORE_CHUNK)
        if reach is not None:
            token.write_global(tensor.region, reach, reduction is not None)
        group.device.watch.tensor_store(group, tensor, reach)
        reduce = reducer(reduction, tensor.map.kind, tensor.map.item) if reduction else None
        issue_store(group, chunks, token, functools.partial(tensor.write, at=at, reduce=reduce))
