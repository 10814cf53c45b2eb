# SPDX-License-Identifier: Apache-2.0
"""Groups of very different sizes: a launch in the tiles of small groups, and one in those of large ones.

The host does not know the sizes. Each launch reads the ends of all groups and computes those of its own sizes.
"""

from __future__ import annotations

import dataclasses

from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import MOST_ROWS, Multiply


def by_size(small: KernelPlan, large: KernelPlan, most: int) -> KernelPlan:
    """The plan of both launches.

    Args:
        small, large: plans of one launch over the same groups, without reductions. That of `small` zeroes the rows of
            no group.
        most: rows of the largest group that `small` computes.
    """
    (first,), (last,) = small.steps, large.steps
    assert isinstance(first, Multiply) and isinstance(last, Multiply) and first.groups and last.groups
    counted = {name: small.counter_bytes + offset for name, offset in last.counted.items()}
    steps = (
        dataclasses.replace(first, groups=dataclasses.replace(first.groups, sizes=(0, most))),
        dataclasses.replace(
            last, groups=dataclasses.replace(last.groups, sizes=(most + 1, MOST_ROWS)), counted=counted
        ),
    )
    tile = " x ".join(map(str, last.along_d(last.config.tile)))
    reason = f"groups of more than {most} rows have a launch of their own, in tiles of {tile}"
    return dataclasses.replace(
        small,
        steps=steps,
        reasons=(*small.reasons, reason),
        counter_bytes=small.counter_bytes + large.counter_bytes,
    )


__all__ = ["by_size"]
