# SPDX-License-Identifier: Apache-2.0
"""A producer warpgroup feeds consumer warpgroups, which share tiles ("cooperative") or take turns ("pingpong")."""

from cutegemm.families.abilities import THREAD_LOADS, Abilities
from cutegemm.families.family import Family, Roles

FAMILY = Family(
    name="warp_specialized",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.warp_specialized:WarpSpecializedGemm",
    plan="cutegemm.planning.tensor_core:plan_tensor_core",
    weigh="cutegemm.planning.why:weigh_tensor_core",
    abilities={
        "cooperative": Abilities(
            loads=("tma", *THREAD_LOADS),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "per_tile", "stream_k", "dynamic"),
            reductions=("none", "cluster", "workspace", "launch", "atomic"),
            consumers=(1, 2, 3),
            multicast=True,
        ),
        "pingpong": Abilities(
            loads=("tma", *THREAD_LOADS),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "dynamic"),
            consumers=(2,),
            multicast=True,
        ),
    },
    limits=Roles(
        producers=1,
        accumulators={1: 144, 2: 192, 3: 128},
        laden={1: 144, 2: 128, 3: 96},
        turns={False: 192, True: 128},
        # 208 columns of a turn; 224 spill
        plain_accumulators=208,
        plain_registers=(24, 240),
        # a gathering producer with fewer than 96 spills its loads in flight
        shared_accumulators={1: 96, 2: 48},
        shared_registers={1: (40, 216), 2: (24, 104)},
        registers={False: {2: (40, 232), 3: (32, 160)}, True: {2: (96, 200), 3: (96, 136)}},
    ),
)
