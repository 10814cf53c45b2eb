# SPDX-License-Identifier: Apache-2.0
"""No warp specialisation: every warpgroup computes, one thread also loads."""

from cutegemm.families.abilities import Abilities
from cutegemm.families.family import Family, Roles

FAMILY = Family(
    name="multistage",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.multistage:MultistageGemm",
    plan="cutegemm.planning.tensor_core:plan_tensor_core",
    weigh="cutegemm.planning.why:weigh_tensor_core",
    abilities={
        "multistage": Abilities(
            loads=("tma",),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "per_tile"),
            consumers=(1, 2, 3),
        )
    },
    limits=Roles(producers=0, accumulators={1: 160, 2: 160, 3: 128}, shared_accumulators={1: 160, 2: 64}),
)
