# SPDX-License-Identifier: Apache-2.0
"""Planning the launch that adds up the parts of K that a kernel left, and applies the epilogue."""

from __future__ import annotations

import dataclasses
import math

from cutegemm.config import KernelConfig
from cutegemm.families.add_parts import FAMILY
from cutegemm.planning.epilogue import sliced
from cutegemm.planning.steps import AddParts, Multiply

# numbers that a thread adds up at most, where columns can be cut so finely
MOST_VALUES = 16
# parts that are worth a warpgroup of their own, and warpgroups at most
PARTS_EACH = 4
MOST_ADDERS = 4


def adding(
    config: KernelConfig, tiles: tuple[int, int, int], sms: int, *, in_turn: bool = False
) -> KernelConfig:
    """The kernel that adds up what a kernel leaves: its tiles in slices enough for all SMs.

    Args:
        config: of the product, with its epilogue.
        tiles: CTA tiles along (m, n, l).
        sms: of the device.
        in_turn: whether parts are added one after the other, as a cluster adds them; else several warpgroups each add
            up some that are neighbours.
    """
    whole = dataclasses.replace(
        config.draft,
        family=FAMILY.name,
        stages=1,
        splits=config.outer_parts,
        cluster_parts=1,
        epilogue_stages=1,
        input_stages=1,
        persistent=False,
        dynamic=False,
        raster="m",
        ctas_per_sm=1,
        early=(),
        adders=1 if in_turn else max(1, min(MOST_ADDERS, config.outer_parts // PARTS_EACH)),
    )
    most = max(-(-sms // (math.prod(tiles) * config.team)), config.tile_values // MOST_VALUES, 1)
    made = sliced(whole, most)
    # nothing but the epilogue's pieces in shared memory: all of them at once
    reads = any(x.load == "tma" for x in made.inputs)
    return KernelConfig.of(dataclasses.replace(made, input_stages=made.pieces if reads else 1))


def step(product: Multiply, config: KernelConfig, tiles: tuple[int, int, int]) -> AddParts:
    """The launch after a product, with the same arguments by name."""
    fields = {f.name: getattr(product, f.name) for f in dataclasses.fields(product)}
    fields |= {"config": config, "clusters": math.prod(tiles) * config.slices * config.team}
    return AddParts(**fields)
