# SPDX-License-Identifier: Apache-2.0
"""Counters in device memory that a run finds zero and leaves zero, so that no launch has to clear them.

The last increment wraps the counter to zero, or the last cluster stores zero, so the host resets nothing. A launch
shares its counters with no other launch that is running (`running.backends.counters`): those before it on its stream
have ended when it first counts.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute


def count_up(counter: Any, last: Any, order: str) -> Any:
    """How many counted before this one; counting as number `last`, from zero, makes the counter zero again.

    Args:
        counter: pointer to an Int32 in global memory.
        order: of memory, "relaxed" or "acq_rel".

    Source: PTX ISA 9.0, atom (inc).
    """
    return cute.arch.inline_ptx(
        f"atom.{order}.gpu.global.inc.u32 {{$w0}}, [{{$r0}}], {{$r1}};",
        write_only_types=[cutlass.Int32],
        read_only_args=[counter, cutlass.Int32(last)],
    )
