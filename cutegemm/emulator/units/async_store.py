# SPDX-License-Identifier: Apache-2.0
"""st.async and red.async: stores into a cluster's shared memory that complete on an mbarrier.

They are not ordered with their thread's later accesses; who waits for the mbarrier sees them. They belong to the
generic proxy, so no proxy fence is asked for.

Source: PTX ISA 9.0, 9.7.9.12 (st.async), 9.7.13.8 (red.async).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.emulator.numbers.values import M32
from cutegemm.emulator.state.addresses import RANK_SHIFT
from cutegemm.emulator.state.memory import Fault, lane_of, locate
from cutegemm.emulator.units.atomics import atomic_update
from cutegemm.emulator.units.barriers import find
from cutegemm.emulator.units.bulk import complete

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value
    from cutegemm.emulator.state.group import Group


def store_async(
    group: Group,
    m: Mask,
    address: Value,
    values: Sequence[Value],
    size: int,
    barrier: Value,
    operation: str | None = None,
    kind: str = "",
) -> None:
    """One st.async (or, with an operation, red.async) per active lane, `values` of `size` bytes each."""
    token = None if group.tracker is None else group.tracker.issue("asynchronous store", generic=True)
    writes = []
    for lane in range(group.lanes) if m is None else np.flatnonzero(m).tolist():
        where, bar = lane_of(address, lane), find(group, lane_of(barrier, lane))
        region, offset = locate(group, None, where & M32, size * len(values), "shared")
        cta = group.cta.peers[(where & M32) >> RANK_SHIFT]
        if bar.cta is not cta:
            raise Fault("an asynchronous store and its mbarrier must lie in the same CTA's shared memory")
        if token is not None:
            token.write_cells(cta, offset, size * len(values), bar)
        writes.append((region.view(size), offset // size, [lane_of(v, lane) for v in values], bar))

    def finish() -> None:
        for view, at, numbers, bar in writes:
            for i, number in enumerate(numbers):
                old = int(view[at + i])
                view[at + i] = number if operation is None else atomic_update(operation, kind, old, [number])
            complete(bar, size * len(numbers), token)

    group.device.submit(finish)
