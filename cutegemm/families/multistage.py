# SPDX-License-Identifier: Apache-2.0
"""No warp specialisation: every warpgroup computes, one thread also loads."""

from cutegemm.families.family import Family, Roles

FAMILY = Family(
    name="multistage",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.multistage:MultistageGemm",
    plan="cutegemm.planning.tensor_core:plan_tensor_core",
    weigh="cutegemm.planning.why:weigh_tensor_core",
    schedules=("multistage",),
    limits=Roles(producers=0, accumulators={1: 160, 2: 160, 3: 128}, shared_accumulators={1: 160, 2: 64}),
)
