# SPDX-License-Identifier: Apache-2.0
"""Adds up parts of K that the launch before left in workspace, and applies the epilogue."""

from cutegemm.families.abilities import Abilities
from cutegemm.families.family import Family, Roles

FAMILY = Family(
    name="add_parts",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.add_parts:AddParts",
    abilities={
        "add_parts": Abilities(
            stores=("tma", "staged", "direct"),
            schedulers=("per_tile",),
            reductions=("launch",),
            consumers=(1, 2, 3),
        )
    },
    limits=Roles(producers=0, accumulators={1: 32, 2: 32, 3: 32}, multiplies=False),
)
